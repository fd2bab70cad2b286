"""The operations that are covered: formulas of pointwise ones, and the names of all others."""

from __future__ import annotations

import math
from collections.abc import Callable

from .program import Sym
from .record import Refused


def _power(x: Sym | float, p: Sym | float) -> Sym:
    if isinstance(x, Sym) and not isinstance(p, Sym) and p in (1, 2, 3, 4):
        found = x
        for _ in range(int(p) - 1):
            found = found * x
        return found
    program = x.program if isinstance(x, Sym) else p.program  # type: ignore[union-attr]
    return program.apply("pow", x, p)


def _gelu(x: Sym, approximate: str = "none") -> Sym:
    if approximate == "none":
        return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0)
    return x * 0.5 * (((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).tanh() + 1.0)


def _softplus(x: Sym, beta: float = 1.0, threshold: float = 20.0) -> Sym:
    scaled = x * float(beta)
    large = scaled.gt(float(threshold))
    return large.where(x, large.where(0.0, scaled).exp().log1p() / float(beta))


def _elu(x: Sym, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Sym:
    up = x.gt(0.0)
    return up.where(x * float(scale), up.where(0.0, x * float(input_scale)).expm1() * float(alpha * scale))


def _clamp(x: Sym, low: float | Sym | None = None, high: float | Sym | None = None) -> Sym:
    if low is not None:
        x = x.lt(low).where(low, x)
    return x if high is None else x.gt(high).where(high, x)


def _celu(x: Sym, alpha: float = 1.0) -> Sym:
    if alpha != 1:  # PyTorch's own derivative has seven digits then, also in double precision
        raise NotImplementedError(f"alpha={alpha}")
    return _elu(x)


def _softshrink(x: Sym, least: float = 0.5) -> Sym:
    least = float(least)
    return x.gt(least).where(x - least, x.lt(-least).where(x + least, 0.0))


def _number(mask: Sym) -> Sym:
    return mask.where(1.0, 0.0)


def _divide(x: Sym, y: Sym | float, rounding_mode: str | None = None) -> Sym:
    if rounding_mode is not None:
        raise Refused("func rounds, by div(rounding_mode=)")
    return x / y


_PLAIN = [
    "neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "sqrt", "maximum",
    "minimum", "gt", "ge", "lt", "le", "eq", "ne",
]  # fmt: skip


def _same(name: str) -> Callable[..., Sym]:
    return lambda x, *others: getattr(x, name)(*others)


#: Pointwise operations: a formula of the arguments, in their order.
POINTWISE: dict[str, Callable[..., Sym]] = {
    "add": lambda x, y, alpha=1.0: x + (y if alpha == 1.0 else y * float(alpha)),
    "sub": lambda x, y, alpha=1.0: x - (y if alpha == 1.0 else y * float(alpha)),
    "rsub": lambda x, y, alpha=1.0: y - (x if alpha == 1.0 else x * float(alpha)),
    "mul": lambda x, y: x * y,
    "div": _divide,
    "addcmul": lambda x, y, z, value=1.0: x + y * z * float(value),
    "addcdiv": lambda x, y, z, value=1.0: x + y / z * float(value),
    "lerp": lambda x, y, w: x + (y - x) * w,
    "reciprocal": lambda x: 1.0 / x,
    "square": lambda x: x * x,
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "pow": _power,
    "tan": lambda x: x.sin() / x.cos(),
    "sinh": lambda x: (x.exp() - (-x).exp()) * 0.5,
    "cosh": lambda x: (x.exp() + (-x).exp()) * 0.5,
    "relu": lambda x: x.gt(0.0).where(x, 0.0),
    "leaky_relu": lambda x, slope=0.01: x.gt(0.0).where(x, x * float(slope)),
    "silu": lambda x: x * x.sigmoid(),
    "gelu": _gelu,
    "softplus": _softplus,
    "elu": _elu,
    "celu": _celu,
    "mish": lambda x: x * _softplus(x).tanh(),
    "hardswish": lambda x: x * _clamp(x + 3.0, 0.0, 6.0) / 6.0,
    "softshrink": _softshrink,
    "hardshrink": lambda x, least=0.5: x.gt(float(least)).where(x, x.lt(-float(least)).where(x, 0.0)),
    "threshold": lambda x, least, value: x.gt(float(least)).where(x, float(value)),
    "_prelu_kernel": lambda x, slope: x.gt(0.0).where(x, x * slope),
    "exp2": lambda x: (x * math.log(2.0)).exp(),
    "log2": lambda x: x.log() / math.log(2.0),
    "log10": lambda x: x.log() / math.log(10.0),
    "hypot": lambda x, y: (x * x + y * y).sqrt(),
    "logaddexp": lambda x, y: x.maximum(y) + (-((x - y).abs())).exp().log1p(),
    "logical_and": lambda a, b: (_number(a) * _number(b)).gt(0.5),
    "logical_or": lambda a, b: (_number(a) + _number(b)).gt(0.5),
    "logical_not": lambda a: _number(a).lt(0.5),
    "clamp": _clamp,
    "hardtanh": lambda x, low=-1.0, high=1.0: _clamp(x, low, high),
    "clamp_min": lambda x, low: _clamp(x, low),
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "where": lambda c, x, y: c.where(x, y),
    **{name: _same(name) for name in _PLAIN},
}
POINTWISE |= {f"bitwise_{name}": POINTWISE[f"logical_{name}"] for name in ("and", "or", "not")}  # of masks
#: How many of their first arguments are masks.
MASKED = {
    "where": 1,
    **{f"{kind}_{k}": n for kind in ("logical", "bitwise") for k, n in {"and": 2, "or": 2, "not": 1}.items()},
}
#: Operations that rearrange elements.
STRUCTURAL = frozenset([
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "select", "slice",
    "narrow", "unbind", "split", "split_with_sizes", "chunk", "flip", "roll", "repeat", "movedim", "diagonal", "index",
    "index_select", "gather",
])  # fmt: skip
#: Operations that give back what they got.
SAME = frozenset(["clone", "alias", "detach", "contiguous", "lift_fresh", "_to_copy", "positive"])
#: Constructions: the number that they are full of, or where it stands among the arguments.
LITERAL = {"zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0, "zeros": 0.0, "ones": 1.0}
FILLED = {"full_like": 1, "new_full": 2, "full": 1}
OTHERS = frozenset([
    "cat", "stack", "sum", "mean", "var", "std", "prod", "mm", "addmm", "mv", "addmv", "bmm", "baddbmm", "_softmax",
    "_safe_softmax", "_log_softmax", "logsumexp", "log_sigmoid_forward", "glu", "native_layer_norm",
    "native_group_norm", "_native_batch_norm_legit_no_training", "linalg_vector_norm", "linalg_cross",
    "constant_pad_nd",
])  # fmt: skip
_EVERY = (*POINTWISE, *STRUCTURAL, *SAME, *LITERAL, *FILLED, *OTHERS, "masked_fill")
COVERED = frozenset(f"aten::{name}{tail}" for name in _EVERY for tail in ("", "_"))
