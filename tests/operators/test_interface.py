"""Gradients, dtypes, batches, per-channel orders, accuracy of the weights and the errors."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch

from neuralfde.errors import InputError, InputTypeError
from neuralfde.operators import (
    caputo_derivative,
    fractional_integral,
    grunwald_letnikov_derivative,
    riemann_liouville_derivative,
)
from neuralfde.operators.derivatives import _l1_2_weights
from tests.stubs import F64, OPERATORS


@pytest.fixture(params=OPERATORS, ids=lambda f: f.__name__)
def operator(request):
    return request.param


def samples(*shape, dtype=F64):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("order", [0.4, 1.6])
def test_gradcheck_in_values_and_order(operator, order, side):
    values = samples(7, 2).requires_grad_()
    exponent = torch.tensor(order, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, o: operator(v, o, 0.3, side), (values, exponent))
    assert torch.autograd.gradgradcheck(lambda v, o: operator(v, o, 0.3, side), (values, exponent))


def test_one_order_per_channel(operator):
    values = samples(12, 2, 4)
    orders = torch.tensor([0.3, 1.0, 1.4, 2.2], dtype=F64, requires_grad=True)
    got = operator(values, orders, 0.1)
    assert got.shape == values.shape
    for c, order in enumerate(orders.tolist()):
        torch.testing.assert_close(got[..., c], operator(values[..., c], order, 0.1), rtol=1e-10, atol=1e-9)
    assert torch.autograd.gradcheck(
        lambda o: operator(values[:6], o, 0.5), orders.detach()[[0, 2]].repeat(2).requires_grad_()
    )


def test_gradient_of_the_order_is_finite_at_integers(operator):
    order = torch.tensor(1.0, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(operator(samples(9), order, 0.1).sum(), order)
    assert slope.isfinite()


def test_float32_keeps_its_dtype_and_its_digits(operator):
    values = torch.linspace(0, 1, 513) ** 2
    got = operator(values, 0.5, 1 / 512)
    assert got.dtype == torch.float32
    exact = operator(values.double(), 0.5, 1 / 512)
    torch.testing.assert_close(got.double(), exact, rtol=1e-7, atol=1e-7)


def test_a_batch_may_be_empty(operator):
    assert operator(torch.zeros(8, 0, 2, dtype=F64), 0.5, 0.1).shape == (8, 0, 2)


def test_batch_equals_single(operator):
    values = samples(20, 3, 2)
    got = operator(values, 0.7, 0.1)
    torch.testing.assert_close(got[:, 1, 0], operator(values[:, 1, 0], 0.7, 0.1), rtol=1e-11, atol=1e-10)


def test_right_is_the_mirror_of_left(operator):
    values = samples(15)
    mirrored = operator(values.flip(0), 0.7, 0.1).flip(0)
    torch.testing.assert_close(operator(values, 0.7, 0.1, side="right"), mirrored, rtol=0, atol=0)


def test_many_samples(operator):
    n = 100_000
    t = torch.linspace(0, 1, n + 1, dtype=F64)
    order = -0.5 if operator is fractional_integral else 0.5
    got = operator(t**2, 0.5, 1 / n)[-1].item()
    assert got == pytest.approx(
        2 / math.gamma(3 - order), rel=1e-9 if operator is not grunwald_letnikov_derivative else 1e-4
    )


def test_weights_keep_their_digits():
    linear, quadratic = _l1_2_weights(torch.tensor(0.7, dtype=F64), 100_001)
    with mp.workdps(50):
        p = 2 - mp.mpf(0.7)
        for i in (1, 2, 3, 4, 10, 1000, 100_000):
            a = mp.mpf(i + 1) ** (p - 1) - mp.mpf(i) ** (p - 1)
            b = (mp.mpf(i + 1) ** p - mp.mpf(i) ** p) / p - (mp.mpf(i + 1) ** (p - 1) + mp.mpf(i) ** (p - 1)) / 2
            assert abs(linear[i].item() - a) <= 1e-14 * a
            assert abs(quadratic[i].item() - b) <= 1e-13 * abs(b)


@pytest.mark.parametrize("order", [0.0, -0.5, math.nan, math.inf])
def test_bad_order(operator, order):
    with pytest.raises(InputError, match="positive and finite"):
        operator(samples(9), order, 0.1)


@pytest.mark.parametrize("step", [0.0, -0.1, math.nan, "h"])
def test_bad_step(operator, step):
    with pytest.raises(InputTypeError if step == "h" else InputError, match="step="):
        operator(samples(9), 0.5, step)


def test_other_errors(operator):
    with pytest.raises(InputTypeError, match="int64"):
        operator(torch.arange(9), 0.5, 0.1)
    with pytest.raises(InputTypeError, match="list"):
        operator([1.0, 2.0], 0.5, 0.1)
    with pytest.raises(InputError, match="Did you mean 'left'"):
        operator(samples(9), 0.5, 0.1, side="lft")
    with pytest.raises(InputError, match="does not broadcast"):
        operator(samples(9, 2), torch.tensor([0.5, 0.6, 0.7]), 0.1)
    with pytest.raises(InputError, match="samples along its first axis"):
        operator(samples(0), 1.5, 0.1)


@pytest.mark.parametrize(("order", "least"), [(0.5, 3), (1.0, 3), (1.5, 4), (2.5, 5)])
def test_derivatives_name_the_samples_they_need(order, least):
    for operator in (caputo_derivative, riemann_liouville_derivative):
        with pytest.raises(InputError, match=f"at least {least}"):
            operator(samples(least - 1), order, 0.1)
        assert operator(samples(least), order, 0.1).shape == (least,)


@pytest.mark.gpu
def test_cuda_equals_cpu(operator):
    values = samples(50, 3)
    got = operator(values.cuda(), torch.tensor([0.3, 0.8, 1.5], device="cuda"), 0.1)
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), operator(values, torch.tensor([0.3, 0.8, 1.5]), 0.1), rtol=1e-10, atol=1e-9)
