"""Complex states: the numbers of the same equation for pairs of real ones, with PyTorch's gradients."""

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.door.names import HISTORIES, METHODS

C128, F64 = torch.complex128, torch.float64
RATE = torch.tensor(-0.6 + 0.9j, dtype=C128)
Z = torch.tensor([0.5 + 0.2j, -0.3 + 0.7j], dtype=C128)


def turning(t, z, rate):
    return rate * z + 0.1 * z.conj() * z


def in_pairs(t, z, rate):
    """The same for the real and the imaginary part."""
    x, y = z.unbind(-1)
    a, b = rate.unbind(-1)
    return torch.stack([a * x - b * y + 0.1 * (x**2 + y**2), b * x + a * y], -1)


@pytest.mark.parametrize(
    "way",
    [
        *[{"method": m} for m in METHODS],
        *[{"history": h} for h in HISTORIES if h not in ("auto", "window")],
        {"stepper": "single"},
        {"adjoint": "direct"},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_pairs(way):
    z0, rate = Z.clone().requires_grad_(), RATE.clone().requires_grad_()
    order = torch.tensor([0.6, 0.8], dtype=F64, requires_grad=True)
    pairs, other = torch.view_as_real(Z).requires_grad_(), torch.view_as_real(RATE).requires_grad_()
    same = order.detach().clone().requires_grad_()
    y = nf.fdeint(turning, z0, 1.0, order, steps=20, args=(rate,), **way)
    x = nf.fdeint(in_pairs, pairs, 1.0, same.unsqueeze(-1), steps=20, args=(other,), **way)
    torch.testing.assert_close(torch.view_as_real(y), x, rtol=1e-12, atol=1e-13)
    y.abs().sum().backward()
    torch.view_as_complex(x).abs().sum().backward()
    for mine, expected in ((z0.grad, pairs.grad), (rate.grad, other.grad)):
        torch.testing.assert_close(torch.view_as_real(mine), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(order.grad, same.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", [{"steps": 8}, {"steps": 8, "method": "trapezoid"}, {"rtol": 1e-2}], ids=str)
def test_conjugates_are_numbers_like_others(way):
    """PyTorch only marks a conjugate, and the imaginary part of one, which is negative."""

    def conjugate(t, z):
        return z.conj()

    jumps = ([0.5], Z[None])
    found = nf.fdeint(conjugate, Z.conj(), 1.0, 0.7, jumps=([0.5], Z[None].conj()), **way)
    torch.testing.assert_close(found, nf.fdeint(conjugate, Z, 1.0, 0.7, jumps=jumps, **way).conj().resolve_conj())
    imaginary = nf.fdeint(lambda t, z: -z, Z.conj().imag, 1.0, 0.7, **way)
    torch.testing.assert_close(imaginary, nf.fdeint(lambda t, z: -z, -Z.imag, 1.0, 0.7, **way))


def test_gradcheck_in_the_convention_of_pytorch():
    inputs = (Z.clone().requires_grad_(), RATE.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda z, r: nf.fdeint(turning, z, 1.0, 0.7, steps=6, args=(r,)), inputs)
    assert torch.autograd.gradgradcheck(lambda z, r: nf.fdeint(turning, z, 1.0, 0.7, steps=3, args=(r,)), inputs)


def test_rotation_approaches_the_mittag_leffler_function():
    """D^β z = i z has the solution E_β(i t^β)."""
    true = nf.mittag_leffler(torch.tensor(1j, dtype=C128), 0.8)
    errors = [
        abs(nf.fdeint(lambda t, z: 1j * z, torch.ones((), dtype=C128), 1.0, 0.8, steps=n, method="abm") - true)
        for n in (40, 80)
    ]
    assert errors[1] < 0.4 * errors[0] < 1e-2


@pytest.mark.parametrize("dtype", [torch.complex64, C128])
def test_trajectories_structures_modules_and_solutions(dtype):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2, dtype=dtype)

        def forward(self, t, z):
            return {"a": self.layer(z["a"]), "b": -z["b"]}

    net, z0 = Net(), {"a": Z.to(dtype), "b": Z[:1].to(dtype)}
    t = torch.linspace(0, 1, 5)
    found = nf.solve(net, z0, t, 0.7, steps=20, estimate_error=True)
    assert found.ys["a"].dtype == dtype
    assert found.ys["a"].shape == (5, 2)
    assert not found.error["a"].is_complex()
    found.ys["a"][-1].abs().sum().backward()
    assert net.layer.weight.grad.abs().sum() > 0
    both = nf.solve(net, z0, 0.5, 0.7, steps=10, resume=True)
    later = nf.solve(net, None, 1.0, 0.7, past=both.state)
    torch.testing.assert_close(later.ys["a"][-1], found.ys["a"][-1], rtol=1e-5, atol=1e-6)


def test_what_is_complex_in_part_is_refused():
    with pytest.raises(nf.InputTypeError, match="mixes real and complex"):
        nf.fdeint(lambda t, z: z, (Z, Z.real), 1.0, 0.5, steps=4)


@pytest.mark.parametrize(
    "operator",
    [
        lambda a, b: nf.Tempered(a, b),
        lambda a, b: nf.MultiTerm((a, 0.3), (1.0, b)),
        lambda a, b: nf.CustomKernel(lambda order, h, n: (order[None] + torch.arange(n + 1.0)[:, None]).rsqrt(), a),
    ],
    ids=["tempered", "multiterm", "custom"],
)
def test_numbers_of_an_operator_belong_to_elements_of_the_state(operator):
    """Not to the real and the imaginary parts, with which two channels would be confused in silence."""
    a, b = torch.tensor([0.4, 0.9], dtype=F64), torch.tensor([0.3, 2.0], dtype=F64)
    rates = torch.tensor([-1 + 2j, -0.5 - 1j], dtype=C128)
    whole = nf.fdeint(lambda t, z: rates * z, Z, 1.0, operator(a, b), steps=20, method="gl")
    for k in range(2):
        own = operator(a[k : k + 1], b[k : k + 1])
        one = nf.fdeint(lambda t, z, k=k: rates[k] * z, Z[k : k + 1], 1.0, own, steps=20, method="gl")
        assert (whole[k] - one[0]).abs() < 1e-13
