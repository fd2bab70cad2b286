"""Every generalised order with every kind of parameter it has."""

import torch

from neuralfde import (
    Caputo,
    CustomKernel,
    DistributedOrder,
    MultiTerm,
    Tempered,
    VariableOrder,
)
from neuralfde.door import names
from neuralfde.weights.uniform import rectangle

from .gradients import Case

METHODS = tuple(names.METHODS)
EXPLICIT = tuple(name for name in METHODS if not names.METHODS[name].implicit)
UP_TO_TWO = ("predictor", "predictor-implicit", "abm", "trapezoid", "gl", "gl-explicit")
GRADED = ("predictor", "predictor-implicit", "abm", "trapezoid", "l1", "l1-explicit")


def custom(order, step, steps):
    """Weights of the rectangle rule with a factor that fades with the lag."""
    lag = torch.arange(steps + 1, dtype=torch.float64)[:, None]
    return rectangle(order, step, steps) / (1 + 0.1 * lag)


CASES = [
    *[Case("scalar", {"b": 0.6}, lambda x: x["b"], m) for m in METHODS],
    *[Case("channels", {"b": [0.3, 0.6, 0.9]}, lambda x: x["b"], m) for m in METHODS],
    Case("samples", {"b": [[0.4], [0.7]]}, lambda x: x["b"], "abm"),
    Case("every number", {"b": [[0.4, 0.5, 0.6], [0.7, 0.8, 0.9]]}, lambda x: x["b"], "trapezoid"),
    *[
        Case("horizon", {"b": 0.6, "horizon": [[1.3], [0.7]]}, lambda x: x["b"], m, given=("horizon",))
        for m in ("predictor", "abm", "l1", "bdf2")
    ],
    Case("one horizon", {"b": [0.5, 0.6, 0.7], "horizon": 1.3}, lambda x: x["b"], "trapezoid", given=("horizon",)),
    *[
        Case("multi-term", {"b": [0.9, 0.4], "c": [1.0, 0.5]}, lambda x: MultiTerm(x["b"], x["c"]), m)
        for m in ("gl", "gl-explicit")
    ],
    Case(
        "multi-term with z", {"b": [0.9, 0.4], "c": [1.0, 0.5, 0.3]}, lambda x: MultiTerm([*x["b"], 0.0], x["c"]), "gl"
    ),
    Case(
        "multi-term to 2",
        {"b": [1.9, 1.5, 0.4], "c": [1.0, 0.5, 0.3], "velocity": [[1.0, 0.5, 0.0], [0.3, 0.2, 0.1]]},
        lambda x: MultiTerm(x["b"], x["c"]),
        "gl",
        given=("velocity",),
    ),
    Case("nodes", {"b": [0.2, 0.5, 0.8], "c": [0.4, 0.3, 0.3]}, lambda x: DistributedOrder(x["b"], x["c"]), "gl"),
    Case(
        "density",
        {"c": [1.0, 0.5]},
        lambda x: DistributedOrder(5, density=lambda b: x["c"][0] + x["c"][1] * b),
        "gl",
    ),
    *[Case("tempered", {"b": 0.6, "r": 0.8}, lambda x: Tempered(x["b"], x["r"]), m) for m in METHODS],
    Case("tempered channels", {"b": [0.3, 0.6, 0.9], "r": [0.8, 0.1, 0.4]}, lambda x: Tempered(x["b"], x["r"]), "abm"),
    Case(
        "tempered to 2",
        {"b": 1.4, "r": 0.8, "velocity": [[1.0, 0.5, 0.0], [0.3, 0.2, 0.1]]},
        lambda x: Tempered(x["b"], x["r"]),
        "abm",
        given=("velocity",),
    ),
    *[
        Case("variable", {"b": [0.5, 0.3]}, lambda x: VariableOrder(lambda t: x["b"][0] + x["b"][1] * t), m)
        for m in METHODS
    ],
    Case("weights", {"w": [0.0] + [0.3 / k for k in range(1, 11)]}, lambda x: CustomKernel(x["w"]), "gl"),
    Case("kernel", {"b": [0.3, 0.6, 0.9]}, lambda x: CustomKernel(custom, order=x["b"]), "predictor"),
    *[
        Case(
            "to 2",
            {"b": 1.4, "velocity": [[1.0, 0.5, 0.0], [0.3, 0.2, 0.1]]},
            lambda x: x["b"],
            m,
            given=("velocity",),
        )
        for m in UP_TO_TWO
    ],
    Case(
        "about 1",
        {"b": [0.7, 1.2, 1.9], "velocity": [[1.0, 0.5, 0.0], [0.3, 0.2, 0.1]]},
        lambda x: Caputo(x["b"]),
        "abm",
        given=("velocity",),
    ),
    *[Case("graded", {"b": 0.6}, lambda x: x["b"], m, {"grading": 2.5}) for m in GRADED],
    Case("graded channels", {"b": [0.3, 0.6, 0.9]}, lambda x: x["b"], "abm", {"grading": 2.0}),
    Case("graded tempered", {"b": 0.6, "r": 0.8}, lambda x: Tempered(x["b"], x["r"]), "trapezoid", {"grading": 2.0}),
    Case(
        "graded variable",
        {"b": [0.5, 0.3]},
        lambda x: VariableOrder(lambda t: x["b"][0] + x["b"][1] * t),
        "trapezoid",
        {"grading": 2.0},
    ),
]
