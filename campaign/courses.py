"""Solves whose course is not plain, as the text of a script: jumps, events, a past, lags, linear parts, own times."""

from __future__ import annotations

import random
from typing import Any

from tests.reference.course import RULES
from tests.reference.formulas import FORMULAS

from .case import Case

SETTINGS: dict[str, Any] = {
    "method": ("predictor", "abm", "trapezoid", "predictor-implicit", "gl", "l1", "bdf2", "gl-explicit"),
    "mesh": ("steps", "steps", "grid", "grading", "rtol"),
    "jumps": ("none", "none", "values", "function"),
    "past": (False, False, True),
    "lags": ("none", "none", "number", "tensor", "two"),
    "linear": ("none", "none", "matrix", "batch", "sparse", "bands", "function", "module"),
    "event": ("none", "none", "ends", "each ends", "noted", "reset"),
    "times": ("end", "some", "own"),
    "order": ("number", "tensor", "channels"),
    "beta": (0.6, 0.9, 1.0, 0.4),
    "steps": (12, 5, 8, 17, 24),
    "dtype": ("float64", "float64", "complex128", "float32"),
    "history": ("auto", "full", "exponentials", "fft"),
    "stepper": ("auto", "single", "picard"),
    "storage": ("device", "device", "auto", "host"),
    "adjoint": ("exact", "exact", "direct"),
    "learned": ("all", "all", "none"),
    "numbers": tuple(range(50)),
}
HEAD = """\
import torch
from torch import nn

from neuralfde import *
from neuralfde.linear import Bands

DTYPE = torch.{dtype}
REAL = torch.ones((), dtype=DTYPE).real.dtype
GENERATOR = torch.Generator().manual_seed({numbers})


def make(*shape, low=-1.0, high=1.0, dtype=DTYPE):
    parts = torch.rand(2, *shape, dtype=torch.float64, generator=GENERATOR)
    numbers = low + (high - low) * parts
    return (torch.complex(*numbers) if dtype.is_complex else numbers[0]).to(dtype)

"""
#: What ``func`` adds for its lagged states.
LAGGED = {"none": "", "number": " + 0.4 * ago", "tensor": " + 0.4 * ago", "two": " + 0.4 * ago[0] - 0.2 * ago[1]"}
LINEAR = {
    "matrix": "a",
    "batch": "torch.stack([a, 0.7 * a])",
    "sparse": "a.to_sparse()",
    "bands": "Bands(torch.stack([a[0], a[1], a[2]], -1))",
    "function": "lambda: 0.5 * a",
    "module": "Own(a)\na = leaves['a'] = part.a",
}
OWN = """
class Own(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = nn.Parameter(a.detach(), a.requires_grad)

    def matvec(self, z):
        return z @ self.a.mT

    def solve(self, w0, r):
        return torch.linalg.solve(torch.eye(3, dtype=DTYPE) - w0 * self.a, r.unsqueeze(-1)).squeeze(-1)

    def solve_transposed(self, w0, r):
        return torch.linalg.solve(torch.eye(3, dtype=DTYPE) - w0 * self.a.mT, r.unsqueeze(-1)).squeeze(-1)

"""
EVENTS = {
    "ends": "event = Event(lambda t, z, *more: t + 0.2 * z.real.mean() - 0.6)",
    "each ends": "event = Event(lambda t, z, *more: t + 0.2 * z.real.mean(-1) - 0.6, direction=1)",
    "noted": "event = Event(lambda t, z, *more: t + 0.2 * z.real.mean() - 0.6, terminal=False)",
    "reset": "event = Event(lambda t, z, *more: t + 0.2 * z.real.mean() - 0.6, direction=1, reset=lambda z: z - 1.0)",
}
TIMES = {
    "end": "t = 1.0",
    "some": "t = torch.tensor([0.0, 0.13, 0.25, 0.58, 0.9, 1.0], dtype=torch.float64)",
    "own": "t = torch.tensor([[0.0, 0.1, 0.5, 1.0], [0.0, 0.25, 0.7, float('nan')]], dtype=torch.float64)",
}


def text(case: Case) -> str:
    """The problem: tensors, ``func``, ``order``, and the options of the call."""
    lines = ["z0 = make(2, 3)", "w = make(3, low=0.3, high=0.9, dtype=REAL)", "leaves = {'z0': z0, 'w': w}"]
    given = {"method": repr(case["method"]), "args": "(w,)"}
    given |= {k: repr(case[k]) for k in ("history", "stepper", "storage", "adjoint")}
    lagged = "ago, " if case["lags"] != "none" else ""
    slope = f"0.4 * torch.sin(w * z) - 0.3 * z + 0.2 * torch.cos(2 * t){LAGGED[case['lags']]}"
    lines += ["", "", f"def func(t, z, {lagged}w):", f"    return {slope}", "", ""]
    given |= _steps(case) | _order(case, lines)
    if case["jumps"] != "none":
        lines += ["values = make(2, 2, 3, low=-0.5, high=0.5)", "leaves |= {'values': values}"]
        by = "values" if case["jumps"] == "values" else "lambda z: -0.4 * z + values[0]"
        given["jumps"] = f"([0.31, 0.7], {by})"
    if case["past"]:
        lines += ["back = torch.tensor([-0.9, -0.5, -0.4, -0.1, 0.0], dtype=torch.float64)",
                  "window = make(5, 2, 3)", "leaves = {'window': window, **leaves}", "del leaves['z0']"]  # fmt: skip
        given["past"] = "(back, window)"
    if case["lags"] != "none":
        lines += ["lag = torch.tensor(0.437, dtype=torch.float64)"]
        lines += ["leaves |= {'lag': lag}"] if case["lags"] == "tensor" else []
        given["lags"] = {"number": "0.437", "tensor": "lag", "two": "[0.437, 0.519]"}[case["lags"]]
    if case["linear"] != "none":
        lines += ["a = 0.3 * make(3, 3) - 0.4 * torch.eye(3, dtype=DTYPE)", "leaves |= {'a': a}"]
        given["linear"] = "part"
    learned = "a" if case["learned"] == "all" else "no"
    lines += [f"for x in leaves.values():  # {learned} gradient", "    x.requires_grad_()"] if learned == "a" else []
    if case["linear"] != "none":
        lines += [OWN if case["linear"] == "module" else "", f"part = {LINEAR[case['linear']]}"]
    if case["event"] != "none":
        lines += [EVENTS[case["event"]]]
        given["event"] = "event"
    lines += [TIMES[case["times"]], f"options = dict({', '.join(f'{k}={v}' for k, v in given.items())})"]
    return "\n".join(lines) + "\n"


def call(case: Case) -> str:
    return f"found = solve(func, {'None' if case['past'] else 'z0'}, t, order, **options)\n"


def script(case: Case) -> str:
    """All of it, ready to be pasted."""
    return HEAD.format(**case) + text(case) + call(case) + "print(found.ys, found.event_times)\n"


def _steps(case: Case) -> dict[str, str]:
    n = case["steps"]
    if case["mesh"] == "rtol":
        return {"rtol": "1e-2"}
    if case["mesh"] == "grid":
        return {"grid": f"torch.linspace(0, 1, {n + 1}, dtype=torch.float64) ** 1.5"}
    return {"steps": str(n), **({"grading": "1.7"} if case["mesh"] == "grading" else {})}


def _order(case: Case, lines: list[str]) -> dict[str, str]:
    b = case["beta"]
    made = {"number": f"order = {b}", "tensor": f"order = torch.tensor({b}, dtype=REAL)",
            "channels": f"order = make(3, low={0.7 * b:.6g}, high={b}, dtype=REAL)"}  # fmt: skip
    lines += [made[case["order"]]] + (["leaves |= {'order': order}"] if case["order"] != "number" else [])
    return {}


def arrange(case: Case, rng: random.Random) -> Case:
    """What makes no sense together is set apart, but for one case in twelve, which may be refused."""
    case = dict(case)
    if case["linear"] == "sparse" and case["dtype"] == "complex128":  # torch cannot differentiate it
        case["linear"] = "matrix"
    if rng.random() < 1 / 12:
        return case
    if case["dtype"] == "complex128":
        case["linear"] = "none"
    if case["linear"] != "none" and case["jumps"] == "none" and case["order"] != "channels":
        case["method"] = rng.choice(["imex", case["method"]])
    uneven = not even(case)
    if uneven and case["method"] not in RULES and case["method"] != "imex":
        case["method"] = rng.choice([*RULES])
    if case["lags"] != "none":
        case |= {"history": "full", "storage": "device", "stepper": "single", "adjoint": "exact"}
        case["mesh"] = "steps" if case["mesh"] == "rtol" else case["mesh"]
    if case["jumps"] != "none" or case["event"] != "none":
        case["times"] = "some" if case["times"] == "own" else case["times"]
    if case["event"] != "none":
        case["jumps"] = "none"
    if case["event"] == "reset":  # every reset takes a solve
        case |= {"lags": "none", "steps": min(case["steps"], 12)}
    if case["adjoint"] == "direct":
        case |= {"storage": "device", "stepper": "single"}
    if uneven or case["past"]:
        case["history"] = "full" if case["history"] == "fft" else case["history"]
    if case["storage"] == "host" and case["history"] in ("auto", "fft"):
        case["history"] = "full"
    return case


def even(case: Case) -> bool:
    """Whether all steps have one length; up to an event they have."""
    return case["mesh"] == "steps" and case["jumps"] == "none" and case["event"] != "reset"


def implicit(case: Case) -> bool:
    """Whether stages are solved."""
    return FORMULAS[case["method"]].stage == "implicit"
