"""Solves compose: second derivatives, forward mode, ``torch.func`` and vmap over every scheme and history."""

import contextlib
import importlib
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import mpmath
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import neuralfde as nf
from neuralfde.cli.measuring import peak_mib
from neuralfde.door.names import HISTORIES, METHODS

F64 = torch.float64
Z = torch.tensor([0.8, -0.3], dtype=F64)
A = torch.tensor([[-0.5, 0.3], [0.1, -0.8]], dtype=F64)
BETA = torch.tensor(0.7, dtype=F64)
TIMES = torch.tensor([0.0, 0.5, 1.0], dtype=F64)
#: Every method, and every history with one of them.
WAYS = [
    *[{"method": name} for name in METHODS],
    *[{"history": name} for name in HISTORIES if name not in ("auto", "window")],
    {"history": nf.Window(3)},
    {"history": nf.Exponentials(block=2, tol=1e-3), "storage": "checkpoint", "method": "abm"},
    {"adjoint": "direct"},
    {"method": "abm", "grading": 2.0},
    {"method": "trapezoid", "grading": 2.0, "history": "exponentials"},
]


@pytest.fixture
def by_engine(monkeypatch, request):
    """What is tried is solved by the engine, with its memory, and never operation by operation; IMEX steps are not."""
    if "imex" in request.node.name:
        return

    def refuse(*given):
        raise AssertionError("a solve in plain operations")

    monkeypatch.setattr(importlib.import_module("neuralfde.solve.function"), "composed", refuse)


def field(t, z, a):
    return torch.sin(z @ a) - z * t


def solved(z, a, order, steps=6, t=1.0, **way):
    return nf.fdeint(field, z, t, order, steps=steps, args=(a,), **way)


def loss(z, a, order, **way):
    return (solved(z, a, order, **way) ** 2).sum()


def by_differences(gradient, x, eps=1e-5):
    """The derivative of a gradient in each direction of ``x``, by central differences."""
    moves = torch.eye(x.numel(), dtype=F64).reshape(-1, *x.shape) * eps
    return torch.stack([(gradient(x + m) - gradient(x - m)) / (2 * eps) for m in moves])


@pytest.mark.usefixtures("by_engine")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_derivatives_of_every_way_to_solve(way):
    def first(z):
        z = z.clone().requires_grad_()
        return torch.autograd.grad(loss(z, A, BETA, **way), z)[0]

    def of_z(z):
        return loss(z, A, BETA, **way)

    expected = by_differences(first, Z)
    hessian = torch.autograd.functional.hessian(of_z, Z)
    torch.testing.assert_close(hessian, expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(torch.func.hessian(of_z)(Z), hessian, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(torch.func.grad(of_z)(Z), first(Z), rtol=1e-11, atol=1e-12)
    moved, along = torch.func.jvp(of_z, (Z,), (torch.ones_like(Z),))
    torch.testing.assert_close(moved, of_z(Z), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(along, first(Z).sum(), rtol=1e-11, atol=1e-12)
    several = torch.stack([Z, 2 * Z, -Z])
    mapped = torch.func.vmap(of_z)(several)
    torch.testing.assert_close(mapped, torch.stack([of_z(z) for z in several]), rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("by_engine")
@pytest.mark.parametrize("method", METHODS)
def test_derivatives_in_the_order(method):
    def of_order(b):
        return loss(Z, A, b, method=method)

    def first(b):
        b = b.clone().requires_grad_()
        return torch.autograd.grad(of_order(b), b)[0]

    second = torch.func.hessian(of_order)(BETA)
    torch.testing.assert_close(second, by_differences(first, BETA)[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.func.jacfwd(of_order)(BETA), first(BETA), rtol=1e-11, atol=1e-12)
    orders = torch.tensor([0.35, 0.6, 0.9], dtype=F64)
    mapped = torch.func.vmap(torch.func.grad(of_order))(orders)
    torch.testing.assert_close(mapped, torch.stack([first(b) for b in orders]), rtol=1e-10, atol=1e-11)


def test_orders_of_solves_with_exponentials_are_mapped():
    def end(b):
        return nf.fdeint(lambda t, z: torch.sin(z) - z * t, Z, 1.0, b, steps=70, history=nf.Exponentials(tol=1e-9))

    orders = torch.tensor([0.35, 0.6, 0.9], dtype=F64)
    mapped = torch.func.vmap(torch.func.jacrev(end))(orders)
    expected = torch.stack([torch.func.jacrev(end)(b) for b in orders])
    torch.testing.assert_close(mapped, expected, rtol=1e-7, atol=1e-8)


def of_order(order, z, method="predictor"):
    """A solve with an order of any kind."""
    return nf.fdeint(lambda t, z: torch.sin(z) - z * t, z, 1.0, order, steps=6, method=method)


#: What a solve can depend on, each as a function of one tensor.
INPUTS = {
    "args": (lambda a: solved(Z, a, 0.7), A),
    "orders of channels": (partial(of_order, z=Z), torch.tensor([0.6, 0.8], dtype=F64)),
    "orders in a structure": (lambda b: of_pair(b), torch.tensor([0.6, 0.8], dtype=F64)),
    "multi-term": (lambda c: of_order(nf.MultiTerm([0.9, 0.4], c), Z, "gl"), torch.tensor([1.0, 0.3], dtype=F64)),
    "distributed order": (
        lambda w: of_order(nf.DistributedOrder([0.3, 0.6, 0.9], weights=w), Z, "gl-explicit"),
        torch.tensor([0.2, 0.3, 0.5], dtype=F64),
    ),
    "tempered": (lambda r: of_order(nf.Tempered(0.7, r), Z), torch.tensor(0.4, dtype=F64)),
    "variable order": (lambda b: of_order(nf.VariableOrder(lambda t: b - 0.1 * t), Z), BETA),
    "velocity": (lambda v: nf.fdeint(lambda t, z: -z, Z, 1.0, 1.5, steps=6, velocity=v), 0.5 * Z),
    "horizon": (
        lambda h: nf.fdeint(lambda t, z: torch.cos(t) - z * z, Z, 1.0, 0.7, steps=6, horizon=h),
        torch.tensor(1.3, dtype=F64),
    ),
    "jumps": (lambda v: nf.fdeint(lambda t, z: -z * z, Z, 1.0, 0.7, steps=6, jumps=([0.4], v)), Z[None]),
    "complex rate": (lambda r: rotated(torch.view_as_complex(r)), torch.tensor([-0.4, 0.7], dtype=F64)),
}


def of_pair(b):
    found = nf.fdeint(
        lambda t, z: (torch.sin(z[1]) - z[0], -z[0][:1]), (Z, Z[:1]), 1.0, (b[0], b[1]), steps=6, method="trapezoid"
    )
    return torch.cat(found)


def rotated(rate):
    z = nf.fdeint(lambda t, z, r: r * z * z.abs(), torch.complex(Z, Z.flip(0)), 1.0, 0.7, steps=6, args=(rate,))
    return torch.view_as_real(z)


@pytest.mark.usefixtures("by_engine")
@pytest.mark.parametrize("what", INPUTS)
def test_derivatives_in_everything_that_gets_a_gradient(what):
    of, x = INPUTS[what]
    along = torch.linspace(0.5, 1.0, x.numel(), dtype=F64).reshape(x.shape)

    def loss(x):
        return (of(x) ** 2).sum()

    def first(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(loss(x), x)[0]

    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(loss(forward_ad.make_dual(x, along))).tangent, (first(x) * along).sum())
    close(torch.func.jacfwd(loss)(x), first(x))
    grad, product = torch.func.jvp(torch.func.grad(loss), (x,), (along,))
    close(grad, first(x))
    by = (first(x + 1e-5 * along) - first(x - 1e-5 * along)) / 2e-5
    torch.testing.assert_close(product, by, rtol=1e-6, atol=1e-8)
    close(torch.autograd.functional.hvp(loss, x, along)[1], product)


@pytest.mark.usefixtures("by_engine")
@pytest.mark.parametrize("adjoint", ["exact", "direct"])
@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
@pytest.mark.parametrize("t", [1.0, TIMES], ids=["terminal", "trajectory"])
def test_gradgradcheck(method, adjoint, t):
    inputs = [x.clone().requires_grad_() for x in (Z, A, BETA)]
    given = {"steps": 3, "t": t, "method": method, "adjoint": adjoint}
    assert torch.autograd.gradgradcheck(lambda z, a, b: solved(z, a, b, **given), inputs, atol=1e-7, fast_mode=True)


def derived(letters, of):
    """The derivative of a function of one number once for each letter: forward, reverse, and both inside vmap."""
    f = torch.func
    for letter in reversed(letters):
        of = {
            "F": lambda x, of=of: f.jvp(of, (x,), (torch.ones_like(x),))[1],
            "R": f.grad(of),
            "V": lambda x, of=of: f.vmap(lambda along: f.jvp(of, (x,), (along,))[1])(torch.ones(2, dtype=F64))[1],
            "W": lambda x, of=of: f.vmap(f.grad(of))(torch.stack([2 * x, x]))[1],
        }[letter]
    return of


@pytest.mark.usefixtures("by_engine")
@pytest.mark.parametrize("letters", ["FF", "FR", "RF", "VR", "WF", "FV", "RW", "FFR", "RFF", "RRR", "VFR", "FWR"])
def test_transforms_nest_in_any_order(letters):
    """A solve whose initial value, argument and order all move with one number."""

    def of(x):
        return nf.fdeint(lambda t, z, a: a * torch.sin(z), 1 + x, 1.0, 0.3 + x, steps=4, args=(x,))

    x, eps = torch.tensor(0.3, dtype=F64), 1e-5
    before = derived("R" * (len(letters) - 1), of)
    expected = (before(x + eps) - before(x - eps)) / (2 * eps)
    torch.testing.assert_close(derived(letters, of)(x), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("by_engine")
def test_hessians_of_all_kinds_agree():
    def loss(x):
        return (solved(x[:2], A, x[2], steps=4, t=TIMES, method="abm") ** 2).sum()

    f, x, close = torch.func, torch.cat([Z, BETA[None]]), partial(torch.testing.assert_close, rtol=1e-9, atol=1e-10)
    hessian = f.hessian(loss)(x)
    for found in (f.jacrev(f.jacrev(loss)), f.jacrev(f.jacfwd(loss)), f.jacfwd(f.jacfwd(loss))):
        close(found(x), hessian)
    close(f.vjp(f.grad(loss), x)[1](x)[0], hessian @ x)
    close(f.vmap(f.hessian(loss))(torch.stack([x, x]))[1], hessian)
    close(torch.autograd.functional.hessian(loss, x), hessian)


def mittag_leffler(rate, order):
    return sum(rate**k / mpmath.gamma(order * k + 1) for k in range(60))


def rectangles(rate, order, steps=8):
    """The predictor's own result for D^β z = λ z, in 30 digits."""
    slopes, weight = [rate], mpmath.mpf(steps) ** -order / mpmath.gamma(order + 1)
    for n in range(1, steps + 1):
        sums = sum(((n - j) ** order - mpmath.mpf(n - 1 - j) ** order) * v for j, v in enumerate(slopes))
        slopes.append(rate * (1 + weight * sums))
    return slopes[-1] / rate


def by_mpmath(of):
    with mpmath.workdps(30):
        point = (mpmath.mpf(-1), mpmath.mpf("0.7"))
        a, b, c = (float(mpmath.diff(of, point, n)) for n in ((2, 0), (1, 1), (0, 2)))
    return torch.tensor([[a, b], [b, c]], dtype=F64)


def relaxed(x, steps, method):
    rate, order = x.unbind()
    one = torch.ones((), dtype=F64)
    return nf.fdeint(lambda t, z, rate: rate * z, one, 1.0, order, steps=steps, method=method, args=(rate,))


POINT = torch.tensor([-1.0, 0.7], dtype=F64)


def test_the_hessian_is_that_of_the_scheme():
    found = torch.func.hessian(partial(relaxed, steps=8, method="predictor"))(POINT)
    torch.testing.assert_close(found, by_mpmath(rectangles), rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["predictor", "trapezoid", "gl"])
def test_the_hessian_converges_to_the_analytic_one_at_the_order_of_the_scheme(method):
    """In rate and order of E_β(λ t^β); where the order p depends on β, each ∂/∂β adds a factor ln(1/h) to the error."""
    true, expected, steps = by_mpmath(mittag_leffler), METHODS[method].expected_order(0.7, smooth=False), (64, 128)
    errors = [(torch.func.hessian(partial(relaxed, steps=n, method=method))(POINT) - true).abs() for n in steps]
    order = torch.log2(errors[0] / errors[1])
    assert abs(order[0, 0] - expected) < 0.05
    assert (order > 0.9 * expected - (0.2 if expected == 1 else 0.5)).all()


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()

    def forward(self, t, z):
        return self.net(z)


def test_a_gradient_penalty_trains():
    net, z = Net(), Z.clone().requires_grad_()
    y = nf.fdeint(net, z, 1.0, 0.7, steps=20)
    (slope,) = torch.autograd.grad(y.sum(), z, create_graph=True)
    (slope**2).sum().backward()
    weight, eps = net.net[0].weight, 1e-6
    grad = weight.grad[1, 0].clone()

    def penalty():
        x = Z.clone().requires_grad_()
        return (torch.autograd.grad(nf.fdeint(net, x, 1.0, 0.7, steps=20).sum(), x)[0] ** 2).sum()

    with torch.no_grad():
        weight[1, 0] += eps
    high = penalty()
    with torch.no_grad():
        weight[1, 0] -= 2 * eps
    torch.testing.assert_close(grad, (high - penalty()) / (2 * eps), rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("by_engine")
def test_the_second_order_has_the_memory_of_the_first():
    """Twice the state and its graphs, whatever the number of steps, where history and storage promise that."""
    net, z0 = nn.Linear(64, 64), torch.randn(32, 64)
    way = {"steps": 300, "history": "exponentials", "storage": "checkpoint"}

    def func(t, z):
        return torch.tanh(net(z))

    def first(**more):
        y = nf.fdeint(func, z0, 1.0, 0.7, params=list(net.parameters()), **way)
        return torch.autograd.grad((y**2).sum(), list(net.parameters()), **more)

    def second():
        return torch.autograd.grad(sum(g.sum() for g in first(create_graph=True)), list(net.parameters()))

    once, twice = (peak_mib(work, torch.device("cpu")) for work in (first, second))
    assert twice < 3.5 * once


def test_an_ensemble_is_one_solve():
    nets = [Net(k) for k in range(3)]
    stacked, _ = torch.func.stack_module_state(nets)
    base = nets[0]

    def one(params, z):
        return nf.fdeint(lambda t, z: torch.func.functional_call(base, params, (t, z)), z, 1.0, 0.7, steps=10)

    found = torch.func.vmap(one, in_dims=(0, None))(stacked, Z)
    expected = torch.stack([nf.fdeint(net, Z, 1.0, 0.7, steps=10) for net in nets])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    per_member = torch.func.vmap(torch.func.grad(lambda p, z: one(p, z).sum()), in_dims=(0, None))(stacked, Z)
    nf.fdeint(nets[1], Z, 1.0, 0.7, steps=10).sum().backward()
    torch.testing.assert_close(per_member["net.0.weight"][1], nets[1].net[0].weight.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("by_engine")
def test_parameters_of_a_module_wherever_functional_call_stands():
    """Around the solve, inside func, or in func's arguments: the same derivatives."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.func = Net()

        def forward(self, z):
            return nf.fdeint(self.func, z, 1.0, 0.7, steps=5)

    block = Block()
    net, call = block.func, torch.func.functional_call
    params = {k: p.detach() for k, p in net.named_parameters()}
    along = {k: torch.ones_like(p) for k, p in params.items()}
    ways = [
        lambda p: call(block, {f"func.{k}": x for k, x in p.items()}, (Z,)),
        lambda p: nf.fdeint(lambda t, z: call(net, p, (t, z)), Z, 1.0, 0.7, steps=5),
        lambda p: nf.fdeint(lambda t, z, p: call(net, p, (t, z)), Z, 1.0, 0.7, steps=5, args=(p,)),
    ]
    found = [
        torch.func.jvp(torch.func.grad(lambda p, way=way: (way(p) ** 2).sum()), (params,), (along,)) for way in ways
    ]
    y = nf.fdeint(net, Z, 1.0, 0.7, steps=5)
    first = torch.autograd.grad((y**2).sum(), list(net.parameters()), create_graph=True)
    second = torch.autograd.grad(sum(g.sum() for g in first), list(net.parameters()))
    for grads, products in found:
        torch.testing.assert_close(list(grads.values()), [g.detach() for g in first], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(list(products.values()), list(second), rtol=1e-10, atol=1e-12)


def test_what_func_captures_has_its_derivatives():
    """Variables of closures are found; what cannot be found is followed operation by operation."""

    class Hidden:
        __slots__ = ("w",)

        def __init__(self, w):
            self.w = w

        def __call__(self, t, z):
            return -self.w * z

    for make in (lambda w: lambda t, z: -w * z, Hidden):

        def end(w, make=make):
            return nf.fdeint(make(w), Z, 1.0, 0.7, steps=5).sum()

        given = torch.func.grad(lambda w: nf.fdeint(lambda t, z, w: -w * z, Z, 1.0, 0.7, steps=5, args=(w,)).sum())
        close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-12)
        close(torch.func.grad(end)(BETA), given(BETA))
        close(torch.func.jvp(end, (BETA,), (torch.ones_like(BETA),))[1], given(BETA))
        with forward_ad.dual_level():
            close(forward_ad.unpack_dual(end(forward_ad.make_dual(BETA, torch.ones_like(BETA)))).tangent, given(BETA))
        both = torch.stack([BETA, 2 * BETA])
        close(torch.func.vmap(end)(both), torch.stack([end(BETA), end(2 * BETA)]))


@pytest.mark.usefixtures("by_engine")
def test_implicit_stages_of_any_size_compose():
    large = torch.linspace(-1, 1, 600, dtype=F64)

    def loss(z):
        return (nf.fdeint(lambda t, z: torch.sin(z.roll(1)) - 2 * z, z, 1.0, 0.7, steps=3, method="l1") ** 2).sum()

    along, step = torch.cos(large), 1e-5
    grad = torch.func.grad(loss)
    product = torch.func.jvp(grad, (large,), (along,))[1]
    by = (grad(large + step * along) - grad(large - step * along)) / (2 * step)
    torch.testing.assert_close(product, by, rtol=1e-6, atol=1e-7)
    both = torch.func.vmap(loss)(torch.stack([large, -large]))
    torch.testing.assert_close(both, torch.stack([loss(large), loss(-large)]), rtol=1e-10, atol=1e-11)


def test_many_gradients_at_once():
    z = Z.clone().requires_grad_()
    y = solved(z, A, BETA)
    (found,) = torch.autograd.grad(y, z, torch.eye(2, dtype=F64), is_grads_batched=True)
    torch.testing.assert_close(found, torch.func.jacrev(lambda z: solved(z, A, BETA))(Z), rtol=1e-12, atol=1e-13)


def test_steps_to_a_tolerance_compose_on_the_mesh_that_was_found():
    grid = nf.solve(field, Z, 1.0, 0.7, args=(A,), rtol=1e-2).grid
    found = torch.func.hessian(lambda z: (nf.fdeint(field, z, 1.0, 0.7, args=(A,), rtol=1e-2) ** 2).sum())(Z)
    frozen = {"grid": grid, "method": "trapezoid", "history": "exponentials"}
    expected = torch.func.hessian(lambda z: (nf.fdeint(field, z, 1.0, 0.7, args=(A,), **frozen) ** 2).sum())(Z)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)  # the kernel is that of another tolerance
    with pytest.raises(nf.UnsupportedError, match="grid="):
        torch.func.vmap(lambda z: nf.fdeint(field, z, 1.0, 0.7, args=(A,), rtol=1e-2))(torch.stack([Z, -Z]))


def test_noise_is_the_same_in_the_second_derivative():
    torch.manual_seed(0)
    z = Z.clone().requires_grad_()
    y = nf.fdeint(lambda t, z: -(nn.functional.dropout(z, 0.5) ** 2), z, 1.0, 0.7, steps=20)
    (first,) = torch.autograd.grad(y.sum(), z, retain_graph=True)
    (again,) = torch.autograd.grad(y.sum(), z, create_graph=True)
    torch.testing.assert_close(first, again, rtol=1e-11, atol=1e-12)


def test_vmap_asks_how_noise_is_meant():
    def noisy(z):
        return nf.fdeint(lambda t, z: -nn.functional.dropout(z, 0.5), z, 1.0, 0.7, steps=5)

    rows = torch.ones(6, 4, dtype=F64)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(noisy)(rows)
    same = torch.func.vmap(noisy, randomness="same")(rows)
    assert torch.equal(same[0], same[1])
    other = torch.func.vmap(noisy, randomness="different")(rows)
    assert not torch.equal(other[0], other[1])


def test_what_cannot_be_composed_is_refused_with_what_to_do():
    z = Z.clone().requires_grad_()
    y = solved(z, A, 0.7, adjoint="paper")
    with pytest.raises(nf.UnsupportedError, match="adjoint='exact'"):
        torch.autograd.grad(y.sum(), z, create_graph=True)
    with pytest.raises(nf.UnsupportedError, match="adjoint='exact'"):
        torch.func.grad(lambda z: solved(z, A, 0.7, adjoint="paper").sum())(Z)
    large, seen = torch.ones(600, dtype=F64), []

    def counting(t, z):  # keeps something, so that every operation has to be followed
        seen.append(None)
        return -z

    with pytest.raises(nf.UnsupportedError, match="explicit method"):
        torch.func.grad(lambda z: nf.fdeint(counting, z, 1.0, 0.7, steps=3, method="l1").sum())(large)


def test_threads_that_share_a_module_do_not_see_each_others_tangents():
    """By reverse mode: forward mode of PyTorch has one level for all threads of a process."""
    net = torch.nn.Linear(3, 3, dtype=F64)
    starts = torch.randn(8, 3, dtype=F64, generator=torch.Generator().manual_seed(0))

    def of(z):
        func, params = lambda t, y: torch.tanh(net(y)), list(net.parameters())
        return nf.fdeint(func, z, 1.0, 0.6, steps=12, params=params).sum()

    def hessian(z):
        return torch.func.jacrev(torch.func.grad(of))(z)

    def penalty(z):
        z = z.clone().requires_grad_()
        (slope,) = torch.autograd.grad(of(z), z, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [z, net.weight])

    with ThreadPoolExecutor(4) as pool:
        for way in (hessian, penalty):
            right = [way(z) for z in starts]
            for found, wanted in zip(pool.map(way, [*starts] * 3), right * 3, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", [*[{"method": name} for name in METHODS], {"linear": A}], ids=str)
def test_forward_mode_nests_in_the_order(way):
    """PyTorch's own solve, running product and custom Functions lose outer tangents, silently."""
    order = torch.tensor(1.0 if way.get("method") in ("abm", "trapezoid") else 0.7, dtype=F64)
    f = partial(lambda order, **way: loss(Z, A, order, steps=4, **way), **way)
    known = torch.func.grad(torch.func.grad(f))(order)
    for found in (torch.func.jacfwd(torch.func.jacfwd(f)), torch.func.jacrev(torch.func.jacfwd(f))):
        torch.testing.assert_close(found(order), known, rtol=1e-9, atol=1e-9)
    both = torch.func.vmap(torch.func.jacfwd(f))(order * torch.tensor([0.9, 0.8], dtype=F64))
    torch.testing.assert_close(both[1], torch.func.grad(f)(order * 0.8), rtol=1e-9, atol=1e-9)


def test_times_have_no_silent_tangent():
    def end(t):
        return solved(Z, A, BETA, t=t).sum()

    def inside(t):
        return torch.func.grad(lambda a: solved(Z, a, BETA, t=t).sum())(A).sum()

    for f in (end, inside):
        with pytest.raises(nf.errors.InputError, match="a transform follows it"):
            torch.func.jvp(f, (BETA,), (BETA,))

    def kicked(at):
        return solved(Z, A, BETA, jumps=(at[None], Z[None])).sum()

    at = torch.tensor(0.4, dtype=F64)
    torch.testing.assert_close(torch.func.jacfwd(kicked)(at), torch.func.grad(kicked)(at))


def test_what_vmap_cannot_look_at_is_refused():
    many = torch.tensor([0.3, 0.4], dtype=F64)
    for call in (
        lambda x: solved(Z, A, BETA, jumps=(x[None], Z[None])),
        lambda x: nf.fdeint(lambda t, z, before: -before, Z, 1.0, BETA, steps=6, lags=x),
        lambda x: nf.fdeint(None, Z, 1.0, x, linear=A),
        lambda x: nf.mittag_leffler(-1.0, x),
    ):
        with pytest.raises(nf.errors.UnsupportedError, match="cannot be mapped by vmap"):
            torch.func.vmap(call)(many)


@pytest.mark.parametrize("method", ["predictor", "l1", "bdf2", "flmm-trapezoid"])
@pytest.mark.parametrize("way", ["reverse-mode", "forward-mode"])
def test_several_second_derivatives_at_once_are_refused(method, way):
    for f, x in (
        (lambda z: loss(z, A, BETA, method=method), Z),
        (lambda order: loss(Z, A, order, method=method), BETA),
        (lambda a: loss(Z, a, BETA, method=method), A),
    ):
        with pytest.raises(nf.errors.UnsupportedError, match="vectorize=False"):
            torch.autograd.functional.hessian(f, x, vectorize=True, outer_jacobian_strategy=way)


@pytest.mark.parametrize("x", [(-0.2, 0.7, 1.1), (-3.0, 0.7, 1.1), (-2.0, 1.0, 1.0)])
def test_the_mittag_leffler_function_composes(x):
    def f(x):
        return nf.mittag_leffler(*x.unbind())

    x = torch.tensor(x, dtype=F64)
    y = x.clone().requires_grad_()
    (known,) = torch.autograd.grad(f(y), y)
    torch.testing.assert_close(torch.func.jacfwd(f)(x), known)
    torch.testing.assert_close(torch.func.grad(f)(x), known)
    twice = torch.func.jacfwd(torch.func.jacfwd(f))(x)
    torch.testing.assert_close(twice, torch.autograd.functional.hessian(f, x), rtol=1e-8, atol=1e-8)


class NormAndField(torch.nn.Module):
    """Layer norm: the derivative of its forward mode, which PyTorch makes, is not that of its gradient."""

    def forward(self, t, z, a):
        return torch.nn.functional.layer_norm(z, z.shape[-1:]) @ a - z


def held_back(t, z, a):
    with torch.no_grad():
        factor = torch.tanh(z)  # a constant for gradients, but not for forward mode
    return -factor * (z @ a)


def recomputed(t, z, a):
    return torch.utils.checkpoint.checkpoint(lambda z: torch.sin(z @ a) - z, z, use_reentrant=False)


@pytest.mark.parametrize("func", [NormAndField(), held_back, recomputed], ids=["norm", "no_grad", "checkpoint"])
@pytest.mark.parametrize("start", [[0.8, -0.3, 0.4], [1.0, 1.0, 1.0]], ids=["any", "equal numbers"])
def test_second_derivatives_are_those_of_a_loop_where_forward_mode_differs(func, start):
    start = torch.tensor(start, dtype=F64)
    matrix = torch.tensor([[-0.5, 0.3, 0.2], [0.1, -0.8, 0.0], [0.4, 0.2, -0.3]], dtype=F64)

    def by_library(z, a):
        return (nf.fdeint(func, z, 1.0, 0.7, steps=5, args=(a,)) ** 2 * torch.arange(1, z.numel() + 1)).sum()

    def by_loop(z, a):
        edges = torch.arange(6, dtype=F64) / 5
        slopes, state = [], z
        for n in range(1, 6):
            slopes.append(func(edges[n - 1], state, a))
            reach = (edges[n] - edges[:n]) ** 0.7 / math.gamma(1.7)
            weights = reach - torch.cat([reach[1:], torch.zeros(1, dtype=F64)])
            state = z + sum(w * v for w, v in zip(weights, slopes, strict=True))
        return (state**2 * torch.arange(1, z.numel() + 1)).sum()

    def second(loss):
        x = [start.clone().requires_grad_(), matrix.clone().requires_grad_()]
        first = torch.autograd.grad(loss(*x), x, create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), x)

    torch.testing.assert_close(second(by_library), second(by_loop), rtol=1e-9, atol=1e-9)
    if func is not recomputed:  # which torch.func does not have
        hessians = [torch.func.hessian(loss)(start, matrix) for loss in (by_library, by_loop)]
        torch.testing.assert_close(*hessians, rtol=1e-9, atol=1e-9)


class Rated(nn.Module):
    def __init__(self, normed):
        super().__init__()
        self.rate, self.normed = nn.Parameter(torch.tensor(0.8, dtype=F64)), normed

    def forward(self, t, z, a):
        z = torch.sin(a * self.rate * z)
        return nn.functional.layer_norm(z, z.shape[-1:]) if self.normed else z


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("method", ["predictor", "trapezoid", "imex"])
def test_an_input_may_be_computed_from_another(normed, method):
    """What flows through the one is no part of the gradient of the other, however the second derivative is found."""
    func, start = Rated(normed), torch.tensor([0.8, -0.3, 0.4], dtype=F64)

    def loss(rate):
        given = {"method": method, "args": (rate,)} | (
            {"linear": -rate * torch.eye(3, dtype=F64)} if method == "imex" else {}
        )
        return (nf.fdeint(func, start * rate, 1.0, 0.6 + 0.1 * rate, steps=6, **given) ** 2 * start).sum()

    def gradient(value, **given):
        with torch.no_grad():
            func.rate.fill_(value)
        return torch.autograd.grad(loss(func.rate), func.rate, **given)[0]

    expected, again = gradient(0.8), gradient(0.8, create_graph=True)
    torch.testing.assert_close(again, expected, rtol=1e-11, atol=1e-11)
    (second,) = torch.autograd.grad(again, func.rate)
    by = (gradient(0.8 + 1e-5) - gradient(0.8 - 1e-5)) / 2e-5
    torch.testing.assert_close(second, by, rtol=1e-6, atol=1e-7)
    many = gradient(0.8, grad_outputs=torch.ones(2, dtype=F64), is_grads_batched=True)
    torch.testing.assert_close(many, expected.expand(2), rtol=1e-11, atol=1e-11)


def test_an_input_computed_from_a_tensor_that_only_a_function_holds_is_refused():
    rate = torch.tensor(0.8, dtype=F64, requires_grad=True)

    def func(t, z):
        return nn.functional.layer_norm(rate * z, z.shape)

    for start in (Z, Z * rate):
        z = nf.fdeint(func, start, 1.0, 0.7, steps=4, params=[rate])
        torch.autograd.grad(z[0], rate, retain_graph=True)
        if start is Z:
            torch.autograd.grad(z[0], rate, create_graph=True)
            continue
        with pytest.raises(nf.UnsupportedError, match="computed from a tensor of params="):
            torch.autograd.grad(z[0], rate, create_graph=True)


def test_reverse_mode_twice_with_a_matrix_on_the_left():
    """The slope of a mapped state has then other strides than the state."""

    def loss(z):
        return (nf.fdeint(lambda t, z: torch.tanh(A @ z) - z, z, 1.0, 0.7, steps=20) ** 2).sum()

    z = torch.linspace(-1, 1, A.shape[1], dtype=F64)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(loss))(z), torch.func.hessian(loss)(z))


def delayed(rate, z, t=1.0):
    """Solved operation by operation, since it has a delay."""
    return nf.fdeint(lambda t, z, before: rate * z - z**3 + 0 * before, z, t, 0.8, steps=8, method="bdf2", lags=t)


@pytest.mark.parametrize("transform", ["vmap", "jvp"])
def test_stages_inside_a_transform_are_solved_however_far_they_fall(transform):
    z, step = torch.tensor([50.0, -5000.0], dtype=F64), 1e-2
    if transform == "vmap":
        both = torch.stack([z, 0.01 * z])
        found, expected = torch.func.vmap(partial(delayed, 0.0))(both), [delayed(0.0, x) for x in both]
        torch.testing.assert_close(found, torch.stack(expected))
    else:
        found, moved = torch.func.jvp(partial(delayed, 0.0), (z,), (torch.ones_like(z),))
        by = (delayed(0.0, z + step) - delayed(0.0, z - step)) / (2 * step)
        torch.testing.assert_close(found, delayed(0.0, z))
        torch.testing.assert_close(moved, by, rtol=1e-6, atol=0)


def test_stages_of_several_solutions_are_refused_inside_a_transform():
    z = torch.tensor([0.1], dtype=F64)
    assert delayed(5.0, z, 8.0) > 2
    with pytest.raises(nf.errors.ConvergenceError, match="several solutions"):
        torch.func.vmap(partial(delayed, 5.0, t=8.0))(z[None])


@pytest.mark.parametrize("way", ["jvp", "jacfwd", "jvp of jvp", "hessian", "jvp of grad", "double backward"])
@pytest.mark.parametrize("method", ["predictor", "trapezoid"])
def test_tangents_that_pytorch_shares_with_what_func_writes_to_are_not_changed(way, method):
    """``empty_like(z).copy_(w)`` has the tangent of ``w`` itself, if ``w`` is expanded; ``mul_`` then writes to it."""

    def shared(t, z, w):
        y = torch.empty_like(z)
        y.copy_(w)
        y.mul_(2.0)
        return y * z * 0.1 - z

    z0, w = torch.tensor([[1.0, 2.0]], dtype=F64), torch.tensor([0.3, 0.4], dtype=F64)

    def derivative(func, u):
        def solution(w):
            return nf.fdeint(func, z0, 1.0, 0.6, steps=5, method=method, args=(w,)).square().sum()

        if way == "double backward":
            x = w.clone().requires_grad_()
            (g,) = torch.autograd.grad(solution(x), x, create_graph=True)
            return torch.autograd.grad(g.square().sum(), x)[0]
        jvp, grad = torch.func.jvp, torch.func.grad
        return {
            "jvp": lambda: jvp(solution, (w,), (u,))[1],
            "jacfwd": lambda: torch.func.jacfwd(solution)(w),
            "jvp of jvp": lambda: jvp(lambda x: jvp(solution, (x,), (torch.ones_like(u),))[1], (w,), (u,))[1],
            "hessian": lambda: torch.func.hessian(solution)(w),
            "jvp of grad": lambda: jvp(grad(solution), (w,), (u,))[1],
        }[way]()

    u = torch.tensor([1.0, 0.5], dtype=F64)
    want = derivative(lambda t, z, w: 2.0 * w * z * 0.1 - z, u.clone())
    with contextlib.suppress(nf.errors.UnsupportedError):
        assert torch.allclose(derivative(shared, u), want, rtol=1e-10)
    assert u.tolist() == [1.0, 0.5]
