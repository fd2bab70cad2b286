"""Graph attention diffusion whose memory is nodes × features plus edges × heads, forward and backward.

The usual gather–multiply–scatter holds one row of features for every edge. Here every sum over edges is a sparse matrix
product and every score a sampled one, so that the largest tensors are the state itself and one number per edge and
head. The gradients are written out, because each is again one of the two products:

    y = A x            ȳ given:   x̄ = Aᵀ ȳ            w̄_e = <ȳ_i, x_j>
    s_e = <q_i, k_j>   s̄ given:   q̄ = A(s̄) k          k̄ = A(s̄)ᵀ q

Edges run from source ``j`` to target ``i``; see :class:`neuralfde.models.csr.Graph` for their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from neuralfde.errors import InputError, nearest
from neuralfde.models import fused
from neuralfde.models.csr import Graph, row_sum, sddmm, spmm, working_dtype
from neuralfde.models.softmax_attention import is_usual, mean_by_kernel, softmax_, softmax_attention, softmax_back

__all__ = ["Graph", "aggregate", "attention", "edge_scores", "edge_softmax", "edge_squareplus"]


def aggregate(graph: Graph, weight: Tensor, x: Tensor) -> Tensor:
    """Sum the sources' features into each target: ``y_i = Σ_{e = (j -> i)} weight_e x_j``.

    Args:
        graph: the edges.
        weight: one weight per edge, in the graph's order.
        x: one row of features per node.

    Shapes:
        weight ``(E,)``, x ``(N, F)``, result ``(N, F)``.
    """
    if weight.shape != (graph.num_edges,):
        raise InputError(f"weight has shape {tuple(weight.shape)}; it needs one value per edge: ({graph.num_edges},).")
    if x.dim() != 2 or x.shape[0] != graph.num_nodes:
        raise InputError(f"x has shape {tuple(x.shape)}; it needs one row per node: ({graph.num_nodes}, features).")
    return _Aggregate.apply(graph, weight, x)


def edge_scores(
    graph: Graph,
    q: Tensor,
    k: Tensor,
    kind: str = "scaled_dot",
    *,
    lengthscale: Tensor | float = 1.0,
    variance: Tensor | float = 1.0,
) -> Tensor:
    """Attention score of each edge ``j -> i`` and head, from the target's query and the source's key.

    Chamberlain et al., "GRAND: Graph Neural Diffusion", ICML 2021:

        scaled_dot   <q_i, k_j> / sqrt(D)
        cosine       <q_i, k_j> / (|q_i| |k_j|)
        pearson      the same of q_i and k_j less their means over D
        exp_kernel   variance² exp(-|q_i - k_j|² / (2 lengthscale²))

    Half the squared distance, negated, is the inner product of ``[q, -|q|²/2, 1]`` and ``[k, 1, -|k|²/2]``, so the last
    kind costs what the first does with two more features.

    Args:
        graph: the edges.
        q, k: queries and keys.
        kind: one of the names above.
        lengthscale, variance: of the exponential kernel only; tensors get gradients.

    Shapes:
        q, k ``(N, H, D)``, result ``(E, H)``, float32 or better.
    """
    if q.shape != k.shape or q.dim() != 3 or q.shape[0] != graph.num_nodes:
        raise InputError(
            f"q has shape {tuple(q.shape)} and k {tuple(k.shape)}; both must be ({graph.num_nodes}, heads, dim)."
        )
    q, k = q.to(working_dtype(q)), k.to(working_dtype(k))
    if kind == "scaled_dot":
        return _EdgeDots.apply(graph, q, k, 1.0 / math.sqrt(q.shape[2]))
    if kind == "pearson":
        q, k = (v - v.mean(2, keepdim=True) for v in (q, k))
    if kind in ("cosine", "pearson"):
        return _EdgeDots.apply(graph, F.normalize(q, dim=2, eps=1e-5), F.normalize(k, dim=2, eps=1e-5), 1.0)
    if kind == "exp_kernel":
        half_q, half_k = (-0.5 * v.square().sum(2, keepdim=True) for v in (q, k))
        one = torch.ones_like(half_q)
        exponent = _EdgeDots.apply(graph, torch.cat([q, half_q, one], 2), torch.cat([k, one, half_k], 2), 1.0)
        return variance**2 * torch.exp(exponent / lengthscale**2)
    raise InputError(f"kind={kind!r} is no attention score. {nearest(kind, SCORES)}")


def edge_softmax(graph: Graph, scores: Tensor) -> Tensor:
    """Softmax of the scores over each target's incoming edges: ``exp(s_e - m_i) / Σ_{e'} exp(s_e' - m_i)``.

    Shapes:
        scores ``(E, H)`` or ``(E,)``, result the same.
    """
    return _per_head(graph, scores, _EdgeSoftmax.apply)


def edge_squareplus(graph: Graph, scores: Tensor) -> Tensor:
    """Squareplus of the scores, divided by its sum over each target's incoming edges, as GRAND does.

    With ``o = s - max(s)``, the maximum being over all edges and heads, the numerator is ``(o + sqrt(o² + 4)) / 2``,
    written here as ``2 / (sqrt(o² + 4) - o)``: the same for ``o <= 0`` without cancellation, so no row sums to zero.
    Unlike a softmax the result does depend on the maximum, and its gradient flows through it.

    Shapes:
        scores ``(E, H)`` or ``(E,)``, result the same.
    """
    shifted = scores - scores.max()
    positive = 2.0 / (torch.sqrt(shifted.square() + 4.0) - shifted)
    return _per_head(graph, positive, _RowNormalise.apply)


NORMALISERS: dict[str, Callable[[Graph, Tensor], Tensor]] = {"softmax": edge_softmax, "squareplus": edge_squareplus}
"""Names of ``normalise``; a function of (graph, scores) is accepted in place of a name."""


OVER = ("target", "source", "both")
SCORES = ("scaled_dot", "cosine", "pearson", "exp_kernel")


def attention(
    graph: Graph,
    x: Tensor | Sequence[Tensor],
    wq: Tensor,
    bq: Tensor | None,
    wk: Tensor,
    bk: Tensor | None,
    heads: int,
    kind: str = "scaled_dot",
    normalise: str | Callable[[Graph, Tensor], Tensor] = "softmax",
    over: str = "target",
    keep: str = "all",
    **kernel: Tensor | float,
) -> Tensor:
    """Normalised multi-head attention, averaged over heads: the weights of :func:`aggregate`.

    GRAND's ``A(Z)_{ij} = 1/H Σ_h normalise_i(score((W_q z_i)_h, (W_k z_j)_h))`` over the edges and self loops. The
    weights that reach a target add up to 1; with ``over="source"`` those that leave a source do, as GRAND has it for
    some graphs (its ``attention_norm_idx=1``). ``over="both"`` is the geometric mean of the two, which for equal scores
    is the symmetric ``1 / sqrt(d_i d_j)`` that FROND takes where there is no attention.

    Args:
        graph: the edges.
        x: node features; several blocks of columns stand for one matrix.
        wq, bq, wk, bk: weights and biases of the query and key maps, as of :class:`torch.nn.Linear`.
        heads: number of heads H; it divides the width of the maps.
        kind: the score, see :func:`edge_scores`.
        normalise: ``"softmax"``, ``"squareplus"`` or a function of (graph, scores).
        over: ``"target"`` or ``"source"``: whose weights add up to 1; or ``"both"``.
        keep: what the backward pass finds beside ``x`` (softmax of scaled dots only): ``"all"``, the ``"weights"`` of
            all heads, or ``"nothing"``; the rest is computed again there.
        kernel: ``lengthscale`` and ``variance`` of the exponential kernel.

    Shapes:
        x ``(N, F)``, wq and wk ``(H·D, F)``, bq and bk ``(H·D,)``, result ``(E,)``.
    """
    if isinstance(normalise, str) and normalise not in NORMALISERS:
        raise InputError(f"normalise={normalise!r} is unknown. {nearest(normalise, NORMALISERS)}")
    if heads < 1 or wq.shape[0] % heads:
        raise InputError(f"heads={heads} does not divide the attention width {wq.shape[0]}. Change one of the two.")
    if over == "source":  # the same on the graph turned round, where sources are targets and keys are queries
        turned = attention(graph.transposed, x, wk, bk, wq, bq, heads, kind, normalise, "target", keep, **kernel)
        return turned.index_select(0, graph.transposed.perm)
    if over == "both":
        a, b = (attention(graph, x, wq, bq, wk, bk, heads, kind, normalise, o, keep, **kernel) for o in OVER[:2])
        return between(a, b)
    if over != "target":
        raise InputError(f"over={over!r} is unknown. {nearest(over, OVER)}")
    parts = [x] if isinstance(x, Tensor) else list(x)
    if is_usual(wq, kind, normalise):
        return softmax_attention(graph, parts, (wq, bq, wk, bk), heads, keep)[0]
    x = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    q = F.linear(x, wq, bq).view(graph.num_nodes, heads, -1)
    k = F.linear(x, wk, bk).view(graph.num_nodes, heads, -1)
    function = NORMALISERS[normalise] if isinstance(normalise, str) else normalise
    return function(graph, edge_scores(graph, q, k, kind, **kernel)).mean(1)


def mean_softmax(graph: Graph, q: Tensor, k: Tensor) -> Tensor:
    """:func:`edge_softmax` of scaled dots, averaged over heads, ``(E,)``, from ``q`` and ``k`` ``(N, H, D)``."""
    if fused.usable(q.flatten(1), k):
        return mean_by_kernel(graph, q, k)
    return edge_softmax(graph, edge_scores(graph, q, k)).mean(1)


def between(a: Tensor, b: Tensor) -> Tensor:
    """The geometric mean of two weights, with a slope of zero where it vanishes."""
    return (a * b).clamp_min(1e-30).sqrt()


def sums_of(bags: Graph, values: Tensor, table: Tensor) -> Tensor:
    """``x`` times ``table`` for the features of :func:`neuralfde.models.csr.bags_of`, with empty rows at the end."""
    return aggregate(bags, values, F.pad(table, (0, 0, 0, bags.num_nodes - table.shape[0])))


def _per_head(graph: Graph, values: Tensor, function: Callable[[Graph, Tensor], Tensor]) -> Tensor:
    """Apply a map of ``(E, H)`` to ``(E, H)`` or ``(E,)``."""
    if values.dim() not in (1, 2) or values.shape[0] != graph.num_edges:
        raise InputError(
            f"scores have shape {tuple(values.shape)}; they must be ({graph.num_edges},) or ({graph.num_edges}, heads)."
        )
    return function(graph, values[:, None])[:, 0] if values.dim() == 1 else function(graph, values)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(graph: Graph, weight: Tensor, x: Tensor) -> Tensor:
        return spmm(graph, weight, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.graph, weight, x = inputs
        # What the backward pass will not read is not kept: without a weight gradient (GRAND-l) x is free to go.
        _, for_weight, for_x = ctx.needs_input_grad
        ctx.save_for_backward(weight if for_x else None, x if for_weight else None)
        ctx.dtype = weight.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        grad = grad.contiguous()
        grad_weight = sddmm(ctx.graph, grad, x).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        grad_x = spmm(ctx.graph, weight, grad, transposed=True) if ctx.needs_input_grad[2] else None
        return None, grad_weight, grad_x


class _EdgeDots(torch.autograd.Function):
    @staticmethod
    def forward(graph: Graph, q: Tensor, k: Tensor, scale: float) -> Tensor:
        out = torch.empty(graph.num_edges, q.shape[1], dtype=q.dtype, device=q.device)
        for h in range(q.shape[1]):
            out[:, h] = sddmm(graph, q[:, h].contiguous(), k[:, h].contiguous())
        return out.mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.graph, q, k, ctx.scale = inputs
        ctx.save_for_backward(q, k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        grad_q, grad_k = torch.empty_like(q), torch.empty_like(k)
        for h in range(q.shape[1]):
            score_grad = grad[:, h] * ctx.scale
            grad_q[:, h] = spmm(ctx.graph, score_grad, k[:, h].contiguous())
            grad_k[:, h] = spmm(ctx.graph, score_grad, q[:, h].contiguous(), transposed=True)
        return None, grad_q, grad_k, None


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(graph: Graph, scores: Tensor) -> Tensor:
        return softmax_(graph, scores.clone())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.graph = inputs[0]
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return None, softmax_back(ctx.graph, weight, grad)


class _RowNormalise(torch.autograd.Function):
    @staticmethod
    def forward(graph: Graph, positive: Tensor) -> Tensor:
        return positive / row_sum(graph, positive).index_select(0, graph.row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.graph, positive = inputs
        ctx.save_for_backward(positive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (positive,) = ctx.saved_tensors
        total = row_sum(ctx.graph, positive)
        mean = row_sum(ctx.graph, positive * grad).div_(total)
        row = ctx.graph.row
        return None, (grad - mean.index_select(0, row)).div_(total.index_select(0, row))
