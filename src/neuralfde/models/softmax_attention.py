"""Softmax attention of scaled dots over the edges of a graph, its gradients written out; the only kind with kernels.

:mod:`.message_passing` has the formula, and all other kinds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from neuralfde.models import fused
from neuralfde.models.csr import Graph, row_max, row_sum, sddmm, spmm, working_dtype


def is_usual(wq: Tensor, kind: str, normalise: Any) -> bool:
    """Whether attention is a softmax of scaled dots in a precision that sums over edges are made in."""
    usual = kind == "scaled_dot" and normalise == "softmax" and wq.dtype == working_dtype(wq)
    return usual and not torch.is_autocast_enabled(wq.device.type)


def softmax_attention(
    graph: Graph,
    parts: Sequence[Tensor],
    maps: Sequence[Tensor | None],
    heads: int,
    keep: str,
    known: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The usual attention, and the state for what comes next: that one's gradient takes in attention's, in place.

    The state is made of ``parts``, blocks of columns; only one part is given back. ``known`` holds what one call has
    kept for the next one on the same state.
    """
    found = tuple(known or ())
    weight, through, *kept = _SoftmaxAttention.apply(graph, heads, keep, found, *maps, *parts)
    if known is not None:
        known[:] = [] if found else kept
    return weight, through


def mean_by_kernel(graph: Graph, q: Tensor, k: Tensor) -> Tensor:
    """The mean over heads, ``(E,)``, from queries and keys ``(N, H, D)``, where :func:`.fused.usable` says so."""
    return _MeanSoftmax.apply(graph, q.shape[1], q.flatten(1), k.flatten(1))


class _SoftmaxAttention(torch.autograd.Function):
    """The usual attention in one piece, head by head: beside the weights of all heads little is alive at once.

    Where there are kernels for it, all heads are taken together, unless nothing is to be kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        graph: Graph,
        heads: int,
        keep: str,
        known: Sequence[Tensor],
        wq: Tensor,
        bq: Tensor | None,
        wk: Tensor,
        bk: Tensor | None,
        *parts: Tensor,
    ) -> tuple[Tensor | None, ...]:
        kept, maps, weight = list(known), (wq, bq, wk, bk), None
        group = heads if keep != "nothing" and fused.usable(wq.t(), *parts) else 1
        share = group / heads
        for n, h in enumerate(range(0, heads, group)):
            if known:
                own = known[n * len(known) * group // heads]
                mean = own if own.dim() == 1 else own.mean(1)
            else:
                q, k = (_of_heads(parts, *m, slice(h, h + group), heads) for m in ((wq, bq), (wk, bk)))
                own, mean = _head_weights(graph, q, k, group)
                kept += {"all": [own, q, k], "weights": [own], "nothing": []}[keep]
                del q, k  # or they would live until the next head has its own
            weight = mean * share if weight is None else weight.add_(mean, alpha=share)
        ctx.graph, ctx.heads, ctx.group, ctx.parts = graph, heads, group, len(parts)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*maps, *parts, *kept)
        return weight, parts[0].view_as(parts[0]) if len(parts) == 1 else None, *kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, through: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None, None, None, through, *[None] * (ctx.parts - 1)
        wq, bq, wk, bk, *rest = ctx.saved_tensors
        parts, kept = rest[: ctx.parts], rest[ctx.parts :]
        graph, heads, group = ctx.graph, ctx.heads, ctx.group
        maps, width = (wq, wk), wq.shape[0] // heads
        grads, biases = [torch.empty_like(w) for w in maps], [torch.empty_like(w[:, 0]) for w in maps]
        places = _columns(parts)
        grad_parts: list[Any] = [None] * len(parts)
        if ctx.needs_input_grad[8]:
            grad_parts = [torch.zeros_like(p) for p in parts] if through is None else [through]
        each = len(kept) * group // heads
        for n, h in enumerate(range(0, heads, group)):
            own, *pair = kept[n * each : (n + 1) * each] or [None]
            some, rows = slice(h, h + group), slice(h * width, (h + group) * width)
            if own is None:
                pair = [_of_heads(parts, *m, some, heads) for m in ((wq, bq), (wk, bk))]
                own = _head_weights(graph, pair[0], pair[1], group)[0]
            q, k = pair or (None, _of_heads(parts, wk, bk, some, heads))
            scores, part = _query_grads(graph, own, grad, k, 1.0 / (math.sqrt(width) * heads))
            del own, pair, k  # or they would live until the next head has its own
            for i, w in enumerate(maps):
                if i == 1:
                    part = _key_grads(graph, scores, _of_heads(parts, wq, bq, some, heads) if q is None else q)
                torch.sum(part, 0, out=biases[i][rows])
                for x, place, grad_x in zip(parts, places, grad_parts, strict=True):
                    grads[i][rows, place] = part.t() @ x
                    if grad_x is not None:
                        grad_x.addmm_(part, w[rows, place])
                del part
            del q, scores
        bias_q, bias_k = (None if b is None else g for b, g in zip((bq, bk), biases, strict=True))
        return None, None, None, None, grads[0], bias_q, grads[1], bias_k, *grad_parts


class _MeanSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, heads: int, q: Tensor, k: Tensor) -> Tensor:
        each, mean = fused.softmax(graph, q, k, heads)
        ctx.graph = graph
        ctx.save_for_backward(each, q, k)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        each, q, k = ctx.saved_tensors
        scores, grad_q = fused.softmax_back(ctx.graph, each, grad, k, 1.0 / math.sqrt(q.shape[1] * each.shape[1]))
        return None, None, grad_q, fused.softmax_keys(ctx.graph, scores, q)


def _columns(parts: Sequence[Tensor]) -> list[slice]:
    """Where these blocks of columns are in the whole matrix."""
    ends = [0, *itertools.accumulate(p.shape[1] for p in parts)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def _of_heads(parts: Sequence[Tensor], w: Tensor, b: Tensor | None, some: slice, heads: int) -> Tensor:
    """Queries or keys of some heads, from blocks of columns and the map that makes them."""
    width, (first, *others) = w.shape[0] // heads, _columns(parts)
    rows = slice(some.start * width, some.stop * width)
    out = F.linear(parts[0], w[rows, first], None if b is None else b[rows])
    for x, place in zip(parts[1:], others, strict=True):
        out.addmm_(x, w[rows, place].t())
    return out


def _head_weights(graph: Graph, q: Tensor, k: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention of each head, ``(E, heads)`` from kernels, else of one, ``(E,)``; and its mean over heads."""
    if fused.usable(q, k):
        return fused.softmax(graph, q, k, heads)
    own = softmax_(graph, sddmm(graph, q, k).mul_(1.0 / math.sqrt(q.shape[1]))[:, None])[:, 0]
    return own, own


def _query_grads(graph: Graph, own: Tensor, grad: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Gradients of scores and queries from ``scale`` times that of the attention :func:`_head_weights` gave."""
    if own.dim() == 2:
        return fused.softmax_back(graph, own, grad, k, scale)
    scores = softmax_back(graph, own[:, None], grad[:, None])[:, 0].mul_(scale)
    return scores, spmm(graph, scores, k)


def _key_grads(graph: Graph, scores: Tensor, q: Tensor) -> Tensor:
    """Gradients of the keys from those of the scores."""
    return fused.softmax_keys(graph, scores, q) if scores.dim() == 2 else spmm(graph, scores, q, transposed=True)


def softmax_(graph: Graph, scores: Tensor) -> Tensor:
    """Softmax of scores ``(E, H)`` over each target's edges, in place."""
    scores.sub_(row_max(graph, scores).index_select(0, graph.row)).exp_()
    return scores.div_(row_sum(graph, scores).index_select(0, graph.row))


def softmax_back(graph: Graph, weight: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the scores from that of their softmax ``weight``, all ``(E, H)``."""
    product = weight * grad
    mean = row_sum(graph, product).index_select(0, graph.row)
    return product.sub_(mean.mul_(weight))
