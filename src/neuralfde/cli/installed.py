"""The experiments that are installed, as ``neuralfde_command.experiments`` finds them."""

from __future__ import annotations

import importlib

from neuralfde_command import experiments

from ..errors import InputError
from .experiment import Experiment, read


def available() -> list[str]:
    """The names of all experiments that are installed."""
    return list(experiments.modules())


def load(name: str) -> Experiment:
    """Import an experiment by its name."""
    found = experiments.modules()
    if name not in found:
        raise InputError(experiments.unknown(name))
    return read(name, importlib.import_module(found[name]))
