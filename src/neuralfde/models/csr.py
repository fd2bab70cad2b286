"""A graph as compressed sparse rows, and the three products every message-passing operation is made of.

``A`` has one row for each target node: ``A[i, j]`` is the weight of the edge ``j -> i``. The products are

- :func:`spmm`     ``y = A x`` or ``Aᵀ x``;
- :func:`sddmm`    ``s_e = <u_i, v_j>`` for every edge ``e = (j -> i)``;
- :func:`row_sum`, :func:`row_max` over each target's incoming edges.

Each has a sparse-library path (MKL, cuSPARSE) and a plain path in chunks of edges; neither ever holds a tensor of
edges × features.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from neuralfde.errors import InputError, InputTypeError

_T = TypeVar("_T")

CHUNK_BYTES = 32 * 2**20
"""Most bytes of gathered rows alive at once in the plain path."""
CROWDED = 512
"""Edges of one node from which on a GPU has several warps for it."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph, usually with one self loop at every node, by target and by source.

    Edges are sorted by target, then by source; a tensor "per edge" anywhere in this package follows that order, which
    :attr:`edge_index` spells out. Indices are int32 whenever they fit: half the memory, and the faster path of MKL.

    Args:
        num_nodes: number of nodes N.
        rowptr: ``(N + 1,)``, where each target's edges start.
        col: ``(E,)``, the source of each edge.
        row: ``(E,)``, the target of each edge.
        rowptr_t, col_t: the same by source (``rowptr``, ``col`` themselves when every edge has its reverse).
        perm: ``(E,)``, ``weight[perm]`` is the weight in the order by source.
    """

    num_nodes: int
    rowptr: Tensor
    col: Tensor
    row: Tensor
    rowptr_t: Tensor
    col_t: Tensor
    perm: Tensor

    @staticmethod
    def from_edge_index(edge_index: Tensor, num_nodes: int, loops: bool = True) -> Graph:
        """Prepare a graph from torch_geometric's ``edge_index`` ``(2, edges)``: row 0 the sources, row 1 the targets.

        A self loop is added at every node that has none, and **repeated edges are merged into one**: the attention of
        a pair of nodes does not depend on how often the pair is listed. With ``loops=False`` no self loop is added, and
        every node needs an edge in and an edge out.
        """
        _check_edge_index(edge_index, num_nodes)
        source, target = edge_index.long()
        if loops:
            every = torch.arange(num_nodes, device=edge_index.device)
            source, target = torch.cat([source, every]), torch.cat([target, every])
        elif min(len(source.unique()), len(target.unique())) < num_nodes:
            raise InputError("loops=False needs an edge in and an edge out at every node. Leave it out.")
        key = torch.unique(target * num_nodes + source)
        return Graph.from_sorted(key // num_nodes, key % num_nodes, num_nodes)

    @staticmethod
    def from_sorted(row: Tensor, col: Tensor, num_nodes: int) -> Graph:
        """The graph of just these edges, targets ``row`` and sources ``col``, sorted by target, then by source."""
        perm = torch.argsort(col * num_nodes + row)
        rowptr, rowptr_t = _pointers(row, num_nodes), _pointers(col, num_nodes)
        col_t = row[perm]
        index = torch.int32 if row.numel() < 2**31 else torch.int64
        rowptr, col, row, rowptr_t, col_t, perm = (v.to(index) for v in (rowptr, col, row, rowptr_t, col_t, perm))
        if torch.equal(rowptr, rowptr_t) and torch.equal(col, col_t):
            rowptr_t, col_t = rowptr, col
        return Graph(num_nodes, rowptr, col, row, rowptr_t, col_t, perm)

    @property
    def num_edges(self) -> int:
        """Number of edges E, self loops included."""
        return self.col.numel()

    @property
    def edge_index(self) -> Tensor:
        """The edges as torch_geometric writes them, ``(2, E)`` int64, in the order of per-edge tensors."""
        return torch.stack([self.col.long(), self.row.long()])

    @property
    def device(self) -> torch.device:
        """Where the indices live."""
        return self.col.device

    @functools.cached_property
    def transposed(self) -> Graph:
        """Every edge turned round, in the order by source; ``weight[perm]`` goes there, ``weight_t[its perm]`` back."""
        back = torch.empty_like(self.perm)
        back[self.perm.long()] = torch.arange(self.num_edges, dtype=back.dtype, device=self.device)
        row_t = self.col.index_select(0, self.perm)
        return Graph(self.num_nodes, self.rowptr_t, self.col_t, row_t, self.rowptr, self.col, back)

    @functools.cached_property
    def crowded(self) -> tuple[Tensor | None, Tensor | None]:
        """The targets, and the sources, of more than :data:`CROWDED` edges, where there are any."""
        found = [(ptr.diff() > CROWDED).nonzero()[:, 0] for ptr in (self.rowptr, self.rowptr_t)]
        targets, sources = (nodes if len(nodes) else None for nodes in found)
        return targets, sources

    def to(self, device: torch.device | str) -> Graph:
        """The same graph on another device."""
        names = ("rowptr", "col", "row", "rowptr_t", "col_t", "perm")
        moved = {name: getattr(self, name).to(device) for name in names}
        if self.col_t is self.col:
            moved |= {"rowptr_t": moved["rowptr"], "col_t": moved["col"]}
        return replace(self, **moved)


class Kept:
    """What was made of a tensor, kept for the next call with it: made again once it was written to.

    Nothing is kept of a tensor that carries a gradient, whose graph lasts for one backward pass, or that does not count
    its changes. Copies and files leave it behind.
    """

    def __init__(self) -> None:
        self.last: tuple[Tensor, tuple[Any, ...], Any] | None = None

    def of(self, x: Tensor, make: Callable[..., _T], *args: Any) -> _T:
        """``make(x, *args)``, or what that was the last time."""
        if self.last is not None and self.last[0] is x and self.last[1] == (x._version, *args):
            return self.last[2]  # type: ignore[no-any-return]
        made = make(x, *args)
        self.last = None if x.is_inference() or x.requires_grad else (x, (x._version, *args), made)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"last": None}


def spmm(graph: Graph, weight: Tensor, x: Tensor, *, transposed: bool = False) -> Tensor:
    """``A x``, or ``Aᵀ x``, with ``A`` the graph's pattern and ``weight`` ``(E,)`` its values; ``x`` is ``(N, F)``.

    cuSPARSE adds in no fixed order; under ``torch.use_deterministic_algorithms(True)`` CUDA takes the plain path.
    """
    rowptr, col = (graph.rowptr_t, graph.col_t) if transposed else (graph.rowptr, graph.col)
    values = weight.index_select(0, graph.perm) if transposed else weight.contiguous()
    dtype = working_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        if _library_has_products(x.device) and not (x.is_cuda and torch.are_deterministic_algorithms_enabled()):
            matrix, wide = _csr(rowptr, col, values.to(dtype), graph.num_nodes), x.to(dtype)
            # ``matrix @ wide`` is this with a fresh block of zeros, N × F, for its first argument.
            return torch.addmm(wide, matrix, wide, beta=0.0).to(x.dtype)
        row = graph.col.index_select(0, graph.perm) if transposed else graph.row
        out = torch.zeros(x.shape, dtype=dtype, device=x.device)
        for s in _chunks(graph.num_edges, x.shape[1] * out.element_size()):
            out.index_add_(0, row[s], x.index_select(0, col[s]).to(dtype) * values[s, None])
        return out.to(x.dtype)


def sddmm(graph: Graph, u: Tensor, v: Tensor) -> Tensor:
    """``s_e = Σ_f u[i, f] v[j, f]`` for every edge ``j -> i``: the product ``u vᵀ`` sampled at the edges, ``(E,)``.

    The result is float32 or better, as the sums are.
    """
    dtype = working_dtype(u)
    with torch.autocast(u.device.type, enabled=False):
        if _library_has_products(u.device):
            zero = torch.zeros(graph.num_edges, dtype=dtype, device=u.device)
            pattern = _csr(graph.rowptr, graph.col, zero, graph.num_nodes)
            torch.sparse.sampled_addmm(pattern, u.to(dtype), v.to(dtype).t(), beta=0.0, out=pattern)
            return pattern.values()
        out = torch.empty(graph.num_edges, dtype=dtype, device=u.device)
        for s in _chunks(graph.num_edges, u.shape[1] * dtype.itemsize):
            left, right = u.index_select(0, graph.row[s]), v.index_select(0, graph.col[s])
            out[s] = (left.to(dtype) * right.to(dtype)).sum(1)
        return out


def bags_of(x: Tensor, copies: int = 1) -> tuple[Graph, Tensor]:
    """Sparse features ``x`` (N, F) as edges from features to nodes, and their values ``(copies, entries)``.

    Each copy has features and nodes of its own, so that the sums over edges of a table of ``copies·F`` rows, one for
    each feature, padded to as many rows as the graph has nodes, are ``x`` times each copy's part of the table.
    """
    x = x.coalesce()
    (row, col), values, (nodes, features) = x.indices(), x.values(), x.shape
    shift = torch.arange(copies, device=row.device)[:, None]
    rows, cols = (row + nodes * shift).view(-1), (col + features * shift).view(-1)
    return Graph.from_sorted(rows, cols, copies * max(nodes, features)), values.expand(copies, -1)


def row_sum(graph: Graph, values: Tensor) -> Tensor:
    """Sums of ``values`` ``(E, H)`` over each target's edges, ``(N, H)``; deterministic on every device."""
    return torch.segment_reduce(values, "sum", offsets=graph.rowptr, axis=0, unsafe=True)


def row_max(graph: Graph, values: Tensor) -> Tensor:
    """Maxima of ``values`` ``(E, H)`` over each target's edges, ``(N, H)``; every target has one."""
    return torch.segment_reduce(values, "max", offsets=graph.rowptr, axis=0, unsafe=True)


def _check_edge_index(edge_index: Tensor, num_nodes: int) -> None:
    """Refuse what is not a graph, once, before any kernel reads out of bounds."""
    if not isinstance(edge_index, Tensor) or edge_index.dtype not in (torch.int32, torch.int64):
        kind = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise InputTypeError(f"edge_index must be an integer tensor (2, edges), not {kind}. Use edge_index.long().")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise InputError(f"edge_index has shape {tuple(edge_index.shape)}; it must be (2, edges): sources, targets.")
    if num_nodes < 1:
        raise InputError(
            f"num_nodes={num_nodes}: a graph without nodes has nothing to diffuse. Pass at least one node."
        )
    if edge_index.numel():
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0 or high >= num_nodes:
            remedy = f"Pass num_nodes={high + 1} or relabel the nodes." if low >= 0 else "Leave out what is no edge."
            raise InputError(
                f"edge_index holds nodes {low} to {high}, but num_nodes={num_nodes}; nodes are numbered "
                f"0 to {num_nodes - 1}. {remedy}"
            )


def _pointers(sorted_or_not: Tensor, num_nodes: int) -> Tensor:
    """Where each node's edges start once they are sorted by node."""
    rowptr = sorted_or_not.new_zeros(num_nodes + 1)
    rowptr[1:] = torch.bincount(sorted_or_not, minlength=num_nodes).cumsum(0)
    return rowptr


def _chunks(edges: int, bytes_per_edge: int) -> list[slice]:
    """Slices of edges whose gathered rows stay within :data:`CHUNK_BYTES`."""
    size = max(1, CHUNK_BYTES // max(1, bytes_per_edge))
    return [slice(start, min(start + size, edges)) for start in range(0, edges, size)]


def working_dtype(x: Tensor) -> torch.dtype:
    """Sums over edges are float32 or better; 16-bit inputs are widened (nodes × features, never edges × features)."""
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


def _csr(rowptr: Tensor, col: Tensor, values: Tensor, num_nodes: int) -> Tensor:
    """The matrix as torch holds it, unchecked: the pattern was checked when the graph was made."""
    _silence_beta_notice()
    return torch.sparse_csr_tensor(rowptr, col, values, (num_nodes, num_nodes), check_invariants=False)


@functools.cache
def _silence_beta_notice() -> None:
    """Torch says once per process that CSR tensors are in beta; it says it here, unheard, and never again.

    Doing this once keeps ``catch_warnings``, which is not thread-safe, out of the backward pass's threads.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), (1, 1))


@functools.cache
def _library_has_products(device: torch.device) -> bool:
    """Whether torch's own CSR products run on this device: by MKL or by cuSPARSE."""
    if device.type == "cpu":
        return bool(torch.backends.mkl.is_available())
    return device.type == "cuda"
