"""The experiments by name; a module is imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, nearest

#: name on the command line -> module. A module has ``Config``, ``run`` and, if it likes, ``EXAMPLES`` and ``COLUMNS``;
#: ``PROCESSES = True`` says that it shares its work between the processes that ``torchrun`` starts.
EXPERIMENTS: dict[str, str] = {
    "lotka-volterra": "neuralfde.experiments.lotka_volterra",
    "lynx-hare": "neuralfde.experiments.lynx_hare",
    "relaxation": "neuralfde.experiments.relaxation",
    "neural-field": "neuralfde.experiments.neural_field",
    "images": "neuralfde.experiments.images",
    "image-cost": "neuralfde.experiments.image_cost",
    "image-adjoints": "neuralfde.experiments.image_adjoints",
    "graphs": "neuralfde.experiments.graphs",
    "graph-sampled": "neuralfde.experiments.graph_sampled",
    "graph-cost": "neuralfde.experiments.graph_cost",
}


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


def available() -> list[str]:
    """The names whose modules are installed."""
    return [n for n, module in EXPERIMENTS.items() if importlib.util.find_spec(module) is not None]


def read(name: str, module: Any) -> Experiment:
    """What a module of an experiment offers."""
    examples, columns = (tuple(getattr(module, k, ())) for k in ("EXAMPLES", "COLUMNS"))
    shares = bool(getattr(module, "PROCESSES", False))
    return Experiment(name, module.Config, module.run, module.__doc__ or "", examples, columns, shares)


def load(name: str) -> Experiment:
    """Import an experiment by its name."""
    if name not in available():
        raise InputError(f"there is no experiment {name!r}. {nearest(name, available())}")
    return read(name, importlib.import_module(EXPERIMENTS[name]))
