"""Reading the published files of seven citation, co-purchase and co-author graphs, without running code from them.

Two formats: the pickles of Yang et al., "Revisiting semi-supervised learning with graph embeddings" (Planetoid), and
the archives of Shchur et al., "Pitfalls of graph neural network evaluation". A pickle is a program; here it may call
the constructors of arrays and plain containers, and nothing else. Archives are read with ``allow_pickle=False``.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralfde.errors import InputError


@dataclass(frozen=True, eq=False)
class RawGraph:
    """A graph as its files give it.

    Shapes:
        x ``(nodes, features)`` float32, y ``(nodes,)`` int64, edge_index ``(2, edges)`` int64, as listed.
    """

    x: Tensor
    y: Tensor
    edge_index: Tensor


class _PickledMatrix:
    """Replaces scipy's matrix in a pickle: it holds what was stored and has no methods to call."""

    data: Any
    indices: Any
    indptr: Any
    _shape: Any


_ARRAY_CONSTRUCTOR = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _ARRAY_CONSTRUCTOR,
    ("numpy._core.multiarray", "_reconstruct"): _ARRAY_CONSTRUCTOR,
    ("scipy.sparse.csr", "csr_matrix"): _PickledMatrix,
    ("scipy.sparse._csr", "csr_matrix"): _PickledMatrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Allows the constructors in ``_ALLOWED``; any other name in the file is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise InputError(
                f"The pickle asks for {module}.{name}, which a file of arrays has no need of; it was not run. "
                f"Delete the file and fetch the published one."
            ) from None


def safe_unpickle(content: bytes) -> Any:
    """Arrays, sparse matrices, dicts and lists from a pickle; anything else in it is refused."""
    try:
        # Python 2 wrote these files: its strings are bytes, which latin1 keeps one to one.
        return _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except InputError:
        raise
    except Exception as error:
        # A damaged pickle may raise anything.
        raise InputError(
            f"The pickle cannot be read ({type(error).__name__}: {error}). Fetch the file again."
        ) from error


def read_planetoid(read: Callable[[str], bytes]) -> RawGraph:
    """Assemble a Planetoid graph; ``read(part)`` returns the content of ``ind.<name>.<part>``.

    ``allx`` and ``ally`` hold every node but the test ones; row ``k`` of ``tx`` and ``ty`` is node ``test.index[k]``.
    Nodes missing from ``test.index`` (15 in CiteSeer) get zero features and class 0, as in torch_geometric; they have
    no edges, so the largest component leaves them out.
    """
    allx, tx = (_dense_from_pickle(safe_unpickle(read(part)), part) for part in ("allx", "tx"))
    ally, ty = (_labels_from_pickle(safe_unpickle(read(part)), part) for part in ("ally", "ty"))
    links = safe_unpickle(read("graph"))
    test = torch.tensor([int(line) for line in read("test.index").split()])
    nodes = max(len(allx), int(test.max()) + 1)
    if len(tx) != len(test) or len(ty) != len(test) or len(ally) != len(allx) or int(test.min()) < 0:
        raise InputError(
            "The parts of the Planetoid graph do not fit together: their lengths differ. Fetch them again."
        )
    x, y = allx.new_zeros(nodes, allx.shape[1]), ally.new_zeros(nodes)
    x[: len(allx)], y[: len(ally)] = allx, ally
    x[test], y[test] = tx, ty
    if not isinstance(links, dict):
        raise InputError("The part 'graph' is not a dictionary of neighbours. Fetch the files again.")
    target = torch.tensor([int(j) for neighbours in links.values() for j in neighbours])
    source = torch.tensor([int(i) for i, neighbours in links.items() for _ in neighbours])
    return RawGraph(x, y, _checked_edges(torch.stack([source, target]), nodes))


def read_archive(content: bytes) -> RawGraph:
    """Read an archive of gnn-benchmark: adjacency and attributes as CSR, labels; any attribute > 0 counts as 1.

    torch_geometric sets every attribute to 1 too, and so does GRAND.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            adjacency, attributes = (_csr_parts(archive, prefix) for prefix in ("adj", "attr"))
            labels = torch.from_numpy(archive["labels"].astype(np.int64))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"The archive cannot be read ({error}). Fetch the file again.") from error
    x = _dense(*attributes).gt_(0)
    _, indices, indptr, shape = adjacency
    source = np.repeat(np.arange(shape[0]), np.diff(indptr))
    edges = torch.from_numpy(np.stack([source, indices.astype(np.int64)]))
    return RawGraph(x, labels, _checked_edges(edges, len(labels)))


def _csr_parts(archive: Any, prefix: str) -> tuple[Any, ...]:
    return tuple(archive[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))


def _dense_from_pickle(matrix: Any, part: str) -> Tensor:
    if not isinstance(matrix, _PickledMatrix):
        raise InputError(f"The part {part!r} is not a sparse matrix. Fetch the files again.")
    state = vars(matrix)
    try:
        return _dense(*(np.asarray(state[name]) for name in ("data", "indices", "indptr", "_shape")))
    except KeyError as error:
        raise InputError(f"The part {part!r} lacks the matrix's {error}. Fetch the files again.") from error


def _labels_from_pickle(one_hot: Any, part: str) -> Tensor:
    if not isinstance(one_hot, np.ndarray) or one_hot.ndim != 2 or one_hot.dtype == object:
        raise InputError(f"The part {part!r} is not a table of labels. Fetch the files again.")
    return torch.from_numpy(one_hot.argmax(1).astype(np.int64))


def _dense(data: Any, indices: Any, indptr: Any, shape: Any) -> Tensor:
    """A dense float32 matrix from CSR parts; parts that contradict each other are refused."""
    rows, columns = (int(n) for n in shape)
    counts = np.diff(indptr)
    fits = len(indptr) == rows + 1 and indptr[0] == 0 and indptr[-1] == len(indices) == len(data)
    if not fits or (counts < 0).any() or (len(indices) and not 0 <= indices.min() <= indices.max() < columns):
        raise InputError("A sparse matrix in the file contradicts its own sizes. Fetch the file again.")
    out = torch.zeros(rows, columns)
    row = torch.from_numpy(np.repeat(np.arange(rows), counts))
    out[row, torch.from_numpy(indices.astype(np.int64))] = torch.from_numpy(data.astype(np.float32))
    return out


def _checked_edges(edge_index: Tensor, nodes: int) -> Tensor:
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < nodes:
        raise InputError(f"An edge in the file names a node outside 0 to {nodes - 1}. Fetch the file again.")
    return edge_index
