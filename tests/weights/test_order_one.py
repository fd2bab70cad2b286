"""Second derivatives at order 1, where powers in the weights have the exponent 0: limits of those at lower orders."""

import pytest
import torch

from neuralfde import MultiTerm, fdeint

F64 = torch.float64
Z = torch.tensor([[0.4, -0.9]], dtype=F64)
BACK, WINDOW = torch.tensor([-0.9, -0.4, 0.0], dtype=F64), torch.tensor([[[0.2, 0.1]], [[0.5, -0.3]], [[0.4, -0.9]]])
MESH = {"steps": 7, "grading": 1.7}
#: Options for a solve from a second number that is learned: a horizon, the time of a jump, or none.
WAYS = {
    "horizon": lambda h: {"horizon": h, **MESH},
    "a jump": lambda h: {"steps": 7, "jumps": (h[None] / 3, torch.full((1, 1, 2), 0.5, dtype=F64))},
    "exponentials": lambda h: {"history": "exponentials", **MESH},
    "a past": lambda h: {"past": (BACK, WINDOW.double()), "jumps": (h[None] / 3, WINDOW[:1].double()), "steps": 7},
}
CASES = [(method, way) for method in ("predictor", "abm", "trapezoid") for way in WAYS]
CASES += [("l1", "horizon"), ("l1-explicit", "horizon"), ("imex", "horizon"), ("gl", "several orders")]


def hessian(method, way, order):
    def loss(order, h, rate):
        given = {"args": (rate,), "method": method}
        if way == "several orders":
            operator = MultiTerm(torch.stack([1.5 + 0 * order, order]), torch.tensor([1.0, 0.7], dtype=F64))
            given |= {"horizon": h, "steps": 7, "velocity": Z / 2}
        else:
            operator, given = order, given | WAYS[way](h)
        z = fdeint(lambda t, z, rate: torch.sin(rate * z), None if "past" in given else Z, 1.0, operator, **given)
        return z.square().sum() + z.sum()

    point = tuple(torch.tensor(x, dtype=F64) for x in (order, 1.2, 0.8))
    return torch.tensor(torch.autograd.functional.hessian(loss, point))


@pytest.mark.parametrize(("method", "way"), CASES)
def test_the_hessian_at_order_one_is_the_limit_from_below(method, way):
    near, far = (hessian(method, way, 1 - k * 1e-6) for k in (1, 2))
    torch.testing.assert_close(hessian(method, way, 1.0), 2 * near - far, rtol=1e-5, atol=1e-5)
