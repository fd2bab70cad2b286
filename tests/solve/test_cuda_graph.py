"""Blocks of steps as CUDA graphs: the numbers and the bookkeeping, with graphs that only pretend."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.base.policy import GRAPHS_KEPT, SPLIT_PASSES
from neuralfde.base.structure import structure_of
from neuralfde.door.names import METHODS
from neuralfde.rhs.field import Field as Right
from neuralfde.rhs.first import first_evaluation
from neuralfde.solve.steppers import graph_cache, static
from neuralfde.solve.steppers.static import Static
from neuralfde.storage import Device
from tests.solve.pretend import pretend_a_gpu
from tests.stubs import F64

EXPLICIT = [*[name for name, scheme in METHODS.items() if not scheme.implicit], nf.ABM(corrections=3)]
HISTORIES = [
    *[(h, "device") for h in ("full", "fft", "exponentials", nf.Window(80), nf.Full(8))],
    *[(h, s) for h in ("exponentials", nf.Window(40)) for s in ("host", "checkpoint")],  # the others keep their rows
    ("full", "host"),
]


@pytest.fixture
def captures(monkeypatch):
    """How often something was captured."""
    return pretend_a_gpu(monkeypatch)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.unused = nn.Linear(2, 2)
        self.scale = 1.0

    def forward(self, t, z, u=None):
        v = self.net(z) * self.scale - 0.1 * t * z
        return v if u is None else v + u


def gradients(func, stepper, method="predictor", steps=100, history="full", t=2.0, learned=True, **options):
    torch.manual_seed(1)
    z0 = torch.randn(4, 3, dtype=F64, requires_grad=True)
    order = torch.tensor(options.pop("order", 0.6), dtype=F64, requires_grad=learned)
    u = torch.randn(3, dtype=F64, requires_grad=True)
    func.zero_grad()
    y = nf.fdeint(
        func, z0, t, order, steps=steps, method=method, history=history, args=(u,), stepper=stepper, **options
    )
    (y**2).sum().backward()
    used = [p.grad for p in func.net.parameters()]
    assert func.unused.weight.grad is None
    return [y.detach(), z0.grad, *([order.grad] if learned else []), u.grad, *used]


def assert_close(a, b, tol=1e-12):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tol, atol=tol)


def held(func):
    """The static buffers that are kept for a func."""
    return [x for x in graph_cache._CACHE.get(func, {}).values() if isinstance(x, Static)]


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("t", [2.0, [0.0, 0.5, 1.9, 2.0]], ids=["terminal", "trajectory"])
@pytest.mark.parametrize(("history", "storage"), HISTORIES, ids=str)
@pytest.mark.parametrize("method", EXPLICIT, ids=str)
def test_replayed_blocks_give_the_numbers_of_single_steps(captures, method, history, storage, t, learned):
    func, t = Field(), torch.tensor(t, dtype=F64) if isinstance(t, list) else t
    options = {"method": method, "history": history, "storage": storage, "t": t, "learned": learned, "steps": 80}
    single = gradients(func, "single", **options)
    assert not captures
    assert_close(gradients(func, "cuda-graph", **options), single)
    first = len(captures)
    assert first >= 2
    assert_close(gradients(func, "cuda-graph", **options), single)
    assert len(captures) == first


@pytest.mark.parametrize("steps", [1, 2, 5, 62, 63, 64, 65, 100, 127, 128, 190, 300])
@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_any_number_of_steps(captures, method, steps):
    func = Field()
    single = gradients(func, "single", method, steps=steps)
    for _ in range(2):
        assert_close(gradients(func, "cuda-graph", method, steps=steps), single)
    sizes = [min(64, steps + 1 - start) for start in range(0, steps + 1, 64)]
    backward = sizes[:-1] if method == "abm" else sizes  # the initial row has no local weight
    assert len(captures) == len(set(sizes)) + len(set(backward))


@pytest.mark.parametrize("method", ["predictor", "abm", "l1-explicit"])
@pytest.mark.parametrize(
    "options",
    [
        {"order": [0.5, 0.7, 0.9]},
        {"grading": 2.0},
        {"grading": 2.0, "order": [0.5, 0.7, 0.9]},
        {"t": torch.tensor([0.0, 0.511, 1.203, 2.0], dtype=F64)},
    ],
    ids=str,
)
def test_orders_of_their_own_graded_grids_and_times_between_nodes(captures, method, options):
    func = Field()
    single = gradients(func, "single", method, **options)
    for _ in range(2):
        assert_close(gradients(func, "cuda-graph", method, **options), single, 1e-11)
    assert captures


def test_exponentials_on_a_mesh(captures):
    func, options = Field(), {"steps": None, "grid": 2 * torch.linspace(0, 1, 101, dtype=F64) ** 2}
    for method in ("predictor", nf.ABM(ahead=True)):
        single = gradients(func, "single", method, history="exponentials", **options)
        for _ in range(2):
            assert_close(gradients(func, "cuda-graph", method, history="exponentials", **options), single, 1e-11)
    assert captures


def timed(monkeypatch, split, plain):
    """Graphs of a split backward pass and of a plain one are said to take so long."""
    times = iter([split, plain])
    monkeypatch.setattr(static, "SPLIT_PASSES", SPLIT_PASSES)
    monkeypatch.setattr(static, "milliseconds", lambda graph: next(times))


@pytest.mark.parametrize("history", ["full", "exponentials"])
def test_auto_splits_the_backward_pass_of_a_training_where_that_is_measured_to_be_faster(
    captures, monkeypatch, history
):
    func = Field()
    single = gradients(func, "single", history=history)
    timed(monkeypatch, 1.0, 2.0)
    for split in (None, None, True, True):  # the passes before the third one only count
        assert_close(gradients(func, "auto", history=history), single)
        assert [buffers.split for buffers in held(func)] == [split]
    assert len(captures) == 6  # two lengths of a block, forward, backward, and split
    z0, u = torch.randn(4, 3, dtype=F64), torch.randn(3, dtype=F64)
    with torch.no_grad():
        stats = nf.solve(func, z0, 2.0, 0.6, steps=100, history=history, args=(u,)).stats
    assert stats.stepper == "cuda-graph"


def test_the_stats_of_later_solves_say_that_it_was_split(captures, monkeypatch):
    func, u = Field(), torch.randn(3, dtype=F64)
    timed(monkeypatch, 1.0, 2.0)
    told = []
    for _ in range(4):
        found = nf.solve(func, torch.randn(4, 3, dtype=F64), 2.0, 0.6, steps=100, args=(u,))
        told.append("measured to be faster" in found.stats.why)
        found.ys.sum().backward()
    assert told == [False, False, False, True]


@pytest.mark.parametrize("options", [{}, {"method": "abm"}, {"steps": 63}], ids=str)
def test_it_is_not_split_where_that_is_slower_or_not_worth_a_try(captures, monkeypatch, options):
    func = Field()
    single = gradients(func, "single", **options)
    timed(monkeypatch, 2.0, 2.0)
    for _ in range(5):
        assert_close(gradients(func, "auto", **options), single)
    assert [buffers.split for buffers in held(func)] == [False]
    assert all(buffers.parts is None for buffers in held(func))


class Doubtful(torch.autograd.Function):
    """The gradient is not that of the operations."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


def test_a_function_with_a_gradient_of_its_own_is_not_split(captures, monkeypatch):
    class Own(Field):
        def forward(self, t, z, u=None):
            return Doubtful.apply(super().forward(t, z, u))

    func = Own()
    single = gradients(func, "single")
    timed(monkeypatch, 1.0, 2.0)
    for _ in range(4):
        assert_close(gradients(func, "auto"), single)
    assert [buffers.split for buffers in held(func)] == [False]


def test_a_second_initial_value_and_a_resumed_solve(captures):
    func, z0 = Field(), torch.randn(4, 3, dtype=F64)
    for options in ({"order": 1.4, "velocity": torch.ones_like(z0)}, {"order": nf.Tempered(0.6, 0.3)}):
        one, two = (nf.fdeint(func, z0, 1.0, steps=90, stepper=s, **options) for s in ("single", "cuda-graph"))
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)
    whole = nf.fdeint(func, z0, 2.0, 0.6, steps=180, method="abm", stepper="single")
    half = nf.solve(func, z0, 1.0, 0.6, steps=90, method="abm", stepper="cuda-graph", resume=True)
    rest = nf.solve(func, z0, 2.0, 0.6, method="abm", stepper="cuda-graph", past=half.state)
    torch.testing.assert_close(rest.ys[-1], whole, rtol=1e-12, atol=1e-12)
    assert captures


def test_nested_states(captures):
    class Tree(Field):
        def forward(self, t, z, u=None):
            return {"x": super().forward(t, z["x"], u) - z["y"].sum(), "y": (-z["y"] * t)}

    func, z0 = Tree(), {"x": torch.randn(4, 3, dtype=F64), "y": torch.ones(5, dtype=F64)}
    found = []
    for stepper in ("single", "cuda-graph"):
        out = nf.fdeint(func, z0, 1.0, 0.7, steps=100, stepper=stepper)
        grads = torch.autograd.grad(out["x"].square().sum() + out["y"].sum(), list(func.net.parameters()))
        found.append([out["x"].detach(), out["y"].detach(), *grads])
    assert_close(*found)
    assert captures


def test_callbacks_evaluations_and_what_ran(captures):
    func, z0, seen = Field(), torch.randn(4, 3, dtype=F64), []
    options = {"steps": 100, "callback": lambda n, total: seen.append((n, total))}
    found = nf.solve(func, z0, 2.0, 0.6, stepper="cuda-graph", **options)
    assert found.stats.stepper == "cuda-graph"
    assert seen == [(n, 100) for n in range(101)]
    found.ys.sum().backward()
    assert seen == 2 * [(n, 100) for n in range(101)]
    single = nf.solve(func, z0, 2.0, 0.6, steps=100, stepper="single")
    # a graph does not know which step is the first, whose slope is known, nor the last, whose slope nobody needs
    assert (
        0
        <= nf.solve(func, z0, 2.0, 0.6, steps=100, stepper="cuda-graph").stats.evaluations - (single.stats.evaluations)
        <= 2
    )


def test_an_explosion_is_told_at_the_step_where_it_happens(captures):
    class Cubic(nn.Module):
        def forward(self, t, z):
            return z**3

    messages = []
    for stepper in ("single", "cuda-graph"):
        with pytest.raises(nf.NonFiniteError) as error:
            nf.fdeint(Cubic(), torch.full((3,), 2.0, dtype=F64), 2.0, 0.9, steps=200, stepper=stepper)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


# ---- when something is captured --------------------------------------------------------------------------------------


def test_captured_once_and_again_when_something_changes(captures):
    func = Field()
    gradients(func, "auto")
    assert len(captures) == 4  # forward and backward, a whole block and the rest
    gradients(func, "auto")
    assert len(captures) == 4
    gradients(func, "auto", steps=70)
    assert len(captures) == 6  # the number of steps is no part of a block, but for another rest
    gradients(func, "auto", order=0.8)  # the numbers of the scheme are inputs
    assert len(captures) == 6
    func.scale = 2.0  # a number in Python, which a graph would keep as it was
    assert_close(gradients(func, "auto"), gradients(func, "single"))
    assert len(captures) == 10
    func.eval()
    gradients(func, "auto")
    assert len(captures) == 14
    assert_close(gradients(func, "auto", "abm"), gradients(func, "single", "abm"))
    assert len(captures) > 14


def test_parameters_and_arguments_may_change_in_place(captures):
    func = Field()
    gradients(func, "auto")
    with torch.no_grad():
        for p in func.parameters():
            p.mul_(0.9)
    assert_close(gradients(func, "auto"), gradients(func, "single"))
    z0, count = torch.randn(4, 3, dtype=F64), len(captures)
    for u in (torch.ones(3, dtype=F64), torch.zeros(3, dtype=F64)):
        one, two = (nf.fdeint(func, z0, 2.0, 0.6, steps=100, args=(u,), stepper=s) for s in ("single", "auto"))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    assert len(captures) == count + 2  # an argument without a gradient: forward only, once


def test_parameters_that_are_replaced_frozen_or_moved_are_captured_again(captures):
    func = Field()
    gradients(func, "auto")
    count = len(captures)
    func.net[0].weight = nn.Parameter(func.net[0].weight.detach() * 2)
    assert_close(gradients(func, "auto"), gradients(func, "single"))
    assert len(captures) == count + 4
    func.net[0].bias.requires_grad_(False)
    func.net[0].bias.grad = None
    z0 = torch.randn(4, 3, dtype=F64)
    found = []
    for stepper in ("auto", "single"):
        y = nf.fdeint(func, z0, 2.0, 0.6, steps=100, stepper=stepper).square().sum()
        found.append(torch.autograd.grad(y, [p for p in func.net.parameters() if p.requires_grad]))
    assert_close(*found)


def test_arguments_of_equal_value_and_other_type_are_told_apart(captures):
    class Typed(Field):
        def forward(self, t, z, a=None):
            return super().forward(t, z) * (3.0 if a is True else 2.0 if isinstance(a, int) else 1.0)

    func, z0 = Typed(), torch.randn(4, 3, dtype=F64)
    for a in (1, 1.0, True, 1):
        one, two = (nf.fdeint(func, z0, 2.0, 0.6, steps=100, args=(a,), stepper=s) for s in ("single", "auto"))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_few_steps_wait_for_the_third_solve(captures):
    func = Field()
    single = gradients(func, "single", steps=5)
    for _ in range(2):
        assert_close(gradients(func, "auto", steps=5), single)
        assert not captures
    assert "captured if it comes again" in nf.solve(Field(), torch.randn(4, 3, dtype=F64), 1.0, 0.6, steps=5).stats.why
    assert_close(gradients(func, "auto", steps=5), single)
    assert len(captures) == 2


def test_no_more_shapes_are_kept_than_allowed(captures):
    func = Field()
    for batch in range(1, GRAPHS_KEPT + 4):
        nf.fdeint(func, torch.randn(batch, 3, dtype=F64), 2.0, 0.6, steps=100)
    assert len(graph_cache._CACHE[func]) == GRAPHS_KEPT


# ---- who holds the graphs --------------------------------------------------------------------------------------------


def test_released_with_the_func(captures):
    func = Field()
    gradients(func, "auto", steps=300)
    (kept,) = held(func)
    gone, alive = weakref.ref(func), weakref.ref(kept)
    for graph in kept.graphs.values():
        graph.captured.call = None  # a real graph holds no Python function
    del func, kept, graph
    gc.collect()
    assert gone() is None
    assert alive() is None


def test_dropped_when_asked(captures):
    func = Field()
    gradients(func, "auto")
    graph_cache.drop(func)
    assert func not in graph_cache._CACHE
    count = len(captures)
    assert_close(gradients(func, "auto"), gradients(func, "single"))
    assert len(captures) == 2 * count


def test_two_models_interleaved(captures):
    a, b = Field(), Field()
    z0 = torch.randn(4, 3, dtype=F64)
    expected = [gradients(f, "single") for f in (a, b)]

    def loss(f):
        return (nf.fdeint(f, z0, 2.0, 0.6, steps=100, adjoint="exact") ** 2).sum()

    expected = [[x.clone() for x in found] for found in expected]  # or the gradients below would be added to them
    a.zero_grad()
    first, second = loss(a), loss(b)
    third = loss(a)  # before the first one's backward pass
    first.backward()
    once = [p.grad.clone() for p in a.net.parameters()]
    b.zero_grad()
    second.backward()
    a.zero_grad()
    third.backward()
    assert_close([p.grad for p in a.net.parameters()], once)
    assert_close(gradients(a, "auto"), expected[0])
    assert_close(gradients(b, "auto"), expected[1])


def test_a_solve_inside_a_solve_does_not_share_its_graphs(captures):
    func, z0 = Field(), torch.randn(4, 3, dtype=F64)
    expected = nf.fdeint(func, z0, 2.0, 0.6, steps=100, stepper="single")
    inside = []

    def again(n, total):
        if n == 50:
            with torch.enable_grad():  # as outside: without gradients func does something else, and has other graphs
                inside.append(nf.solve(func, z0, 2.0, 0.6, steps=100))
            inside.append(nf.solve(func, z0, 2.0, 0.6, steps=100))

    found = nf.solve(func, z0, 2.0, 0.6, steps=100, callback=again)
    assert found.stats.stepper == "cuda-graph"
    assert inside[0].stats.stepper == "single"
    assert "another solve is using" in inside[0].stats.why
    for solution in (found, *inside):
        torch.testing.assert_close(solution.ys[-1], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("when", [50, 150])  # in the forward pass, and in the backward pass
def test_an_exception_in_the_middle_gives_the_graphs_back(captures, when):
    func, seen = Field(), []
    expected = gradients(func, "single")

    def stop(n, total):
        seen.append(n)
        if len(seen) == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gradients(func, "auto", callback=stop)
    (kept,) = held(func)
    assert not kept.busy
    assert_close(gradients(func, "auto"), expected)


def test_a_pass_that_never_begins_gives_the_graphs_back(captures, monkeypatch):
    func, options = Field(), {"history": "exponentials"}
    expected = gradients(func, "single", **options)

    def full(*given):
        raise torch.OutOfMemoryError("no room for the rows")

    with monkeypatch.context() as patch:
        patch.setattr(Device, "open", full)
        with pytest.raises(torch.OutOfMemoryError):
            gradients(func, "auto", **options)
    assert not any(kept.busy for kept in held(func))
    assert_close(gradients(func, "cuda-graph", **options), expected)


# ---- what cannot be captured -----------------------------------------------------------------------------------------


def test_falls_back_with_one_line(captures, monkeypatch, caplog):
    def refuse(*given):
        raise RuntimeError("operation not permitted when stream is capturing")

    func = Field()
    single = gradients(func, "single")
    monkeypatch.setattr(static, "capture", refuse)
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        for _ in range(3):
            assert_close(gradients(func, "auto"), single)
    assert len(caplog.records) == 1
    assert "not permitted" in caplog.text
    found = nf.solve(func, torch.randn(4, 3, dtype=F64), 2.0, 0.6, steps=100)
    assert found.stats.stepper == "single"
    with pytest.raises(nf.InputError, match=r"stepper='cuda-graph' cannot take these steps: .*not permitted"):
        gradients(Field(), "cuda-graph")
    with pytest.raises(nf.InputError, match=r"stepper='cuda-graph' cannot take these steps: .*not permitted"):
        gradients(func, "cuda-graph")  # which is known by now


@pytest.mark.parametrize(("history", "storage"), [("full", "device"), ("exponentials", "checkpoint")])
def test_backward_that_cannot_be_captured_runs_step_by_step(captures, monkeypatch, caplog, history, storage):
    func, options = Field(), {"history": history, "storage": storage}
    single = gradients(func, "single", **options)

    def refuse(*given):
        raise RuntimeError("no")

    monkeypatch.setattr(Static, "_capture_backward", refuse)
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        for _ in range(2):
            assert_close(gradients(func, "auto", **options), single)
    assert len(caplog.records) == 1
    with pytest.raises(nf.InputError, match="stepper='cuda-graph'"):
        gradients(Field(), "cuda-graph", **options)


class Twice(nn.Module):
    """Uses its weights from a list beside its parameters, as some recurrent layers do."""

    def __init__(self):
        super().__init__()
        self.net, self.unused = nn.Linear(3, 3, dtype=F64), nn.Linear(2, 2)
        self.kept = list(self.net.parameters())

    def forward(self, t, z, u):
        weight, bias = self.kept
        return torch.tanh(z @ weight + bias) - z + u


@pytest.mark.parametrize("steps", [100, 300])
def test_a_func_that_holds_its_parameters_twice_runs_step_by_step(captures, caplog, steps):
    func = Twice()
    with caplog.at_level(logging.WARNING, logger="neuralfde"):
        found = gradients(func, "auto", steps=steps)
    assert "a second time" in caplog.text
    assert_close(found, gradients(func, "single", steps=steps))
    with pytest.raises(nf.InputError, match="a second time"):
        gradients(Twice(), "cuda-graph", steps=steps)


class Dropping(Field):
    def forward(self, t, z, u=None):
        return nn.functional.dropout(super().forward(t, z, u), 0.1)


class Counting(Field):
    calls = 0

    def forward(self, t, z, u=None):
        self.calls += 1
        return super().forward(t, z, u) / (1 + 0.1 * self.calls)


@pytest.mark.parametrize(
    ("func", "options", "reason"),
    [
        (Field, {"method": "trapezoid"}, "implicit stage is solved to a tolerance"),
        (Dropping, {}, "draws random numbers"),
        (Counting, {}, "changes func.calls"),
    ],
)
def test_what_no_graph_can_repeat_is_refused_by_name(captures, func, options, reason):
    z0, found = torch.randn(4, 3, dtype=F64), []
    for stepper in ("single", "auto"):
        torch.manual_seed(2)
        found.append(nf.solve(func(), z0, 2.0, 0.6, steps=100, stepper=stepper, **options))
    assert torch.equal(found[0].ys, found[1].ys)
    assert found[1].stats.stepper == "single"
    assert reason in found[1].stats.why
    assert not captures
    with pytest.raises(nf.InputError, match=f"stepper='cuda-graph' cannot take these steps: .*{reason}"):
        nf.fdeint(func(), z0, 2.0, 0.6, steps=100, stepper="cuda-graph", **options)


def test_tensors_that_are_named_by_params_are_refused(captures):
    weight = torch.ones(3, dtype=F64, requires_grad=True)

    class Outside(nn.Module):
        def forward(self, t, z):
            return -weight * z

    options = {"params": [weight], "steps": 100}
    y = nf.solve(Outside(), torch.ones(4, 3, dtype=F64), 1.0, 0.6, **options)
    assert "params= names tensors" in y.stats.why
    with pytest.raises(nf.InputError, match="params= names tensors"):
        nf.fdeint(Outside(), torch.ones(4, 3, dtype=F64), 1.0, 0.6, stepper="cuda-graph", **options)


def test_functions_and_bound_methods(captures):
    """A lambda is a new function at every call, and its graphs go with it; those of a bound method are the object's."""
    model, z0 = Field(), torch.randn(4, 3, dtype=F64)

    class Holder:
        rate = 0.5

        def slope(self, t, z):
            return -self.rate * z

    holder, count = Holder(), []
    for _ in range(2):
        one, two = (nf.fdeint(holder.slope, z0, 1.0, 0.6, steps=100, stepper=s) for s in ("single", "cuda-graph"))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
        count.append(len(captures))
    assert count[0] == count[1] == 2
    holder.rate = 0.7
    one, two = (nf.fdeint(holder.slope, z0, 1.0, 0.6, steps=100, stepper=s) for s in ("single", "cuda-graph"))
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    before = len(graph_cache._CACHE)
    for k in range(3):
        func = lambda t, z: -(k + 1) * z
        one, two = (nf.fdeint(func, z0, 1.0, 0.6, steps=100, stepper=s) for s in ("single", "cuda-graph"))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
        for kept in held(func):
            for graph in kept.graphs.values():
                graph.captured.call = None
    del func, kept, graph
    gc.collect()
    assert len(graph_cache._CACHE) <= before
    assert model is not None


# ---- without pretending ----------------------------------------------------------------------------------------------


def test_graphs_on_the_cpu_are_refused_by_name():
    with pytest.raises(nf.InputError, match="CUDA device"):
        nf.fdeint(lambda t, z: -z, torch.ones(2), 1.0, 0.5, steps=4, stepper="cuda-graph")


def test_a_compiled_func_stays_compiled_after_it_was_watched():
    calls = []

    def backend(module, inputs):
        return lambda *given: (calls.append(1), module(*given))[1]

    class Own(nn.Linear):
        def forward(self, t, z):
            return torch.tanh(super().forward(z))

    torch._dynamo.reset()
    func, z = torch.compile(Own(3, 3), backend=backend), torch.randn(2, 3)
    field = Right(func, structure_of(z), torch.zeros(3), ())
    first_evaluation(field, z.reshape(1, -1), list(func.parameters()), watch=True)
    assert field.trace
    assert not calls
    func(torch.zeros(()), z)
    assert calls
