"""All ways to step: schemes, histories, storages, orders, steppers, sizes and steps, from the registries."""

from __future__ import annotations

import itertools
import os
import random
import re
from dataclasses import dataclass, fields
from datetime import date
from typing import Any

from neuralfde import Exponentials, Window
from neuralfde.door.names import HISTORIES, METHODS, STEPPERS, STORAGES
from tests.reference import FORMULAS, formula

from .covering import covering
from .kinds import KINDS, Kind

SHAPES = {1: (1, 1), 6: (2, 3), 64: (4, 4, 4), 65: (5, 13), 5000: (4, 250, 5)}
STEPS = (1, 2, 3, 15, 16, 17, 63, 64, 65, 200)
OUTPUTS = ("end", "nodes")
STEP = 0.02
# Names that stand for a family, and the member that is tested; a name that is not here is passed on as it is.
MEMBERS: dict[str, Any] = {"window": Window(7)}
ON_GPU = ("cuda-graph", "kernel")
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    method: str
    stepper: str
    history: str
    storage: str
    order: str
    size: int
    steps: int
    output: str

    def __str__(self) -> str:
        return "-".join(str(x).replace(" ", "_") for x in self.key)

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))

    @property
    def kind(self) -> Kind:
        return BY_NAME[self.order]

    @property
    def shape(self) -> tuple[int, ...]:
        return SHAPES[self.size]

    @property
    def device(self) -> str:
        interpreted = self.stepper == "kernel" and os.environ.get("TRITON_INTERPRET") == "1"
        return "cuda" if self.stepper in ON_GPU and not interpreted else "cpu"

    @property
    def implicit(self) -> bool:
        return formula(self.method).stage == "implicit"


#: Cases that were wrong once, whether the design meets them or not.
ONCE = [Case(method, "single", "full", "device", "tempered", 6, 1, "end") for method in ("bdf2", "flmm-trapezoid")]


def options(case: Case) -> dict[str, Any]:
    return {
        "method": case.method,
        # on a mesh exponentials have the tolerance that is asked for, rounding here
        "history": Exponentials(tol=1e-14) if fades_on_mesh(case) else MEMBERS.get(case.history, case.history),
        "storage": case.storage,
        "steps": case.steps,
        "grading": case.kind.grading,
        # Newton's iterations take seconds over so many steps; they meet every other number of steps
        "solver": "fixed-point" if case.implicit and case.steps >= 100 else None,
        "stepper": case.stepper,
    }


def fades_on_mesh(case: Case) -> bool:
    """Whether the far past is summed as exponentials although its weights depend on more than the lag."""
    fading = case.history == "exponentials" or (case.history == "auto" and case.storage == "checkpoint")
    return case.order == "graded" and bool(METHODS[case.method].cells) and fading


def refusals(case: Case) -> list[str]:
    """Why a combination is refused: patterns of which its message has to match one. None: it must run."""
    found, kind, scheme = [], case.kind, formula(case.method)
    if "series" in kind.needs and not scheme.series:
        found.append("several orders cannot be solved with")
    if "two" in kind.needs and scheme.largest < 2:
        found.append(r"outside \(0, 1\], the orders of")
    if "graded" in kind.needs and scheme.graded is None:
        found.append("uniform grids only")
    if case.order == "graded variable" and case.method.startswith("l1"):
        found.append("one matrix for all rows")
    if case.stepper == "cuda-graph" and case.implicit:
        found.append("which the host has to check")
    if case.stepper == "cuda-graph" and "horizon" in case.order:
        found.append("created anew for every solve")
    if case.stepper == "recorded" and case.implicit:
        found.append("needs the derivatives of func")
    if case.stepper == "picard" and scheme.stage == "extrapolated":
        found.append("how its stages are iterated")
    if "single" in kind.needs and scheme.stage in ("corrected", "extrapolated"):
        found.append("one row of weights")
    if not kind.toeplitz and case.history not in ("auto", "full") and not fades_on_mesh(case):
        found.append("weights that depend on the lag alone")
    # rows that a history keeps itself cannot be taken away from it, but for those of 'full' on the host
    keeps = case.history in ("full", "fft") or not (kind.toeplitz or fades_on_mesh(case))
    full = case.history != "fft"
    if keeps and (case.storage == "checkpoint" or (case.storage == "host" and not full)):
        found.append("holds every row in the dtype of the state")
    # its weights alternate, which no sum of decaying exponentials does; up to 2 blocks of 16 steps there is none
    fading = case.history == "exponentials" or (case.history == "auto" and case.storage in ("host", "checkpoint"))
    if case.method == "flmm-trapezoid" and case.order != "custom" and kind.toeplitz and fading and case.steps >= 32:
        found.append("exponentials reach")
    return found


def may_refuse(case: Case, message: str) -> bool:
    """Whether a stepper may say no to this: because of what ``func`` does, never because of a size."""
    return case.stepper == "picard" and re.search("vectoris", message) is not None


def ways() -> list[tuple[str, str, str, str, str]]:
    """Every scheme, stepper, history, storage and kind of order, whether it is refused or not."""
    # a scheme without a formula in the reference fails a test of its own, which says where to add it
    methods = [method for method in METHODS if method in FORMULAS]
    parts = (methods, STEPPERS, HISTORIES, STORAGES, BY_NAME)
    return list(itertools.product(*map(tuple, parts)))


def cost(row: tuple[Any, ...]) -> float:
    """About how long a row takes next to one of a few steps."""
    case = case_of(row)
    return max(case.steps, 17) / 60 * (5 if case.size > 1000 else 1) * (3 if case.implicit else 1)


def design() -> list[Case]:
    """Every scheme with every stepper meets everything else, and everything else every other, at least once.

    Once for the steppers that need a GPU and once for the others, so that neither leans on what the other has met.
    """
    found = list(ONCE)
    for on_gpu in (False, True):
        # a scheme and a stepper are one factor, so that each pair of them meets all values of the others
        tied = [((way[0], way[1]), *way[2:]) for way in ways() if (way[1] in ON_GPU) == on_gpu and sensible(*way)]
        rows = covering(tied, (tuple(SHAPES), STEPS, OUTPUTS), cost, lambda row: not refusals(case_of(row)))
        found += [case_of(row) for row in rows]
    return list(dict.fromkeys(found))


def sensible(*way: str) -> bool:
    return not refusals(Case(*way, 6, 2, "end"))


def case_of(row: tuple[Any, ...]) -> Case:
    return Case(*row[0], *row[1:])


def sample(count: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    parts = (ways(), tuple(SHAPES), STEPS, OUTPUTS)
    cases = [Case(*way, *rest) for way, *rest in ([rng.choice(p) for p in parts] for _ in range(count))]
    return [case for case in cases if not refusals(case)]


#: The seed of the large sample: that of the day unless it is given, so that all processes of a run agree.
SEED = int(os.environ.get("NEURALFDE_MATRIX_SEED", date.today().toordinal()))


def chosen() -> list[Case]:
    """The covering design; with NEURALFDE_MATRIX=full a few thousand further cases at random."""
    if os.environ.get("NEURALFDE_MATRIX") != "full":
        return design()
    print(f"NEURALFDE_MATRIX_SEED={SEED}")
    return list(dict.fromkeys([*design(), *sample(3000, SEED)]))
