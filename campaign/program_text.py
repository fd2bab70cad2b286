"""Random functions as the text of a script: the function, how it is solved, and what is right in which way."""

from __future__ import annotations

import textwrap

from .case import Case
from .program_lines import ENDS, LINES, SECONDS
from .scripts import Script

HEAD = """
import math

import numpy
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.2 * x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 0.6 * x**2 * grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).reshape(-1, len(w)).sum(0) if ctx.needs_input_grad[1] else None


class Leaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope, ctx.mask = slope, x > 0
        return torch.where(ctx.mask, x, slope * x)

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.mask, grad, ctx.slope * grad), None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.sin_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - 0.5 * y * y)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, m):
        ctx.save_for_backward(x, m)
        return x @ m

    @staticmethod
    def backward(ctx, grad):
        x, m = ctx.saved_tensors
        return grad @ m.t(), x.t() @ grad


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.5 * grad


n, rows = shape[-1], math.prod(shape) // shape[-1]
span, real = 0.5, getattr(torch, dtype)
mid = 0.47 * span
half = torch.randperm(n, generator=GENERATOR)
b = make(n, low=0.2, high=0.8)


def program(t, z, w, m, k, q):
    x = z
    {lines}
    {end}


def both(t, z, y, *own):
    v = program(t, z + 0.1 * y, *own)
    {second}


def func(t, z, *own):
    if nesting == "tensor":
        return program(t, z, *own)
    if nesting == "tuple":
        return both(t, *z, *own)
    x, y = both(t, z["x"], z["rest"][0], *own)
    return {"x": x, "rest": (y,)}


class Doubled(nn.Module):
    def forward(self, w):
        return 2 * w


class Net(nn.Module):
    def __init__(self, w, m, k, q):
        super().__init__()
        self.m, self.k, self.q = nn.Parameter(m), nn.Parameter(k), nn.Parameter(q)
        self.w = nn.Parameter(w / 2 if given == "parametrized" else w)
        if given == "parametrized":
            nn.utils.parametrize.register_parametrization(self, "w", Doubled(), unsafe=True)

    def forward(self, t, z):
        return func(t, z, self.w, self.m, self.k, self.q)


STATE, FIELD, ORDER = ("x0", "y0"), ("w", "m", "k", "q"), ("beta",)
values = {
    "x0": make(*shape),
    "y0": make(*shape),
    "w": make(n, low=0.3, high=0.9),
    "m": make(n, n) / n**0.5,
    "k": make(1, 1, 3),
    "q": torch.complex(make(n // 2), make(n // 2)),
    "beta": torch.tensor([0.5, 0.9] * (n // 2) if kind == "channels" else 0.6, dtype=real),
}
groups = {"all": STATE + FIELD + ORDER, "field": FIELD, "weight": ("w",), "state": STATE, "order": ORDER, "none": ()}
learned = groups[learn] + (("beta",) if learn == "weight" and kind == "tempered" else ())
nodes = torch.linspace(0, span, steps + 1, dtype=torch.float64)
times = {"last": span, "all": nodes, "some": nodes[::3]}[output]


def initial(x, y):
    return {"tensor": x, "tuple": (x, y), "dict": {"x": x, "rest": (y,)}}[nesting]


def order_of(beta):
    if kind == "tempered":
        return Tempered(beta, 0.3)
    if kind == "multi":
        return MultiTerm([beta, 0.3], [1.0, 0.5])
    return 0.6 if kind == "number" else beta


def loss_of(ys):
    parts = torch.utils._pytree.tree_leaves(ys)
    flat = torch.cat([x.reshape(-1) for x in parts])
    return (torch.cos(torch.arange(1, flat.numel() + 1, dtype=flat.dtype)) * flat + 0.5 * flat.square()).sum()


def solved(own, **changes):
    options = dict(method=method, history=history, storage=storage, steps=steps, **changes)
    x0, y0, *field, beta = own.values()
    call = func
    if given == "args":
        options["args"] = tuple(field)
    elif given == "params":
        call, options["params"] = (lambda t, z: func(t, z, *field)), field
    else:
        call = Net(*field)
        weight = call.parametrizations.w.original if given == "parametrized" else call.w
        own |= {"w": weight, "m": call.m, "k": call.k, "q": call.q}
    for name in own:
        own[name].requires_grad_(name in learned)
    return fdeint(call, initial(x0, y0), times, order_of(beta), **options)


def fresh():
    return {name: x.detach().clone().requires_grad_(name in learned) for name, x in values.items()}


def gradients(own, loss, **more):
    # by name; the last number of each is the size of what a small gradient is a difference of
    wanted = [own[name] for name in learned]
    found = torch.autograd.grad(loss, wanted, allow_unused=True, **more) if loss.requires_grad else [None] * len(wanted)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found)]
    found = [(torch.view_as_real(g.resolve_conj()) if g.is_complex() else g).reshape(-1) for g in found]
    size = 1e-3 * max(float(x.detach().abs().max()) for x in (loss, *found))
    return {f"gradient of {name}": torch.cat([g, g.new_tensor([size])]) for name, g in zip(learned, found)}


def states(ys):
    return {f"states {i}": x for i, x in enumerate(torch.utils._pytree.tree_leaves(ys))}


def trained(**changes):
    own = fresh()
    ys = solved(own, **changes)
    return states(ys) | gradients(own, loss_of(ys))


LOSSY = "dtype" in str(storage)
PLAIN = dict(adjoint="exact" if LOSSY else "direct", stepper="single")
if not LOSSY:
    PLAIN["storage"] = "device"


def plain(**changes):
    global storage
    before, storage = storage, PLAIN.get("storage", storage)
    try:
        return trained(**{k: x for k, x in PLAIN.items() if k != "storage"})
    finally:
        storage = before

"""
TRAIN = ("right = plain()\n", "found = trained(stepper=stepper)\n")
#: In which way a solve is asked for: what is right, and what is found.
WAYS = {
    "train": TRAIN,
    "values": (
        "with torch.no_grad():\n    right = {k: x for k, x in plain().items() if 'states' in k}\n",
        "with torch.no_grad():\n    found = states(solved(fresh(), stepper=stepper))\n",
    ),
    "inference": (
        "with torch.no_grad():\n    right = {k: x for k, x in plain().items() if 'states' in k}\n",
        "with torch.inference_mode():\n    found = states(solved(fresh(), stepper=stepper))\n",
    ),
    "again": (
        "right = plain()\n",
        """
own = fresh()
ys = solved(own, stepper=stepper)
first = gradients(own, loss_of(ys), retain_graph=True)
found = states(ys) | gradients(own, loss_of(ys))
for name, g in first.items():
    assert torch.allclose(g, found[name], rtol=1e-3), f"another gradient in the first backward pass: {name}"
""",
    ),
    "interleaved": (
        "right = plain()\n",
        """
own, other = fresh(), fresh()
ys = solved(own, stepper=stepper)
loss_of(solved(other, stepper=stepper))
found = states(ys) | gradients(own, loss_of(ys))
""",
    ),
}
TRANSFORM = """
FREE = [name for name in learned if values[name].dtype == real]


def loss_from(*tensors, **changes):
    return loss_of(solved_from({**values, **dict(zip(FREE, tensors))}, **changes))


def solved_from(own, **changes):
    x0, y0, *field, beta = own.values()
    options = dict(method=method, history=history, steps=steps, args=tuple(field), **changes)
    return fdeint(func, initial(x0, y0), times, order_of(beta), **options)


def at_start(*tensors):
    x0, y0, *field, _ = (values | dict(zip(FREE, tensors))).values()
    moved, now = 0 * sum(x.sum() for x in tensors), torch.zeros((), dtype=real)
    return func(now, initial(x0, y0), *field), func(now, initial(x0 + moved, y0 + moved), *field)


def asked(f, *given, **more):
    try:
        return f(*given, **more)
    except RuntimeError as error:
        raise UnsupportedError(f"PyTorch does not follow this function: {error}. Use another one.") from error


def first(loss, leaves):
    if not loss.requires_grad or not leaves:
        return [0 * x for x in leaves]
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


own = [values[name].clone() for name in FREE]
ways = [torch.cos(torch.arange(1, x.numel() + 1, dtype=real)).reshape(x.shape) for x in own]
"""
WAYS |= {
    "jvp": (
        TRANSFORM
        + """
asked(torch.func.jvp, at_start, tuple(own), tuple(ways))
leaves = [x.clone().requires_grad_() for x in own]
loss = loss_from(*leaves, adjoint="direct", stepper="single")
terms = torch.cat([(g * u).reshape(-1) for g, u in zip(first(loss, leaves), ways)])
right = {"value": loss, "tangent": torch.stack([terms.sum(), terms.abs().sum()])}
""",
        """
call = lambda *x: loss_from(*x, stepper=stepper)
value, tangent = torch.func.jvp(call, tuple(own), tuple(ways))
found = {"value": value, "tangent": torch.stack([tangent, terms.abs().sum()])}
""",
    ),
    "vmap": (
        TRANSFORM
        + """
many = [torch.stack([x, 0.9 * x, 1.05 * x]) for x in own]
asked(torch.func.vmap(at_start), *many)

losses, grads = [], []
for i in range(3):
    leaves = [x[i].clone().requires_grad_() for x in many]
    losses.append(loss_from(*leaves, adjoint="direct", stepper="single"))
    grads.append(first(losses[-1], leaves))
right = {"values": torch.stack(losses)} | {f"gradient of {k}": torch.stack(g) for k, g in zip(FREE, zip(*grads))}
""",
        """
call = lambda *x: loss_from(*x, stepper=stepper)
if FREE:
    leaves = [x.clone().requires_grad_() for x in many]
    found = {"values": torch.func.vmap(call)(*leaves)}
    found |= {f"gradient of {k}": g for k, g in zip(FREE, first(found["values"].sum(), leaves))}
else:
    found = {"values": torch.stack([call()] * 3)}
""",
    ),
    "second": (
        TRANSFORM
        + """
def second(**changes):
    leaves = [x.clone().requires_grad_() for x in own]
    loss = loss_from(*leaves, **changes)
    zero = {f"second of {k}": 0 * x for k, x in zip(FREE, leaves)}
    if not loss.requires_grad:
        return zero
    first = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    total = sum((g * u).sum() for g, u in zip(first, ways))
    if not total.requires_grad:
        return zero
    found = torch.autograd.grad(total, leaves, materialize_grads=True)
    return {f"second of {k}": g for k, g in zip(FREE, found)}


right = asked(second, adjoint="direct", stepper="single")
""",
        "found = second(stepper=stepper)\n",
    ),
}
TRANSFORMED = ("jvp", "vmap", "second")


def script_of(case: Case) -> Script:
    """What is right and what is found, with the function in between."""
    lines = filter(None, [LINES.get(case[f"line{i}"]) for i in range(5)])
    parts = {"{lines}": "\n".join(lines), "{end}": ENDS[case["end"]], "{second}": SECONDS[case["second"]]}
    head = HEAD
    for place, part in parts.items():
        head = head.replace(place, textwrap.indent(part, "    ").strip())
    right, found = WAYS[case["way"]]
    # vectorising a function and following it in other ways may be beyond it; calling it step by step never is
    may_refuse = case["stepper"] == "picard" or case["way"] in TRANSFORMED
    return Script(f"{head}storage = {case['storage']}\n{right}", found, may_refuse)
