"""The experiments that ``neuralfde run`` finds, by name, and what they say of themselves without being imported.

Packages announce a table of names by an entry point (see ``neuralfde.cli.experiment``). The table of
``neuralfde-experiments`` is also found without one, wherever that package can be imported: in a source tree, with
``PYTHONPATH=src:experiments/src``, nothing is installed and there are no entry points.
"""

from __future__ import annotations

import ast
import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

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


def unknown(name: str) -> str:
    """What to say to a name that no package has."""
    from neuralfde.errors import nearest

    said = f"there is no experiment {name!r}."
    known = list(modules())
    if known:
        said += f" {nearest(name, known)}"
    return said if ours_is_here() else f"{said} {HOW_TO_INSTALL}"


def summary(module: str) -> str:
    """The ``SUMMARY`` in a module's file, or else the first line of its docstring; the module is not imported."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).parent.joinpath(*rest).with_suffix(".py") if rest else Path(spec.origin)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUMMARY":
            return str(ast.literal_eval(node.value))
    return (ast.get_docstring(tree) or "").partition("\n")[0]
