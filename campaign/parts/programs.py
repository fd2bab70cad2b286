"""Random functions, written in many operations of PyTorch, against plain autograd through plain calls.

A function that is recorded, vectorised or differentiated by the library has to be the function that Python would run.
"""

from __future__ import annotations

import random

from .. import scripts
from ..case import Case, Part
from ..program_lines import ENDS, LINES, SECONDS
from ..program_text import TRANSFORMED, script_of

#: What transforms of PyTorch do otherwise than autograd, or not at all: a tangent goes through no_grad, one that is
#: copied into new memory is written to with it.
NOT_TRANSFORMED = (
    "checkpoint", "without gradient", "gradient by", "number in old", "group norm", "copied", "assigned twice", "cummax"
)  # fmt: skip
LINE_NAMES = ("nothing", "nothing", *LINES)
SETTINGS = {
    "way": (*["train"] * 12, "values", "values", "inference", "again", "interleaved", *TRANSFORMED),
    "stepper": ("auto", "recorded", "recorded", "single", "picard"),
    **{f"line{i}": LINE_NAMES for i in range(5)},
    "end": ("bounded", "bounded", "bounded", *ENDS),
    "second": tuple(SECONDS),
    "shape": ((66,), (2,), (4,), (11, 6), (1, 66), (34, 2), (3, 5, 6), (3, 4)),
    "nesting": ("tensor", "tensor", "tensor", "tuple", "dict"),
    "given": ("params", "module", "args", "parametrized"),
    "learn": ("all", "all", "field", "weight", "state", "order", "none"),
    "kind": ("number", "tensor", "tensor", "channels", "tempered", "multi"),
    "method": ("predictor", "abm", "gl-explicit", "l1-explicit"),
    "history": ("'auto'", "'full'", "'exponentials'", "'fft'", "Window(9)", "Full(block=4)"),
    "storage": ("'device'", "'auto'", "'host'", "'checkpoint'", "Checkpoint(every=3)", "Device(dtype=torch.bfloat16)"),
    "output": ("last", "all", "some"),
    "steps": (22, 1, 2, 3, 5, 20, 33, 40, 64, 65, 70),
    "dtype": ("float64", "float64", "float32"),
    "numbers": tuple(range(50)),
}


def arrange(case: Case, rng: random.Random) -> Case:
    """Few lines more often than many; no settings that every solve refuses together."""
    case = dict(case)
    keep = rng.choice((1, 2, 2, 3, 5))
    case |= {f"line{i}": "nothing" for i in range(keep, 5)}
    if case["kind"] == "channels" and case["nesting"] != "tensor":
        case["kind"] = "tensor"
    if case["kind"] == "multi":
        case["method"] = "gl-explicit"
    if case["storage"] not in ("'device'", "'auto'"):
        case["history"] = rng.choice(("'exponentials'", "Window(9)"))
    if "dtype" in case["storage"] and case["stepper"] in ("auto", "picard"):
        case["stepper"] = "recorded"  # rounded rows have equal numbers, of which a vectorised min() takes another
    if case["steps"] < 3:
        case["output"] = "last"
    if case["way"] == "inference":  # there is no graph to take derivatives from
        case = _without(case, ("energy", "checkpoint"))
    if case["way"] in TRANSFORMED:
        case = _without(case, NOT_TRANSFORMED)
    if case["way"] in TRANSFORMED or case["stepper"] in ("picard", "auto"):  # other sums are rounded otherwise
        case = _without(case, ("half precision", "brain precision", "single precision"))
    if case["way"] in TRANSFORMED:
        case |= {"given": "args", "storage": "'device'", "steps": min(case["steps"], 40)}
        case["learn"] = "all" if case["learn"] == "none" else case["learn"]
    return case


def _without(case: Case, lines: tuple[str, ...]) -> Case:
    """The case without lines whose names begin so."""
    return case | {f"line{i}": "nothing" for i in range(5) if case[f"line{i}"].startswith(lines)}


def check(case: Case) -> float:
    apart = case["way"] == "vmap" and "xponentials" in case["history"]  # solves of one map share their exponentials
    return scripts.run(script_of(case), case, case["steps"], 1e-8 if apart else 0.0)


def text(case: Case) -> str:
    return scripts.whole(script_of(case), case)


PART = Part("programs", SETTINGS, check, text, arrange, share=4)
