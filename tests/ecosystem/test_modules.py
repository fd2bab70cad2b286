"""Blocks in the company of the rest of PyTorch: functional calls, copies, compilation, checkpoints, hooks."""

import copy
import io
import logging
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neuralfde
from neuralfde import Caputo, FDEBlock, MultiTerm, Tempered, UnsupportedError, fdeint, linear, progress
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


def halved(model):
    """The model with its parameters halved, and these parameters for a functional call."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(0.5)
    return twin, {k: p.detach().clone().requires_grad_() for k, p in twin.named_parameters()}


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_functional_call_differentiates_the_substitutes(adjoint, method):
    model = block(adjoint=adjoint, method=method)
    twin, substitutes = halved(model)
    out = torch.func.functional_call(model, substitutes, (state(),))
    got = grads(out.square().sum(), list(substitutes.values()))
    assert_close(got, grads(twin(state()).square().sum(), list(twin.parameters())))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", ["horizon", "jumps"])
def test_functional_call_differentiates_the_substitutes_also_in_another_time(kind):
    """Substitutes and modes are those of the call in its backward pass too, for a func whose times get gradients."""
    at = torch.tensor([0.33], dtype=torch.float64, requires_grad=True)
    options = {"horizon": 1.3} if kind == "horizon" else {"jumps": (at, torch.ones(1, 4, 3, dtype=torch.float64))}
    model = block(**options)
    twin, substitutes = halved(model)
    out = torch.func.functional_call(model, substitutes, (state(),))
    model.eval()
    got = grads(out.square().sum(), list(substitutes.values()))
    assert_close(got, grads(twin(state()).square().sum(), list(twin.parameters())))


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


@pytest.mark.parametrize(
    "given", [{}, {"adjoint": "direct"}, {"method": "trapezoid"}, {"step": None, "rtol": 1e-2}], ids=str
)
def test_substitutes_that_are_computed_from_another_one(given):
    """The last layer is adapted by a gradient step through the first, which stays; and one that saves no tensors."""
    model = block(**given)
    before = dict(model.named_parameters())
    body, head, bias = (before[f"func.net.{name}"] for name in ("0.weight", "2.weight", "2.bias"))

    def loss(body, head, bias):
        substitutes = {**before, "func.net.0.weight": body, "func.net.2.weight": head, "func.net.2.bias": bias}
        return torch.func.functional_call(model, substitutes, (state(),)).square().sum()

    def adapted(body):
        (by,) = torch.autograd.grad(loss(body, head, bias), head, create_graph=True)
        return loss(body, head - 0.1 * by, body[:3, 0] + 0.5)

    assert torch.autograd.gradcheck(adapted, body, fast_mode=True)


def test_tensors_of_params_that_are_computed_from_another_one_are_refused():
    rate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def end(start, more):
        return fdeint(lambda t, z: start * z + more, state(), 1.0, 0.6, steps=5, params=[start, more]).sum()

    with pytest.raises(neuralfde.InputError, match="computed from another one of params="):
        end(rate, rate + 1)
    assert torch.autograd.gradcheck(lambda rate: end(rate.view_as(rate), rate + 1), rate)


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


@pytest.mark.parametrize("order", [0.6, torch.tensor([0.6, 0.7, 0.8], dtype=torch.float64)])
@pytest.mark.parametrize("learn", [False, True])
def test_a_block_made_on_the_meta_device_gets_its_values_later(learn, order):
    """As large models are made: without memory, until a checkpoint is loaded or parameters are sharded."""
    model = block(learn_order=learn, order=order)
    for assign in (False, True):
        with torch.device("meta"):
            empty = block(learn_order=learn, order=order.to("meta") if isinstance(order, torch.Tensor) else order)
            assert "order=" in repr(empty)
        assert all(x.is_meta for x in empty.state_dict().values())
        empty = empty if assign else empty.to_empty(device="cpu")
        empty.load_state_dict(model.state_dict(), assign=assign)
        assert torch.equal(empty(state()), model(state()))


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


@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor])
def test_a_frozen_block_has_the_linear_part_of_now(kind):
    """A matrix that was loaded, or converted with the block, and not the one that the block was made with."""
    made = [kind(-k * torch.eye(3)) for k in (1.0, 3.0)]
    first, second = (FDEBlock(Still(), 0.7, t=1.0, steps=8, linear=a) for a in made)
    first.load_state_dict(second.state_dict(), assign=True)
    z0 = torch.ones(3)
    assert torch.equal(first.frozen()(z0), second(z0))
    first.double()
    torch.testing.assert_close(first.frozen()(z0.double()), first(z0.double()), rtol=0, atol=0)


class Still(nn.Module):
    def forward(self, t, z):
        return torch.cos(z)


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


@pytest.mark.parametrize("name", ["tqdm", "rich"])
def test_a_block_with_a_meter_can_be_pickled_and_copied(name):
    pytest.importorskip(name)
    model = block(callback=getattr(progress, f"{name}_meter")())
    model.options["callback"](1, 10)  # a bar that is open stays here
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(other(state()), model(state()))
    model.options["callback"].close()


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


def number(x):
    return nn.Parameter(torch.tensor(x, dtype=torch.float64))


def pull(t, z):
    return {name: 0.3 - x for name, x in z.items()}


#: Options of blocks with parameters.
PARTS = {
    "sum": lambda: {"order": MultiTerm([number(1.0), number(0.5)], [1.0, number(0.7)]), "method": "gl"},
    "tempered": lambda: {"order": Tempered(number(0.7), number(0.5))},
    "by name": lambda: {"order": Caputo({"a": number(0.7), "b": 0.5})},
    "bands": lambda: {
        "order": 0.7,
        "linear": linear.Bands(number([[0.0, 1, 1], [-2, -2, -2], [1, 1, 0]])),
    },
    "horizon": lambda: {"order": 0.7, "horizon": number(0.9)},
    "velocity": lambda: {"order": Caputo(1.4), "velocity": number([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])},
    "jumps": lambda: {"order": 0.7, "jumps": ([0.4], number([[[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]]))},
}


class Door(nn.Module):
    """An event with a threshold of its own."""

    def __init__(self):
        super().__init__()
        self.threshold = number(0.6)

    def forward(self, t, z):
        return z.sum() - self.threshold


def test_modules_among_options_belong_to_the_block():
    block = FDEBlock(lambda t, z: -z, order=0.7, steps=20, event=Door())
    assert [name for name, _ in block.named_parameters()] == ["event.threshold"]
    z0 = torch.ones(1, dtype=torch.float64)
    block(z0).sum().backward()
    assert block.event.threshold.grad is not None
    kick = nn.Linear(1, 1).double()
    block = FDEBlock(lambda t, z: -z, order=0.7, steps=20, event=neuralfde.Event(Door(), reset=kick))
    assert [name for name, _ in block.named_parameters()] == [
        "event_fn.threshold", "event_reset.weight", "event_reset.bias",
    ]  # fmt: skip
    block(z0).sum().backward()
    assert all(x.grad is not None for x in block.parameters())


@pytest.mark.parametrize("part", PARTS)
def test_parameters_of_a_block_can_be_exchanged(part):
    z0 = {"a": torch.ones(2, 3, dtype=torch.float64), "b": torch.ones(3, dtype=torch.float64)}
    several = part == "by name"

    def make():
        return FDEBlock(pull if several else lambda t, z: 0.3 - z, **PARTS[part](), steps=10)

    def end(call, *given):
        found = call(*given, z0 if several else z0["a"])
        return found["a"] if several else found

    block = make()
    names = [name for name, _ in block.named_parameters()]
    assert names
    for name in names:
        other, loaded = make(), make()
        with torch.no_grad():
            other.get_parameter(name).mul_(0.8)
        expected = end(other)
        assert not torch.equal(expected, end(block))
        state = {**block.state_dict(), name: other.get_parameter(name).detach()}
        loaded.load_state_dict(state, assign=True)
        assert_close([end(loaded)], [expected])

        def exchanged(x, state=state, name=name):
            return end(partial(torch.func.functional_call, block, {**state, name: x}))

        assert_close([exchanged(state[name])], [expected])
        wanted = torch.autograd.grad(expected.sum(), other.get_parameter(name))
        assert_close([torch.func.grad(lambda x: exchanged(x).sum())(state[name])], wanted)


@pytest.mark.parametrize(
    "t", [torch.tensor([0.0, 0.3, 1.0]), torch.tensor([[0.0, 0.5], [0.0, 1.0]])], ids=["times", "rows"]
)
def test_an_ensemble_of_blocks_shares_its_times(t):
    """They are buffers, which ``stack_module_state`` gives an axis of models."""
    blocks = [FDEBlock(Slope(), 0.6, t=t, steps=10) for _ in range(3)]
    z0, (params, buffers) = state()[:2], torch.func.stack_module_state(blocks)

    def loss(params, buffers):
        return torch.func.functional_call(blocks[0], (params, buffers), (z0,)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(params, buffers)
    for k, one in enumerate(blocks):
        one(z0).square().sum().backward()
        assert_close([found["func.net.0.weight"][k]], [one.func.net[0].weight.grad])
    params, buffers = torch.func.stack_module_state([FDEBlock(Slope(), 0.6, t=(1 + k) * t, steps=10) for k in range(2)])
    with pytest.raises(neuralfde.InputError, match="different t"):
        torch.func.vmap(loss)(params, buffers)
