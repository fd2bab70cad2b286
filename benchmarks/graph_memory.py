"""Which buffers are alive at the peak of one training step of F-GRAND, by the line of code that made them.

    python benchmarks/graph_memory.py --variants nl --adjoints exact

Every tensor's memory is followed from the operation that makes it to its end, on the CPU at a reduced size, and counted
in rows: nodes × hidden numbers, what one state takes. Memory inside a library call is not seen. The graphs have the
nodes, edges, features and classes of ogbn-arxiv and of a batch of 20,000 nodes of ogbn-products, or a share of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neuralfde.models.message_passing import Graph
from neuralfde_experiments.graph_cost import Config, methods, model_of
from neuralfde_experiments.graph_synthetic import SIZES, synthetic_graph

HERE = Path(__file__).name
ADJOINTS = "direct,loop,exact,exact+attention,exact+columns,exact+recompute,exact+states,paper"
COUNTED = {"arxiv": SIZES["arxiv"], "products": replace(SIZES["products"], nodes=20_000, edges=369_784 // 2)}
"""The second is what the node sampler of the cost table draws."""


class Alive(TorchDispatchMode):
    """Follows memory from the operation that makes it; keeps what was alive at the peak."""

    def __init__(self, known: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int, str]] = {}
        self.peak, self.at_peak, self.where = 0, Counter[str](), ""
        for name, tensor in known.items():
            self.add(tensor, name)

    def add(self, tensor: torch.Tensor, label: str) -> None:
        """Follow the memory of a tensor, under the name of the first that had it."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive or self.alive[key][0].expired():
            self.alive[key] = (StorageWeakRef(storage), storage.nbytes(), label)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; then see what is alive."""
        out = func(*args, **(kwargs or {}))
        label = f"{_line()} {func.__name__}"
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor, label)
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        total = sum(size for _, size, _ in self.alive.values())
        if total > self.peak:
            self.peak, self.where, self.at_peak = total, label, Counter()
            for _, size, name in self.alive.values():
                self.at_peak[name] += size
        return out


def _line() -> str:
    """The nearest line of this project on the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if {"neuralfde", "neuralfde_experiments"} & set(path.parts) or path.name == HERE:
            return f"{path.parent.name}/{path.name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


def account(config: Config, variant: str, adjoint: str) -> dict[str, Any]:
    """Rows alive at the peak of the second training step, largest first."""
    size = COUNTED[config.graph]
    data = synthetic_graph(size, scale=config.scale, seed=config.seed)
    model = model_of(config, data, variant, adjoint)
    graph = Graph.from_edge_index(data.edge_index, int(data.num_nodes))
    mask = data.train_mask.nonzero()[:, 0]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model.train()(data.x, graph)[mask], data.y[mask]).backward()
        optimiser.step()

    step()
    names = ("rowptr", "col", "row", "perm", "rowptr_t", "col_t")
    known = {"features": data.x, "labels": data.y, "training nodes": mask}
    known |= {f"graph: {name}": getattr(graph, name) for name in names}
    known |= {f"parameter {name}": p for name, p in model.named_parameters()}
    with Alive(known) as alive:
        step()
    row = 4 * int(data.num_nodes) * config.hidden
    found = {name: round(size / row, 2) for name, size in alive.at_peak.most_common() if size > 0.02 * row}
    head = {
        "graph": config.graph,
        "variant": variant,
        "adjoint": adjoint,
        "storage": config.storage,
        "nodes": int(data.num_nodes),
    }
    full = 4 * size.nodes * config.hidden / 2**20
    return head | {
        "edges": graph.num_edges,
        "rows": round(alive.peak / row, 2),
        "at": alive.where,
        "mib at full size": round(alive.peak / row * full),
        "buffers": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="l,nl")
    parser.add_argument("--adjoints", default=ADJOINTS)
    parser.add_argument("--storage", default="device")
    parser.add_argument("--graphs", default="arxiv,products")
    parser.add_argument("--scale", type=float, default=0.02, help="of arxiv; the batch of products is counted at 0.1")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scales = {"arxiv": args.scale, "products": 0.1}
    configs = [Config(graph=g, scale=scales[g], storage=args.storage, device="cpu") for g in args.graphs.split(",")]
    found = [account(c, v, a) for c in configs for v, a in methods(args.variants, args.adjoints)]
    for row in found:
        print(json.dumps(row, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps({"torch": torch.__version__, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
