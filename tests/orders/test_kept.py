"""Weights that need no gradient are computed once."""

import pytest
import torch

from neuralfde import FixedPoint, fdeint
from neuralfde.base.policy import WEIGHTS_NUMBERS
from neuralfde.door import weighing
from neuralfde.door.names import METHODS
from neuralfde.errors import InputTypeError
from neuralfde.orders import caputo
from neuralfde.schemes import Predictor
from tests.caching import Count, counted
from tests.stubs import F64


@pytest.fixture(autouse=True)
def weights(monkeypatch) -> Count:
    return counted(monkeypatch, caputo._WEIGHTS)


@pytest.fixture(autouse=True)
def readings(monkeypatch) -> Count:
    return counted(monkeypatch, weighing._READ)


def solved(order=0.6, **options):
    return fdeint(lambda t, z: -z, torch.ones(2, dtype=F64), 1.0, order, **{"steps": 12, "method": "abm", **options})


@pytest.mark.parametrize("method", list(METHODS))
def test_a_second_solve_finds_the_weights_of_the_first(method, weights, readings):
    first, second = solved(method=method), solved(method=method)
    assert torch.equal(first, second)
    assert weights.misses == 1
    assert (readings.hits, readings.misses) == (1, 1)


@pytest.mark.parametrize("order", [torch.tensor(0.6), torch.tensor([0.6, 0.7])])
def test_orders_that_are_tensors_find_their_weights(order, weights):
    assert torch.equal(solved(order), solved(order))
    assert (weights.hits, weights.misses) == (1, 1)


def test_what_a_solve_is_asked_for_tells_it_apart(readings):
    solved()
    for other in ({"grading": 1.5}, {"adjoint": "direct"}, {"history": "fft"}, {"steps": 13}, {"order": 0.7}):
        solved(**other)
    solved(method="gl")
    solved(method="gl", solver=FixedPoint(tol=1e-9))
    with torch.no_grad():
        solved()
    assert (readings.hits, readings.misses) == (0, 9)


def test_what_is_no_number_is_read_every_time(readings):
    z0 = torch.ones(2, dtype=F64)
    fdeint(lambda t, z, a: -a * z, z0, 1.0, 0.6, steps=12, args=(torch.tensor(2.0),))
    solved(callback=lambda *_: None)
    solved(horizon=2.0)
    fdeint(lambda t, z: -z, torch.ones(2), torch.tensor([0.0, 1.0]), 0.6, steps=12)
    assert (readings.hits, readings.misses) == (0, 0)


def test_a_whole_number_that_is_none_is_refused_after_one_that_is():
    solved(steps=1)
    with pytest.raises(InputTypeError, match="whole number"):
        solved(steps=True)


def test_what_the_weights_depend_on_tells_them_apart(weights):
    results = [solved(), solved(order=0.7), solved(steps=13), solved(horizon=2.0), solved(method="trapezoid")]
    assert weights.hits == 0
    assert len({float(r[0]) for r in results}) == len(results)


def test_a_learned_order_gets_its_gradient_every_time():
    solved()  # the same weights as numbers
    grads = []
    for _ in range(2):
        order = torch.tensor(0.6, dtype=F64, requires_grad=True)
        solved(order).sum().backward()
        grads.append(order.grad)
    assert torch.equal(*grads)
    assert len(caputo._WEIGHTS.entries) == 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by make_dual itself
def test_a_tangent_is_not_lost():
    solved(torch.tensor(0.6))
    with torch.autograd.forward_ad.dual_level():
        y = solved(torch.autograd.forward_ad.make_dual(torch.tensor(0.6), torch.tensor(1.0)))
        assert torch.autograd.forward_ad.unpack_dual(y).tangent.abs().max() > 0


def test_weights_made_in_inference_mode_do_not_reach_a_training_step():
    with torch.inference_mode():
        solved()
    z0 = torch.ones(2, dtype=F64, requires_grad=True)
    fdeint(lambda t, z: -z, z0, 1.0, 0.6, steps=12, method="abm").sum().backward()
    assert z0.grad is not None


def test_a_scheme_of_the_users_own_and_long_tables_are_not_kept():
    class Own(Predictor):
        pass

    solved(method=Own())
    solved(steps=WEIGHTS_NUMBERS)
    assert not caputo._WEIGHTS.entries
