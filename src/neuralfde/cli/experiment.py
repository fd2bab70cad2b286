"""The contract between the command ``neuralfde run`` and the packages that bring experiments to it.

An experiment is a module with

- a docstring, which is its help text;
- ``Config``, a frozen dataclass of base ``Options`` whose fields are made by ``option``: each becomes an option of the
  command line, and a value that it does not take is refused before anything starts;
- ``run(config, report) -> rows``, which computes each row with ``report.case``;
- if it likes, ``SUMMARY`` (its line in a list of experiments, a literal: it is read without importing the module),
  ``EXAMPLES`` (lines of the help text), ``COLUMNS`` (what the table at the end shows), ``OUT`` (the folder it writes to
  unless told otherwise), and ``PROCESSES = True`` where it shares its work between the processes that ``torchrun``
  starts.

A package names its experiments in one table, from the name on the command line to the module, and refers to that table
by an entry point of the group ``neuralfde.experiments``. ``neuralfde run`` imports a module only when it is asked for.

    # your_package/__init__.py
    EXPERIMENTS = {"pendulum": "your_package.pendulum"}

    # pyproject.toml
    [project.entry-points."neuralfde.experiments"]
    your_package = "your_package:EXPERIMENTS"

All that such a package needs from here is in this module. The package ``neuralfde-experiments`` is an example.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from neuralfde_command import experiments

from ..errors import InputError
from .folder import FolderReport, plain, write_json
from .options import (
    ADJOINTS,
    HISTORIES,
    METHODS,
    STORAGES,
    Options,
    device_option,
    numbers,
    option,
    place,
    words,
    writable,
)
from .processes import rank_and_count, restarts
from .report import Report, Row

__all__ = [
    "ADJOINTS",
    "HISTORIES",
    "METHODS",
    "STORAGES",
    "Experiment",
    "FolderReport",
    "Options",
    "Report",
    "Row",
    "available",
    "device_option",
    "load",
    "numbers",
    "option",
    "place",
    "plain",
    "rank_and_count",
    "read",
    "restarts",
    "words",
    "writable",
    "write_json",
]


@dataclass(frozen=True)
class Experiment:
    """One experiment, as the command line and the tests see it.

    Args:
        name: its name on the command line.
        config: the frozen dataclass of its settings.
        run: called with a config and a report; returns the rows.
        help: what ``--help`` says.
        examples: command lines to show in the help.
        columns: what the table at the end shows; empty: every number of a row.
        processes: whether it shares its work between the processes that ``torchrun`` starts.
        out: the folder it writes to unless told otherwise; empty: nothing is written.
    """

    name: str
    config: type[Any]
    run: Callable[..., list[Row]]
    help: str
    examples: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    processes: bool = False
    out: str = ""


def read(name: str, module: ModuleType) -> Experiment:
    """The experiment that a module offers."""
    examples, columns = (tuple(getattr(module, k, ())) for k in ("EXAMPLES", "COLUMNS"))
    shares = bool(getattr(module, "PROCESSES", False))
    out = str(getattr(module, "OUT", ""))
    return Experiment(name, module.Config, module.run, module.__doc__ or "", examples, columns, shares, out)


def available() -> list[str]:
    """The names of all experiments that are installed."""
    return list(experiments.modules())


def load(name: str) -> Experiment:
    """Import an experiment by its name."""
    found = experiments.modules()
    if name not in found:
        raise InputError(experiments.unknown(name))
    return read(name, importlib.import_module(found[name]))
