"""Test problems with known answers, used by tests, documentation and benchmarks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InputError, nearest
from . import general, scalar, systems
from .base import Problem

#: Every problem by name; each is a function whose arguments (an order, a rate) have defaults.
PROBLEMS: dict[str, Callable[..., Problem]] = {
    "relaxation": scalar.relaxation,
    "diethelm-ford-freed": scalar.diethelm_ford_freed,
    "smooth": scalar.smooth,
    "power": scalar.power,
    "saturation": scalar.saturation,
    "rotation": scalar.rotation,
    "oscillation": scalar.oscillation,
    "xue-bai-system": scalar.xue_bai_system,
    "xue-bai-linear": scalar.xue_bai_linear,
    "bagley-torvik": general.bagley_torvik,
    "bagley-torvik-cubic": general.bagley_torvik_cubic,
    "bagley-torvik-low": general.bagley_torvik_low,
    "basset": general.basset,
    "distributed": general.distributed,
    "variable": general.variable,
    "tempered": general.tempered,
    "brusselator": systems.brusselator,
    "lorenz": systems.lorenz,
    "chua": systems.chua,
    "sir": systems.sir,
    "predator-prey": systems.predator_prey,
    "riccati": systems.riccati,
    "van-der-pol": systems.van_der_pol,
}

__all__ = ["PROBLEMS", "Problem", "problem"]


def problem(name: str, **arguments: Any) -> Problem:
    """A problem by its name: ``problem('relaxation', order=0.3)``."""
    if name not in PROBLEMS:
        raise InputError(f"unknown problem {name!r}. {nearest(name, PROBLEMS)}")
    return PROBLEMS[name](**arguments)
