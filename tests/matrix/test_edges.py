"""What a covering design does not meet: slopes that nothing depends on, and sums of orders that are hard to invert."""

from dataclasses import replace

import pytest
import torch

from neuralfde import FFT, Multistep, MultiTerm, Window, fdeint
from neuralfde.door.names import METHODS
from tests import reference
from tests.reference.inverse import inverse

F64 = torch.float64
STEPS, STEP = 20, 0.05


def given(t, z):
    """A slope that depends on time alone, so that autograd sees no path from the state to it."""
    return torch.cos(t) * torch.ones_like(z)


def by_textbook(method, b):
    w = reference.uniform(method, b.reshape(1, 1), torch.tensor([STEP], dtype=F64), STEPS)
    times = torch.arange(STEPS + 1, dtype=F64) * STEP
    zs = reference.solve(lambda n, z: given(times[n], z), [torch.ones(1, dtype=F64)], w.matrix, w.stage)
    return zs[-1]


@pytest.mark.parametrize("adjoint", ["exact", "direct"])
@pytest.mark.parametrize("stepper", ["single", "auto"])
@pytest.mark.parametrize("method", METHODS)
def test_an_order_gets_its_gradient_where_the_slope_is_given(method, stepper, adjoint):
    b = torch.tensor(0.6, dtype=F64, requires_grad=True)
    z = fdeint(
        given, torch.ones(1, dtype=F64), STEPS * STEP, b, steps=STEPS, method=method, adjoint=adjoint, history="full",
        stepper=stepper,
    )  # fmt: skip
    want = by_textbook(method, b)
    assert abs(float((z - want).detach())) < 1e-12
    found, expected = (float(torch.autograd.grad(x.sum(), b)[0]) for x in (z, want))
    assert abs(found - expected) < 1e-10 * abs(expected), (found, expected)


@pytest.mark.parametrize(
    ("top", "steps"),
    [
        (1.2, 600),
        pytest.param(
            1.9, 600, marks=pytest.mark.xfail(strict=True, reason="the error of the inverted series grows as m^β")
        ),
    ],
)
def test_the_weights_of_a_sum_of_orders_keep_their_digits(top, steps):
    factors = [torch.tensor(x, dtype=F64) for x in (1.0, 0.1)]
    w = inverse([torch.tensor(top, dtype=F64), torch.zeros((), dtype=F64)], factors, 0.02, steps + 1)
    z = fdeint(
        given, torch.zeros(1, dtype=F64), steps * 0.02, MultiTerm([top, 0.0], [1.0, 0.1]), steps=steps, method="gl",
        velocity=torch.zeros(1, dtype=F64), history="full",
    )  # fmt: skip
    want = (w[:-1].flip(0) * torch.cos(torch.arange(1, steps + 1, dtype=F64) * 0.02)).sum()
    assert abs(float(z) - float(want)) < 1e-11 * abs(float(want)), (float(z), float(want))


@pytest.mark.parametrize("method", [name for name, scheme in METHODS.items() if isinstance(scheme, Multistep)])
@pytest.mark.parametrize("history", [FFT(block=2, growth=2), Window(5, block=3)], ids=repr)
def test_blocks_may_be_shorter_than_the_start(method, history):
    found = [
        fdeint(lambda t, z: -z, torch.ones(6, dtype=F64), 0.4, 0.6, steps=20, method=method, history=h)
        for h in (history, replace(history, block=64))
    ]
    assert float((found[0] - found[1]).abs().max()) < 1e-10
