"""The history of fading exponentials: its fit, its memory, and its gradient against exact sums."""

import pytest
import torch

import neuralfde as nf
from neuralfde.door.names import METHODS
from neuralfde.weights import uniform
from tests.stubs import F64, Net, relative
from tests.walking import walk


def gradients(history, method="predictor", adjoint="exact", dtype=F64, steps=120, order=0.6, **options):
    torch.manual_seed(0)
    func = Net(dtype=dtype)
    z0 = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    beta = torch.tensor(order, dtype=F64, requires_grad=True)
    y = nf.fdeint(func, z0, 2.0, beta, steps=steps, method=method, history=history, adjoint=adjoint, **options)
    (y**2).sum().backward()
    return [y.detach(), z0.grad, beta.grad.reshape(1), *[p.grad for p in func.parameters()]]


def worst(a, b):
    return max(relative(x.double(), y.double()) for x, y in zip(a, b, strict=True))


#: The weights of this one alternate in sign around their tail, which no decaying exponential does.
ALTERNATING = "flmm-trapezoid"


@pytest.mark.parametrize("method", [m for m in METHODS if m != ALTERNATING])
def test_gradients_are_those_of_full_sums_to_the_tolerance(method):
    exact = gradients("full", method)
    assert worst(gradients(nf.Exponentials(tol=1e-11), method), exact) < 1e-9
    assert worst(gradients(nf.Exponentials(tol=1e-4), method), exact) < 1e-3


@pytest.mark.parametrize("method", ["predictor", "abm", "l1-explicit"])
def test_gradients_in_single_precision(method):
    exact = gradients("full", method, dtype=torch.float32)
    assert worst(gradients(nf.Exponentials(), method, dtype=torch.float32), exact) < 1e-4


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "gl"])
def test_the_adjoint_is_exact_for_the_approximated_system(method):
    rough = nf.Exponentials(tol=1e-2, block=4)
    assert worst(gradients(rough, method, steps=70), gradients(rough, method, "direct", steps=70)) < 1e-11


def test_the_gradient_of_the_order_is_that_of_the_approximated_system():
    rough, h = nf.Exponentials(tol=1e-2, block=4), 1e-5
    values = [gradients(rough, order=0.62 + d)[0].square().sum() for d in (-h, h)]
    slope = float(values[1] - values[0]) / (2 * h)
    assert float(gradients(rough, order=0.62)[2]) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("steps", [1, 7, 8, 15, 16, 17, 33, 50])
@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("groups", [1, 3])
def test_both_passes_are_one_toeplitz_matrix(steps, sums, groups):
    history = nf.Exponentials(tol=1e-3, block=8)
    orders = torch.linspace(0.4, 0.8, groups, dtype=F64)
    weights = torch.stack([uniform.rectangle(orders, 0.1, steps), uniform.trapezoid(orders, 0.1, steps)[0]])[:sums]
    packed = history.tabulate(weights)
    row = torch.zeros(groups, 2, dtype=F64)
    forward, reverse = history.forward(packed, steps, row), history.reverse(packed, steps, row, None, True)
    v = torch.randn(steps + 1, groups, 2, dtype=F64)
    mu = torch.randn(steps + 1, sums, groups, 2, dtype=F64)
    out = walk(forward, v[:, None], steps)
    back = walk(reverse, mu.flip(0), steps, v.flip(0)).flip(0)[:, 0]
    dense = torch.zeros(steps + 1, sums, groups, 2, dtype=F64)
    for n in range(steps + 1):
        for j in range(n):
            dense[n] += weights[:, n - j, :, None] * v[j]
    assert relative(out, dense) < 1e-3
    assert float((out * mu).sum()) == pytest.approx(float((v * back).sum()), rel=1e-11, abs=1e-11)
    assert reverse.weights_grad is not None
    by_weights = float((reverse.weights_grad.permute(0, 2, 1) * packed).sum())
    assert by_weights == pytest.approx(float((out * mu).sum()), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("order", [0.05, 0.5, 1.0])
def test_the_tolerance_holds_on_every_weight(order):
    beta = torch.tensor([order], dtype=F64)
    weights = uniform.rectangle(beta, 0.1, 3000)[None]
    history = nf.Exponentials(tol=1e-8)
    packed = history.tabulate(weights)
    terms = packed.shape[1] - 2 * history.block
    lags = torch.arange(history.block + 1, 3001, dtype=F64)[:, None]
    fit = torch.exp((history.block - lags) * history.rates(3000, terms)) @ packed[0, 2 * history.block :]
    true = weights[0, history.block + 1 :]
    assert float(((fit - true) / true).abs().max()) <= 1e-8
    assert terms <= 32
    assert float(packed[0, 2 * history.block :].abs().sum() / weights[0, history.block]) < 50  # no cancellation


def test_what_cannot_be_fitted_is_refused_with_what_was_reached():
    with pytest.raises(nf.InputError, match=r"4 exponentials reach .* Use tol=.*'full'"):
        gradients(nf.Exponentials(tol=1e-10, terms=4))
    with pytest.raises(nf.InputError, match="exponentials reach"):
        gradients(nf.Exponentials(), ALTERNATING)
    for wrong in ({"tol": 0.0}, {"block": 1}, {"terms": 100}):
        with pytest.raises(nf.InputError):
            nf.Exponentials(**wrong)
    with pytest.raises(nf.InputTypeError):
        nf.Exponentials(block=2.5)


def test_memory_of_the_history_does_not_grow():
    func = Net()
    z0 = torch.randn(2, 3, dtype=F64)
    with torch.no_grad():
        held = [
            nf.solve(func, z0, 2.0, 0.5, steps=n, history=nf.Exponentials(terms=30)).stats.history_bytes
            for n in (200, 800)
        ]
    assert held[0] == held[1]
