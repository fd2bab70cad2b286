"""Batches of a large graph: induced subgraphs on random nodes, without compiled extensions.

After Zeng et al., "GraphSAINT: Graph sampling based inductive learning method", ICLR 2020. Two things differ. A batch
has exactly ``batch_size`` distinct nodes (fewer only if the graph or what the walks reach is smaller), so that memory
is comparable from batch to batch; and the loss is not reweighted by sampling frequencies.

Batch ``b`` of epoch ``e`` depends only on ``(seed, e, b)``. With ``rank`` and ``world`` the batches are distributed in
turn, so that several processes together see what one process sees.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neuralfde.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data


class _Sampler(ABC):
    """Iterates over induced subgraphs; a concrete sampler chooses the nodes.

    Args:
        data: the whole graph, undirected, on the CPU.
        batch_size: nodes per batch.
        batches: batches per epoch, over all processes; default: enough to cover the number of nodes once.
        seed: determines the sequence of batches.
        rank, world: the index of this process, and the number of processes.

    Yields:
        torch_geometric ``Data`` with the rows of every per-node tensor, ``edge_index`` among the batch's own nodes, and
        ``node_index``, the indices of the nodes in the whole graph, ascending.
    """

    def __init__(
        self, data: Data, batch_size: int, *, batches: int | None = None, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} must be at least 1.")
        if not 0 <= rank < world:
            raise InputError(f"rank={rank} must lie between 0 and world - 1 = {world - 1}.")
        self.data, self.nodes = data, int(data.num_nodes)
        self.batch_size = min(batch_size, self.nodes)
        self.batches = math.ceil(self.nodes / self.batch_size) if batches is None else batches
        self.seed, self.epoch, self.rank, self.world = seed, 0, rank, world
        source, target = data.edge_index
        ordered = bool((source[1:] >= source[:-1]).all())
        self.col = target if ordered else target[torch.argsort(source * self.nodes + target)]
        self.degree = torch.bincount(source, minlength=self.nodes)
        self.rowptr = torch.cat([self.degree.new_zeros(1), self.degree.cumsum(0)])
        self._local = torch.full((self.nodes,), -1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; each iteration then advances by one."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(range(self.rank, self.batches, self.world))

    def __iter__(self) -> Iterator[Data]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        for batch in range(self.rank, self.batches, self.world):
            draw = torch.Generator().manual_seed(_mix(self.seed, epoch, batch))
            yield self.subgraph(self.draw(draw).sort().values)

    @abstractmethod
    def draw(self, draw: torch.Generator) -> Tensor:
        """Distinct nodes of one batch, in any order."""

    def subgraph(self, nodes: Tensor) -> Data:
        """The graph induced on ``nodes``, distinct and ascending."""
        local, degree = self._local, self.degree[nodes]
        local[nodes] = torch.arange(len(nodes))
        source = torch.repeat_interleave(torch.arange(len(nodes)), degree)
        shift = self.rowptr[nodes] - (degree.cumsum(0) - degree)
        target = local[self.col[torch.arange(len(source)) + shift[source]]]
        local[nodes] = -1
        inside = target >= 0
        out = self.data.__class__(edge_index=torch.stack([source[inside], target[inside]]), node_index=nodes)
        for key, value in self.data.to_dict().items():
            if key != "edge_index":
                per_node = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.nodes
                out[key] = value[nodes] if per_node else value
        return out


def _mix(*numbers: int) -> int:
    """A 32-bit seed from several numbers: torch's CPU generator uses no more bits."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "big")


class NodeSampler(_Sampler):
    """Nodes drawn without replacement with probability proportional to their degree (self loop counted)."""

    def draw(self, draw: torch.Generator) -> Tensor:
        """See :class:`_Sampler`. Exponential clocks: the first to ring are a weighted draw without replacement."""
        clock = torch.empty(self.nodes).exponential_(generator=draw) / (self.degree + 1)
        return clock.topk(self.batch_size, largest=False, sorted=False).indices


class RandomWalkSampler(_Sampler):
    """Nodes visited by random walks of ``walk_length`` steps from random roots, until there are ``batch_size``."""

    ROUNDS = 64

    def __init__(self, data: Data, batch_size: int, *, walk_length: int = 2, **others: int) -> None:
        super().__init__(data, batch_size, **others)
        self.walk_length = walk_length

    def draw(self, draw: torch.Generator) -> Tensor:
        """See :class:`_Sampler`. A last round that finds too many keeps a random part of its own."""
        seen, count = torch.zeros(self.nodes, dtype=torch.bool), 0
        for _ in range(self.ROUNDS):
            need = self.batch_size - count
            roots = max(1, math.ceil(need / (self.walk_length + 1)))
            visited = torch.unique(self._walk(torch.randint(self.nodes, (roots,), generator=draw), draw))
            fresh = visited[~seen[visited]]
            if len(fresh) > need:
                fresh = fresh[torch.randperm(len(fresh), generator=draw)[:need]]
            seen[fresh] = True
            count += len(fresh)
            if count == self.batch_size:
                break
        return seen.nonzero()[:, 0]

    def _walk(self, node: Tensor, draw: torch.Generator) -> Tensor:
        """All nodes on walks from ``node``; a walk stays at a node without edges."""
        path = [node]
        for _ in range(self.walk_length):
            degree = self.degree[node]
            step = (torch.rand(len(node), generator=draw, dtype=torch.float64) * degree).long()
            at = (self.rowptr[node] + step).clamp_(max=max(0, len(self.col) - 1))
            node = torch.where(degree > 0, self.col[at], node) if len(self.col) else node
            path.append(node)
        return torch.cat(path)
