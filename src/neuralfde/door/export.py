"""Which solves ``torch.export`` can export: those whose weights and steps are known while the program is traced."""

from __future__ import annotations

from typing import Any

import torch

from ..base.structure import tensors_in
from ..base.torch_private import is_unknown, outside_of_programs
from ..errors import UnsupportedError
from ..orders import read_order
from .validation import Options, read_scheme


def refuse_export(t: Any, order: Any, given: Options) -> None:
    """Raise if a solve depends on values that are not known while a program is exported."""
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError("a solve is exported by torch.export.export(..., strict=False), which is its default.")
    if given.adaptive:
        raise UnsupportedError("steps to a tolerance depend on values that are not known during export: pass steps=.")
    if not (given.event is given.lags is given.linear is None):
        raise UnsupportedError(
            "event=, lags= and linear= cannot be exported. Leave them out, or export single steps with FDECell."
        )
    if read_scheme(given.method, given.solver).implicit:
        raise UnsupportedError(
            "the iterations of an implicit stage depend on values that are not known during export. Use an explicit "
            "method: 'predictor', 'abm', 'gl-explicit' or 'l1-explicit'."
        )
    with outside_of_programs():  # parts of a constant are constants
        numbers = read_order(order).numbers()
    read = {"order": numbers, "t": t, "horizon": given.horizon, "grid": given.grid, "jumps": given.jumps}
    unknown = [name for name, value in read.items() if any(map(is_unknown, tensors_in(value)))]
    if unknown:
        raise UnsupportedError(
            f"{', '.join(unknown)}= depends on tensors of the exported module, but the weights of a solve must be "
            "constants there. Pass numbers, or tensors that are neither parameters nor buffers; for an FDEBlock use "
            "block.frozen()."
        )
