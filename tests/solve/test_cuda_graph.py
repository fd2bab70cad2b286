"""Captured steps: the bookkeeping with graphs that only pretend; real ones are in test_on_gpu.py."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.adjoints import captured as captured_module
from neuralfde.adjoints import graphs
from neuralfde.adjoints.captured_blocks import CapturedBlocks
from neuralfde.rhs.field import Field as Right
from neuralfde.base.structure import structure_of


class FakeGraph:
    """Runs the captured call again and copies the results where the first ones were."""

    def __init__(self, call, found):
        self.call, self.found = call, found

    def replay(self):
        again = self.call()
        for old, new in zip(self.found or (), again or (), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


class FakeStream:
    """All in turn."""

    def __init__(self, device):
        pass

    def wait_stream(self, other):
        pass


@pytest.fixture
def pretend(monkeypatch):
    """CUDA graphs on the CPU; returns how often something was captured."""
    count = []

    def capture(self, call):
        count.append(1)
        call()
        found = call()
        return FakeGraph(call, found), found

    monkeypatch.setattr(captured_module.Captured, "_capture", capture)
    monkeypatch.setattr(captured_module.torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(captured_module.torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(captured_module, "_STREAMS", {})
    monkeypatch.setattr(graphs, "why_not", lambda plan, c, z0: "implicit" if plan.scheme.implicit else None)
    monkeypatch.setattr(
        "neuralfde.solver.read_graphs", lambda g, how, device: False if isinstance(how, nf.Direct) else g
    )
    return count


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
        self.unused = nn.Linear(2, 2)
        self.scale = 1.0

    def forward(self, t, z, u=None):
        v = self.net(z) * self.scale - 0.1 * t * z
        return v if u is None else v + u


def gradients(func, graphs, method="predictor", steps=100, history="full", t=2.0, **options):
    torch.manual_seed(1)
    z0 = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    order = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    u = torch.randn(3, dtype=torch.float64, requires_grad=True)
    func.zero_grad()
    y = nf.fdeint(
        func, z0, t, order, steps=steps, method=method, history=history, args=(u,), graphs=graphs,
        adjoint="exact", **options,
    )  # fmt: skip
    (y**2).sum().backward()
    used = [p.grad for p in func.net.parameters()]
    assert func.unused.weight.grad is None
    return [y.detach(), z0.grad, order.grad, u.grad, *used]


@pytest.mark.parametrize(
    ("history", "storage"),
    [(h, "device") for h in ("full", "exponentials", nf.Window(80), nf.Full(8))]
    + [(h, "checkpoint") for h in ("exponentials", nf.Window(80))],  # the others keep their rows
)
@pytest.mark.parametrize("t", [2.0, [0.0, 0.5, 1.9, 2.0]])
def test_whole_blocks_are_captured(pretend, history, storage, t):
    func, steps = Field().double(), 300
    t = torch.tensor(t, dtype=torch.float64) if isinstance(t, list) else t
    seen = []
    advance = CapturedBlocks.advance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapturedBlocks, "advance", lambda self, first: (seen.append(first), advance(self, first))[1])
        found = gradients(func, True, steps=steps, history=history, storage=storage, t=t)
    assert seen, "no block was replayed"
    calls = []
    gradients(func, True, steps=steps, history=history, storage=storage, t=t, callback=lambda n, total: calls.append(n))
    assert calls == 2 * list(range(steps + 1))
    assert_close(found, gradients(func, False, steps=steps, history=history, storage=storage, t=t))


def assert_close(a, b, tol=1e-12):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tol, atol=tol)


@pytest.mark.parametrize("method", ["predictor", "abm", "gl-explicit", "l1-explicit", "trapezoid"])
@pytest.mark.parametrize(
    ("history", "storage"),
    [("full", "device"), ("exponentials", "host"), ("exponentials", "checkpoint"), (nf.Window(40), "checkpoint")],
)
def test_replayed_steps_give_the_numbers_of_eager_ones(pretend, method, history, storage):
    torch.manual_seed(0)
    func = Field().double()
    eager = gradients(func, False, method, history=history, storage=storage)
    for _ in range(2):
        assert_close(gradients(func, "auto", method, history=history, storage=storage), eager)
    assert len(pretend) == (0 if method == "trapezoid" else 2)


def test_losses_along_the_trajectory(pretend):
    func = Field().double()
    times = torch.linspace(0, 2, 11, dtype=torch.float64)
    for method in ("predictor", "abm"):
        eager = gradients(func, False, method, t=times)
        assert_close(gradients(func, "auto", method, t=times), eager)


def test_captured_once_and_again_when_something_changes(pretend):
    func = Field().double()
    gradients(func, "auto")
    gradients(func, "auto", steps=70)
    assert len(pretend) == 2  # forward and backward; the number of steps is no part of a step
    func.scale = 2.0  # a number in Python, which a graph would keep as it was
    assert_close(gradients(func, "auto"), gradients(func, False))
    assert len(pretend) == 4
    func.eval()
    gradients(func, "auto")
    assert len(pretend) == 6


def test_few_steps_wait_for_the_third_solve(pretend):
    func = Field().double()
    for _ in range(2):
        gradients(func, "auto", steps=5)
        gradients_before = len(pretend)
    gradients(func, "auto", steps=5)
    assert gradients_before <= 2
    assert len(pretend) == 2


def test_released_with_the_func(pretend):
    func = Field().double()
    gradients(func, "auto")
    (kept,) = [x for x in graphs._CACHE[func].values() if x is not None]
    gone = weakref.ref(func)
    alive = weakref.ref(kept)
    assert kept.plan is None
    for graph in (kept.step, *[p.graph for p in kept.pulls.values()]):
        graph.call = None  # a real graph holds no Python function
    del func, graph, kept
    gc.collect()
    assert gone() is None
    assert alive() is None


def test_falls_back_with_one_line(pretend, monkeypatch, caplog):
    def refuse(self, call):
        raise RuntimeError("operation not permitted when stream is capturing")

    func = Field().double()
    eager = gradients(func, False)
    monkeypatch.setattr(captured_module.Captured, "_capture", refuse)
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        for _ in range(3):
            assert_close(gradients(func, "auto"), eager)
    assert len(caplog.records) == 1
    assert "not permitted" in caplog.text
    with pytest.raises(nf.InputError, match="graphs=True"):
        gradients(Field().double(), True)


def test_backward_that_cannot_be_captured_runs_eagerly(pretend, monkeypatch, caplog):
    func = Field().double()
    eager = gradients(func, False)

    def refuse(self, has_z):
        raise RuntimeError("no")

    monkeypatch.setattr(captured_module.Captured, "_capture_pull", refuse)
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        for _ in range(2):
            assert_close(gradients(func, "auto"), eager)
    assert len(caplog.records) == 1


def test_two_models_interleaved(pretend):
    a, b = Field().double(), Field().double()
    z0 = torch.randn(4, 3, dtype=torch.float64)
    expected = [gradients(f, False) for f in (a, b)]

    def loss(f):
        return (nf.fdeint(f, z0, 2.0, 0.6, steps=100, adjoint="exact") ** 2).sum()

    a.zero_grad()
    first, second = loss(a), loss(b)
    third = loss(a)  # before the first one's backward pass
    first.backward()
    once = [p.grad.clone() for p in a.net.parameters()]
    second.backward()
    a.zero_grad()
    third.backward()
    assert_close([p.grad for p in a.net.parameters()], once)
    assert_close(gradients(a, "auto"), expected[0])


def test_an_exception_in_the_middle_gives_the_graph_back(pretend):
    func = Field().double()
    expected = gradients(func, False)

    def stop(n, total):
        if n == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gradients(func, "auto", callback=stop)
    (kept,) = [x for x in graphs._CACHE[func].values() if x is not None]
    assert not kept.busy
    assert_close(gradients(func, "auto"), expected)


def test_graphs_on_the_cpu_are_refused_by_name():
    with pytest.raises(nf.InputError, match="CUDA device"):
        nf.fdeint(lambda t, z: -z, torch.ones(2), 1.0, 0.5, steps=4, graphs=True)
    with pytest.raises(nf.InputError, match="'auto', True or False"):
        nf.fdeint(lambda t, z: -z, torch.ones(2), 1.0, 0.5, steps=4, graphs="yes")


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
    field.first_evaluation(z.reshape(1, -1), list(func.parameters()), watch=True)
    assert field.trace
    assert not calls
    func(torch.zeros(()), z)
    assert calls


def test_captured_blocks_are_released_with_the_func(pretend):
    func = Field().double()
    gradients(func, "auto", steps=300)
    (kept,) = [x for x in graphs._CACHE[func].values() if x is not None]
    assert isinstance(kept, CapturedBlocks)
    gone, alive = weakref.ref(func), weakref.ref(kept)
    for graph in (kept.step, *kept.blocks.values()):
        graph.call = None  # a real graph holds no Python function
    del func, graph, kept
    gc.collect()
    assert gone() is None
    assert alive() is None


class Twice(nn.Module):
    """Uses its weights from a list beside its parameters, as some recurrent layers do."""

    def __init__(self):
        super().__init__()
        self.net, self.unused = nn.Linear(3, 3, dtype=torch.float64), nn.Linear(2, 2)
        self.kept = list(self.net.parameters())

    def forward(self, t, z, u):
        weight, bias = self.kept
        return torch.tanh(z @ weight + bias) - z + u


@pytest.mark.parametrize("steps", [100, 300])
def test_a_func_that_holds_its_parameters_twice_runs_eagerly(pretend, caplog, steps):
    func = Twice()
    with caplog.at_level(logging.WARNING, logger="neuralfde"):
        found = gradients(func, "auto", steps=steps)
    assert "a second time" in caplog.text
    assert_close(found, gradients(func, False, steps=steps))
    with pytest.raises(nf.errors.InputError, match="a second time"):
        gradients(Twice(), True, steps=steps)
