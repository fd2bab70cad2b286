"""Fixed-point stages: as close as asked for, with as few evaluations as looking at every change would take."""

import pytest
import torch

from neuralfde import ConvergenceError, FixedPoint
from tests.stubs import F64

C = torch.tensor([[[0.3, -2.0, 40.0]]], dtype=F64)
W0 = torch.tensor([[0.5]], dtype=F64)


def counted(rate):
    calls = []

    def f(z):
        calls.append(1)
        return rate * z

    return f, calls


def looking_every_time(rate, tol):
    z, count = C, 0
    while True:
        new, count = C + W0 * rate * z, count + 1
        if float(((new - z).abs() / torch.maximum(new.abs(), C.abs())).max()) <= tol:
            return count
        z = new


@pytest.mark.parametrize("tol", [1e-3, 1e-7, 1e-12])
@pytest.mark.parametrize("rate", [0.0, 0.02, -0.4, 1.2, -1.8])
def test_reaches_its_tolerance_without_further_evaluations(rate, tol):
    f, calls = counted(rate)
    z = FixedPoint(tol=tol, max_iter=300).open().solve(f, C, W0, C, "step 1")[0]
    change = (C + W0 * rate * z - z).abs() / torch.maximum(z.abs(), C.abs())
    assert float(change.max()) <= tol
    assert len(calls) <= looking_every_time(rate, tol) + 1


def test_a_map_that_does_not_contract_is_refused_within_the_limit():
    f, calls = counted(-3.0)
    with pytest.raises(ConvergenceError, match="after 12 iterations"):
        FixedPoint(max_iter=12).open().solve(f, C, W0, C, "step 1")
    assert len(calls) <= 12
