"""Whole blocks of steps in one kernel against single steps: on a GPU, or interpreted in a process of their own."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.solve.steppers import kernel
from neuralfde.solve.steppers.kernel import prepare
from tests.caching import counted
from tests.interpreted import INTERPRETED, by_kernels, run_interpreted
from tests.matrix.cases import Case
from tests.matrix.compare import by_package, by_reference, distances

DEVICE = "cpu" if INTERPRETED else "cuda"
F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers beyond the last sample or feature


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")
def test_interpreted():
    run_interpreted(__file__)


def draw(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


class Net(nn.Module):
    """A network with time concatenated, normalised features and a residual sum."""

    def __init__(self, width, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(width + 1, hidden), nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(hidden)
        for k, p in enumerate(self.parameters()):
            p.data.copy_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
        self.to(DEVICE, F64)

    def forward(self, t, z):
        there = torch.cat([z, t.expand(*z.shape[:-1], 1)], -1)
        return self.second(self.norm(nn.functional.silu(self.first(there)))) - 0.5 * z


class Prey(nn.Module):
    """A small system in plain formulas; its rates come with each sample."""

    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.tensor(1.3, dtype=F64, device=DEVICE))

    def forward(self, t, z, rates):
        x, y = z.unbind(-1)
        a, b, c = (rates[:, k] for k in range(3))
        eaten = b.exp() * x * y / (1 + x**2)
        return torch.stack([a * x - eaten * torch.cos(t), eaten - c * y.abs() ** self.power], dim=-1)


class Activations(nn.Module):
    """Every pointwise function that is covered, one after the other."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(0.3 + 0.1 * torch.arange(3.0, dtype=F64, device=DEVICE))

    def forward(self, t, z):
        f = nn.functional
        u = self.p * z + 0.1 * t
        small = torch.tanh(u) + f.relu(u) + torch.sigmoid(u) + f.gelu(u) + f.gelu(u, approximate="tanh") + f.silu(u)
        more = f.softplus(u) + f.elu(u) + f.leaky_relu(u) + u.sin() * u.cos() + (-u * u).exp() + u.abs().sqrt()
        rest = torch.expm1(0.1 * u) + torch.log1p(u * u) + (u * u + 1).log() + torch.erf(u) + u.clamp(-0.5, 0.5)
        last = torch.where(u > 0.2, u, -u) + torch.maximum(u, self.p) - torch.minimum(u, self.p) + (1 + u * u) ** -1.5
        return 0.1 * (small + more + rest + last) - z + (u * u + 1).rsqrt() * u**3 / 3 + 2.0**u + u.tan() * 1e-3


def gradients(func, z0, stepper, order=0.6, args=(), **options):
    """States and the gradients of everything, and what ran."""
    z0 = z0.clone().requires_grad_()
    beta = torch.as_tensor(order, dtype=F64).clone().requires_grad_()
    args = tuple(a.clone().requires_grad_() for a in args)
    options = {"steps": 5, "method": "predictor", **options}
    found = nf.solve(func, z0, torch.tensor([0.0, 0.5, 0.77, 1.0]), beta, args=args, stepper=stepper, **options)
    ys = found.ys
    loss = (ys * torch.cos(torch.arange(ys.numel(), device=ys.device).view(ys.shape))).sum()
    return [ys.detach(), *torch.autograd.grad(loss, [z0, beta, *args, *func.parameters()])], found.stats


def apart(one, two):
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(one, two, strict=True))


def compare(func, z0, order=0.6, **options):
    found, stats = gradients(func, z0, "kernel", order, **options)
    assert stats.stepper == "kernel", stats.why
    assert apart(found, gradients(func, z0, "single", order, **options)[0]) < 1e-12


@by_kernels
@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_networks(method):
    compare(Net(3, 20), draw(5, 3), method=method)


@by_kernels
def test_wide_layers_go_by_tiles():
    compare(Net(66, 70), 0.1 * draw(2, 66), steps=2)


class Plain(nn.Module):
    """A network of the state alone, whose rows the gradient of its first matrix takes as they are."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 17), nn.Tanh(), nn.Linear(17, width)).to(DEVICE, F64)
        for k, p in enumerate(self.layers.parameters()):
            p.data.copy_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))

    def forward(self, t, z):
        return self.layers(z)


@by_kernels
@pytest.mark.parametrize("width", [18, 67])
def test_networks_of_the_state_alone(width):
    compare(Plain(width), 0.1 * draw(3, width), steps=2)


@by_kernels
@pytest.mark.parametrize("shape", [(2, 2, 3), (3,)])
def test_samples_have_any_shape(shape):
    compare(Net(3, 17), draw(*shape), steps=2)


@by_kernels
def test_small_systems_with_arguments_for_each_sample():
    compare(Prey(), draw(5, 2).exp(), args=(0.3 * draw(5, 3, seed=1),), method="abm")


@by_kernels
def test_activations():
    compare(Activations(), draw(7, 3), steps=3)


class MoreActivations(nn.Module):
    """Those that are made of others."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(0.3 + 0.1 * torch.arange(4.0, dtype=F64, device=DEVICE))

    def forward(self, t, z):
        f = nn.functional
        u = self.p * z + 0.1 * t
        one = f.hardswish(u) + f.mish(u) + f.celu(u) + f.logsigmoid(3 * u) + f.softshrink(u, 0.2) + f.selu(u)
        two = f.hardshrink(u, 0.3) + f.threshold(u, 0.1, 0.2) + f.prelu(u, self.p) + f.relu6(9 * u) + f.softsign(u)
        three = torch.exp2(u) + torch.log2(1 + u * u) + torch.log10(1 + u * u) + torch.hypot(u, 1 + u * u)
        pairs = torch.logaddexp(u, 2 * u) + f.glu(torch.cat([u, 2 * u], -1), -1) + f.tanhshrink(u)
        masks = u.masked_fill(u < 0, 0.5) + torch.where((u > 0) & ~(u > 1) | (u < -1), u, 0.1 * u)
        mixed = torch.where(torch.logical_and(u.sin(), self.p > 0.4), u, -u)
        return 0.1 * (one + two + three + pairs + masks + mixed) - z


@by_kernels
def test_more_activations():
    compare(MoreActivations(), 2 * draw(7, 4), steps=3)


class Norms(nn.Module):
    """What is done over the features of a sample; some samples are zero, where roots have no derivative."""

    def __init__(self, width):
        super().__init__()
        self.group, self.rms, self.batch = nn.GroupNorm(2, width), nn.RMSNorm(width), nn.BatchNorm1d(width)
        self.batch.running_mean.normal_(generator=torch.Generator().manual_seed(3))
        self.batch.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(4))
        for p in self.parameters():
            p.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(5))
        self.to(DEVICE, F64).eval()

    def forward(self, t, z):
        f, rest = nn.functional, [slice(None)] * (z.ndim - 1)
        scaled = self.group(z) + self.rms(z) + f.normalize(z, dim=-1) + f.normalize(z, p=1, dim=-1)
        spread = z / (1 + z.var(-1, keepdim=True)) + z * z.std(-1, correction=0, keepdim=True) + self.batch(z)
        soft = z.softmax(-1) * z + z.log_softmax(-1) + z.logsumexp(-1, keepdim=True)
        moved = f.pad(z, (1, 0))[(*rest, slice(-1))] + z.gather(
            -1, torch.arange(z.shape[-1]).flip(0).expand(z.shape).to(DEVICE)
        )
        turned = torch.linalg.cross(z[..., :3], z[..., 1:4]).sum(-1, keepdim=True) * z[..., :2].prod(-1, keepdim=True)
        return 0.1 * (scaled + spread + soft + moved + turned)


@by_kernels
@pytest.mark.parametrize("width", [4, 18])
def test_norms_and_sums_over_features(width):
    z0 = draw(3, width)
    compare(Norms(width), z0, steps=2)
    z0[1] = 0.0
    at_zero = Does(lambda z: z + z.norm(dim=-1, keepdim=True) * z + z.std(-1, keepdim=True))
    compare(at_zero, z0, steps=1)


class Ensemble(nn.Module):
    """A network of its own for each sample."""

    def __init__(self, samples):
        super().__init__()
        self.first, self.second = (nn.Parameter(0.4 * draw(samples, 3, 3, seed=k)) for k in range(2))
        self.bias = nn.Parameter(0.1 * draw(samples, 1, 3, seed=2))

    def forward(self, t, z):
        hidden = torch.baddbmm(self.bias, z[:, None], self.first).tanh()
        return torch.einsum("bhi,bij->bj", hidden, self.second)


@by_kernels
def test_ensembles():
    compare(Ensemble(5), draw(5, 3), steps=3)


@by_kernels
@pytest.mark.parametrize("shape", [(3,), (4, 1), (4, 3)])
def test_orders_of_channels_and_samples(shape):
    order = 0.5 + 0.3 * torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(3))
    compare(Rates(), draw(4, 3), order=order, method="abm", steps=3)


class Rates(nn.Module):
    """A rate for each number."""

    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(draw(3))

    def forward(self, t, z):
        return -self.rates * z.sin() * z.flip(-1)


class Parts(nn.Module):
    """Two tensors of state, the samples along their last axis."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(draw(2, 3))

    def forward(self, t, state):
        x, y = state["x"], state["y"]
        return {"x": self.w @ torch.cat([x, y[None]]), "y": x[0] * x[1] - y}


@by_kernels
def test_states_of_several_tensors():
    found = []
    for stepper in ("kernel", "single"):
        func = Parts()
        z0 = {"x": draw(2, 5).requires_grad_(), "y": draw(5, seed=1).requires_grad_()}
        solved = nf.solve(func, z0, 0.5, 0.7, steps=4, stepper=stepper, method="predictor")
        assert solved.stats.stepper == stepper, solved.stats.why
        loss = (solved.ys["x"] ** 2).sum() + solved.ys["y"].sum()
        found.append([loss.detach(), *torch.autograd.grad(loss, [*z0.values(), func.w])])
    assert apart(*found) < 1e-12


@by_kernels
@pytest.mark.parametrize(
    ("history", "storage", "method"),
    [
        (nf.Exponentials(block=3), "host", "predictor"),
        (nf.Exponentials(block=3), "checkpoint", "predictor"),
        (nf.Exponentials(block=4), "device", "abm"),  # whose starting weights take short blocks
        (nf.Full(block=4), "device", "abm"),
        (nf.FFT(block=4), "device", "predictor"),
    ],
)
def test_histories_and_storages(history, storage, method, monkeypatch):
    monkeypatch.setattr(kernel, "KERNEL_BLOCK", 7)
    order, args = torch.tensor([0.4, 0.7]), (0.3 * draw(3, 3, seed=1),)
    compare(Prey(), draw(3, 2).exp(), order, args=args, history=history, storage=storage, method=method, steps=9)


@by_kernels
def test_a_kernel_has_room_for_more_exponentials(monkeypatch):
    monkeypatch.setattr(kernel, "KERNEL_BLOCK", 6)
    prepare._PREPARED.clear()
    for terms in (3, 4):  # as an order that is learned may take more of them
        history = nf.Exponentials(block=2, terms=terms, tol=0.9)
        compare(Net(3, 20), draw(3, 3), history=history, steps=9)
    (found,) = prepare._PREPARED.entries.values()
    assert list(found.variants) == [8]


@by_kernels
def test_single_precision_is_as_near_to_double():
    exact = gradients(Net(3, 20), draw(5, 3), "single", method="abm")[0]
    net = Net(3, 20).float()
    kernel, single = (gradients(net, draw(5, 3).float(), s, method="abm")[0] for s in ("kernel", "single"))
    assert apart(kernel, exact) < 2 * apart(single, exact)


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate, self.which, self.factor = nn.Parameter(draw(3)), torch.tensor([1, 0, 2], device=DEVICE), 1.0

    def forward(self, t, z):
        return -self.factor * self.rate * z[:, self.which]


@by_kernels
def test_kernels_are_found_again_where_nothing_but_numbers_of_tensors_changed(monkeypatch):
    func, count = Chosen(), counted(monkeypatch, prepare._PREPARED)
    for hits, change in enumerate((lambda: None, lambda: func.rate.data.mul_(2), lambda: func.rate.data.add_(1))):
        change()
        compare(func, draw(4, 3), steps=2)
        assert (count.hits, count.misses) == (hits, 1)
    func.which.copy_(torch.tensor([2, 1, 0]))
    compare(func, draw(4, 3), steps=2)
    func.factor = 2.0
    compare(func, draw(4, 3), steps=2)
    assert (count.hits, count.misses) == (3, 2)  # a number that meets parameters alone is one of theirs


class Shaped(nn.Module):
    """Parameters that something is done to before they meet the state, and what else a call may depend on."""

    def __init__(self):
        super().__init__()
        self.both = draw(2, 3, 3)
        self.first, self.rate = nn.Parameter(0.3 * draw(3, 3)), nn.Parameter(draw(3))
        self.scale, self.factor, self.others = draw(3, seed=1), 0.5, {"which": 0}
        self.register_buffer("shift", draw(3, seed=2))

    def forward(self, t, z, u):
        held = self.both[self.others["which"]]  # of one storage, as large and as dense
        drawn = nn.functional.softplus(self.rate) * self.scale
        slope = -drawn * z + z @ self.first.tanh() + 0.1 * (z + u) @ held + self.shift
        return slope * self.factor if self.training else slope * t


def swapped(name):
    """Another parameter of the same shape in place of this one."""
    return lambda func: setattr(func, name, nn.Parameter(getattr(func, name).detach() * 0.5))


CHANGES = {
    "nothing": lambda func: None,
    "numbers of a parameter": lambda func: func.rate.data.mul_(2),
    "numbers of a buffer, without a trace": lambda func: func.shift.data.add_(1),
    "a parameter": swapped("first"),
    "a tensor": lambda func: setattr(func, "scale", draw(3, seed=5)),
    "a number": lambda func: setattr(func, "factor", 0.25),
    "which part of a tensor": lambda func: func.others.update(which=1),
    "the mode": lambda func: func.eval(),
    "what gets a gradient": lambda func: func.first.requires_grad_(False),
}


@by_kernels
def test_steps_are_found_again_by_what_func_does(monkeypatch):
    """A cache that tries to lie: after each change the gradients are those of single steps."""
    func, found = Shaped(), []
    count = counted(monkeypatch, prepare._TRACED)
    traced = prepare._traced
    monkeypatch.setattr(prepare, "_traced", lambda *given: (found.append(1), traced(*given))[1])
    for name, change in {"": lambda func: None, **CHANGES}.items():
        change(func)
        before = len(found)
        wanted = [p for p in func.parameters() if p.requires_grad]
        by = []
        for stepper in ("kernel", "single"):
            z0, u = draw(4, 3).requires_grad_(), draw(4, 3, seed=4).requires_grad_()
            solved = nf.solve(func, z0, 0.5, 0.7, steps=3, stepper=stepper, method="predictor", args=(u,))
            assert solved.stats.stepper == stepper, solved.stats.why
            loss = solved.ys.square().sum()
            by.append([loss.detach(), *torch.autograd.grad(loss, [z0, u, *wanted])])
        assert apart(*by) < 1e-12, name
        assert (len(found) == before) == (name == "nothing" or name.startswith("numbers")), name
    assert count.hits == 3


@by_kernels
def test_a_function_that_makes_constants_anew_is_traced_every_time(monkeypatch):
    rates, found = [0.5, 1.0, 2.0], []
    traced = prepare._traced
    monkeypatch.setattr(prepare, "_traced", lambda *given: (found.append(1), traced(*given))[1])
    func = Does(lambda z: z * torch.tensor(rates, dtype=F64, device=DEVICE))
    for factor in (1.0, 1.0, 2.0):
        rates[0], before = factor, len(found)
        compare(func, draw(4, 3), steps=2)
        assert len(found) > before


class Ranked(nn.Module):
    """Features in an order that scores say, and a mask made of them."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(draw(3))
        self.register_buffer("score", draw(3, seed=1))

    def forward(self, t, z):
        return torch.where(self.score > 0, -z, z)[..., self.score.argsort()] * self.rate


@by_kernels
def test_indices_made_of_numbers_that_change_are_part_of_another_kernel():
    func = Ranked()
    for _ in range(3):
        compare(func, draw(4, 3), steps=2)
        func.score.data.neg_()


CELLS = [
    Case("predictor", "kernel", "full", "device", "graded", 6, 3, "nodes"),
    Case("abm", "kernel", "full", "device", "variable", 6, 3, "end"),
    Case("abm", "kernel", "exponentials", "checkpoint", "tempered", 65, 2, "nodes"),
    Case("gl-explicit", "kernel", "window", "host", "multi-term", 6, 15, "nodes"),
]


@by_kernels
@pytest.mark.parametrize("case", CELLS, ids=str)
def test_cells_of_the_matrix(case):
    assert max(distances(by_package(case), by_reference(case)).values()) < 1e-12


class Does(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.rate, self.what = nn.Parameter(torch.ones((), dtype=F64, device=DEVICE)), what

    def forward(self, t, z):
        return -self.rate * self.what(z)


@by_kernels
@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda z: z - z.mean(), "func mixes samples"),
        (lambda z: z.sort(-1).values, "aten::sort is not covered"),
        (lambda z: z * float(z.detach()[0, 0]), "looks at the numbers of its state"),
        (lambda z: torch.nn.functional.dropout(z), "random numbers"),
        (lambda z: z.cos().index_fill_(1, torch.tensor([0], device=z.device), 0.0), "aten::index_fill"),
        (lambda z: z.float().double(), "precision"),
    ],
)
def test_other_functions_take_other_steps(what, why):
    stats = gradients(Does(what), draw(40, 30), "kernel", steps=2)[1]
    assert stats.stepper != "kernel"
    assert why in stats.why


@by_kernels
def test_implicit_schemes_take_other_steps():
    stats = gradients(Does(torch.sin), draw(4, 3), "kernel", method="trapezoid")[1]
    assert "not kernel: an implicit stage" in stats.why


SOURCE = """
import torch
from torch import nn
import neuralfde as nf
from neuralfde.solve.steppers import kernel
from neuralfde.solve.steppers.kernel import prepare

compiled = prepare._compiled
prepare._compiled = lambda source: (print(source), compiled(source))[1]
kernel.why_not_here = lambda like: None
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4))
order, options = torch.tensor(0.6, requires_grad=True), {"params": [*net.parameters()], "history": "exponentials"}
try:
    nf.fdeint(lambda t, z: net(z) * t, torch.ones(3, 4), 1.0, order, steps=40, stepper="kernel", **options)
except RuntimeError:  # there is no GPU
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED or sys.platform != "linux", reason="Triton is built for Linux")
def test_kernels_read_the_same_in_every_process():
    """Triton finds what it has compiled, on disk, by the source: sets and hashes must not order it."""
    for_seed = lambda seed: {**os.environ, "PYTHONHASHSEED": seed, "CUDA_VISIBLE_DEVICES": ""}
    runs = [
        subprocess.run([sys.executable, "-c", SOURCE], env=for_seed(k), capture_output=True, text=True) for k in "12"
    ]
    assert runs[0].returncode == 0, runs[0].stderr
    assert "def backward" in runs[0].stdout
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes CPU tensors")
def test_needs_a_gpu():
    with pytest.raises(nf.InputError, match="the state is on cpu: kernels need a CUDA device, or Triton's interpreter"):
        nf.solve(lambda t, z: -z, torch.ones(2, 3), 1.0, 0.6, steps=4, stepper="kernel")
