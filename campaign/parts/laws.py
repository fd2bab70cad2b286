"""What holds whatever the numbers: scale, batch, causality, hooks, purity, resuming, functions that write in place."""

from __future__ import annotations

import random

from .. import problems, scripts
from ..case import Case, Part
from ..scripts import Script
from . import functions

ORDERS = """\
IMPLICIT = ("gl", "l1", "trapezoid", "predictor-implicit", "bdf2")
beta = torch.tensor(0.6, dtype=getattr(torch, dtype))
order = {
    "number": 0.6,
    "channels": torch.tensor([0.5, 0.6, 0.8], dtype=getattr(torch, dtype)),
    "tempered": Tempered(0.6, 0.3),
    "variable": VariableOrder(lambda t: 0.6 + 0.2 * torch.sin(t)),
    "multi": MultiTerm([0.8, 0.4], [1.0, 0.5]),
    "custom": CustomKernel([0.0 if method == "predictor" else 0.1, *[0.1 * k**-0.4 for k in range(1, 400)]]),
}[kind]
options = dict(method=method, history=history, stepper=stepper, steps=steps)
times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)


def stable(rate):
    # a decay that implicit methods bear, and a slow one for explicit methods
    A = make(3, 3, low=-0.2, high=0.2) * (rate if method in IMPLICIT else 1.0)
    return A - A.T - torch.diag(A.abs().sum(1))
"""

LAWS = {
    **functions.LAWS,
    "scale": Script(
        ORDERS
        + """
A = stable(50.0)
z0 = make(2, 3).requires_grad_()
func = lambda t, z: z @ A.T
ys = fdeint(func, z0, times, order, **options)
right = {"states": ys, "gradient": torch.autograd.grad(ys.square().sum(), z0)[0]}
""",
        """
factor = 2.0**power
z0 = (factor * z0).detach().requires_grad_()
ys = fdeint(func, z0, times, order, **options)
found = {"states": ys / factor, "gradient": torch.autograd.grad((ys / factor).square().sum(), z0)[0] * factor}
""",
    ),
    "batch": Script(
        ORDERS
        + """
A = stable(20.0)
func = lambda t, z: z @ A.T + torch.sin(z)
one = make(1, 3).requires_grad_()
ys = fdeint(func, one, times, order, **options)
right = {"states": ys[:, 0], "gradient": torch.autograd.grad(ys.square().sum(), one)[0][0]}
""",
        """
others = make(batch, 3) * 2.0**power
all_of_them = torch.cat([others, one]).detach().requires_grad_()
ys = fdeint(func, all_of_them, times, order, **options)[:, -1]
found = {"states": ys, "gradient": torch.autograd.grad(ys.square().sum(), all_of_them)[0][-1]}
""",
    ),
    "causality": Script(
        ORDERS
        + """
height, until = 2.0 ** abs(power), 0.7
before = times < until - 1e-9
z0 = make(3)
w = make(3, low=0.2, high=1.0)
right = {"states": fdeint(lambda t, z: -w * z, z0, times, order, **options)[before]}
""",
        """
func = lambda t, z: -w * z + height * (t > until)
found = {"states": fdeint(func, z0, times, order, **options)[before]}
""",
    ),
    "hooks": Script(
        ORDERS
        + """
z0 = make(3).requires_grad_()
w = make(3, low=0.2, high=1.0).requires_grad_()
func = lambda t, z: torch.sin(w * z)
grads = torch.autograd.grad(fdeint(func, z0, 1.0, order, params=[w], **options).square().sum(), [z0, w])
limit = float(grads[1].abs().max()) / 2
acts = {"sign": lambda g: -g, "clip": lambda g: g.clamp(-limit, limit), "scale": lambda g: 3 * g}
act = acts[("sign", "clip", "scale")[numbers % 3]]
right = {"gradient of z0": act(grads[0]), "gradient of w": act(grads[1]), "calls": 1.0}
""",
        """
calls = []
w.register_hook(act)
w.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone()))
z0.register_hook(act)
fdeint(func, z0, 1.0, order, params=[w], **options).square().sum().backward()
found = {"gradient of z0": z0.grad, "gradient of w": w.grad, "calls": float(len(calls))}
""",
    ),
    "resume": Script(
        ORDERS
        + """
z0, w = make(3), make(3, low=0.2, high=1.0)
func = lambda t, z: torch.tanh(w * z + torch.cos(3 * t)) - 0.5 * z
right = {"states": fdeint(func, z0, times, order, **options)}
""",
        """
options.pop("steps")
ends = sorted({min(steps, max(1, round(cut * steps))) for cut in cuts} | {steps})
parts, state, begun = [], None, 0
for end in ends:
    part = solve(func, z0, times[begun : end + 1], order, step=1 / steps, past=state, resume=True, **options)
    parts, state, begun = [*parts, part.ys[bool(parts) :]], part.state, end
found = {"states": torch.cat(parts)}
""",
        may_refuse=True,
    ),
    "again": Script(
        ORDERS
        + """
z0 = make(3).requires_grad_()
w = make(3, low=0.2, high=1.0).requires_grad_()
func = lambda t, z: torch.sin(w * z)
both = lambda: torch.autograd.grad(fdeint(func, z0, 1.0, order, params=[w], **options).square().sum(), [z0, w])
right = dict(zip(("gradient of z0", "gradient of w"), both()))
""",
        """
with torch.no_grad():
    fdeint(func, z0, 1.0, order, params=[w], **options)
fdeint(lambda t, z: -z, z0.detach() + 1, 2.0, order, **options)
with torch.inference_mode():
    fdeint(func, z0, 1.0, order, params=[w], **options)
found = dict(zip(("gradient of z0", "gradient of w"), both()))
""",
    ),
}

SETTINGS = {
    "law": ("resume", *LAWS),
    "method": ("predictor", "gl", "abm", "trapezoid", *[m for m in problems.KNOWN if m not in ("predictor", "gl")]),
    "kind": ("number", "number", "channels", "variable", "custom", "tempered", "multi"),
    "history": ("'full'", "'auto'", "'fft'", "Full(block=4)", "'exponentials'", "Window(9)"),
    "stepper": ("single", "auto", "auto", "picard"),
    "dtype": ("float64", "float32"),
    "steps": (4, 1, 2, 3, 8, 16, 20, 32, 40, 63, 64, 65, 128),
    "power": (0, -10, -20, -33, 10, 20, -60),
    "batch": (1, 3, 30, 700),
    "cuts": ((0.5,), (0.25,), (1.0,), (0.02, 0.5), (0.3, 0.6), (0.5, 0.51, 0.52), (0.9,)),
    "numbers": tuple(range(20)),
}


def arrange(case: Case, rng: random.Random) -> Case:
    """Only what the kind of order and the law can take."""
    case = dict(case)
    if case["kind"] == "multi" and not case["method"].startswith("gl"):
        case["method"] = rng.choice(["gl", "gl-explicit"])
    if case["kind"] == "custom":
        case["method"] = rng.choice(["predictor", "gl"])
    if case["kind"] == "variable":
        case["history"] = rng.choice(["'full'", "'auto'", "Full(block=4)"])
    if case["dtype"] == "float32" and abs(case["power"]) > 40:
        case["power"] = -20
    if case["batch"] > 100:  # a step of so many numbers takes long enough
        case["steps"] = min(case["steps"], 16)
    if case["law"] in ("changed in between", "dropout"):  # graphs of single steps, which are solved twice
        case["steps"] = min(case["steps"], 24)
    return case


def check(case: Case) -> float:
    """A resumed past is summed in full: what exponentials leave out of it is within their tolerance."""
    fading = case["law"] == "resume" and case["history"] == "'exponentials'"
    return scripts.run(LAWS[case["law"]], case, case["steps"], more=1e-8 if fading else 0.0)


PART = Part("laws", SETTINGS, check, lambda case: scripts.whole(LAWS[case["law"]], case), arrange, share=2)
