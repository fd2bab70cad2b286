"""Random problems over the whole public surface: the settings, and what makes sense together."""

from __future__ import annotations

import math
import random
from typing import Any

from neuralfde import fdeint
from neuralfde.door.names import METHODS, SOLVERS, STEPPERS
from tests.reference import FORMULAS

from .case import Case

#: Methods that a random problem is drawn from; one without a formula of its own in the reference fails a test there.
KNOWN = [name for name in METHODS if name in FORMULAS]
#: Whether steps may end at any times, given as ``grid=``; output between them is then that of the scheme on any mesh.
ANY_GRID = "grid" in (fdeint.__kwdefaults__ or {})
PER_NUMBER = ("channels", "samples", "each", "parts", "tempered-channels", "above-channels")
ABOVE = ("above", "above-channels", "tempered-above", "multi-above")
SERIES = ("multi", "multi-zero", "multi-above", "distributed")

SETTINGS: dict[str, Any] = {
    "field": ("linear", "tanh", "coupled", "tanh", "time", "switch", "constant", "quadratic"),
    "given": ("params", "module", "args"),
    "shape": ((2,), (), (1,), (3,), (2, 3), (2, 1, 2)),
    "nesting": ("tensor", "tensor", "tuple", "dict"),
    "dtype": ("float64", "float64", "float32"),
    "kind": (
        "number", "tensor", "channels", "samples", "each", "parts", "tempered", "tempered-channels", "variable",
        "multi", "multi-zero", "distributed", "custom", "above", "above-channels", "tempered-above", "multi-above",
    ),
    "beta": (0.6, 0.5, 1.0, 0.9, 0.33, 0.75, 0.97, 0.25),
    "steps": (4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 33),
    "span": (0.5, 0.2, 1.0, 0.05),
    "start": (0.0, 0.0, 0.5, -1.0),
    "grading": (1.0, 1.0, 1.0, 1.0, 2.0, 1.4, *(["grid"] if ANY_GRID else [])),
    "method": tuple(KNOWN),
    "history": (
        "'full'", "'auto'", "'fft'", "Full(block=4)", "Full(block=1)", "Full(block=3, states=True)",
        "FFT(block=2, growth=2)", "Window(3)", "Window(1)", "'exponentials'", "Exponentials(block=2, tol=1e-6)",
    ),
    "storage": ("'device'", "'device'", "'auto'", "'host'", "'checkpoint'", "Checkpoint(every=3)"),
    "adjoint": ("exact", "exact", "direct"),
    "stepper": ("single", "auto", "auto", "picard"),
    "output": ("end", "nodes", "all", "between"),
    "horizon": (False, False, False, True),
    "solver": (None, None, *SOLVERS),
    "learned": ("all", "all", "state", "field", "order", "none"),
    "call": ("fdeint", "fdeint", "solve", "block"),
    "length": ("steps", "step"),
    "layout": ("plain", "plain", "transposed", "strided"),
    "loss": ("all", "all", "last", "first", "one"),
    "mode": ("grad", "grad", "grad", "grad", "no_grad", "inference_mode"),
    "numbers": tuple(range(50)),
}  # fmt: skip
#: Steppers that need a GPU, which this campaign does without: `pytest -m gpu` holds them to the reference.
ON_GPU = ("cuda-graph", "kernel")
#: Steppers that are compared with single steps.
FORCED = tuple(name for name in STEPPERS if name not in ("auto", "single", *ON_GPU))


def arrange(case: Case, rng: random.Random) -> Case:
    """What makes no sense together is set apart, but for one case in twelve, which has to be refused."""
    case = dict(case)
    if case["nesting"] == "tensor" and case["kind"] == "parts":
        case["kind"] = "tensor"
    if case["nesting"] != "tensor" or case["kind"] in (*SERIES, "custom", "parts"):
        case["horizon"] = False
    if case["shape"] == () and case["kind"] in PER_NUMBER:
        case["kind"] = "tensor"
    if case["nesting"] != "tensor" and case["kind"] in (
        "channels",
        "samples",
        "each",
        "tempered-channels",
        "above-channels",
    ):
        case["kind"] = "tensor"
    if case["horizon"] and case["field"] == "switch":
        case["field"] = "tanh"
    if case["steps"] == 1:
        case["grading"] = 1.0  # one step has no other grid
    if case["length"] == "step" and case["grading"] != 1:
        case["length"] = "steps"
    return _contracting(case if rng.random() < 1 / 12 else _sensible(case, rng))


def _contracting(case: Case) -> Case:
    """A step so short that the reference, which solves implicit stages by plain iteration, can take it."""
    slopes = {
        "linear": 0.9,
        "switch": 0.9,
        "quadratic": 1.0,
        "tanh": 1.2,
        "coupled": 1 + 0.3 * math.prod(case["shape"]),
    }
    steepest = slopes.get(case["field"], 0.0) + 0.3 * (case["nesting"] != "tensor")
    # the largest step and horizon; orders reach down to two thirds of beta
    step = 1.3 * case["span"] / case["steps"] * (1 if case["grading"] == 1 else 2)
    if FORMULAS[case["method"]].stage == "implicit" and steepest * step ** (0.65 * case["beta"]) > 0.65:
        return {**case, "span": 0.05, "field": "linear"}
    return case


def _sensible(case: Case, rng: random.Random) -> Case:
    kind, formula = case["kind"], FORMULAS[case["method"]]
    if kind in SERIES:
        case["method"] = rng.choice([m for m in KNOWN if FORMULAS[m].series])
    elif kind in ABOVE and formula.largest < 2:
        case["method"] = rng.choice([m for m in KNOWN if FORMULAS[m].largest == 2])
    elif kind == "custom" and formula.stage == "corrected":
        case["method"] = "predictor"
    formula = FORMULAS[case["method"]]
    if kind in (*SERIES, "custom") or formula.graded is None or (kind == "variable" and "l1" in case["method"]):
        case["grading"] = 1.0
    if kind == "variable" or case["grading"] != 1:
        case["history"], case["storage"] = rng.choice(["'full'", "'auto'", "Full(block=4)"]), "'device'"
    if formula.stage != "implicit":
        case["solver"] = None
    if case["adjoint"] == "direct":
        case["storage"], case["stepper"] = "'device'", rng.choice(["auto", "single"])
    keeps = not case["history"].startswith(("Window", "'exp", "Exp", "Full(block=3"))
    if case["output"] == "between" and not keeps and not ANY_GRID:
        case["history"], keeps = "'full'", True
    if keeps and case["storage"] not in ("'device'", "'auto'"):
        case["storage"] = "'host'" if case["history"].startswith(("'full", "Full")) else "'device'"
    if case["call"] == "block":
        case["kind"] = kind if kind in ("number", "tensor", "channels", "each") else "number"
        case["horizon"], case["learned"] = False, rng.choice(["state", "field"])
        case["given"] = rng.choice(["module", "args"])
    return case
