"""The adjoint of the discrete scheme, exact by construction: with each step's graph made again, or kept."""

from __future__ import annotations

from dataclasses import dataclass

from ..solve import loop


class _Discrete:
    """What is differentiated is the scheme itself, step by step, so that the gradient is that of autograd."""

    exact = True
    pull = staticmethod(loop.backward)


@dataclass(frozen=True)
class Exact(_Discrete):
    """The adjoint of the discrete scheme; each step's graph is made again when the backward pass reaches it.

    Memory: one step's graph and N rows, or less, as the history and the storage have it.
    """

    stores_graph = False


@dataclass(frozen=True)
class Direct(_Discrete):
    """The exact gradient from graphs kept since the forward pass, with memory for N graphs of ``func``."""

    stores_graph = True
