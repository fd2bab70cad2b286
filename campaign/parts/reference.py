"""Random problems against the independent textbook solver: values and all gradients."""

from __future__ import annotations

import torch

from .. import expected, problem_text, problems
from ..case import Case, Part
from ..compare import allowed, demand_equal


def check(case: Case) -> float:
    """The library first: what it refuses needs no reference."""
    found = expected.by_package(case)
    right = expected.by_reference(case)
    tolerance = allowed(getattr(torch, case["dtype"]), case["steps"], expected.stage_of(case) == "implicit")
    if case["grading"] != 1 and "xponentials" in case["history"]:  # on a mesh they have the tolerance they are given
        tolerance += 1e-6 * (case["steps"] + 8)
    return demand_equal(found, right, tolerance, lambda: expected.conditioning(case, right))


PART = Part("reference", problems.SETTINGS, check, problem_text.script, problems.arrange, share=8)
