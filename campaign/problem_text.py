"""A problem as the text of a script: what is printed is what is run."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

import neuralfde
from tests.reference import FORMULAS

from .case import Case
from .problems import ABOVE

FIELDS = {
    "linear": "-w * x",
    "tanh": "torch.tanh(w * x + torch.cos(2 * t)) - 0.3 * x",
    "coupled": "torch.sin(w * x) + 0.3 * w * torch.tanh(x.sum())",
    "time": "w * torch.cos(2 * t) * torch.ones_like(x)",
    "switch": "-w * x if t < {middle} else 0.5 * w * torch.sin(x)",
    "constant": "torch.full_like(x, 0.3)",
    "quadratic": "0.3 * w * x * (1 - x)",
}
HEAD = """\
import torch
from torch import nn

from neuralfde import *

DTYPE = torch.{dtype}
GENERATOR = torch.Generator().manual_seed({numbers})


def make(*shape, low=-1.0, high=1.0):
    numbers = torch.rand(shape, dtype=torch.float64, generator=GENERATOR)
    return (low + (high - low) * numbers).to(DTYPE)

"""
TAIL = """\
loss = sum((0.8 * x + 0.5 * x.square()){rows}.sum() for x in torch.utils._pytree.tree_leaves(ys))
wanted = [x for x in leaves.values() if x.requires_grad]
print(ys, torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else "no gradient")
"""


def text(case: Case) -> str:
    """The problem: tensors, ``func``, ``order``, and the options of the call."""
    lines = [*_state(case), *_field(case), *_order(case), *_options(case)]
    return "\n".join(lines) + "\n"


def script(case: Case) -> str:
    """All of it, ready to be pasted."""
    return HEAD.format(**case) + text(case) + call(case) + "\n" + TAIL.format(rows=ROWS[case["loss"]])


def call(case: Case) -> str:
    """The call, with or without gradients."""
    inner = CALLS[case["call"]]
    if case["mode"] == "grad":
        return inner
    return f"with torch.{case['mode']}():\n" + "\n".join(f"    {line}" for line in inner.splitlines())


#: Which of the outputs a loss is made of: times first.
ROWS = {"all": "", "last": "[-1:]", "first": "[:1]", "one": "[..., :1]"}


CALLS = {
    "fdeint": "ys = fdeint(func, z0, t, order, **options)",
    "solve": "ys = solve(func, z0, t, order, **options).ys",
    "block": "args = options.pop('args', ())\nys = FDEBlock(func, order=order, t=t, **options)(z0, *args)",
}


def namespace(case: Case, wide: bool = False) -> dict[str, Any]:
    """The names of the problem; ``wide``: the same numbers in float64."""
    found: dict[str, Any] = {"torch": torch, "nn": torch.nn, **{k: getattr(neuralfde, k) for k in neuralfde.__all__}}
    generator = torch.Generator().manual_seed(case["numbers"])
    dtype = getattr(torch, case["dtype"])

    def make(*shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        numbers = (low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)).to(dtype)
        return numbers.double() if wide else numbers

    found |= {"make": make, "DTYPE": torch.float64 if wide else dtype}
    exec(text(case), found)
    return found


def _state(case: Case) -> list[str]:
    shape, wide = case["shape"], "".join(f"{n}, " for n in case["shape"][-1:])
    sizes = {"plain": shape, "transposed": shape[::-1], "strided": (*shape[:-1], *[2 * n for n in shape[-1:]])}
    lines = [f"x0 = make({', '.join(map(str, sizes[case['layout']]))})", f"w = make({wide}low=0.3, high=0.9)"]
    return lines if case["nesting"] == "tensor" else [*lines, "y0 = make(2)"]


def _initial(case: Case) -> str:
    """``z0``, which may lie in memory in another order, or be a part of something larger."""
    axes = tuple(range(len(case["shape"])))[::-1]
    strided = "x0[..., ::2]" if case["shape"] else "x0"
    x = {"plain": "x0", "transposed": f"x0.permute({axes})", "strided": strided}[case["layout"]]
    return f"z0 = {x if case['nesting'] == 'tensor' else _like(case, x, 'y0')}"


def _field(case: Case) -> list[str]:
    slope = FIELDS[case["field"]].format(middle=start(case) + case["span"] / 2)
    lines = ["", "", "def slope(t, x, w):", f"    return {slope}"]
    parts = {"tensor": "z", "tuple": "z", "dict": '(z["x"], z["rest"][0])'}[case["nesting"]]
    one, two = "v - 0.1 * y.sum()", "torch.sin(y) * v.mean()"
    back = {"tuple": f"({one}, {two})", "dict": f'{{"x": {one}, "rest": ({two},)}}'}
    body = ["return slope(t, z, w)"]
    if case["nesting"] != "tensor":
        body = [f"x, y = {parts}", "v = slope(t, x, w)", f"return {back[case['nesting']]}"]
    head = {"params": "def func(t, z):", "args": "def func(t, z, w):", "module": "def forward(self, t, z):"}
    inner = [head[case["given"]], *["    " + line for line in body]]
    if case["given"] != "module":
        return [*lines, "", "", *inner, "", ""]
    inner = [line.replace("(t, x, w)", "(t, x, self.w)").replace("(t, z, w)", "(t, z, self.w)") for line in inner]
    own = ["class Func(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    own += ["        self.w = nn.Parameter(w.clone())", "", *["    " + line for line in inner]]
    return [*lines, "", "", *own, "", "", "func = Func()", "w = func.w"]


def _order(case: Case) -> list[str]:
    """``order`` and what it is made of."""
    kind, v, shape = case["kind"], case["beta"], case["shape"]
    shapes = {"channels": shape[-1:], "samples": (shape[0], *[1] * (len(shape) - 1)) if shape else (), "each": shape}
    shapes |= {"tempered-channels": shape[-1:], "above-channels": shape[-1:], "parts": shape[-1:]}
    sizes = "".join(f"{n}, " for n in shapes.get(kind, ()))
    tensor = f"beta = make({sizes}low={0.7 * v:.6g}, high={v})"
    above = f"beta = make({sizes}low={0.9 if sizes else 1.05}, high={1 + v / 2})"
    exact = f"beta = torch.tensor({v}, dtype=DTYPE)"
    weigh = "c = torch.tensor([1.0, 0.5], dtype=DTYPE)"
    explicit = FORMULAS[case["method"]].stage != "implicit"
    law = "0.7 * step**order * (lag + 1.3) ** (order - 1)" + (" * (lag > 0)" if explicit else "")
    table: dict[str, list[str]] = {
        "number": [f"order = {v}"],
        "tensor": [exact, "order = beta"],
        "parts": [tensor, exact.replace("beta", "other"), f"order = {_like(case, 'beta', 'other')}"],
        "tempered": [exact, "rate = torch.tensor(0.4, dtype=DTYPE)", "order = Tempered(beta, rate)"],
        "tempered-channels": [tensor, f"rate = make({sizes}low=0.0, high=0.8)", "order = Tempered(beta, rate)"],
        "variable": [f"b = torch.tensor([{0.8 * v:.6g}, {0.15 * v:.6g}], dtype=DTYPE)",
                     "order = VariableOrder(lambda t: b[0] + b[1] * torch.sin(t))"],
        "multi": [exact, weigh, f"order = MultiTerm([beta, {v / 2:.6g}], c)"],
        "multi-zero": [exact, weigh, "order = MultiTerm([beta, 0.0], c)"],
        "multi-above": [above, weigh, f"order = MultiTerm([beta, {v}], c)"],
        "distributed": [weigh, "order = DistributedOrder(3, density=lambda b: c[0] + c[1] * b)"],
        "custom": [exact, "", "", "def weights(order, step, steps):",
                   "    lag = torch.arange(steps + 1, dtype=torch.float64)[:, None]",
                   f"    return {law}", "", "", "order = CustomKernel(weights, order=beta)"],
        "above": [above, "order = beta"],
        "above-channels": [above, "order = beta"],
        "tempered-above": [above, "rate = torch.tensor(0.4, dtype=DTYPE)", "order = Tempered(beta, rate)"],
    }  # fmt: skip
    lines = table.get(kind, [tensor, "order = beta"])
    if kind in ABOVE:
        other = "torch.ones(2, dtype=DTYPE)"
        lines = [*lines, f"velocity = make({', '.join(map(str, shape))})"]
        if case["nesting"] != "tensor":
            lines += [f"other_velocity = {other}", f"velocities = {_like(case, 'velocity', 'other_velocity')}"]
    if case["horizon"]:
        sample = "".join(f"{n}, " for n in ((shape[0], *[1] * (len(shape) - 1)) if shape else ()))
        lines = [*lines, f"horizon = make({sample}low=0.7, high=1.3)"]
    return lines


def _like(case: Case, x: str, y: str) -> str:
    return f"({x}, {y})" if case["nesting"] == "tuple" else f'{{"x": {x}, "rest": ({y},)}}'


#: Which tensors are learned, by the setting of that name.
GROUPS = {"state": ("x0", "y0", "velocity", "other_velocity"), "field": ("w",),
          "order": ("beta", "other", "rate", "b", "c", "horizon")}  # fmt: skip


def _options(case: Case) -> list[str]:
    """The leaves, ``t`` and the keyword arguments."""
    known = "\n".join([*_state(case), *_order(case)])
    names = [n for group in GROUPS.values() for n in group if f"\n{n} = " in "\n" + known]
    learned = names if case["learned"] == "all" else [n for n in names if n in GROUPS.get(case["learned"], ())]
    if case["call"] == "block":
        learned = [n for n in learned if n not in GROUPS["order"]]
    given: dict[str, str] = {"method": repr(case["method"]), "history": case["history"], "storage": case["storage"],
                             "adjoint": repr(case["adjoint"]), "stepper": repr(case["stepper"])}  # fmt: skip
    given["steps"] = str(case["steps"])
    if case["length"] == "step":
        given["step"] = repr(case["span"] / int(given.pop("steps")))
    if case["grading"] == "grid":
        given.pop("steps")
        given["grid"] = f"torch.tensor({[start(case) + x for x in points(case)]!r}, dtype=torch.float64)"
    elif case["grading"] != 1:
        given["grading"] = str(case["grading"])
    if case["solver"]:
        given["solver"] = repr(case["solver"])
    if case["given"] != "module":
        given |= {"params": "[w]"} if case["given"] == "params" else {"args": "(w,)"}
    if case["kind"] in ABOVE:
        given["velocity"] = "velocity" if case["nesting"] == "tensor" else "velocities"
    if case["horizon"]:
        given["horizon"] = "horizon"
    leaves = ", ".join(f'"{n}": {n}' for n in names)
    lines = [f"leaves = {{{leaves}}}", f"for name in {learned!r}:", "    leaves[name].requires_grad_()"]
    if case["given"] == "module" and "w" not in learned:
        lines.append("w.requires_grad_(False)")
    lines.append(_initial(case))
    times = "t = " + (
        repr(case["span"]) if case["output"] == "end" else f"torch.tensor({moments(case)!r}, dtype=torch.float64)"
    )
    return [*lines, times, f"options = dict({', '.join(f'{k}={v}' for k, v in given.items())})"]


def start(case: Case) -> float:
    """The initial time: 0 where ``t`` is a number."""
    return 0.0 if case["output"] == "end" else case["start"]


def positions(case: Case) -> list[float]:
    """Where the states are asked for, in steps; between nodes as a part of the step that has passed."""
    n = case["steps"]
    if case["output"] == "end":
        return [float(n)]
    if case["output"] == "all":
        return [float(k) for k in range(n + 1)]
    if case["output"] == "nodes":
        return sorted({0.0, float(n // 3), float(n - 1), float(n)})
    return sorted({0.0, 0.3, float(n // 2), n // 2 + 0.6, n - 0.25, float(n)})


def moments(case: Case) -> list[float]:
    """The same as times."""
    known = [start(case) + x for x in points(case)]
    after = [*known[1:], known[-1]]
    return [known[int(p)] + (p - int(p)) * (after[int(p)] - known[int(p)]) for p in positions(case)]


def points(case: Case) -> list[float]:
    """The time since the start at which each step ends."""
    span, n, r = case["span"], case["steps"], case["grading"]
    if r != "grid":
        return [span * (k / n) ** r for k in range(n + 1)]
    ends = [0.0, *itertools.accumulate(1 + 0.4 * math.sin(3 * k + 1) for k in range(n))]
    return [span * (x / ends[-1]) for x in ends]
