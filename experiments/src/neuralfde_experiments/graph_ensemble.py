"""Several F-GRAND models of one shape side by side: one solve for all of them, each with its own weights.

Small graphs leave a GPU idle between kernels. ``S`` members on ``S`` copies of the graph are one state of ``S N`` rows,
so that each kernel does the work of all members; their parameters are stacked and their gradients stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neuralfde.errors import InputError
from neuralfde.models.csr import Kept, bags_of
from neuralfde.models.diffusion import diffuse
from neuralfde.models.graph import FGrand
from neuralfde.models.message_passing import (
    Graph,
    between,
    edge_scores,
    edge_softmax,
    edge_squareplus,
    mean_softmax,
    sums_of,
)
from neuralfde.nn import FDEBlock

if TYPE_CHECKING:
    from torch_geometric.data import Data


def stacked(name: str, members: Sequence[nn.Module]) -> nn.Parameter:
    """The parameter ``name`` of every member, stacked first."""
    return nn.Parameter(torch.stack([m.get_parameter(name).detach() for m in members]))


def drop(x: Tensor, p: float | Tensor, training: bool) -> Tensor:
    """Dropout of ``x`` (S, …) with one probability, or with one for each member: ``(S,)``."""
    if not isinstance(p, Tensor):
        return F.dropout(x, p, training)
    if not training:
        return x
    p = p.view(-1, *[1] * (x.dim() - 1))
    return x * (torch.rand_like(x) >= p) / (1 - p)


class _Norm(nn.Module):
    """The members' batch norms: one over their features side by side."""

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self.weight, self.bias = stacked("weight", members), stacked("bias", members)
        self.register_buffer("mean", torch.cat([m.running_mean for m in members]))
        self.register_buffer("var", torch.cat([m.running_var for m in members]))

    def forward(self, z: Tensor) -> Tensor:
        """``z`` is (S, N, F)."""
        wide, running = z.transpose(0, 1).flatten(1), (self.get_buffer("mean"), self.get_buffer("var"))
        wide = F.batch_norm(wide, *running, self.weight.flatten(), self.bias.flatten(), self.training)
        return wide.view(z.shape[1], len(z), -1).transpose(0, 1).contiguous()


class _Attention(nn.Module):
    """See :class:`neuralfde.models.graph.EdgeAttention`; every tensor has a first axis of members."""

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        first = members[0]
        self.heads, self.kind, self.normalise, self.over = first.heads, first.kind, first.normalise, first.over
        self.query, self.query_bias = stacked("query.weight", members), stacked("query.bias", members)
        self.key, self.key_bias = stacked("key.weight", members), stacked("key.bias", members)
        if self.kind == "exp_kernel":
            self.lengthscale, self.variance = stacked("lengthscale", members), stacked("variance", members)

    def forward(self, graph: Graph, z: Tensor) -> Tensor:
        """``z`` is (S, N, F); edges come member by member."""
        q, k = self.maps(graph, z)
        found = []
        if self.over != "source":
            found.append(self.weights(graph, q, k, len(z)))
        if self.over != "target":
            turned = self.weights(graph.transposed, k, q, len(z))
            found.append(turned.index_select(0, graph.transposed.perm))
        return found[0] if len(found) == 1 else between(*found)

    def maps(self, graph: Graph, z: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys."""
        q = torch.baddbmm(self.query_bias[:, None], z, self.query.mT).view(graph.num_nodes, self.heads, -1)
        k = torch.baddbmm(self.key_bias[:, None], z, self.key.mT).view(graph.num_nodes, self.heads, -1)
        return q, k

    def weights(self, graph: Graph, q: Tensor, k: Tensor, members: int) -> Tensor:
        """Attention of each target over its edges."""
        if self.kind == "scaled_dot" and self.normalise == "softmax":
            return mean_softmax(graph, q, k)
        if self.kind == "exp_kernel":
            each = graph.num_nodes // members
            length, variance = (v.repeat_interleave(each)[:, None, None] for v in (self.lengthscale, self.variance))
            # variance² exp(-d² / 2 length²) with the length scale taken into queries and keys
            scores = edge_scores(graph, q / length, k / length, self.kind)
            scores = scores * variance[graph.row.long(), :, 0] ** 2
        else:
            scores = edge_scores(graph, q, k, self.kind)
        if self.normalise == "softmax":
            return edge_softmax(graph, scores).mean(1)
        # squareplus depends on the largest score, which is each member's own; zero is then the largest of all
        apart = scores.view(members, -1, self.heads)
        top = apart.flatten(1).amax(1)[:, None, None]
        return edge_squareplus(graph, (apart - top).view_as(scores)).mean(1)


class _Diffusion(nn.Module):
    """See :class:`neuralfde.models.graph.Diffusion`."""

    def __init__(self, members: Sequence[Any], attention: _Attention | None) -> None:
        super().__init__()
        self.attention = attention
        self.a = stacked("a", members)
        self.b = stacked("b", members) if members[0].b is not None else None

    def forward(self, t: Tensor, z: Tensor, graph: Graph, weight: Tensor | None, z0: Tensor | None) -> Tensor:
        """``z`` is (S, N, F)."""
        if self.attention is not None:
            weight = self.attention(graph, z)
        assert weight is not None
        flat, rate = z.reshape(graph.num_nodes, -1), torch.sigmoid(self.a)
        source = None if self.b is None or z0 is None else z0.reshape(graph.num_nodes, -1)
        return diffuse(graph, weight, flat, rate, source, self.b).view_as(z)


class FGrandEnsemble(nn.Module):
    """``S`` models trained at once. Dropout is drawn for each; a sum of their losses keeps their gradients apart.

    Args:
        members: :class:`FGrand` models that differ in nothing but their weights, orders and dropout; if orders are
            learned, each member learns its own.

    Shapes:
        as :class:`FGrand`, and the result is ``(S, N, classes)``.
    """

    def __init__(self, members: Sequence[FGrand]) -> None:
        super().__init__()
        first, block = members[0], members[0].block
        kinds = {(m.block.t, m.block.learn_order, repr(m.block.options)) for m in members}
        if len(kinds) > 1 or any(m.columns or m.recompute for m in members):
            raise InputError(
                "members of an ensemble have the same settings but for order and dropout, and whole columns."
            )
        self.size, self.variant, self.source, self.loops = len(members), first.variant, first.source, first.loops
        self.shared: dict[str, float | None] = {}
        for name in ("input_dropout", "node_dropout", "dropout"):
            each = [float(getattr(m, name)) for m in members]
            self.shared[name] = each[0] if len(set(each)) == 1 else None
            self.register_buffer(name, torch.tensor(each), persistent=False)
        self.encoder, self.encoder_bias = stacked("encoder.weight", members), stacked("encoder.bias", members)
        self.decoder, self.decoder_bias = stacked("decoder.weight", members), stacked("decoder.bias", members)
        self.norm = None if first.norm is None else _Norm([m.norm for m in members])
        inner: list[Any] = [m.block.func for m in members]
        parts = [m.attention if first.variant == "l" else f.attention for m, f in zip(members, inner, strict=True)]
        attention = _Attention(parts)
        self.attention = attention if first.variant == "l" else None
        func = _Diffusion(inner, None if first.variant == "l" else attention)
        orders = torch.stack([m.order.detach() for m in members]).view(-1, 1, 1)
        order = orders if block.learn_order or len(orders.unique()) > 1 else float(orders[0])
        self.block = FDEBlock(func, order=order, learn_order=block.learn_order, t=block.t, **block.options)
        if block.learn_order:  # the members' own numbers, to the last digit
            raw = torch.stack([m.block.raw_order.detach() for m in members])
            self.block.raw_order = nn.Parameter(raw.view(-1, 1, 1))
        self._prepared, self._bags = Kept(), Kept()

    def rate(self, name: str) -> float | Tensor:
        """The probability of one of the dropouts that all members share, or each member's own, ``(S,)``."""
        shared = self.shared[name]
        return self.get_buffer(name) if shared is None else shared

    @property
    def order(self) -> Tensor:
        """The order β of each member, ``(S,)``."""
        order = self.block.order
        assert isinstance(order, Tensor)
        return order.reshape(-1).expand(self.size)

    def forward(self, data: Data) -> Tensor:
        """Logits of every member and node."""
        graph = self.prepare(data.edge_index, data.x.shape[0])
        z = self.encode(data.x)
        weight = None if self.attention is None else self.attention(graph, z)
        z = self.block(z, graph, weight, (z.detach() if self.source == "held" else z) if self.source else None)
        z = drop(F.relu(z), self.rate("dropout"), self.training)
        return torch.baddbmm(self.decoder_bias[:, None], z, self.decoder.mT)

    def encode(self, x: Tensor) -> Tensor:
        """``Z_0`` of every member, (S, N, F)."""
        nodes, features = x.shape
        if not x.is_sparse:
            dropped = drop(x.expand(self.size, nodes, features), self.rate("input_dropout"), self.training)
            return self.normed(torch.baddbmm(self.encoder_bias[:, None], self.drop_nodes(dropped), self.encoder.mT))
        bags, entries = self._bags.of(x, bags_of, self.size)
        values = drop(entries, self.rate("input_dropout"), self.training).reshape(-1)
        sums = sums_of(bags, values, self.encoder.mT.reshape(self.size * features, -1))
        each = sums[: self.size * nodes].view(self.size, nodes, -1)
        return self.normed(self.drop_nodes(each) + self.encoder_bias[:, None])

    def normed(self, z: Tensor) -> Tensor:
        """``z``, or its batch norm where the members have one."""
        return z if self.norm is None else self.norm(z)  # type: ignore[no-any-return]

    def drop_nodes(self, x: Tensor) -> Tensor:
        """See :class:`FGrand`; each member draws its own."""
        rate = self.rate("node_dropout")
        if isinstance(rate, float) and rate == 0:
            return x
        return x * drop(x.new_ones(*x.shape[:2], 1), rate, self.training)

    def prepare(self, edge_index: Tensor, nodes: int) -> Graph:
        """See ``copies``; kept for the next call with the same ``edge_index``."""
        return self._prepared.of(edge_index, self.copies, nodes)

    def copies(self, edge_index: Tensor, nodes: int) -> Graph:
        """``S`` copies of the graph side by side."""
        shift = nodes * torch.arange(self.size, device=edge_index.device)[:, None]
        copies = torch.stack([(edge_index[k] + shift).view(-1) for k in range(2)])
        return Graph.from_edge_index(copies, self.size * nodes, self.loops)
