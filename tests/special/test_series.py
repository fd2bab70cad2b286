from __future__ import annotations

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfde.errors import InputError, InputTypeError
from neuralfde.special import (
    binomial_remainder,
    binomial_series,
    l1_weights,
    series_product,
    series_reciprocal,
)
from tests.special.l1 import l1_by_branch_cut, l1_by_recurrence

F64 = torch.float64


@pytest.mark.parametrize("order", [-3.5, -2.3, -0.999, -0.5, -1e-3, 0.1, 0.5, 0.999, 1.5, 3.5])
def test_binomial_series_is_accurate_at_every_index(order):
    g = binomial_series(order, 1_000_001)
    with mp.workdps(40):
        for m in (0, 1, 2, 7, 47, 48, 49, 170, 1000, 12345, 10**5, 10**6):
            b = mp.mpf(order)
            exact = mp.gamma(m + b) * mp.rgamma(b) / mp.gamma(m + 1)
            assert abs(g[m].item() - exact) <= 1e-14 * abs(exact)


def test_binomial_series_at_integer_orders():
    assert binomial_series(1.0, 100).tolist() == [1.0] * 100
    assert binomial_series(0.0, 60).tolist() == [1.0] + [0.0] * 59
    assert binomial_series(-2.0, 5).tolist() == [1.0, -2.0, 1.0, 0.0, 0.0]


def test_binomial_series_gradient_in_the_order_also_at_integers():
    order = torch.tensor([-2.0, -1.0, 0.0, 0.3, 1.0], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda o: binomial_series(o, 120), order)


def test_binomial_series_gradient_in_the_tail():
    order = torch.tensor(0.4, dtype=F64, requires_grad=True)
    g = binomial_series(order, 100_001)[-1]
    (slope,) = torch.autograd.grad(g, order)
    with mp.workdps(40):
        b, m = mp.mpf(0.4), 100_000
        exact = mp.rf(b, m) / mp.factorial(m) * (mp.psi(0, b + m) - mp.psi(0, b))
    assert abs(slope.item() - exact) <= 1e-13 * abs(exact)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_binomial_remainder(start):
    with mp.workdps(50):
        for p in (0.05, 0.7, 1.5, 3.25):
            for x in (-1.0, -0.5, -0.126, -0.1, 1e-3, -1e-5, 1e-6, 0.12, 0.3, 1.0):
                got = binomial_remainder(torch.tensor(p, dtype=F64), torch.tensor(x, dtype=F64), start).item()
                exact = (1 + mp.mpf(x)) ** mp.mpf(p) - sum(mp.binomial(p, k) * mp.mpf(x) ** k for k in range(start))
                assert abs(got - exact) <= 1e-13 * abs(exact)


@pytest.mark.parametrize("order", [0.05, 0.3, 0.5, 0.9, 0.999])
def test_l1_weights_against_the_recurrence(order):
    with mp.workdps(30):
        exact = l1_by_recurrence(order, 300)
        got = l1_weights(order, 300).tolist()
        assert max(abs(g - e) / e for g, e in zip(got, exact, strict=True)) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("order", [0.05, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_l1_weights_up_to_a_million(order):
    weights = l1_weights(order, 1_000_001)
    with mp.workdps(25):
        for m in (1000, 4097, 10**5, 10**6):
            exact = l1_by_branch_cut(order, m)
            assert abs(weights[m].item() - exact) <= 1e-12 * exact


def test_l1_weights_of_order_one_are_ones():
    assert l1_weights(1.0, 200).tolist() == [1.0] * 200


def test_l1_weights_gradient():
    order = torch.tensor([0.2, 0.8, 1.0], dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(l1_weights(order, 120)[119, 0], order)
    with mp.workdps(30):
        h = mp.mpf("1e-8")
        b = mp.mpf(0.2)
        exact = (l1_by_recurrence(b + h, 120)[119] - l1_by_recurrence(b - h, 120)[119]) / (2 * h)
    assert abs(slope[0].item() - exact) <= 1e-11 * abs(exact)
    inner = order.detach()[:2].requires_grad_()
    assert torch.autograd.gradcheck(lambda o: l1_weights(o, 80), inner)
    assert torch.autograd.gradgradcheck(lambda o: l1_weights(o, 40), inner)


def test_series_product_matches_the_sum_for_every_length():
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 200, 333):
        a, b = (torch.randn(n, 2, dtype=F64, generator=generator) for _ in range(2))
        direct = torch.stack([(a[: m + 1] * b[: m + 1].flip(0)).sum(0) for m in range(n)])
        torch.testing.assert_close(series_product(a, b), direct, rtol=0, atol=1e-12)


def test_series_product_keeps_small_coefficients():
    """(1-ξ)^{-0.2} (1-ξ)^{-0.3} = (1-ξ)^{-0.5}: the tails are far below the heads and must keep their digits."""
    product = series_product(binomial_series(0.2, 200_000), binomial_series(0.3, 200_000))
    exact = binomial_series(0.5, 200_000)
    assert ((product - exact) / exact).abs().max() < 2e-14


def test_series_reciprocal_gradients_and_batch():
    generator = torch.Generator().manual_seed(1)
    a = 0.3 * torch.randn(70, 2, dtype=F64, generator=generator)
    a[0] = 2.0
    a.requires_grad_()
    assert torch.autograd.gradcheck(series_reciprocal, a)
    one = series_product(a, series_reciprocal(a))
    assert (one[0] - 1).abs().max() < 1e-14
    together, alone = series_reciprocal(a), series_reciprocal(a[:, 1])
    torch.testing.assert_close(together[:, 1], alone, rtol=1e-12, atol=0)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 0.95), st.integers(1, 400))
def test_reciprocal_of_a_binomial_series(order, count):
    got = series_reciprocal(binomial_series(-order, count))
    exact = binomial_series(order, count)
    assert ((got - exact) / exact).abs().max() < 1e-15 * 50 * count**order


def test_errors():
    with pytest.raises(InputError, match="constant coefficient is zero"):
        series_reciprocal(torch.zeros(3, dtype=F64))
    with pytest.raises(InputTypeError, match="int64"):
        series_reciprocal(torch.ones(3, dtype=torch.int64))
    with pytest.raises(InputError, match="empty"):
        series_reciprocal(torch.ones(0))
    with pytest.raises(InputError, match="lengths 2 and 3"):
        series_product(torch.ones(2), torch.ones(3))
    with pytest.raises(InputError, match=r"\(0, 1\]"):
        l1_weights(1.5, 10)
    with pytest.raises(InputError, match="count=0"):
        binomial_series(0.5, 0)
