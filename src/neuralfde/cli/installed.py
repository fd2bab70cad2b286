"""The experiments that ``neuralfde run`` finds, by name.

Packages announce a table of names by an entry point (see ``neuralfde.cli.experiment``). The table of
``neuralfde-experiments`` is also found without one, wherever that package can be imported: in a source tree, with
``PYTHONPATH=src:experiments/src``, nothing is installed and there are no entry points.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import EntryPoint, entry_points

from ..errors import InputError, nearest
from .experiment import Experiment, read

GROUP = "neuralfde.experiments"
OURS = EntryPoint("neuralfde_experiments", "neuralfde_experiments:EXPERIMENTS", GROUP)
HOW_TO_INSTALL = (
    "The experiments are a package of their own, neuralfde-experiments, in the folder experiments of the repository. "
    "Install it there with: pip install ./experiments"
)


def modules() -> dict[str, str]:
    """From names to modules; of two packages that use one name, the one in this repository has it."""
    found: dict[str, str] = {}
    for table in [e for e in entry_points(group=GROUP) if e.value != OURS.value] + [OURS] * ours_is_here():
        found |= table.load()
    return found


def ours_is_here() -> bool:
    """Whether ``neuralfde-experiments`` can be imported."""
    return importlib.util.find_spec(OURS.module) is not None


def available() -> list[str]:
    """The names of all experiments that are installed."""
    return list(modules())


def load(name: str) -> Experiment:
    """Import an experiment by its name."""
    found = modules()
    if name not in found:
        raise InputError(unknown(name))
    return read(name, importlib.import_module(found[name]))


def unknown(name: str) -> str:
    """What to say to a name that no package has."""
    said = f"there is no experiment {name!r}."
    known = available()
    if known:
        said += f" {nearest(name, known)}"
    return said if ours_is_here() else f"{said} {HOW_TO_INSTALL}"
