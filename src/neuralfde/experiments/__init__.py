"""Experiments by name, each a frozen ``Config`` and ``run(config, report) -> rows``; imported only when asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, nearest
from .runtime import FolderReport, Report, option

__all__ = ["EXPERIMENTS", "Experiment", "FolderReport", "Report", "available", "load", "option"]

#: Names on the command line. A module has ``Config``, ``run`` and, if it likes, ``EXAMPLES`` and ``COLUMNS``;
#: ``PROCESSES = True`` says that it shares its work between the processes that ``torchrun`` starts.
EXPERIMENTS = (
    "lotka-volterra",
    "lynx-hare",
    "relaxation",
    "neural-field",
    "images",
    "image-cost",
    "image-adjoints",
    "graphs",
    "graph-sampled",
    "graph-cost",
)


@dataclass(frozen=True)
class Experiment:
    """One experiment as the command line and the tests see it."""

    name: str
    config: type[Any]
    run: Callable[..., list[dict[str, Any]]]
    help: str
    examples: tuple[str, ...]
    columns: tuple[str, ...] = ()
    processes: bool = False


def module_of(name: str) -> str:
    """The module of an experiment."""
    return f"{__name__}.{name.replace('-', '_')}"


def available() -> list[str]:
    """The names whose modules are installed."""
    return [name for name in EXPERIMENTS if importlib.util.find_spec(module_of(name)) is not None]


def read(name: str, module: Any) -> Experiment:
    """What a module of an experiment offers."""
    examples, columns = (tuple(getattr(module, k, ())) for k in ("EXAMPLES", "COLUMNS"))
    shares = bool(getattr(module, "PROCESSES", False))
    return Experiment(name, module.Config, module.run, module.__doc__ or "", examples, columns, shares)


def load(name: str) -> Experiment:
    """Import an experiment by its name."""
    if name not in available():
        raise InputError(f"there is no experiment {name!r}. {nearest(name, available())}")
    return read(name, importlib.import_module(module_of(name)))
