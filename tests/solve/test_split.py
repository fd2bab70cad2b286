"""The backward pass with one call of func for many steps gives the gradients of single steps."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neuralfde as nf
from neuralfde.door.names import METHODS
from neuralfde.schemes import OneStage
from neuralfde.solve.steppers import graph_cache, split
from tests.solve.pretend import pretend_a_gpu
from tests.stubs import F64, relative

ONE_STAGE = [name for name, scheme in METHODS.items() if isinstance(scheme, OneStage) and not scheme.implicit]
SPLIT = nf.CudaGraph(split=True)


@pytest.fixture(autouse=True)
def captures(monkeypatch):
    """How often something was captured."""
    return pretend_a_gpu(monkeypatch)


class Net(nn.Module):
    """Parameters that are used twice, meet time, are frozen, cut off or idle; an operation in place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm, self.idle, self.frozen = nn.LayerNorm(8), nn.Linear(2, 2), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, t, z, u):
        h = self.norm(F.relu(self.a(z), inplace=True) + t * self.a.bias.exp())
        return self.b(torch.tanh(h)) * u - self.frozen(z.detach()) * 0.1 + self.b.bias.detach() * z


class Images(nn.Module):
    """The layers of the paper's image block, small."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(5, 4, 3, padding=1)
        self.first, self.last = nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)
        self.double()

    def forward(self, t, z, u):
        z = torch.relu(self.first(z))
        return self.last(self.conv(torch.cat([t.expand(len(z), 1, 3, 3), z], 1))) * u.mean()


def gradients(func, stepper, shape=(2, 6), order=0.7, steps=70, t=1.0, **options):
    torch.manual_seed(1)
    z0, u = torch.randn(shape, dtype=F64, requires_grad=True), torch.randn(6, dtype=F64, requires_grad=True)
    beta = torch.tensor(order, dtype=F64, requires_grad=True)
    found = nf.solve(func, z0, t, beta, args=(u,), steps=steps, stepper=stepper, **options)
    wanted = [z0, u, beta, *(p for n, p in func.named_parameters() if p.requires_grad and "idle" not in n)]
    return torch.autograd.grad(found.ys.square().sum(), wanted)


def agree(func, **options):
    found, expected = (gradients(func, stepper, **options) for stepper in (SPLIT, "single"))
    return max(map(relative, found, expected)) < 1e-12


@pytest.mark.parametrize("method", ONE_STAGE)
def test_every_scheme_of_one_stage(captures, method):
    assert agree(Net(), method=method, t=torch.linspace(0, 1, 5, dtype=F64))
    assert captures


@pytest.mark.parametrize(
    "options",
    [
        {"history": "exponentials", "storage": "host", "steps": 200},
        {"history": "exponentials", "storage": "checkpoint", "steps": 101},
        {"history": "fft"},
        {"history": nf.Window(7)},
        {"grading": 2.0},
        {"order": [0.5 + 0.05 * k for k in range(6)]},
        {"steps": 1},
    ],
    ids=str,
)
def test_every_way_to_keep_the_past(options):
    assert agree(Net(), **options)


def test_convolutions_and_few_steps_in_one_call(monkeypatch):
    monkeypatch.setattr(split, "SPLIT_NUMBERS", 5 * 2 * 36)
    assert agree(Images(), shape=(2, 4, 3, 3))


def test_a_compiled_func_has_compiled_parts(monkeypatch):
    parts = []
    monkeypatch.setattr(torch, "compile", lambda part, **_: (parts.append(part), part)[1])
    func = Net()
    func._compiled_call_impl = func._call_impl  # as Module.compile() leaves it
    assert agree(func)
    assert len(parts) == 2


class OwnBackward(torch.autograd.Function):
    """Straight through: a gradient that its operations do not have."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Rounded(Net):
    def forward(self, t, z, u):
        return super().forward(t, OwnBackward.apply(z), u)


class Hidden(Net):
    def forward(self, t, z, u):
        with torch.no_grad():
            scale = z.exp()
        return super().forward(t, z * scale, u)


class Branching(Net):
    def forward(self, t, z, u):
        return super().forward(t, z, u) * (1.0 if z.detach().sum() > 0 else 2.0)


@pytest.mark.parametrize("func", [Rounded, Hidden, Branching])
def test_a_func_that_is_more_than_its_operations_is_refused(func):
    with pytest.raises(nf.InputError, match="cannot take these steps"):
        gradients(func(), SPLIT)


def test_methods_with_several_sums_are_refused_by_name():
    with pytest.raises(nf.InputError, match="one history sum"):
        gradients(Net(), SPLIT, method="abm")


def test_parameters_and_buffers_may_change_in_place(captures):
    func = Net()
    func.register_buffer("scale", torch.ones(6, dtype=F64))
    func.forward = lambda t, z, u: Net.forward(func, t, z, u * func.scale)
    assert agree(func)
    count = len(captures)
    with torch.no_grad():
        func.scale.mul_(2.0)
        func.a.weight.mul_(0.5)
        func.frozen.weight.add_(1.0)
    assert agree(func)
    assert len(captures) == count


def test_a_func_that_was_split_is_released():
    func = Net()
    gradients(func, SPLIT)
    gone = weakref.ref(func)
    for static in graph_cache._CACHE[func].values():
        for graph in static.graphs.values():
            graph.captured.call = None  # a real graph holds no Python function
    del func, static, graph
    gc.collect()
    assert gone() is None
