"""Solves on a mesh: weights depend on more than the lag, so that all N² are needed, or exponentials in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ..base.grid import Request
from ..base.torch_private import value_of
from ..errors import InputError
from ..history import Exponentials, FadingMesh, Full, History
from ..orders import Caputo, Operator
from ..schemes import Scheme
from ..weights.fading import Rates, newest
from .resume import State


def why_not_fading(operator: Operator, known: Mapping[str, Tensor], scheme: Scheme) -> str | None:
    """Why the distant past cannot be summed as exponentials on a mesh; None if it can."""
    if not isinstance(operator, Caputo):
        return "the exponentials are those of Caputo's kernel with one order"
    if float(value_of(known["order"]).max()) > 1:
        return "the kernel of an order above 1 grows and is no sum of decaying exponentials"
    if not scheme.cells:
        return (
            f"method={type(scheme).__name__} is no integration rule on cells, as 'trapezoid' (implicit) and "
            "ABM(ahead=True) (explicit) are"
        )
    return None


def refuse_history(past: History, operator: Operator, wanted: Request, against: str | None) -> None:
    """Raise if a history cannot apply a matrix that is not Toeplitz; ``against`` is why exponentials cannot either."""
    if isinstance(past, Full) or (isinstance(past, Exponentials) and against is None):
        return
    cause = wanted.grid.cause if operator.toeplitz else f"order={type(operator).__name__}"
    raise InputError(
        f"history={type(past).__name__} needs weights that depend on the lag alone, which {cause} has not"
        + (f", and on a mesh {against}. Use history='full'." if against else ". Use history='full' or 'exponentials'.")
    )


def refuse_jumps(scheme: Scheme, operator: Operator, before: State | None = None) -> None:
    """Raise if the scheme, the operator or a resumed solve does not allow jumps."""
    if not scheme.cells or not isinstance(operator, Caputo) or before is not None:
        raise InputError(
            "jumps= put a short step before each jump: use method='predictor', 'predictor-implicit', 'trapezoid', "
            "'abm' or ABM(ahead=True), orders of Caputo's derivative, and no resumed solve as past=."
        )


def on_mesh(past: Exponentials, scheme: Scheme, wanted: Request, fixed: bool) -> tuple[Exponentials, Rates]:
    """The exponentials that approximate the kernel at all lags of the mesh; ``fixed``: the order gets no gradient."""
    if past.terms is not None:
        raise InputError(
            f"Exponentials(terms={past.terms}) is for uniform grids, where exponentials are fitted; on a mesh their "
            "number follows from tol=. Leave terms= out."
        )
    times = wanted.grid.elapsed
    rates = Rates.for_lags(wanted.grid.extremes[0], float(times[-1]), past.tol)
    mesh = FadingMesh(times, rates.values, scheme.cells, newest if fixed else None)
    return replace(past, mesh=mesh, terms=rates.values.shape[0]), rates
