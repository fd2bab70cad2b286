"""Cases that are small scripts: what is right, then what is found, and the two compared by rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import neuralfde
from neuralfde.door.names import METHODS

from .case import TYPED, Case, Failed
from .compare import Result, allowed, demand_equal, distances

#: How autograd refuses what was written in place.
IN_PLACE = re.compile("in-?place operation")
HEAD = """\
import torch
from torch import nn

import neuralfde
from neuralfde import *

GENERATOR = torch.Generator().manual_seed(numbers)


def make(*shape, low=-1.0, high=1.0):
    numbers = torch.rand(shape, dtype=torch.float64, generator=GENERATOR)
    return (low + (high - low) * numbers).to(getattr(torch, dtype))

"""


@dataclass(frozen=True)
class Script:
    """``right`` is what should come out, ``found`` what does; both leave a dictionary of tensors of that name.

    ``may_refuse``: an error of the library in place of ``found`` is an answer; otherwise only ``right`` may be refused.
    """

    right: str
    found: str
    may_refuse: bool = False


def settings_text(case: Case) -> str:
    """The settings as assignments; objects are written as they would be in a call."""
    return "".join(f"{k} = {v if k == 'history' else repr(v)}\n" for k, v in case.items())


def whole(script: Script, case: Case) -> str:
    """All of it, ready to be pasted."""
    text = settings_text(case) + HEAD + "\n" + script.right.strip() + "\n\n" + script.found.strip() + "\n\n"
    imports = "from neuralfde import *\n\n" if "history" in case else ""
    return f"{imports}{text}for name in right:\n    print(name, found[name], right[name], sep='\\n')\n"


def run(script: Script, case: Case, work: int, more: float = 0.0) -> float:
    """Both halves in one namespace, then the comparison; ``work`` is the number of steps, ``more`` allowed for each."""
    names: dict[str, Any] = {k: getattr(neuralfde, k) for k in neuralfde.__all__}
    exec(settings_text(case) + HEAD + script.right, names)
    right = _tensors(names["right"])
    try:
        exec(script.found, names)
    except TYPED as error:
        if script.may_refuse:
            raise
        raise Failed(f"refused by {type(error).__name__}, where it should work: {error}") from error
    except RuntimeError as error:
        if script.may_refuse and IN_PLACE.search(str(error)):  # autograd's own word, which is as good as ours
            raise neuralfde.UnsupportedError(f"by autograd, do not write in place: {error}") from error
        raise
    found = _tensors(names["found"])
    implicit = METHODS[case["method"]].implicit if "method" in case else False
    tolerance = allowed(getattr(torch, case["dtype"]), work, implicit) + more * work
    shares = []
    for name, expected in right.items():
        one, other = (Result(x[None], {}) for x in (found[name], expected))
        try:
            shares.append(demand_equal(one, other, tolerance, lambda: _conditioning(script, case, right)))
        except Failed as error:
            raise Failed(f"{next(iter(case.values()))}, {name} {error}") from None
    return max(shares)


def _conditioning(script: Script, case: Case, right: Mapping[str, Tensor]) -> float:
    """By how much what is right moves when the numbers that are drawn are nudged; at least 1."""
    nudge, names = 1e-7, {k: getattr(neuralfde, k) for k in neuralfde.__all__}
    exec(settings_text(case) + HEAD, names)
    make = names["make"]
    names["make"] = lambda *shape, **bounds: (x := make(*shape, **bounds)) * (1 + nudge * torch.cos(1e3 * x))
    exec(script.right, names)
    moved = _tensors(names["right"])
    apart = (distances(Result(moved[k][None], {}), Result(x[None], {})).values() for k, x in right.items())
    return max(1.0, *(x / nudge for each in apart for x in each))


def _tensors(given: Mapping[str, Any]) -> dict[str, Tensor]:
    none = [name for name, x in given.items() if x is None]
    if none:
        raise Failed(f"None: in place of {', '.join(none)}")
    return {name: torch.as_tensor(x).detach() for name, x in given.items()}
