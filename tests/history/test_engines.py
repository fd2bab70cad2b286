"""Every memory against the dense matrix, forward and transposed, and the gradient of its weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfde.door.names import HISTORIES
from neuralfde.history import FFT, Block, Full, Window
from tests.stubs import F64, relative
from tests.walking import blocks, walk

ENGINES = [
    Full(block=8),
    Full(block=64),
    Full(block=8, host=True),
    FFT(block=4, growth=2),
    FFT(block=2, growth=4),
    Window(1),
    Window(7, block=4),
    Window(500),
]
#: A window needs a length; test_exponentials.py holds the one history that is not exact to its own matrix.
REGISTRY = [h for name, h in HISTORIES.items() if h is not None and name != "exponentials"]


def dense(weights: torch.Tensor, steps: int, window: int | None) -> torch.Tensor:
    """(sums, groups, row, column), strictly lower triangular."""
    lag = torch.arange(steps + 1)[:, None] - torch.arange(steps + 1)
    inside = (lag >= 1) & (lag <= (window or steps))
    return torch.where(inside[None, None], weights.permute(0, 2, 1)[..., lag.clamp(0)], 0.0)


def test_every_history_of_the_registry_is_held_to_a_matrix():
    assert {"full", "fft", "window", "exponentials", "auto"} == set(HISTORIES), "add the new one to a contract test"


@pytest.mark.parametrize("rooms", [False, True], ids=["anywhere", "in a room"])
@pytest.mark.parametrize("history", ENGINES + REGISTRY, ids=repr)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("steps", [1, 5, 37, 150])
def test_forward_and_transposed_passes_equal_the_dense_matrix(history, groups, sums, steps, rooms):
    torch.manual_seed(0)
    weights = torch.rand(sums, steps + 1, groups, dtype=F64)
    rows = torch.randn(steps + 1, 1, groups, 4, dtype=F64)
    big = dense(weights, steps, getattr(history, "length", None))
    got = walk(history.forward(weights, steps, rows[0, 0]), rows, steps, rooms=rooms)
    want = torch.einsum("kgnj,jgm->nkgm", big, rows[:, 0])
    assert got[0].abs().max() == 0
    for n in range(1, steps + 1):
        assert relative(got[n], want[n]) < 1e-13

    rows = torch.randn(steps + 1, sums, groups, 4, dtype=F64)  # in the order of the steps
    memory = history.reverse(weights, steps, rows[0, 0], None, False)
    got = walk(memory, rows.flip(0), steps, rooms=rooms).flip(0)
    want = torch.einsum("kgnj,nkgm->jgm", big, rows)
    assert got[-1].abs().max() == 0
    for n in range(steps):
        assert relative(got[n, 0], want[n]) < 1e-13


@pytest.mark.parametrize("history", ENGINES + REGISTRY, ids=repr)
@pytest.mark.parametrize("steps", [29, 150])
def test_weight_gradients_equal_the_dense_ones(history, steps):
    torch.manual_seed(0)
    groups, sums = 2, 2
    weights = torch.rand(sums, steps + 1, groups, dtype=F64, requires_grad=True)
    slopes = torch.randn(steps + 1, groups, 3, dtype=F64)
    mu = torch.randn(steps + 1, sums, groups, 3, dtype=F64)
    value = torch.einsum("kgnj,jgm,nkgm->", dense(weights, steps, getattr(history, "length", None)), slopes, mu)
    (want,) = torch.autograd.grad(value, weights)
    memory = history.reverse(weights.detach(), steps, slopes[0], None, True)
    walk(memory, mu.flip(0), steps, slopes.flip(0))
    assert memory.weights_grad is not None
    assert relative(memory.weights_grad.permute(0, 2, 1), want) < 1e-13


@pytest.mark.parametrize("history", [Full(block=8), Full(), Full(block=3, host=True)], ids=repr)
@pytest.mark.parametrize("sums", [1, 2])
def test_weights_that_are_no_function_of_the_lag(history, sums):
    """A graded grid: a triangular matrix of its own, with its transpose and its gradient."""
    torch.manual_seed(0)
    steps, groups = 37, 2
    weights = torch.rand(sums, steps + 1, steps + 1, groups, dtype=F64, requires_grad=True)
    v, mu = torch.randn(steps + 1, groups, 3, dtype=F64), torch.randn(steps + 1, sums, groups, 3, dtype=F64)
    big = weights.movedim(-1, 1).tril(-1)
    got = walk(history.forward(weights.detach(), steps, v[0]), v[:, None], steps)
    assert relative(got, torch.einsum("kgnj,jgm->nkgm", big, v)) < 1e-13
    memory = history.reverse(weights.detach(), steps, v[0], None, True)
    back = walk(memory, mu.flip(0), steps, v.flip(0)).flip(0)[:, 0]
    assert relative(back, torch.einsum("kgnj,nkgm->jgm", big, mu)) < 1e-13
    (want,) = torch.autograd.grad(torch.einsum("kgnj,jgm,nkgm->", big, v, mu), weights)
    assert memory.weights_grad is not None
    assert relative(memory.weights_grad.movedim(1, -1), want) < 1e-13


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.sampled_from([1, 2, 5, 16]), st.integers(2, 5), st.integers(0, 10**6))
def test_transpose_is_a_law(steps, block, growth, seed):
    """⟨W v, μ⟩ = ⟨v, Wᵀ μ⟩ for any sizes."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(1, steps + 1, 1, dtype=F64, generator=g)
    v, mu = (torch.randn(steps + 1, 1, 1, 2, dtype=F64, generator=g) for _ in range(2))
    for history in (Full(block=block), FFT(block=block, growth=growth), Window(1 + seed % steps, block=block)):
        forward = walk(history.forward(weights, steps, v[0, 0]), v, steps)
        back = walk(history.reverse(weights, steps, v[0, 0], None, False), mu.flip(0), steps).flip(0)
        left, right = float((forward * mu).sum()), float((back * v).sum())
        assert abs(left - right) < 1e-9 * (1 + abs(left))


@pytest.mark.parametrize("history", [*ENGINES, *REGISTRY, Window(70)], ids=repr)
def test_sums_are_replayed_and_states_restored(history):
    """What a memory says it can do: all sums again from its slopes, or go on from a kept state."""
    torch.manual_seed(0)
    steps = 150
    weights, v = torch.rand(2, steps + 1, 2, dtype=F64), torch.randn(steps + 1, 1, 2, 3, dtype=F64)
    memory = history.forward(weights, steps, v[0, 0])
    if history.keeps_slopes:
        sums = walk(memory, v, steps)
        high = steps + 1
        while high > 0:
            low = max(0, high - memory.replay_block)
            assert relative(memory.replay(low, high - low), sums[low:high]) < 1e-13 or low == 0 == high - 1
            high = low
        assert torch.equal(memory.kept(17), v[17, 0])
    if history.snapshots:
        sums = walk(memory, v, steps)
        memory = history.forward(weights, steps, v[0, 0])
        kept = {}
        for block in blocks(memory, steps):
            kept[block.start] = memory.snapshot(block.start) if block.start else None
            memory.recall(block)
            memory.record(block, v[block.start : block.stop])
        for start in sorted(kept, reverse=True):
            memory.restore(kept[start])
            block = Block(start, min(memory.block, steps + 1 - start))
            recalled, inner = memory.recall(block), memory.inner(block)
            inside = torch.einsum("grojc,jcgm->rogm", inner, v[start : block.stop])
            memory.record(block, v[start : block.stop])
            total = inside if recalled is None else inside + recalled
            assert relative(total[1:], sums[start : block.stop][1:]) < 1e-13 or block.count == 1


def test_a_backward_pass_may_take_over_the_room_of_the_forward_pass():
    torch.manual_seed(0)
    steps = 300
    for history in (Full(), FFT(block=8, growth=2)):
        weights = (torch.arange(steps + 1, dtype=F64) + 1.0).pow(-0.5)[None, :, None].repeat(2, 1, 1)
        v, mu = torch.randn(steps + 1, 1, 1, 3, dtype=F64), torch.randn(steps + 1, 2, 1, 3, dtype=F64)
        used = history.forward(weights, steps, v[0, 0])
        walk(used, v, steps)
        own = walk(history.reverse(weights, steps, v[0, 0], None, False), mu.flip(0), steps)
        assert relative(walk(history.reverse(weights, steps, v[0, 0], used, False), mu.flip(0), steps), own) < 1e-13


def test_float32_fft_sums_are_accurate():
    torch.manual_seed(0)
    steps = 3000
    weights = (torch.arange(steps + 1, dtype=F64) + 1.0).pow(-0.5)[None, :, None]
    rows = torch.randn(steps + 1, 1, 1, 2)
    sums = [walk(h.forward(weights.float(), steps, rows[0, 0]), rows, steps)[1:] for h in (Full(), FFT())]
    assert relative(sums[1], sums[0]) < 1e-5
