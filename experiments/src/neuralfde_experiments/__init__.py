"""The experiments of neuralfde: those of the paper and a few more, with their data.

``neuralfde run NAME`` runs one. Each is a module as ``neuralfde.cli.experiment`` describes it, and uses only public
names of neuralfde.
"""

_NAMES = (
    "lotka-volterra",
    "lynx-hare",
    "relaxation",
    "neural-field",
    "images",
    "image-cost",
    "image-adjoints",
    "image-stages",
    "graphs",
    "graph-sampled",
    "graph-cost",
    "forecasting",
)

#: Names on the command line and their modules; the entry point in ``pyproject.toml`` refers to this table.
EXPERIMENTS = {name: f"{__name__}.{name.replace('-', '_')}" for name in _NAMES}
