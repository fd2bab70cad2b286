"""The adjoint of the discrete scheme, exact by construction: the graph of each step is rebuilt, or kept."""

from __future__ import annotations

from dataclasses import dataclass

from ..solve import loop


class _Discrete:
    """Differentiates the scheme itself, step by step, so that the gradient equals that of autograd."""

    exact = True
    pull = staticmethod(loop.backward)


@dataclass(frozen=True)
class Exact(_Discrete):
    """The adjoint of the discrete scheme; each step's graph is rebuilt when the backward pass reaches it.

    Memory: one step's graph, and N rows or less, depending on the history and the storage.
    """

    stores_graph = False


@dataclass(frozen=True)
class Direct(_Discrete):
    """The exact gradient from graphs kept by the forward pass; takes memory for N graphs of ``func``."""

    stores_graph = True
