"""Bad inputs to every public call, as expressions: a call as it should be, and for each argument what it cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import neuralfde

from .bad_courses import COURSES, OBJECTS_OF_COURSES
from .bad_objects import OBJECTS, of_fields

HEAD = """\
import math

import numpy
import torch

import neuralfde
from neuralfde import *
from neuralfde.fitting import fit_curve, profile_order
from neuralfde.special import mittag_leffler_matrix, reciprocal_gamma

nan, inf = math.nan, math.inf


def relax(t, z, *more):
    return -z


def decay(t, z, rate):
    return -rate * z


def state(**options):
    return solve(relax, torch.ones(2), 1.0, 0.5, **{"steps": 4, "resume": True, **options}).state

"""


def _each(text: str) -> list[str]:
    """Expressions between bars."""
    return [part.strip() for part in text.split("|")]


FUNC = ["3", "None", "'relax'", "relax(0, torch.ones(2))"]
ANSWERS = _each("""
    lambda t, z: None | lambda t, z: z[:1] | lambda t, z: z.double() | lambda t, z: (z, z) | lambda t, z: 1.0 |
    lambda t, z: z.to('meta') | lambda t, z: z > 0 | lambda t, z: z.to(torch.complex64) | lambda t, z: z / 0 |
    lambda t, z: {'a': z} | lambda t, z: z * nan | lambda t, z: torch.ones(2, requires_grad=True) * z |
    lambda t, z: z[:1] if t > 0.5 else z | lambda t, z: z.numpy() | lambda t, z: [z] | lambda t, z: z[None]
""")
STATE = _each("""
    1.0 | None | [1.0, 2.0] | 'x' | torch.ones(2, dtype=torch.int64) | torch.ones(2, dtype=torch.bfloat16) |
    torch.ones(2, dtype=torch.float16) | torch.ones(2, dtype=torch.bool) |
    torch.ones(0) | () | {} | torch.tensor([1.0, nan]) | torch.tensor([-inf, 1.0]) | numpy.ones(2) |
    (torch.ones(2), torch.ones(2, dtype=torch.float64)) | (torch.ones(2), torch.ones(2, device='meta')) |
    (torch.ones(2), None) | {'a': torch.ones(2), 'b': 1.0} | (torch.ones(2), torch.ones(0)) | torch.ones(2).to_sparse()
""")
TIME = _each("""
    None | '1' | 0.0 | -1.0 | nan | inf | True | 1j | [0.0, 1.0] | () | torch.tensor([1.0]) | torch.tensor([]) |
    torch.tensor([0.0, 2.0, 1.0]) | torch.tensor([0.0, 1.0, 1.0]) | torch.ones(2, 2) | torch.tensor([0.0, nan]) |
    torch.tensor([0.0, inf]) | torch.tensor([0.0, 1.0], requires_grad=True) | torch.tensor([False, True]) |
    torch.tensor(1 + 0j) | numpy.linspace(0, 1, 3) | torch.tensor(-1.0)
""")
ORDER = _each("""
    None | 'half' | 0.0 | -0.5 | nan | inf | 1.5 | 2.5 | True | 1j | [0.5, 0.6] | {} | () |
    torch.tensor([0.5, 0.5, 0.5]) | torch.tensor(1) | torch.tensor(nan) | torch.tensor([0.5, 1.5]) | torch.tensor([]) |
    torch.tensor(0.5 + 0j) | Caputo | Caputo('x') | Caputo(-1.0) | MultiTerm([0.5], [1.0]) | Tempered(0.5, -1.0) |
    Tempered(0.5, nan) | Tempered(0.5, 'x') | Tempered(1.5, 0.1) | VariableOrder(lambda t: 0.5) |
    VariableOrder(lambda t: t + 5) | VariableOrder(lambda t: t[:1]) | VariableOrder(lambda t: t * nan) |
    CustomKernel([0.0, 1.0]) | CustomKernel([1.0] * 9) | CustomKernel('x') | CustomKernel([0.0] * 4 + [nan]) |
    CustomKernel(lambda order, h, n: None)
""")
#: What no name can be; method=None is the default, which depends on how steps are chosen.
NAMES = ["'nonsense'", "''", "3", "None", "[]", "b'x'"]
METHODS = [name for name in NAMES if name != "None"]

#: A call as it should be, with its arguments by name; and for each argument, what it cannot be.
CALLS: dict[str, tuple[dict[str, str], dict[str, list[str]]]] = {
    "fdeint": (
        {"func": "relax", "z0": "torch.ones(2)", "t": "1.0", "order": "0.5", "steps": "4"},
        {
            "func": [*FUNC, *ANSWERS, "lambda z: -z", "lambda: 0"],
            "z0": STATE,
            "t": TIME,
            "order": ORDER,
            "steps": ["0", "-3", "2.5", "True", "'4'", "nan", "torch.tensor(4)", "10**15"],
            "steps=None, step": ["0.3", "-0.1", "0.0", "nan", "inf", "3.0", "'0.1'", "True", "torch.tensor(0.1)", "1j"],
            "step": ["0.25"],
            "method": [*METHODS, "'predictr'", "'dopri5'", "'rk4'", "'corrector'", "'gl-f'", "'glmulti'", "Predictor"],
            "adjoint": [*NAMES, "'exct'", "Exact"],
            "history": [*NAMES, "'window'", "'fulll'", "Full", "Window"],
            "storage": [*NAMES, "'disk'", "Device"],
            "z0=torch.ones(2, requires_grad=True), history='exponentials', storage": ["Host(path='/nonexistent/x')"],
            "stepper": [*NAMES, "'cuda-graph'", "'kernel'", "'singel'", "Picard"],
            "method='gl', solver": [*NAMES[:3], "'newtn'", "NewtonKrylov"],
            "solver": ["'newton'"],
            "params": ["torch.ones(2)", "['w']", "3", "[None]", "{'w': 1.0}"],
            "args": ["torch.ones(2)", "3", "None", "'a'", "{'a': 1}", "(torch.ones(2, device='meta'),)"],
            "callback": ["3", "'x'", "lambda: None"],
            "velocity": ["torch.ones(2)", "'x'", "1.0"],
            "method='abm', order=1.5, velocity": ["torch.ones(3)", "'x'", "1.0", "torch.tensor([nan, 0.0])",
                                                 "torch.ones(2, dtype=torch.float64)", "(torch.ones(2),)"],
            "horizon": ["-1.0", "0.0", "nan", "inf", "'x'", "torch.ones(3)", "torch.tensor([1.0, -1.0])", "True", "1j"],
            "grading": ["0.5", "nan", "inf", "'2'", "None", "True", "-1.0", "torch.tensor(2.0)", "1j"],
            "method='gl', grading": ["2.0"],
            **COURSES,
            "stps": ["4"], "rtol": ["1e-3"], "options": ["{}"], "y0": ["1.0"], "step_size": ["0.1"],
            "event_fn": ["relax"],
            "history='full', storage": ["'checkpoint'"],
            "adjoint='direct', storage": ["'host'"],
            "adjoint='direct', stepper": ["'picard'"],
            "adjoint='paper', order": ["torch.tensor(0.5, requires_grad=True)", "Tempered(0.5, 0.1)"],
        },
    ),
    "solve": (
        {"func": "relax", "z0": "torch.ones(2)", "t": "1.0", "order": "0.5", "steps": "4"},
        {
            "func": FUNC, "z0": STATE[:6], "t": TIME[:8], "order": ORDER[:8], "method": METHODS,
            "estimate_error": ["'embeded'", "3", "None"],
            "steps=3, estimate_error": ["True", "'embedded'"],
            "resume": ["3", "'x'", "solve(relax, torch.ones(2), 1.0, 0.5, steps=4, resume=True)"],
            "t=2.0, steps=None, past": ["state(method='abm')"],
            "t=2.0, steps=None, step=0.25, resume": ["state(steps=3)"],
            "t=torch.tensor([1.0, 1.5, 2.0]), steps=None, step=0.5, resume": ["state()"],
            "t=2.0, order=0.7, steps=None, resume": ["state()"],
            "t=0.5, steps=None, resume": ["state()"],
            "t=2.0, resume": ["state()"],
            "z0=torch.ones(3), t=2.0, steps=None, resume": ["state()"],
            "rtl": ["1.0"],
        },
    ),
    "plan": (
        {"func": "relax", "z0": "torch.ones(2)", "t": "1.0", "order": "0.5", "steps": "4"},
        {"func": FUNC, "z0": STATE[:6], "t": TIME[:8], "order": ORDER[:8], "method": METHODS, "history": NAMES[:3],
         "x": ["1"]},
    ),
    "FDEBlock": (
        {"func": "relax", "order": "0.5", "t": "1.0", "steps": "4"},
        {
            "func": FUNC, "order": [*ORDER[:10], *ORDER[11:13], "{'a': 0.5}"], "t": TIME[:10], "method": METHODS,
            "learn_order": ["'yes'", "1", "None", "torch.ones(2)"],
            "learn_order=True, order": ["1.0", "1.5", "Tempered(0.5, 0.1)"],
            "history": NAMES[:3], "storage": NAMES[:3], "adjoint": NAMES[:3], "stepper": NAMES[:3], "stps": ["4"],
            "args": ["(1.0,)"], "steps": ["0", "2.5"], "grading": ["0.5", "'2'"],
        },
    ),
    "suggest_step": (
        {"func": "relax", "z0": "torch.ones(2)", "t": "1.0", "order": "0.5", "tol": "1e-2"},
        {
            "func": FUNC, "z0": STATE[:5], "t": TIME[:8], "order": ORDER[:8], "method": METHODS,
            "tol": ["0.0", "-1.0", "nan", "'x'", "None", "True"],
            "max_steps=64, tol": ["1e-300"], "max_steps": ["0", "-4", "'x'", "None", "2.5"],
            "steps": ["4"], "rtol": ["1e-3"],
        },
    ),
    "mittag_leffler": (
        {"z": "-1.0", "alpha": "0.5", "beta": "1.0"},
        {
            "z": ["None", "'x'", "{}"],
            "z=torch.ones(2, 3), alpha": ["torch.ones(4)"],
            "alpha": ["0.0", "-1.0", "2.5", "nan", "inf", "'x'", "None", "1j", "torch.tensor([0.5, 3.0])"],
            "beta": ["nan", "inf", "'x'", "None", "1j", "torch.tensor(1j)"],
        },
    ),
    "mittag_leffler_matrix": (
        {"matrix": "-torch.eye(2)", "alpha": "0.5"},
        {"matrix": ["3", "None", "torch.ones(2, 3)", "torch.ones(2)", "'x'", "torch.ones(2, 2, dtype=torch.int64)"],
         "alpha": ["0.0", "-1.0", "3.0", "nan", "'x'"]},
    ),
    "reciprocal_gamma": ({"x": "torch.ones(2)"}, {"x": ["'x'", "None"]}),
    **{
        f"operators.{name}": (
            {"values": "torch.linspace(0, 1, 9)", "order": "0.5", "step": "0.125"},
            {
                "values": ["3.0", "None", "[1.0, 2.0]", "torch.ones(9, dtype=torch.int64)", "torch.tensor(1.0)",
                           "torch.ones(0)", "torch.ones(9, dtype=torch.complex64)"],
                "order": ["0.0", "-0.5", "nan", "inf", "'x'", "None", "torch.ones(3)", "1j"],
                "step": ["0.0", "-1.0", "nan", "inf", "'x'", "None", "torch.tensor(0.1)"],
                "side": ["'up'", "None", "3"], "stp": ["0.1"],
            },
        )
        for name in ("caputo_derivative", "fractional_integral", "grunwald_letnikov_derivative",
                     "riemann_liouville_derivative")
    },
    "fit": (
        {"model": "decay", "times": "[0.0, 1.0, 2.0]", "observations": "[3.0, 2.0, 1.0]", "params": "{'rate': 1.0}",
         "steps": "10"},
        {
            "model": ["3", "None", "'decay'"],
            "times": ["None", "['a', 'b', 'c']", "[0.0, 2.0, 1.0]", "[0.0]", "[0.0, nan, 2.0]", "3.0", "[0.0, 1.0]"],
            "observations": ["None", "[1.0, 2.0]", "[nan, 2.0, 1.0]", "[nan] * 3", "[1.0, inf, 1.0]", "'x'", "3.0",
                             "[torch.ones(3, 1), torch.ones(3, 2)]"],
            "params": ["{}", "{'forward': 1.0}", "{'order': 1.0}", "None", "3", "{'rate': 'x'}", "{'rate': nan}",
                       "{'rte': 1.0}"],
            "order": ["0.0", "1.5", "nan", "'x'", "None"], "order_bounds": ["(0.5, 2.0)", "(0.9, 0.1)", "3", "(0.5,)"],
            "learn_order=True, order": ["1.0", "0.01"],
            "initial": ["[[1.0], [2.0]]", "'x'", "[nan]"], "noise": ["-1.0", "0.0", "[1.0, 1.0]", "nan", "'x'"],
            "noise=1.0, weights": ["1.0"], "weights": ["-1.0", "nan", "'x'"],
            "bounds": ["{'rat': (0, 1)}", "{'rate': (2.0, 3.0)}", "{'rate': (3.0, 2.0)}", "{'rate': 3}", "3"],
            "optimiser": ["'adm'", "3", "None"], "intervals": ["'boot'", "3"],
            "stages": ["(1.0, 0.5)", "()", "(2.0,)", "3"],
            "validation": ["1.0", "-0.1", "nan", "'x'"], "patience": ["0", "-1", "'x'"],
            "intervals='bootstrap', resamples": ["0", "-3", "'x'"],
            "observe": ["[0, 0]", "'x'", "7"], "callback": ["3"], "resume": ["3", "{}", "'x'"],
            "robust": ["0.0", "'x'", "nan"], "starts": ["0", "'x'", "2.5", "[3]", "[{'rate': 'x'}]"], "seed": ["'x'"],
            "variables": ["3", "'ab'"], "velocity": ["'x'"],
            "metod": ["'abm'"], "method": METHODS,
        },
    ),
    "fit_curve": (
        {"function": "lambda x, a: a * x", "x": "[1.0, 2.0]", "y": "[2.0, 4.0]", "params": "{'a': 1.0}"},
        {"function": ["3", "None"], "x": ["[1.0]", "'x'", "[nan, 1.0]"], "y": ["[1.0]", "[nan, 1.0]", "None"],
         "params": ["{}", "None", "{'b': 1.0}"]},
    ),
}  # fmt: skip


def inputs() -> list[str]:
    """Every bad input as an expression, once."""
    found = [*_calls(), *_each(OBJECTS), *_each(OBJECTS_OF_COURSES), *of_fields()]
    newton = "NewtonKrylov" if hasattr(neuralfde, "NewtonKrylov") else "Newton"
    return list(dict.fromkeys(text.replace("NewtonKrylov", newton) for text in found))


def _calls() -> Iterator[str]:
    for call, (given, bad) in CALLS.items():
        for name, values in bad.items():
            settings, argument = name.rpartition(", ")[0], name.rpartition(", ")[2]
            changed = dict(pair.split("=", 1) for pair in _pairs(settings))
            for value in values:
                arguments = {**given, **changed, argument: value}
                yield f"{call}({', '.join(f'{k}={v}' for k, v in arguments.items())})"


def _pairs(settings: str) -> list[str]:
    """``a=1, b=f(2, 3)`` taken apart at the commas outside of brackets."""
    found, depth = [""], 0
    for char in settings:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return [pair.strip() for pair in found if pair.strip()]
