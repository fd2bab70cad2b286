"""Every stepper, forced, against ``single``: values and all gradients."""

from __future__ import annotations

import random

import torch

from .. import expected, problem_text, problems
from ..case import Case, Part
from ..compare import allowed, demand_equal

SETTINGS = {
    **problems.SETTINGS,
    "shape": ((2,), (), (1,), (3,), (2, 3), (5, 13), (3, 2, 4)),
    "steps": (4, 1, 2, 3, 6, 8, 15, 16, 17, 24, 31, 33, 64, 65),
    "stepper": ("auto", *problems.FORCED),
    "adjoint": ("exact",),
}


def arrange(case: Case, rng: random.Random) -> Case:
    """As for every problem, but the stepper is the one that was drawn."""
    return {**problems.arrange(case, rng), "stepper": case["stepper"]}


def check(case: Case) -> float:
    """The stepper first: what it refuses needs no comparison."""
    found = expected.by_package(case)
    single = expected.by_package({**case, "stepper": "single"})
    tolerance = allowed(getattr(torch, case["dtype"]), case["steps"], expected.stage_of(case) == "implicit")
    return demand_equal(found, single, tolerance, lambda: expected.conditioning(case, expected.by_reference(case)))


PART = Part("steppers", SETTINGS, check, problem_text.script, arrange, share=4)
