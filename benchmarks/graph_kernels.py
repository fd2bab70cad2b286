"""What the kernels of graph diffusion bring on a GPU: operations, training steps and where their time goes.

    python benchmarks/graph_kernels.py --out DIR

The graph has the size of ogbn-arxiv. First the tests of the kernels, on the same device; then each operation, forward
and backward, by kernels and by products of the sparse library; then training steps both ways, as ``graph_cost`` has
them, and their kernels by name. A part that has used up ``--seconds`` is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuralfde.cli.experiment import Row, write_json
from neuralfde.cli.measuring import machine
from neuralfde.models import fused
from neuralfde.models.diffusion import diffuse
from neuralfde.models.message_passing import Graph, attention
from neuralfde_experiments import graph_cost

TESTS = Path(__file__).parents[1] / "tests" / "models" / "test_fused.py"
METHODS = {
    "l": "direct,exact+blocks,direct+replay,exact+blocks+replay",
    "nl": "direct,exact,exact+recompute,exact+blocks+attention,exact+blocks+queries,"
    "direct+replay,exact+blocks+attention+replay,exact+blocks+queries+replay",
}
PROFILED = (("l", "direct"), ("l", "exact+blocks"), ("nl", "direct"), ("nl", "exact+blocks+queries"))


@contextlib.contextmanager
def kernels(on: bool, tile: int = fused.TILE) -> Iterator[None]:
    """With the kernels or without them; ``tile`` bytes of rows to a warp."""
    usable, before = fused.usable, fused.TILE
    fused.TILE = tile
    if not on:
        fused.usable = lambda *_: False
    try:
        yield
    finally:
        fused.usable, fused.TILE = usable, before


def tests() -> Row:
    """How the tests of the kernels ended."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:benchmark",
        "-m",
        "gpu",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        str(TESTS),
    ]
    if importlib.util.find_spec("xdist"):
        command += ["-n", "8"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parents[2])
    print(done.stdout[-3500:], done.stderr[-1500:], flush=True)
    lines = done.stdout.strip().splitlines()
    return {"tests": lines[-1] if lines else "none", "ok": done.returncode == 0}


def milliseconds(call: Callable[[], Any], repeats: int = 10) -> float:
    """Median of a call that the GPU is never idle for."""
    for _ in range(3):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for mark in marks:
        mark.record()
        call() if mark is not marks[-1] else None
    torch.cuda.synchronize()
    return round(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)), 4)


def operations(graph: Graph, hidden: int = 128, heads: int = 4) -> Iterator[Row]:
    """Each operation on its own, by kernels with several sizes of a tile and without kernels."""
    torch.manual_seed(0)
    nodes, device = graph.num_nodes, graph.device
    z, grad = (torch.randn(nodes, hidden, device=device) for _ in range(2))
    weight, rate = torch.rand(graph.num_edges, device=device), torch.rand(1, device=device)
    maps = [torch.randn(*s, device=device) / hidden**0.5 for s in ((hidden, hidden), (hidden,)) * 2]
    edge_grad = torch.randn(graph.num_edges, device=device)

    def timed(call: Callable[..., Tensor], leaves: list[Tensor], back: Tensor) -> list[float]:
        leaves = [x.clone().requires_grad_() for x in leaves]
        with torch.no_grad():
            forward = milliseconds(lambda: call(*leaves))
        out = call(*leaves)
        backward = milliseconds(lambda: torch.autograd.grad(out, leaves, back, retain_graph=True))
        return [forward, backward]

    for on, tile in ((False, 0), (True, 2048), (True, 4096), (True, 8192)):
        with kernels(on, tile):
            found = {
                "diffuse": timed(lambda w, x, r: diffuse(graph, w, x, r), [weight, z, rate], grad),
                "attention": timed(lambda x, *m: attention(graph, x, *m, heads), [z, *maps], edge_grad),
            }
        for name, (forward, backward) in found.items():
            yield {"operation": name, "kernels": on, "tile": tile, "forward_ms": forward, "backward_ms": backward}


def training(data: Any, end: float, repeats: int) -> Iterator[Row]:
    """Training steps as the cost table measures them."""
    device = torch.device("cuda")
    config = graph_cost.Config(repeats=repeats)
    for on in (True, False):
        for variant, methods in METHODS.items():
            for adjoint in methods.split(","):
                if time.monotonic() > end:
                    return
                with kernels(on):
                    row = graph_cost._attempt(config, data, variant, adjoint, device)
                names = ("variant", "adjoint", "inference_s", "training_s", "training_mib", "failed")
                yield {"kernels": on} | {k: row[k] for k in names if k in row}


def profiles(data: Any, graph: Graph) -> Iterator[Row]:
    """The kernels of a training step that take most of its time."""
    config = graph_cost.Config()
    x, y, mask = (v.cuda() for v in (data.x, data.y, data.train_mask.nonzero()[:, 0]))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for variant, adjoint in (
        ("l", "direct"),
        ("l", "exact+blocks"),
        ("nl", "direct"),
        ("nl", "exact+blocks+attention"),
    ):
        model = graph_cost.model_of(config, data, variant, adjoint).cuda().train()

        def step(model: Any = model) -> None:
            F.cross_entropy(model(x, graph).index_select(0, mask), y[mask]).backward()
            torch.cuda.synchronize()

        step()
        with torch.profiler.profile(activities=activities) as found:
            step()
        events = [e for e in found.key_averages() if e.self_device_time_total]
        events.sort(key=lambda e: -e.self_device_time_total)
        top = {e.key[:70]: [round(e.self_device_time_total / 1000, 3), e.count] for e in events[:14]}
        total = round(sum(e.self_device_time_total for e in events) / 1000, 2)
        yield {"profile": f"{variant} {adjoint}", "ms": total, "top": top}


def table(rows: list[Row]) -> str:
    """Everything, the ratios last."""
    lines = [f"{r['profile']}: {r['ms']} ms\n" + "\n".join(f"  {t:8.3f} {n:4d} {k}" for k, (t, n) in r["top"].items())
             for r in rows if "profile" in r]  # fmt: skip
    for r in (r for r in rows if "operation" in r):
        how = f"tile {r['tile']}" if r["kernels"] else "library"
        lines.append(f"{r['operation']:10} {how:10} forward {r['forward_ms']:8.4f} backward {r['backward_ms']:8.4f} ms")
    found = {(r["kernels"], r["variant"], r["adjoint"]): r for r in rows if "training_s" in r}
    for (on, variant, adjoint), r in found.items():
        base = found.get((on, variant, "direct+replay" if "replay" in adjoint else "direct"), r)
        mib, ratio = r["training_mib"] or 0, r["training_s"] / base["training_s"]
        how = "kernels" if on else "library"
        case = f"{how} {variant:3}{adjoint:34}"
        lines.append(f"{case} infer {r['inference_s']:.4f} train {r['training_s']:.4f} {mib:6.0f} MiB {ratio:.3f}")
    lines += [str(r) for r in rows if "failed" in r or "tests" in r]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=85.0)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--skip", default="", help="parts to leave out: tests, operations, profiles, training")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end, rows, skip = time.monotonic() + args.seconds, list[Row](), args.skip.split(",")

    def add(row: Row) -> None:
        rows.append(row)
        print(f"[{end - time.monotonic():5.0f} s left]", json.dumps(row)[:200], flush=True)
        write_json(args.out / "graph-kernels.json", {**machine(), "rows": rows}, indent=1)

    if "tests" not in skip:
        add(tests())
    data = graph_cost.whole_graph("arxiv", 1.0, 0)
    graph = Graph.from_edge_index(data.edge_index.cuda(), int(data.num_nodes))
    parts = {
        "operations": lambda: operations(graph),
        "training": lambda: training(data, end - 8, args.repeats),
        "profiles": lambda: profiles(data, graph),
    }
    for name, part in parts.items():
        if name in skip:
            continue
        try:
            for row in part():
                add(row)
        except Exception as error:
            add({"failed": f"{name}: {type(error).__name__}: {error}"[:600]})
    print(table(rows))


if __name__ == "__main__":
    main()
