"""Graph diffusion and attention with one kernel a pass, where there is a GPU and Triton.

Each kernel gathers the rows of a node's neighbours once and makes everything of them that is wanted. Sums have a fixed
order, so that results do not differ from run to run. The products of :mod:`.csr` do the same everywhere else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from neuralfde.models import csr
from neuralfde.models.csr import Graph

WIDEST = 512
"""Most numbers of one node that a kernel holds."""
TILE = 4096
"""Bytes of neighbours' rows that a warp holds at once."""
WARPS = 8
"""For one node with very many edges."""


def usable(x: Tensor, *others: Tensor | None) -> bool:
    """Whether there are kernels for rows ``x`` (N, F) and what comes with them, all of one dtype."""
    same = x.dtype in (torch.float32, torch.float64) and all(o is None or o.dtype == x.dtype for o in others)
    return same and x.shape[1] <= WIDEST and _kernels(x.device.type) is not None


def diffuse(
    graph: Graph, weight: Tensor, z: Tensor, rate: Tensor, source: Tensor | None, strength: Tensor | None
) -> Tensor:
    """See :func:`neuralfde.models.diffusion.diffuse`."""
    given, out = source is not None and strength is not None, z.new_empty(z.shape)
    more = (source, strength) if given else (z, rate)
    tensors = (weight, z, rate, *more, out, z.shape[0] // len(rate), z.shape[1])
    _by_row("diffuse", graph, False, z, tensors, SOURCE=given, WIDTH=_power(z.shape[1]))
    return out


def diffuse_back(
    graph: Graph, weight: Tensor, z: Tensor, rate: Tensor, grad: Tensor, for_weight: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the state, of the rates and, if wanted, of the weights."""
    grad_z, dots, grad_weight = (grad.new_empty(shape) for shape in (grad.shape, grad.shape[0], weight.shape))
    tensors = (weight, z, grad, rate, grad_weight, grad_z, dots, z.shape[0] // len(rate), z.shape[1])
    _by_row("diffuse_back", graph, True, z, tensors, FOR_WEIGHT=for_weight, WIDTH=_power(z.shape[1]))
    return grad_z, dots.view(len(rate), -1).sum(1), grad_weight if for_weight else None


def softmax(graph: Graph, q: Tensor, k: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention of every head, ``(E, heads)``, and its mean over heads, from queries and keys ``(N, heads·D)``."""
    each, mean = q.new_empty(graph.num_edges, heads), q.new_empty(graph.num_edges)
    scale = (q.shape[1] // heads) ** -0.5
    _by_row("softmax", graph, False, q, (q, k, each, mean), heads, SCALE=scale)
    return each, mean


def softmax_back(graph: Graph, each: Tensor, grad: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Gradients of the scores, ``(E, heads)``, and of the queries, from ``scale`` times that of every head."""
    slope, grad_q = each.new_empty(each.shape), k.new_empty(k.shape)
    _by_row("softmax_back", graph, False, k, (each, grad, k, slope, grad_q), each.shape[1], SCALE=scale)
    return slope, grad_q


def softmax_keys(graph: Graph, slope: Tensor, q: Tensor) -> Tensor:
    """Gradient of the keys from that of the scores."""
    grad_k = q.new_empty(q.shape)
    _by_row("softmax_keys", graph, True, q, (slope, q, grad_k), slope.shape[1])
    return grad_k


def _by_row(
    name: str, graph: Graph, by_source: bool, rows: Tensor, given: tuple[Any, ...], heads: int = 0, **sizes: Any
) -> None:
    """Launch a kernel for all targets or all sources: a warp each, and several where there are very many edges."""
    if heads:
        dim = rows.shape[1] // heads
        given, sizes = (*given, heads, dim), sizes | {"HEADS": _power(heads), "DIM": _power(dim)}
    kernel = getattr(_kernels(rows.device.type), name)
    edges = max(1, min(16, TILE // (_power(rows.shape[1]) * rows.element_size())))
    rowptr, col = (graph.rowptr_t, graph.col_t) if by_source else (graph.rowptr, graph.col)
    given = tuple(v.contiguous() if isinstance(v, Tensor) else v for v in given)
    crowded = graph.crowded[by_source]
    order, options = (rowptr, col, graph.perm), sizes | {"enable_fp_fusion": True}
    with torch.cuda.device_of(rows):
        most = (rowptr, csr.CROWDED)
        kernel[(graph.num_nodes,)](*order, *most, *given, LISTED=False, EDGES=edges, num_warps=1, **options)
        if crowded is not None:
            most, edges = (crowded, 2**31 - 1), WARPS * edges
            kernel[(len(crowded),)](*order, *most, *given, LISTED=True, EDGES=edges, num_warps=WARPS, **options)


def _power(n: int) -> int:
    """The power of two that holds ``n``."""
    return 1 << (n - 1).bit_length()


@cache
def _kernels(device: str) -> Any:
    """The kernels; None without Triton or a GPU."""
    if device != "cuda":
        return None
    try:
        from neuralfde.models import kernels
    except ImportError:
        return None
    return kernels
