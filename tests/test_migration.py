"""Calls written from memory of another solver are refused with what to write here."""

import inspect

import pytest
import torch

from neuralfde import FDEBlock, InputTypeError, fdeint, fit, plan, solve, suggest_step
from neuralfde.door.migration import ARGUMENTS
from tests.stubs import Net

Z = torch.ones(2)
TORCHDIFFEQ = ("options", "event_fn", "adjoint_params", "adjoint_method", "adjoint_rtol", "y0")
TORCHFDE = ("step_size", "beta", "options", "y0")


def relax(t, z):
    return -z


def test_every_name_of_another_solver_is_foreign():
    own = [p for call in (fdeint, FDEBlock) for p in inspect.signature(call).parameters.values()]
    assert not [p.name for p in own if p.name in ARGUMENTS and p.kind is not p.VAR_KEYWORD]
    assert ARGUMENTS.keys() >= {*TORCHDIFFEQ, *TORCHFDE}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("call", [fdeint, solve, plan])
def test_every_call_says_what_to_write_instead(call, name):
    with pytest.raises(InputTypeError) as caught:
        call(relax, Z, 1.0, 0.5, steps=4, **{name: 0.1})
    assert f"{call.__name__}() has no argument {name}=. {ARGUMENTS[name]}" == str(caught.value)


@pytest.mark.parametrize("name", ["step_size", "options"])
def test_a_block_and_a_fit_say_so_too(name):
    with pytest.raises(InputTypeError) as caught:
        FDEBlock(Net(), order=0.5, **{name: 0.1})
    assert ARGUMENTS[name] in str(caught.value)
    with pytest.raises(InputTypeError) as caught:
        fit(relax, torch.linspace(0, 1, 3), torch.ones(3), **{name: 0.1})
    assert ARGUMENTS[name] in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((relax, Z, torch.linspace(0, 1, 5)), {"rtol": 1e-6, "atol": 1e-8}, ["order=0.7", "order=1.0 is an ordinary"]),
        ((relax, Z, torch.linspace(0, 1, 5)), {"steps": 4}, ["order=0.7", "order=1.0 is an ordinary"]),
        ((relax, Z, 0.5, 1.0), {"step_size": 0.1}, ["step=h", "fdeint(func, z0, t, order)"]),
        ((relax, Z, 0.5, torch.tensor(1.0), 0.1, "predictor"), {}, ["by name", "6 arguments", "compat.torchfde"]),
        ((relax, Z, 1.0, 0.5), {"steps": 4, "metod": "abm"}, ["Did you mean 'method'"]),
    ],
    ids=["odeint with tolerances", "odeint", "torchfde by name", "torchfde by position", "misspelt"],
)
def test_a_call_from_memory_of_another_library(arguments, options, words):
    with pytest.raises(InputTypeError) as caught:
        fdeint(*arguments, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_signature_is_still_there_to_read():
    assert list(inspect.signature(fdeint).parameters)[:5] == ["func", "z0", "t", "order", "method"]
    assert fdeint.__kwdefaults__["adjoint"] == "exact"
    assert fdeint.__name__ == "fdeint"
    assert "D z = func" in fdeint.__doc__


def test_a_missing_state_is_still_pythons_own_error():
    with pytest.raises(TypeError, match="z0"):
        fdeint(relax)


def test_the_step_for_a_tolerance_is_found_as_the_message_says():
    assert 0 < suggest_step(relax, Z, 1.0, 0.5, 1e-2) <= 1
