"""Blocks in the company of the rest of PyTorch: functional calls, copies, compilation, checkpoints, hooks."""

import copy
import io
import logging
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neuralfde
from neuralfde import FDEBlock, UnsupportedError, fdeint, progress
from neuralfde.base.torch_private import compiler_is_watching, with_parameters

ADJOINTS = ["exact", "direct", "paper"]
# torch.compile looks at .grad of every tensor it meets and hides the warning only if warnings are no errors
compiles = pytest.mark.filterwarnings("ignore:The .grad attribute")


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.register_buffer("shift", torch.full((3,), 0.1, dtype=torch.float64))

    def forward(self, t, z):
        return self.net(z) + self.shift * t


def block(**options):
    torch.manual_seed(0)
    return FDEBlock(Slope(), **{"order": 0.6, "t": 1.0, "step": 0.1, **options})


def state():
    return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def grads(loss, tensors):
    return torch.autograd.grad(loss, tensors)


def assert_close(a, b, tol=1e-12):
    for x, y in zip(a, b, strict=True):
        x, y = x.detach(), y.detach()
        assert (x - y).abs().max() <= tol * max(1.0, float(y.abs().max()))


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_functional_call_differentiates_the_substitutes(adjoint, method):
    model = block(adjoint=adjoint, method=method)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(0.5)
    substitutes = {k: p.detach().clone().requires_grad_() for k, p in twin.named_parameters()}
    out = torch.func.functional_call(model, substitutes, (state(),))
    got = grads(out.square().sum(), list(substitutes.values()))
    assert_close(got, grads(twin(state()).square().sum(), list(twin.parameters())))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("tie", [False, True])
def test_a_layer_under_two_names_keeps_its_parameters(tie):
    """Substitutes are put back after the backward pass, and the module's own are in every place again."""
    model = block()
    model.func.twice = nn.ModuleList([nn.Linear(3, 3)] * 2)
    before = {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    substitutes = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
    torch.func.functional_call(model, substitutes, (state(),), tie_weights=False).sum().backward()
    with with_parameters(model, substitutes, tie_weights=tie):
        assert model.func.twice[1].weight is substitutes["func.twice.0.weight"]
    assert {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)} == before


def test_functional_call_with_computed_substitutes_and_buffers():
    """Substitutes that are themselves computed, as in meta-learning."""
    model = block()
    rate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def loss(rate):
        moved = {k: p.detach() * (1 - rate) for k, p in model.named_parameters()}
        moved["func.shift"] = torch.ones(3, dtype=torch.float64)
        return torch.func.functional_call(model, moved, (state(),)).square().sum()

    assert torch.autograd.gradcheck(loss, (rate,))


@pytest.mark.parametrize("learn", [False, True])
def test_copies_keep_everything(learn):
    model = block(learn_order=learn, t=torch.linspace(0, 1, 3), method=neuralfde.ABM(2))
    z = state()
    through_pickle = pickle.loads(pickle.dumps(model))
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    loaded = block(order=0.3, learn_order=learn, t=torch.linspace(0, 2, 3), method=neuralfde.ABM(2))
    loaded.load_state_dict(torch.load(saved, weights_only=True))
    for other in (copy.deepcopy(model), through_pickle, loaded):
        assert torch.equal(other(z), model(z))
        assert float(other.order.detach()) == float(model.order.detach())


class Model(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.before, self.solve, self.after = nn.Linear(3, 3), block(**options), nn.Linear(3, 2)

    def forward(self, x):
        return self.after(self.solve(torch.tanh(self.before(x))))


@compiles
@pytest.mark.parametrize("options", [{}, {"learn_order": True}, {"step": 0.01}])
def test_compile_breaks_only_at_the_solver(options):
    """One graph before the solver and one after it, however many steps it takes and calls are made."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = Model(**options).double()
    compiled = torch.compile(model, backend=backend)
    for k in range(3):
        z = state() + k
        want = grads(model(z).square().sum(), list(model.parameters()))
        assert_close(grads(compiled(z).square().sum(), list(model.parameters())), want)
        assert len(graphs) == 2 + bool(options.get("learn_order"))  # the order is a graph of its own
    torch._dynamo.reset()


@compiles
@pytest.mark.parametrize("call", [fdeint, lambda *given, **more: neuralfde.solve(*given, **more).ys])
def test_a_solve_is_not_compiled_in_a_frame_that_the_compiler_gave_up_on(call):
    watched = []

    def func(t, z):
        watched.append(compiler_is_watching())
        return -z

    def skipped(z):
        return call(func, z, 1.0, 0.5, steps=3)

    z = torch.ones(3, dtype=torch.float64)
    torch._dynamo.reset()
    around = torch.compile(lambda z: torch._dynamo.decorators.skip(skipped)(z) + 1, backend="eager")
    assert_close(around(z), skipped(z) + 1)
    assert watched
    assert not any(watched)


@compiles
def test_a_compiled_func_works_inside():
    torch._dynamo.reset()
    slope = Slope()
    z = state()
    want = grads(fdeint(slope, z, 1.0, 0.5, step=0.1).sum(), list(slope.parameters()))
    got = grads(fdeint(torch.compile(slope, backend="eager"), z, 1.0, 0.5, step=0.1).sum(), list(slope.parameters()))
    assert_close(got, want)
    torch._dynamo.reset()


def test_tracing_is_refused(monkeypatch):
    monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)
    with pytest.raises(UnsupportedError, match="use torch"):
        block()(state())


def test_data_parallel_replicas_are_refused():
    replica = block().func._replicate_for_data_parallel()
    with pytest.raises(UnsupportedError, match="DistributedDataParallel"):
        fdeint(replica, state(), 1.0, 0.5, step=0.1)


class Checkpointed(Slope):
    def forward(self, t, z):
        return checkpoint(self.net, z, use_reentrant=False) + self.shift * t


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_checkpoints_inside_and_around(adjoint, method):
    plain = block(adjoint=adjoint, method=method)
    inside = block(adjoint=adjoint, method=method)
    inside.func.__class__ = Checkpointed
    z = state().requires_grad_()
    want = grads(plain(z).square().sum(), [z, *plain.parameters()])
    assert_close(grads(inside(z).square().sum(), [z, *inside.parameters()]), want)
    around = checkpoint(plain, z, use_reentrant=False)
    assert_close(grads(around.square().sum(), [z, *plain.parameters()]), want)


def test_hooks_in_func_run_in_both_passes():
    model = block()
    calls = {"forward": 0, "backward": 0}
    model.func.net.register_forward_hook(lambda *_: calls.__setitem__("forward", calls["forward"] + 1))
    model.func.net.register_full_backward_hook(lambda *_: calls.__setitem__("backward", calls["backward"] + 1))
    model(state()).sum().backward()
    assert calls["forward"] >= 2 * 10
    assert calls["backward"] >= 10


@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_progress_in_both_passes(adjoint):
    seen = []
    model = block(adjoint=adjoint, callback=lambda step, total: seen.append((step, total)))
    model(state()).sum().backward()
    assert [s for s, _ in seen] == [*range(11), *range(11)]
    assert {t for _, t in seen} == {10}


def test_ready_meters():
    pytest.importorskip("tqdm")
    text = io.StringIO()
    model = block(callback=progress.tqdm_meter(desc="solve", file=text))
    model(state()).sum().backward()
    assert text.getvalue().count("100%") == 2
    rich = pytest.importorskip("rich.console")
    console = rich.Console(file=io.StringIO(), force_terminal=True)
    model = block(callback=progress.rich_meter(console=console))
    model(state()).sum().backward()
    assert "100%" in console.file.getvalue()


def test_it_logs_and_never_prints(caplog, capsys):
    with caplog.at_level(logging.DEBUG, logger="neuralfde"):
        block()(state())
    assert "steps=10" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_a_fixed_order_is_never_rounded():
    model = FDEBlock(nn.Linear(3, 3), order=0.7, t=torch.linspace(0, 0.3, 4), step=0.1)
    times = model.t.clone()
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float32):
        model.to(dtype)
        assert float(model.order) == 0.7
        assert model.t.dtype.itemsize >= times.dtype.itemsize
        assert torch.equal(model.t.float(), times)
    twin = FDEBlock(nn.Linear(3, 3), order=0.2, t=times, step=0.1).bfloat16()
    twin.load_state_dict(model.state_dict())
    assert float(twin.order) == 0.7
    assert twin.to("meta").fixed_order.is_meta
    assert twin.to_empty(device="cpu").fixed_order.dtype == torch.float64
