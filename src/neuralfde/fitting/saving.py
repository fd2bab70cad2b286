"""Saving a fit as tensors, numbers and names only, so that loading it runs no code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError
from .data import Data, Observe, observer
from .diagnostics import Diagnostics
from .modules import double, fill
from .problem import Problem
from .profile import Profile
from .result import Fit
from .setup import module_of
from .unknowns import INITIAL, ORDER, Bound, Unknowns

_FORMAT = "neuralfde fit 1"
#: Fields of a problem that are plain, and of a fit that are not: each is written in a way of its own.
_PLAIN = ("initial", "order", "options", "fixed", "velocity", "robust", "each")
_SPECIAL = ("model", "problem", "profile", "diagnostics")


def save(found: Fit, path: str | Path) -> None:
    """Write a fit to a file. The code of the model and ``observe=`` are not included: pass them again to ``load``."""
    problem = found.problem
    for key, value in problem.options.items():
        if not (value is None or isinstance(value, bool | int | float | str | Tensor)):
            raise InputError(f"{key}={value!r} is an object, and a file holds numbers and names: fit with a name.")
    plain = {f.name: getattr(found, f.name) for f in fields(found) if f.name not in _SPECIAL}
    torch.save(
        {
            "format": _FORMAT,
            "fit": plain,
            "profile": None if found.profile is None else asdict(found.profile),
            "diagnostics": asdict(found.diagnostics),
            "data": asdict(problem.data),
            "shapes": problem.unknowns.shapes,
            "bounds": {n: (b.low, b.high) for n, b in problem.unknowns.bounds.items()},
            "problem": {n: getattr(problem, n) for n in _PLAIN},
        },
        path,
    )


def load(path: str | Path, model: nn.Module | Callable[..., Tensor], observe: Observe = None) -> Fit:
    """Load a fit that ``save`` wrote; ``model`` and ``observe`` are those passed to ``fit``.

    A module receives the estimates, as after the fit. The file is loaded with ``weights_only=True``.
    """
    try:
        kept = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise InputError(f"{path} is not a fit that can be read: {type(error).__name__}. Save it again.") from error
    if not isinstance(kept, dict) or kept.get("format") != _FORMAT:
        raise InputError(f"{path} holds no fit of this version of neuralfde ({_FORMAT!r}). Fit and save it again.")
    unknowns = Unknowns(kept["shapes"], {n: Bound(*pair) for n, pair in kept["bounds"].items()})
    values = unknowns.split(kept["fit"]["flat"])
    own = {n: v for n, v in values.items() if n not in (INITIAL, ORDER)}
    module = module_of(model, None if isinstance(model, nn.Module) else own)
    _refuse_another(module, own, kept["problem"]["fixed"])
    fill(module, own)
    problem = Problem(
        model=module, data=Data(**kept["data"]), unknowns=unknowns, observe=observer(observe), **kept["problem"]
    )
    profile = None if kept["profile"] is None else Profile(**kept["profile"])
    return Fit(
        model=module, problem=problem, profile=profile, diagnostics=Diagnostics(**kept["diagnostics"]), **kept["fit"]
    )


def _refuse_another(module: nn.Module, own: Mapping[str, Tensor], fixed: Mapping[str, Tensor]) -> None:
    """Raise unless the module has these parameters and the same numbers in everything that was not fitted."""
    mine = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
    if mine != {n: tuple(v.shape) for n, v in own.items()}:
        raise InputError(f"the fit is of a model with the parameters {sorted(own)}; this one has {sorted(mine)}.")
    others = {n: p for n, p in (*module.named_buffers(), *module.named_parameters()) if n not in mine}
    for name in others.keys() | fixed.keys():
        if name not in others or name not in fixed or not torch.equal(double(name, others[name]), fixed[name]):
            raise InputError(f"{name!r}, which was not fitted, is not what it was in the model of this fit.")
