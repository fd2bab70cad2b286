"""The transforms of PyTorch around a solve: the number that a plain loop gives, or an error; never zeros or None."""

from __future__ import annotations

import random

from .. import scripts
from ..case import Case, Part
from ..scripts import Script

HEAD = """\
from torch.utils.checkpoint import checkpoint


def weights(b):
    \"\"\"Lag weights w_0, w_1, … of the scheme; differentiable as often as one likes.\"\"\"
    m = torch.arange(1, steps + 2, dtype=torch.float64)
    if method.startswith("gl"):
        found = [torch.ones_like(b)]
        for k in range(1, steps + 1):
            found.append(found[-1] * (k - 1 + b) / k)
        return torch.stack(found) / steps**b
    powers = m**b
    return torch.cat([powers[:1], powers[1:] - powers[:-1]]) / steps**b / torch.exp(torch.lgamma(b + 1))


def textbook(func, z0, b, w):
    implicit, lags = method in ("gl", "predictor-implicit"), weights(b)
    states, slopes = [z0], [func(torch.zeros((), dtype=z0.dtype), z0, w)]
    for n in range(1, steps + 1):
        t = torch.tensor(n / steps, dtype=z0.dtype)
        lag = (lambda j: n - j) if implicit else (lambda j: n - 1 - j)
        z = c = z0 + sum(lags[lag(j)] * slopes[j] for j in range(int(implicit), n))
        for _ in range(120 * implicit):  # a contraction: its derivatives of all orders converge with it
            z = c + lags[0] * func(t, z, w)
        states, slopes = [*states, z], [*slopes, func(t, z, w)]
    return states[-1]


def func(t, z, w):
    return 0.4 * torch.sin(w * z) + 0.2 * torch.cos(2 * t) - 0.3 * z


def loss(z):
    return z.sum() if linear else z.square().sum()


def right_of(x, w, b):
    return loss(textbook(func, x, b, w))


def found_of(x, w, b):
    options = dict(method=method, history=history, stepper=stepper, adjoint=adjoint, steps=steps)
    return loss(fdeint(func, x, 1.0, b, args=(w,), **options))


x, w, b = make(3), make(3, low=0.3, high=0.9), torch.tensor(0.6, dtype=torch.float64)
dx, dw, db = make(3), make(3), torch.tensor(0.3, dtype=torch.float64)
NAMES = ("x", "w", "b")


def named(tensors):
    return dict(zip(NAMES, tensors))


def leaves():
    return [y.detach().clone().requires_grad_() for y in (x, w, b)]


def plain(f):
    own = leaves()
    return named(torch.autograd.grad(f(*own), own))

"""
#: ``apply`` of a function of (x, w, b); where ``plain`` is used for the right value, the transform changes no number.
SAME = {
    "grad": "return named(torch.func.grad(f, argnums=(0, 1, 2))(x, w, b))",
    "vjp": "return named(torch.func.vjp(f, x, w, b)[1](torch.tensor(2.0, dtype=x.dtype)))",
    "jvp": 'return dict(zip(("value", "tangent"), torch.func.jvp(f, (x, w, b), (dx, dw, db))))',
    "jvp of x": 'return {"tangent": torch.func.jvp(lambda y: f(y, w, b), (x,), (dx,))[1]}',
    "jvp of w": 'return {"tangent": torch.func.jvp(lambda y: f(x, y, b), (w,), (dw,))[1]}',
    "jvp of b": 'return {"tangent": torch.func.jvp(lambda y: f(x, w, y), (b,), (db,))[1]}',
    "jacrev": "return named(torch.func.jacrev(f, argnums=(0, 1, 2))(x, w, b))",
    "jacfwd": "return named(torch.func.jacfwd(f, argnums=(0, 1, 2))(x, w, b))",
    "vmap of x": 'return {"values": torch.func.vmap(lambda y: f(y, w, b))(torch.stack([x, dx]))}',
    "vmap of w": 'return {"values": torch.func.vmap(lambda y: f(x, y, b))(torch.stack([w, dw]))}',
    "vmap of b": 'return {"values": torch.func.vmap(lambda y: f(x, w, y))(torch.stack([b, db]))}',
    "vmap of grad": 'return {"values": torch.func.vmap(torch.func.grad(lambda y: f(y, w, b)))(torch.stack([x, dx]))}',
    "hessian of x": 'return {"hessian": torch.func.hessian(lambda y: f(y, w, b))(x)}',
    "hessian of w": 'return {"hessian": torch.func.hessian(lambda y: f(x, y, b))(w)}',
    "hessian of b": 'return {"hessian": torch.func.hessian(lambda y: f(x, w, y))(b)}',
    "grad of grad": (
        "inner = torch.func.grad(f, argnums=1)\n    "
        "return named(torch.func.grad(lambda *own: inner(*own).square().sum(), argnums=(0, 1, 2))(x, w, b))"
    ),
    "create_graph": (
        "own = leaves()\n    first = torch.autograd.grad(f(*own), own, create_graph=True)\n    "
        "return named(torch.autograd.grad(sum(g.square().sum() for g in first), own, materialize_grads=True))"
    ),
    "gradient penalty": (
        "own = leaves()\n    (first,) = torch.autograd.grad(f(*own), own[0], create_graph=True)\n    "
        "return named(torch.autograd.grad(f(*own) + first.norm(), own, materialize_grads=True))"
    ),
    "functional.hessian": (
        "found = torch.autograd.functional.hessian(f, (x, w, b))\n    "
        'return {"hessian": torch.cat([torch.cat([h.reshape(-1) for h in row]) for row in found])}'
    ),
    "functional.jacobian": "return named(torch.autograd.functional.jacobian(f, (x, w, b)))",
    "functional.hvp": "return named(torch.autograd.functional.hvp(f, (x, w, b), (dx, dw, db))[1])",
    "functional.vhp": "return named(torch.autograd.functional.vhp(f, (x, w, b), (dx, dw, db))[1])",
    "forward_ad": (
        "with torch.autograd.forward_ad.dual_level():\n        "
        "make_dual = torch.autograd.forward_ad.make_dual\n        "
        "out = f(make_dual(x, dx), make_dual(w, dw), make_dual(b, db))\n        "
        'return {"tangent": torch.autograd.forward_ad.unpack_dual(out).tangent}'
    ),
    "batched gradients": (
        "own = leaves()\n    out = torch.stack([f(*own), 2 * f(*own)])\n    "
        "return named(torch.autograd.grad(out, own, torch.eye(2, dtype=x.dtype), is_grads_batched=True))"
    ),
}
CHANGES_NOTHING = {
    "checkpoint": "return plain(lambda *own: checkpoint(f, *own, use_reentrant=False))",
    "checkpoint, reentrant": (
        "own = leaves()\n    checkpoint(f, *own, use_reentrant=True).backward()\n    "
        "return named([y.grad for y in own])"
    ),
    "backward twice": (
        "own = leaves()\n    out = f(*own)\n    torch.autograd.grad(out, own, retain_graph=True)\n    "
        "return named(torch.autograd.grad(out, own))"
    ),
    "saved on the host": "with torch.autograd.graph.save_on_cpu():\n        return plain(f)",
    "compile": 'torch._dynamo.reset()\n    return plain(torch.compile(f, backend="eager"))',
    "functional_call": (
        "class Net(nn.Module):\n        def __init__(self):\n            super().__init__()\n            "
        "self.w = nn.Parameter(torch.zeros(3, dtype=x.dtype))\n\n        def forward(self, y, c):\n            "
        "return f(y, self.w, c)\n\n    net = Net()\n    "
        "call = lambda y, v, c: torch.func.functional_call(net, {'w': v}, (y, c))\n    return plain(call)"
    ),
    "non-leaf": "return plain(lambda y, v, c: f(1 * y, 1 * v, 1 * c))",
    "grad inside no_grad": "with torch.no_grad():\n        with torch.enable_grad():\n            return plain(f)",
}


def _script(name: str) -> Script:
    apply = (SAME | CHANGES_NOTHING)[name]
    right = "plain(right_of)" if name in CHANGES_NOTHING else "apply(right_of)"
    text = f"{HEAD}\ndef apply(f):\n    {apply}\n\n\nright = {right}\n"
    return Script(text, "found = apply(found_of)\n", may_refuse=True)


SCRIPTS = {name: _script(name) for name in SAME | CHANGES_NOTHING}
# a compilation takes a second: it is drawn as often as the others, but they stand twice
NAMES = [name for name in SCRIPTS if name != "compile"]
SETTINGS = {
    "transform": (*NAMES, *NAMES, "compile"),
    "method": ("predictor", "gl-explicit", "gl", "predictor-implicit"),
    "linear": (False, True),
    "history": ("'full'", "'auto'", "'fft'", "Full(block=2)"),
    "stepper": ("single", "auto", "picard"),
    "adjoint": ("exact", "direct"),
    "steps": (2, 1, 3, 5),
    "dtype": ("float64",),
    "numbers": tuple(range(10)),
}


def arrange(case: Case, rng: random.Random) -> Case:
    """``direct`` takes single steps."""
    return {**case, "stepper": "single"} if case["adjoint"] == "direct" else case


def check(case: Case) -> float:
    return scripts.run(SCRIPTS[case["transform"]], case, case["steps"])


PART = Part("transforms", SETTINGS, check, lambda case: scripts.whole(SCRIPTS[case["transform"]], case), arrange)
