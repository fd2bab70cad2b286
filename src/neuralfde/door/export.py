"""What ``torch.export`` can take of a solve: all but its tensors are numbers that are known when it is written down."""

from __future__ import annotations

from typing import Any

import torch

from ..base.structure import tensors_in
from ..base.torch_private import is_unknown
from ..errors import UnsupportedError
from ..orders import read_order
from .validation import Options, read_scheme


def refuse_export(t: Any, order: Any, given: Options) -> None:
    """Raise where a solve would depend on values that are not known while a program is written down."""
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError("a solve is exported by torch.export.export(..., strict=False), which is its default.")
    if given.adaptive:
        raise UnsupportedError("steps to a tolerance depend on values, which an exported program has not: pass steps=.")
    if not (given.event is given.lags is given.linear is None):
        raise UnsupportedError(
            "event=, lags= and linear= are not exported: write the steps between them, or use FDECell."
        )
    if read_scheme(given.method, given.solver).implicit:
        raise UnsupportedError(
            "an implicit stage takes the iterations its values ask for, which an exported program cannot. Use an "
            "explicit method: 'predictor', 'abm', 'gl-explicit' or 'l1-explicit'."
        )
    read = {"order": read_order(order).numbers(), "t": t, "horizon": given.horizon, "grid": given.grid}
    read["jumps"] = given.jumps
    unknown = [name for name, value in read.items() if any(map(is_unknown, tensors_in(value)))]
    if unknown:
        raise UnsupportedError(
            f"{', '.join(unknown)}= would be computed from tensors of the exported module, and the weights of a solve "
            "are numbers there. Pass numbers, or tensors that are neither parameters nor buffers; a block has them "
            "in block.frozen()."
        )
