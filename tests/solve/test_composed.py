"""Solves compose: second derivatives, forward mode, ``torch.func`` and vmap over every scheme and history."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import neuralfde as nf
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


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
def test_gradgradcheck_of_everything_that_gets_a_gradient(method):
    inputs = [x.clone().requires_grad_() for x in (Z, A, BETA)]
    assert torch.autograd.gradgradcheck(
        lambda z, a, b: solved(z, a, b, steps=3, t=TIMES, method=method), inputs, atol=1e-7
    )


def test_second_derivatives_of_an_exact_solution_are_approached_at_the_order_of_the_scheme():
    """D^β z = λ z: the second derivative of E_β(λ) in λ is 2 E'' of Prabhakar's kind; here from mittag_leffler."""
    rate = torch.tensor(-1.0, dtype=F64)

    def exact(x):
        return nf.mittag_leffler(x, 0.7)

    true = torch.autograd.functional.hessian(exact, rate)
    errors = []
    for steps in (20, 40):

        def discrete(x, steps=steps):
            one = torch.ones((), dtype=F64)
            return nf.fdeint(lambda t, z, x: x * z, one, 1.0, 0.7, steps=steps, method="abm", args=(x,))

        errors.append(float((torch.autograd.functional.hessian(discrete, rate) - true).abs()))
    assert 1.4 < torch.log2(torch.tensor(errors[0] / errors[1])) < 2.2  # 1 + β for a solution that starts like t^β


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


def test_forward_mode_by_dual_numbers_for_state_velocity_and_horizon():
    def of(z, v, h):
        return nf.fdeint(lambda t, z: -z, z, 1.0, 1.5, steps=20, velocity=v, horizon=h)

    inputs = (Z, 0.5 * Z, torch.tensor(1.3, dtype=F64))
    tangents = (torch.ones_like(Z), -torch.ones_like(Z), torch.tensor(0.2, dtype=F64))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(of(*map(forward_ad.make_dual, inputs, tangents))).tangent
    leaves = [x.clone().requires_grad_() for x in inputs]
    grads = torch.autograd.grad(of(*leaves).sum(), leaves)
    expected = sum((g * t).sum() for g, t in zip(grads, tangents, strict=True))
    torch.testing.assert_close(found.sum(), expected, rtol=1e-11, atol=1e-12)


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
