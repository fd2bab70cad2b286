"""What fit refuses, and how it says so."""

import math

import pytest
import torch

from neuralfde import InputError, InputTypeError
from neuralfde.fitting import LBFGS, Adam, LevenbergMarquardt, fit, fit_curve, profile_order


def decay(t, z, rate):
    return -rate * z


TIMES = [0.0, 1.0, 2.0]
VALUES = [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"params": {}}, InputError, "nothing to fit"),
        ({"params": {"forward": 1.0}}, InputError, "reserved"),
        ({"params": {"order": 1.0}}, InputError, "used by the fit"),
        ({"bounds": {"rat": (0, 1)}}, InputError, "Did you mean 'rate'"),
        ({"bounds": {"rate": (2.0, 3.0)}}, InputError, "strictly inside"),
        ({"bounds": {"rate": (3.0, 2.0)}}, InputError, "empty"),
        ({"optimiser": "adm"}, InputError, "Did you mean 'adam'"),
        ({"optimiser": 3}, InputTypeError, "name or an object"),
        ({"intervals": "boot"}, InputError, "bootstrap"),
        ({"initial": [[1.0], [2.0]]}, InputError, "initial has shape"),
        ({"noise": 1.0, "weights": 1.0}, InputError, "not both"),
        ({"noise": -1.0}, InputError, "positive"),
        ({"noise": [1.0, 1.0]}, InputError, "does not fit"),
        ({"validation": 1.0}, InputError, "fraction"),
        ({"order": 1.0, "learn_order": True}, InputError, "strictly inside"),
        ({"order_bounds": (0.5, 2.0)}, InputError, "order_bounds"),
        ({"metod": "abm"}, InputTypeError, "Did you mean 'method'"),
        ({"rtol": 1e-4}, InputTypeError, "grid=solve"),
        ({"jumps": ([1.0], [1.0])}, InputTypeError, "minimise a loss of fdeint"),
        ({"args": (1.0,)}, InputTypeError, "closure"),
        ({"stages": (1.0, 0.5)}, InputError, "increasing"),
        ({"observe": [0, 0]}, InputError, "observe="),
        ({"observe": 7}, InputError, "use indices from 0 to 0"),
        ({"observe": "x"}, InputTypeError, "an index"),
        ({"params": 3}, InputTypeError, "a dictionary"),
        ({"params": {"rate": "x"}}, InputTypeError, "must be numbers"),
        ({"params": {"rte": 1.0}}, InputError, "names that follow t and z"),
        ({"order": "x"}, InputTypeError, "order='x' must be"),
        ({"order": math.nan}, InputError, "order=nan must be"),
        ({"order_bounds": 3}, InputTypeError, "a pair"),
        ({"initial": "x"}, InputTypeError, "initial must be numbers"),
        ({"bounds": 3}, InputTypeError, "a dictionary"),
        ({"bounds": {"rate": 3}}, InputTypeError, "a pair"),
        ({"intervals": 3}, InputError, "Known names"),
        ({"stages": 3}, InputTypeError, "a list of fractions"),
        ({"validation": "x"}, InputTypeError, "fraction"),
        ({"patience": 0}, InputError, "patience=0"),
        ({"patience": "x"}, InputTypeError, "patience='x'"),
        ({"resamples": 1}, InputError, "at least 2"),
        ({"robust": "x"}, InputTypeError, "robust='x'"),
        ({"starts": "x"}, InputTypeError, "starts='x'"),
        ({"starts": [{"rate": torch.ones(2)}]}, InputError, "or a number"),
        ({"variables": 3}, InputError, "1 names are needed"),
        ({"callback": 3}, InputTypeError, "callback"),
        ({"lags": 0.5}, InputTypeError, "no argument lags"),
        ({"event": lambda t, z: z}, InputTypeError, "no argument event"),
        ({"seed": "x"}, InputTypeError, "seed='x'"),
        ({"resume": 3}, InputTypeError, "the .state of a Progress"),
        ({"resume": {}}, InputError, "the .state of a Progress"),
    ],
)
def test_arguments_that_make_no_sense(changes, error, words):
    with pytest.raises(error, match=words):
        fit(decay, TIMES, VALUES, **{"params": {"rate": 1.0}, "steps": 10, **changes})


@pytest.mark.parametrize(
    ("times", "values", "words"),
    [
        ([0.0, 2.0, 1.0], VALUES, "increase"),
        ([0.0], [1.0], "at least two"),
        (TIMES, [1.0, 2.0], "shape"),
        (TIMES, [math.nan, 2.0, 1.0], "not measured in full"),
        (TIMES, [math.nan] * 3, "nothing to fit"),
        (TIMES, [1.0, math.inf, 1.0], "infinity"),
        ([TIMES, [1.0, 2.0, 3.0]], [torch.tensor(VALUES)] * 2, "begins at"),
        ([TIMES], [torch.tensor(VALUES)] * 2, "1 lists of times"),
        (TIMES, [torch.ones(3, 1), torch.ones(3, 2)], "different numbers"),
    ],
)
def test_data_that_cannot_be_used(times, values, words):
    with pytest.raises(InputError, match=words):
        fit(decay, times, values, params={"rate": 1.0}, steps=10)


def test_things_that_are_not_models_or_numbers():
    with pytest.raises(InputTypeError, match="model must be"):
        fit(3, TIMES, VALUES)
    with pytest.raises(InputError, match="plain function"):
        fit(torch.nn.Linear(1, 1), TIMES, VALUES, params={"rate": 1.0})
    with pytest.raises(InputTypeError, match="numbers"):
        fit(decay, ["a", "b"], VALUES, params={"rate": 1.0})


def test_a_state_of_another_search_is_refused():
    common = {"params": {"rate": 1.0}, "steps": 10, "intervals": None}
    seen = []
    found = fit(decay, TIMES, VALUES, learn_order=True, callback=seen.append, check_order=False, **common)
    for changes in ({}, {"learn_order": True, "optimiser": "lbfgs"}):  # one unknown less; another optimiser
        with pytest.raises(InputError, match="another optimiser"):
            fit(decay, TIMES, VALUES, resume=seen[0].state, **common, **changes)
    for bad, error in (("x", InputTypeError), ([math.nan], InputError), ([2.5], InputError)):
        with pytest.raises(error, match="orders"):
            profile_order(found, bad)
    with pytest.raises(InputTypeError, match="optimiser"):
        profile_order(found, [0.5], 3)
    with pytest.raises(InputTypeError, match="what fit"):
        profile_order(3)


@pytest.mark.parametrize(
    ("kind", "given"),
    [(Adam, {"lr": -1.0}), (Adam, {"epochs": 0}), (Adam, {"batch_size": "x"}), (LBFGS, {"memory": 0}),
     (LevenbergMarquardt, {"iterations": 1.5}), (LevenbergMarquardt, {"tolerance": math.nan})],
)  # fmt: skip
def test_optimisers_check_their_numbers(kind, given):
    with pytest.raises((InputError, InputTypeError), match=rf"{kind.__name__}.{next(iter(given))}=.* must be"):
        kind(**given)


def test_a_curve_in_closed_form():
    x = torch.linspace(0.1, 3, 40, dtype=torch.float64)
    found = fit_curve(lambda x, a, b: a * x**b, x, 2 * x**-0.3, {"a": 1.0, "b": 0.5}, {"a": (0.0, None)})
    assert found.estimates == pytest.approx({"a": 2.0, "b": -0.3}, rel=1e-6)
    assert found.r_squared == pytest.approx(1.0)
    for fewer in (x[1:], x[:0]):
        with pytest.raises(InputError, match="two rows"):
            fit_curve(lambda x, a: a * x, x[: len(fewer) and None], fewer, {"a": 1.0})
    for coupled in (lambda x, a, b: (a * x**b).cumsum(0), lambda x, a, b: x**b / (x**b).mean() * a):
        with pytest.raises(InputError, match="depend on each other"):
            fit_curve(coupled, x, x, {"a": 1.0, "b": 0.5})
    with pytest.raises(InputError, match=r"one number for each of 40 points, got shape \(40, 1\)"):
        fit_curve(lambda x, a: a * x[:, None], x, x, {"a": 1.0})
    with pytest.raises(InputError, match="without a gradient"):
        fit_curve(lambda x, a: a.detach() * x, x, x, {"a": 1.0})
    with pytest.raises(InputTypeError, match="callable as function"):
        fit_curve(3, x, x, {"a": 1.0})
    with pytest.raises(InputTypeError, match="a dictionary"):
        fit_curve(lambda x, a: a * x, x, x, None)
