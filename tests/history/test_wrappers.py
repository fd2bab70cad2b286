"""What a solve adds to its memory is linear and has its transpose: initial values, a resumed past, starting weights,
output between nodes. Blocks may be shorter than the number of starting weights."""

import pytest
import torch

from neuralfde.history import FFT, Full, Window
from neuralfde.history.wrappers import (
    Between,
    BetweenGradient,
    Initial,
    InitialGradient,
    Starting,
    StartingGradient,
    assembled,
    transposed,
)
from tests.stubs import F64, relative
from tests.walking import walk

GROUPS, WIDTH = 2, 3
HISTORIES = [Full(block=1), Full(block=3), Full(block=64), FFT(block=2, growth=2), Window(500, block=5)]
SIZES = [(1, 1), (1, 2), (7, 1), (20, 2), (33, 1)]


def draw(*shape):
    return torch.randn(*shape, dtype=F64)


class Parts:
    """Everything that a solve may have, at random, in the shapes of the package."""

    def __init__(self, steps, sums, starts=4, initials=2, times=5):
        torch.manual_seed(steps + 10 * sums)
        self.steps, self.sums = steps, sums
        self.weights = torch.rand(sums, steps + 1, GROUPS, dtype=F64).requires_grad_()
        self.initial = draw(initials, GROUPS, WIDTH).requires_grad_()
        self.base = draw(initials, steps + 1 + times, GROUPS).requires_grad_()
        self.start = draw(sums if starts == 4 else 1, min(starts, steps + 1), steps + 1, GROUPS).requires_grad_()
        self.dense = draw(times, steps + 1, GROUPS).requires_grad_()
        self.v, self.mu = draw(steps + 1, GROUPS, WIDTH), draw(steps + 1, sums, GROUPS, WIDTH)
        self.grads = draw(times, GROUPS, WIDTH)

    def matrix(self):
        """(sums, row, column, groups)."""
        lag = torch.arange(self.steps + 1)[:, None] - torch.arange(self.steps + 1)
        return torch.where((lag > 0)[..., None], self.weights[:, lag.clamp(min=0)], 0.0)

    def forward(self, history):
        return history.forward(self.weights.detach(), self.steps, self.v[0])

    def reverse(self, history, weigh=True):
        return history.reverse(self.weights.detach(), self.steps, self.v[0], None, weigh)

    def back(self, memory):
        return walk(memory, self.mu.flip(0), self.steps, self.v.flip(0)).flip(0)[:, 0]

    def sums_of(self, matrix):
        return torch.einsum("knjg,jgm->nkgm", matrix, self.v)


def replayed(memory, steps):
    """All sums again, from the last ones to the first, as the backward pass asks for them."""
    found, high = [], steps + 1
    while high > 0:
        low = max(0, high - memory.replay_block)
        found.append(memory.replay(low, high - low))
        high = low
    return torch.cat(found[::-1])


def starting_matrix(p):
    """The weights that the first slopes have beside those of their lags, in the first sums of later steps."""
    later = torch.arange(p.start.shape[1])[:, None] < torch.arange(p.steps + 1)
    found = torch.zeros(p.sums, p.steps + 1, p.steps + 1, GROUPS, dtype=F64)
    first = torch.where(later[..., None], p.start, 0.0).transpose(1, 2)
    whole = torch.nn.functional.pad(first, (0, 0, 0, p.steps + 1 - first.shape[2]))
    return torch.cat([whole, found[len(whole) :]])


@pytest.mark.parametrize("history", HISTORIES, ids=repr)
@pytest.mark.parametrize(("steps", "sums"), SIZES)
def test_initial_values(history, steps, sums):
    p = Parts(steps, sums)
    plain = p.sums_of(p.matrix())
    for initial, base, line in (
        (p.initial[0], None, p.initial[0].expand(steps + 1, GROUPS, WIDTH)),
        (p.initial, p.base, torch.einsum("ing,igm->ngm", p.base[:, : steps + 1], p.initial)),
    ):
        first, rows = initial.detach(), None if base is None else base.detach()
        for rooms in (False, True):
            got = walk(Initial(p.forward(history), first, rows, sums), p.v[:, None], steps, rooms=rooms)
            assert relative(got, plain + line[:, None]) < 1e-13
        memory = InitialGradient(p.reverse(history), steps, first, rows, weigh=True)
        back = p.back(memory)
        assert relative(back, torch.einsum("knjg,nkgm->jgm", p.matrix(), p.mu)) < 1e-13
        value = (line[:, None] * p.mu).sum()
        inputs = [p.initial] if base is None else [p.initial, p.base]
        want = torch.autograd.grad(value, inputs)
        assert relative(memory.gradient, want[0][0] if base is None else want[0]) < 1e-13
        if base is not None:
            assert relative(memory.base_grad, want[1]) < 1e-13
            # ⟨W v + base, μ⟩ is linear in v, in the initial values and in base
            total = float((got * p.mu).sum())
            parts = float((back * p.v).sum()), float((memory.gradient * first).sum())
            assert total == pytest.approx(sum(parts), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("history", HISTORIES, ids=repr)
@pytest.mark.parametrize(("steps", "sums"), SIZES)
def test_a_resumed_past(history, steps, sums):
    p = Parts(steps, sums)
    known = draw(steps + 1, sums, GROUPS, WIDTH)
    before = known.clone()
    for rooms in (False, True):
        memory = Initial(p.forward(history), torch.zeros_like(known[0, 0]), None, known.shape[1], known)
        got = walk(memory, p.v[:, None], steps, rooms=rooms)
        assert relative(got, p.sums_of(p.matrix()) + known) < 1e-13
    assert torch.equal(known, before)  # the state of a solve can be gone on from twice
    if history.keeps_slopes:
        assert relative(replayed(memory, steps), got) < 1e-13


@pytest.mark.parametrize("history", HISTORIES, ids=repr)
@pytest.mark.parametrize(("steps", "sums"), SIZES)
@pytest.mark.parametrize("starts", [1, 4])
def test_starting_weights(history, steps, sums, starts):
    p = Parts(steps, sums, starts)
    zero = torch.zeros(GROUPS, WIDTH, dtype=F64)
    extra = starting_matrix(p)
    want = p.sums_of(p.matrix() + extra)
    for rooms in (False, True):
        memory = Starting(Initial(p.forward(history), zero, None, sums), p.start.detach())
        got = walk(memory, p.v[:, None], steps, rooms=rooms)
        assert relative(got, want) < 1e-13
    assert torch.equal(memory.heads, p.v[: p.start.shape[1]])
    if history.keeps_slopes:
        assert relative(replayed(memory, steps), want) < 1e-13

    back = StartingGradient(p.reverse(history), steps, p.start.detach(), memory.heads, weigh=True)
    found = p.back(back)
    assert relative(found, torch.einsum("knjg,nkgm->jgm", p.matrix() + extra, p.mu)) < 1e-13
    assert float((got * p.mu).sum()) == pytest.approx(float((found * p.v).sum()), rel=1e-11, abs=1e-11)
    (by_start,) = torch.autograd.grad((want * p.mu).sum(), p.start)
    assert relative(back.start_grad, by_start) < 1e-13


@pytest.mark.parametrize("history", HISTORIES, ids=repr)
@pytest.mark.parametrize(("steps", "sums"), SIZES)
def test_output_between_nodes(history, steps, sums):
    p = Parts(steps, sums)
    begin = draw(5, GROUPS, WIDTH)
    states = begin + torch.einsum("ong,ngm->ogm", p.dense, p.v)
    memory = Between(p.forward(history), p.dense.detach(), begin.clone())
    got = walk(memory, p.v[:, None], steps)
    assert relative(got, p.sums_of(p.matrix())) < 1e-13
    assert relative(memory.states, states) < 1e-13

    back = BetweenGradient(p.reverse(history), steps, p.dense.detach(), p.grads, weigh=True)
    found = p.back(back)
    left = float((got * p.mu).sum() + ((memory.states - begin) * p.grads).sum())
    assert left == pytest.approx(float((found * p.v).sum()), rel=1e-11, abs=1e-11)
    (by_dense,) = torch.autograd.grad((states * p.grads).sum(), p.dense)
    assert relative(back.dense_grad, by_dense) < 1e-13


@pytest.mark.parametrize("history", HISTORIES, ids=repr)
@pytest.mark.parametrize(("steps", "sums"), SIZES)
@pytest.mark.parametrize("with_base", [False, True])
def test_all_of_them_at_once(history, steps, sums, with_base):
    """Values and the gradient of every input against autograd through the dense matrices."""
    p = Parts(steps, sums)
    initial, base = (p.initial, p.base) if with_base else (p.initial[0], None)
    v = p.v.clone().requires_grad_()
    line = p.initial[0].expand(steps + 6, GROUPS, WIDTH)
    if with_base:
        line = torch.einsum("ing,igm->ngm", p.base, p.initial)
    want = torch.einsum("knjg,jgm->nkgm", p.matrix() + starting_matrix(p), v) + line[: steps + 1, None]
    between = line[steps + 1 :] + torch.einsum("ong,ngm->ogm", p.dense, v)

    given = [x if x is None else x.detach() for x in (initial, base, p.start, p.dense)]
    tables: dict = {}
    for _ in range(2):  # the second time with the tables of the first
        parts = assembled(p.forward(history), given[0], sums, given[2], given[3], given[1], None, tables)
        assert relative(walk(parts.memory, p.v[:, None], steps), want) < 1e-13
    assert len(tables) == 1
    assert relative(parts.between.states, between) < 1e-13

    for _ in range(2):
        back = transposed(
            p.reverse(history), given[0], steps, given[2], given[3], given[1], parts.starting.heads, p.grads, True,
            tables,
        )  # fmt: skip
        by_v = p.back(back.memory)
    assert len(tables) == 2
    value = (want * p.mu).sum() + (between * p.grads).sum()
    inputs = [v, p.initial, p.start, p.dense, p.weights, *([p.base] if with_base else [])]
    grads = torch.autograd.grad(value, inputs)
    assert relative(by_v, grads[0]) < 1e-12
    assert relative(back.initial_grad(), grads[1] if with_base else grads[1][0]) < 1e-12
    assert relative(back.starting.start_grad, grads[2]) < 1e-12
    assert relative(back.between.dense_grad, grads[3]) < 1e-12
    engine = back.initial.memory
    assert relative(engine.weights_grad.permute(0, 2, 1), grads[4]) < 1e-12
    if with_base:
        assert relative(back.base_grad(), grads[5]) < 1e-12
    else:
        assert back.base_grad() is None
