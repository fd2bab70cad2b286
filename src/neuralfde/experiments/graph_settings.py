"""Hyper-parameters of F-GRAND for each graph: the paper's table tab:s3hyperpara, and what the table leaves open."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from ..data.catalog import GRAPHS
from ..data.graphs import GRAPH_NAMES
from ..errors import InputError, nearest


@dataclass(frozen=True)
class Settings:
    """Everything that decides a training run but the split, the variant and the adjoint.

    The first row of fields is in the paper's table; the rest is ours, from validation accuracy alone.
    """

    hidden: int
    t: float
    step: float
    lr: float
    weight_decay: float
    input_dropout: float
    dropout: float
    heads: int = 8
    attention: str = "scaled_dot"
    attention_width: int = 0  # 0: as wide as the state
    normalise: str = "softmax"
    source: bool = True
    optimiser: str = "adam"
    epochs: int = 150
    patience: int = 50
    order: float = 0.9


#: tab:s3hyperpara
PAPER: dict[str, Settings] = {
    "cora": Settings(80, 4.0, 0.2, 0.005, 1e-4, 0.4, 0.2),
    "citeseer": Settings(64, 4.0, 1.0, 0.001, 1e-4, 0.4, 0.4),
    "pubmed": Settings(64, 10.0, 0.2, 0.001, 1e-4, 0.2, 0.4),
    "coauthor-cs": Settings(8, 8.0, 1.0, 0.005, 1e-4, 0.4, 0.4),
    "computers": Settings(64, 3.0, 0.5, 0.005, 1e-4, 0.2, 0.4),
    "photo": Settings(128, 4.0, 0.2, 0.001, 1e-4, 0.2, 0.4),
    "coauthor-physics": Settings(64, 4.0, 0.5, 0.005, 1e-4, 0.2, 0.4),
    "ogbn-arxiv": Settings(128, 8.0, 0.2, 0.005, 1e-4, 0.4, 0.2),
    "ogbn-products": Settings(128, 10.0, 0.2, 0.001, 1e-4, 0.2, 0.4),
}

#: what a search on validation draws from; a field that is not here is never changed
SPACE: dict[str, tuple[Any, ...]] = {
    "lr": (0.001, 0.003, 0.005, 0.01, 0.02),
    "weight_decay": (1e-4, 1e-3, 5e-3, 1e-2, 5e-2),
    "input_dropout": (0.2, 0.4, 0.5, 0.6, 0.7),
    "dropout": (0.0, 0.2, 0.4, 0.6),
    "hidden": (64, 80, 128, 256),
    "heads": (1, 4, 8),
    "attention": ("scaled_dot", "cosine", "exp_kernel"),
    "normalise": ("softmax", "squareplus"),
    "source": (True, False),
    "t": (4.0, 8.0, 16.0),
    "optimiser": ("adam", "adamax"),
    "order": (0.5, 0.7, 0.85, 0.95, 1.0),
}


def canonical(dataset: str) -> str:
    """The catalogue's name of a graph: case, ``-`` and ``_`` do not matter, nor does ``coauthor`` in front."""
    plain = dataset.lower().replace("-", "").replace("_", "")
    known = {name.replace("-", ""): name for name in GRAPH_NAMES}
    return known.get(plain) or known.get(f"coauthor{plain}") or dataset


def settings_for(dataset: str, table: dict[str, Settings] = PAPER, **given: Any) -> Settings:
    """The settings of a graph, with those ``given`` that are not None in place of the table's."""
    name = canonical(dataset).replace("synthetic", "ogbn")
    if name not in table:
        raise InputError(f"dataset={dataset!r} has no settings. {nearest(dataset, tuple(table))}")
    chosen = replace(table[name], **{key: value for key, value in given.items() if value is not None})
    width = chosen.attention_width or chosen.hidden
    if width % chosen.heads:
        raise InputError(f"heads={chosen.heads} does not divide the attention width {width}. Change one of the two.")
    return chosen


def candidates(start: Settings, count: int, seed: int = 0) -> list[Settings]:
    """``start`` and ``count`` random draws from :data:`SPACE`, the same for the same seed.

    A time longer than the start's is walked in steps of at least one, so that no draw costs many times the others.
    """
    draw, found = random.Random(seed), [start]
    for _ in range(count):
        picked = {key: draw.choice(values) for key, values in SPACE.items()}
        picked["step"] = max(start.step, 1.0) if picked["t"] > start.t else start.step
        found.append(replace(start, **picked))
    return found


def has_random_splits(dataset: str) -> bool:
    """Whether a seed names a split (GRAND's) or only an initialisation."""
    return dataset in GRAPHS
