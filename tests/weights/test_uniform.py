"""Weights against mpmath and against each other."""

import mpmath as mp
import pytest
import torch

from neuralfde.door.names import METHODS
from neuralfde.weights import uniform
from tests.stubs import F64

LAGS = [1, 2, 3, 11, 12, 13, 100, 4095]
ORDERS = [0.05, 0.3, 0.5, 0.9, 0.999]


@pytest.mark.parametrize("beta", ORDERS)
def test_rectangle_and_trapezoid_weights_have_no_cancellation(beta):
    h, steps = 0.1, 4096
    order = torch.tensor([beta], dtype=F64)
    rect = uniform.rectangle(order, h, steps)[:, 0]
    trap, start = (x[:, 0] for x in uniform.trapezoid(order, h, steps))
    with mp.workdps(40):
        b, g = mp.mpf(beta), mp.power(mp.mpf(h), mp.mpf(beta))
        for m in LAGS:
            want = g / mp.gamma(b + 1) * (mp.power(m, b) - mp.power(m - 1, b))
            assert abs(rect[m].item() - want) < 1e-14 * want
            c = g / mp.gamma(b + 2)
            want = c * (mp.power(m + 1, b + 1) - 2 * mp.power(m, b + 1) + mp.power(m - 1, b + 1))
            assert abs(trap[m].item() - want) < 2e-14 * want
            first = c * (mp.power(m - 1, b + 1) - (m - 1 - b) * mp.power(m, b))
            assert abs(start[m].item() - (first - want)) < 3e-14 * abs(first - want)


@pytest.mark.parametrize("beta", [0.3, 0.8])
def test_l1_weights_invert_its_recurrence(beta):
    steps = 200
    w = uniform.l1(torch.tensor([beta], dtype=F64), 1.0, steps)[:, 0]
    a = torch.arange(steps + 2, dtype=F64) ** (1 - beta)
    delta = torch.cat([torch.ones(1, dtype=F64), (a[2:] - 2 * a[1:-1] + a[:-2])])[: steps + 1]
    product = [float((delta[: n + 1].flip(0) * w[: n + 1]).sum()) for n in range(steps + 1)]
    gain = torch.lgamma(torch.tensor(2 - beta, dtype=F64)).exp()
    assert abs(product[0] - gain) < 1e-14
    assert max(map(abs, product[1:])) < 1e-13


@pytest.mark.parametrize("name", [m for m in METHODS if m not in ("bdf2", "imex")])  # two-step methods
def test_order_one_gives_the_classical_weights(name):
    h, steps = 0.25, 40
    kernel = METHODS[name].kernel(torch.ones(1, dtype=F64), h, steps)
    assert torch.allclose(kernel.weights[:, 1:], torch.tensor(h, dtype=F64), rtol=1e-14, atol=0)
    half = name in ("abm", "trapezoid")
    if half:
        assert kernel.start is not None
        assert torch.allclose(kernel.start[0, 1:], torch.tensor(-h / 2, dtype=F64), rtol=1e-13, atol=0)
        assert torch.allclose(kernel.local, torch.tensor(h / 2, dtype=F64))


@pytest.mark.parametrize("name", list(METHODS))
def test_weights_are_differentiable_in_the_order(name):
    scheme = METHODS[name]

    def weights(order):
        kernel = scheme.kernel(order, 0.1, 30)
        parts = [kernel.weights.reshape(-1), kernel.local.reshape(-1)]
        return torch.cat(parts + ([] if kernel.start is None else [kernel.start.reshape(-1)]))

    for beta in (0.4, 0.999):
        assert torch.autograd.gradcheck(weights, torch.tensor([beta], dtype=F64, requires_grad=True))
