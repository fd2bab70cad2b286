"""Names and objects for the choices of a solve, and the combinations that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .adjoints import Adjoint, Direct, Exact, Paper
from .errors import InputError, InputTypeError, nearest
from .grid import Request
from .history import FFT, Exponentials, Full, History
from .schemes import ABM, L1, SOLVERS, GrunwaldLetnikov, Multistep, Predictor, Scheme, StageSolver, Trapezoid
from .storage import Checkpoint, Device, Host, Storage

METHODS: dict[str, Scheme] = {
    "predictor": Predictor(),
    "predictor-implicit": Predictor(implicit=True),
    "abm": ABM(),
    "trapezoid": Trapezoid(),
    "gl": GrunwaldLetnikov(),
    "gl-explicit": GrunwaldLetnikov(implicit=False),
    "l1": L1(),
    "l1-explicit": L1(implicit=False),
    "bdf2": Multistep(),
    "flmm-trapezoid": Multistep(rule="trapezoid"),
}
#: what solvers of ordinary equations call their methods, and what comes nearest here
ORDINARY: dict[str, str] = {
    "euler": "predictor",
    **dict.fromkeys(("midpoint", "heun2", "heun3", "rk4", "bosh3", "dopri5", "dopri8", "explicit_adams"), "abm"),
    **dict.fromkeys(("adaptive_heun", "fehlberg2"), "abm"),
    **dict.fromkeys(("implicit_adams", "fixed_adams", "scipy_solver"), "trapezoid"),
}
#: torchfde's names that mean nothing here, or something else
TORCHFDE: dict[str, str] = {
    "corrector": "method='abm'",
    "trap": "method='l1-explicit', or better 'trapezoid'",
    "glmulti": "order=MultiTerm(orders, weights) with method='gl'",
}
ADJOINTS: dict[str, Adjoint] = {"exact": Exact(), "direct": Direct(), "paper": Paper()}
HISTORIES: dict[str, History | None] = {
    "auto": None,
    "full": Full(),
    "fft": FFT(),
    "window": None,
    "exponentials": Exponentials(),
}
STORAGES: dict[str, Storage | None] = {"auto": None, "device": Device(), "host": Host(), "checkpoint": Checkpoint()}

_T = TypeVar("_T")


def named(kind: str, given: Any, table: Mapping[str, _T], kinds: Any) -> _T:
    """An object from its name; an object of the right kind is passed through."""
    if isinstance(given, kinds):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        if given in table:
            return table[given]
        raise InputError(f"unknown {kind} {given!r}. {nearest(given, table)}")
    raise InputTypeError(f"{kind} must be a name or an object, got {type(given).__name__}. {nearest('', table)}")


def read_scheme(method: str | Scheme, solver: str | StageSolver | None) -> Scheme:
    """The scheme, with another stage solver if one is given."""
    if isinstance(method, str) and method in ORDINARY:
        raise InputError(
            f"method={method!r} is for ordinary equations; one with memory needs weights for its whole past. "
            f"The nearest is method={ORDINARY[method]!r}, with a fixed step=. At order 1 'predictor' is Euler's method "
            "and 'abm' is Heun's."
        )
    base = method.removesuffix("-f").removesuffix("-o") if isinstance(method, str) else ""
    if base in TORCHFDE or (base != method and base in METHODS):
        raise InputError(
            f"method={method!r} is torchfde's name; here it is {TORCHFDE.get(base, f'method={base!r}')}. "
            "For code written for torchfde import fdeint from neuralfde.compat.torchfde."
        )
    scheme = named("method", method, METHODS, Scheme)
    if solver is None:
        return scheme
    if not scheme.implicit:
        raise InputError(
            f"solver={solver!r} is for implicit methods, but {type(scheme).__name__} is explicit. "
            "Drop solver=, or use an implicit method ('trapezoid', 'gl', 'l1', 'predictor-implicit')."
        )
    return replace(scheme, solver=named("solver", solver, SOLVERS, StageSolver))  # type: ignore[type-var, call-arg]


def check_names(options: Mapping[str, Any]) -> None:
    """Raise where one of the options of a block is no name or object of its kind."""
    read_scheme(options["method"], options["solver"])
    read_history(options["history"])
    named("storage", options["storage"], STORAGES, Storage)
    named("adjoint", options["adjoint"], ADJOINTS, (Exact, Direct, Paper))


def read_history(history: str | History) -> History | None:
    """The history; None where it is left to ``auto``."""
    if history == "window":
        raise InputError("history='window' needs a length: pass history=Window(64) for the last 64 steps.")
    return named("history", history, HISTORIES, History)


def read_graphs(graphs: bool | str, how: Adjoint, device: torch.device) -> bool | str:
    """Whether steps may be replayed as CUDA graphs."""
    if graphs not in (True, False, "auto"):
        raise InputError(f"graphs={graphs!r}: use 'auto', True or False.")
    if graphs is True and device.type != "cuda":
        raise InputError(f"graphs=True needs a state on a CUDA device, z0 is on {device}. Use graphs='auto'.")
    if isinstance(how, Direct) or device.type != "cuda":
        return False
    return graphs


def refuse_combinations(
    how: Adjoint, past: History, kept: Storage, beta: Tensor, wanted: Request, scheme: Scheme
) -> None:
    """Raise where two choices make no sense together, naming the alternative."""
    if isinstance(how, Paper):
        if beta.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "adjoint='paper' has no gradient for the order. Use adjoint='exact' to learn it, "
                "or pass order.detach()."
            )
        if wanted.off_grid:
            raise InputError(
                "adjoint='paper' is defined on the grid only, but t has times between grid points "
                f"(step {wanted.grid.step:g}). Use adjoint='exact', or a step that meets every time."
            )
    if wanted.off_grid and not past.keeps_rows:
        raise InputError(
            f"history={type(past).__name__} forgets the rows that states between grid points are computed from "
            f"(step {wanted.grid.step:g}). Use history='full' or 'fft', or a step that meets every time."
        )
    _refuse_storage(how, past, kept)


def refuse_resume(how: Adjoint, wanted: Request, plain: bool) -> None:
    """Raise where a solve cannot be gone on with."""
    if isinstance(how, Paper) or wanted.off_grid or not plain:
        raise InputError(
            "a solve that is resumed takes adjoint='exact' or 'direct', output times on a uniform grid "
            f"(step {wanted.grid.step:g}), no horizon= and no velocity=; solve in one piece otherwise."
        )


def _refuse_storage(how: Adjoint, past: History, kept: Storage) -> None:
    name = type(kept).__name__
    if isinstance(how, Direct) and kept != Device():
        raise InputError(
            f"adjoint='direct' keeps the graph of every step on the device, storage={name} would store nothing. "
            "Use adjoint='exact', or storage='device'."
        )
    on_host = isinstance(past, Full) and past.host and kept == Host()
    if past.keeps_rows and kept != Device() and not on_host:
        raise InputError(
            f"history={type(past).__name__} holds every row in the dtype of the state, since each sum needs them all, "
            f"and storage={kept} could not take them away. Use history='exponentials' (or a Window) with it, or "
            "storage='device'; history='full' goes with storage='host' too."
        )
