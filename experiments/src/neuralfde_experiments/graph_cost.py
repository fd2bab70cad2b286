"""What F-GRAND costs on large graphs: time and memory of inference and training (tab:model_arxiv, tab:model_products).

The graphs are synthetic and of the size of ogbn-arxiv and ogbn-products; T = 10, h = 1. Products is cut into sampled
subgraphs. ``direct`` keeps the graph of every step of the same loop with the same right-hand side, ``exact`` and
``paper`` are the adjoints, and ``loop`` is autograd through a plain loop, as FROND solves. What follows after a ``+``:

    columns     variant l: some columns at a time
    powers      variant l: powers of attention in place of a past
    recompute   attention kept for no head; variant l: columns too, each
                part forgotten and solved again
    host        rows of the past in host memory
    states      the states kept too, so that the backward pass does not
                sum the past again for them
    attention   variant nl: attention kept for the backward pass
    queries     variant nl: queries and keys kept as well
    blocks      several steps of the past summed at once
    replay      the training step captured once as a CUDA graph and replayed

The paper's own figures (RTX A5000) stand in the same table, marked ``source: paper``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuralfde import Full
from neuralfde.cli.experiment import (
    ADJOINTS,
    HISTORIES,
    STORAGES,
    Options,
    Report,
    Row,
    device_option,
    numbers,
    option,
    place,
    words,
)
from neuralfde.cli.measuring import clock, resident_mib
from neuralfde.models.graph import FGrand
from neuralfde.models.message_passing import Graph

from .data.samplers import NodeSampler, RandomWalkSampler
from .graph_synthetic import SIZES, synthetic_graph
from .replay import Replay

if TYPE_CHECKING:
    from torch_geometric.data import Data

SUMMARY = "time and memory of F-GRAND on large graphs"
EXAMPLES = (
    "neuralfde run graph-cost --graph arxiv",
    "neuralfde run graph-cost --graph products --batches 10000,20000,80000",
    "neuralfde run graph-cost --graph products --largest exact --cap-gib 24",
)
COLUMNS = ("graph", "variant", "adjoint", "storage", "training_s", "training_mib", "inference_s")

#: seconds and MB: inference, training; adj-F-GRAND then F-GRAND
PAPER: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    ("arxiv", "l", "paper"): (0.102, 3982, 0.319, 5570),
    ("arxiv", "l", "direct"): (0.102, 3982, 0.352, 8527),
    ("arxiv", "nl", "paper"): (0.185, 4314, 0.785, 9086),
    ("arxiv", "nl", "direct"): (0.185, 4314, 0.806, 18180),
    ("products", "l", "paper"): (34.39, 2678, 34.04, 6602),
    ("products", "l", "direct"): (34.39, 2678, 35.15, 7950),
    ("products", "nl", "paper"): (36.11, 4468, 43.24, 11238),
    ("products", "nl", "direct"): (36.11, 4468, 44.41, 17210),
}
SAMPLERS = {"walk": RandomWalkSampler, "node": NodeSampler}
LINEAR, ATTENTIVE = {"columns", "powers"}, {"attention", "queries"}
EITHER = {"recompute", "host", "states", "blocks", "replay"}
"""What may follow the name of an adjoint after a ``+``: with variant l, with nl, with both."""
_DRAWN: dict[int, tuple[tuple[str, int], Callable[[int], Data]]] = {}
WARM_UP = 2
"""Calls before those that are measured."""


def _methods(text: str) -> None:
    """Adjoints, or the plain loop, each with what may follow after a ``+``."""
    for method in text.split(","):
        name, *more = method.split("+")
        words((*ADJOINTS, "loop"))(name)
        for word in more:
            words(sorted(LINEAR | ATTENTIVE | EITHER))(word)


def _sizes(text: str) -> None:
    """Numbers of nodes, or nothing."""
    if text:
        numbers(int, least=1)(text)


@dataclass(frozen=True)
class Config(Options):
    """Which graph, which methods, how large."""

    graph: str = option("arxiv", "arxiv or products: the size of the synthetic graph", choices=("arxiv", "products"))
    variants: str = option("l,nl", "variants to measure", reads=words(("l", "nl")))
    adjoints: str = option("direct,exact,exact+columns,exact+recompute,paper", "methods to compare", reads=_methods)
    scale: float = option(1.0, "multiplies the number of nodes and edges", above=0, most=10)
    batches: str = option("10000,20000,80000", "nodes of a sampled subgraph, or none (products only)", reads=_sizes)
    sampler: str = option("node", "walk or node", choices=tuple(SAMPLERS))
    largest: str = option("", "methods whose largest batch is looked for (products only)", reads=_methods)
    cap_gib: float = option(0.0, "GPU memory allowed when looking for the largest batch; 0: all of it")
    hidden: int = option(128, "width of the state", least=1)
    heads: int = option(4, "attention heads", least=1)
    order: float = option(0.9, "order of the derivative", above=0, most=1)
    t: float = option(10.0, "integration time", above=0, most=1e6)
    step: float = option(1.0, "step size", least=1e-6)
    source: bool = option(False, "the term b Z0, which FROND leaves out for ogbn-arxiv")
    storage: str = option(
        "device", "where exact and paper keep their rows; direct always keeps them on the device", choices=STORAGES
    )
    history: str = option("auto", "history engine; default: the whole past, a row at a time", choices=HISTORIES)
    columns: int = option(
        32, "columns solved at a time by the methods that end in +columns and +recompute (variant l)", least=1
    )
    repeats: int = option(3, "measured repetitions after one that warms up", least=1)
    device: str = device_option()
    seed: int = option(0, "of the graph, the batches and the weights")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each variant, method and batch; a row that fails says why and the others go on."""
    report = Report() if report is None else report
    device = place(config.device)
    whole = whole_graph(config.graph, config.scale, config.seed)
    parts = [int(b) for b in config.batches.split(",") if b]
    sizes = parts if config.graph == "products" else [int(whole.num_nodes)]
    draw = _batches(config, whole)
    pairs = methods(config.variants, config.adjoints)
    for size in sizes:
        data = draw(size)
        for variant, adjoint in pairs:
            attempt = functools.partial(_attempt, config, data, variant, adjoint, device)
            report.case(f"{config.graph} {variant} {adjoint} {size}", attempt)
    if config.largest and config.graph == "products":
        for variant, adjoint in methods(config.variants, config.largest):
            search = functools.partial(largest_batch, config, draw, variant, adjoint, device)
            report.case(f"largest batch {variant} {adjoint}", search)
    for row in papers_rows(config):
        report.case(f"paper's {config.graph} {row['variant']} {row['adjoint']}", functools.partial(dict, row))
    return report.rows


@functools.lru_cache(maxsize=2)
def whole_graph(graph: str, scale: float, seed: int) -> Data:
    """The graph that is measured, or that batches are drawn from."""
    return synthetic_graph(graph, scale=scale, seed=seed)


def methods(variants: str, adjoints: str) -> list[tuple[str, str]]:
    """Every variant with every method that it knows."""
    pairs = itertools.product(variants.split(","), adjoints.split(","))
    barred = {"l": ATTENTIVE, "nl": LINEAR}
    return [(v, a) for v, a in pairs if not set(a.split("+")[1:]) & barred.get(v, set())]


def papers_rows(config: Config) -> list[Row]:
    """The paper's figures for the same graph and variants."""
    names = ("inference_s", "inference_mib", "training_s", "training_mib")
    return [
        {"source": "paper", "graph": f"ogbn-{graph}", "variant": variant, "adjoint": adjoint}
        | dict(zip(names, values, strict=True))
        for (graph, variant, adjoint), values in PAPER.items()
        if graph == config.graph and variant in config.variants.split(",")
    ]


def _batches(config: Config, whole: Data) -> Callable[[int], Data]:
    """A function from a number of nodes to the first sampled subgraph of that size; the last few are kept."""
    if config.graph != "products":
        return lambda size: whole
    key, seed = (config.sampler, config.seed), config.seed
    if (known := _DRAWN.get(id(whole))) is not None and known[0] == key:
        return known[1]
    nodes = SAMPLERS[config.sampler](whole, 1, seed=seed)

    @functools.lru_cache(maxsize=8)
    def draw(size: int) -> Data:
        nodes.batch_size = min(size, nodes.nodes)
        generator = torch.Generator().manual_seed(seed + size)
        return nodes.subgraph(nodes.draw(generator).sort().values)

    _DRAWN.clear()
    _DRAWN[id(whole)] = (key, draw)
    return draw


def _attempt(
    config: Config, data: Data, variant: str, adjoint: str, device: torch.device, cap: float | None = None
) -> Row:
    row = {"source": "measured", "graph": data.name, "variant": variant, "adjoint": adjoint}
    row |= {"nodes": int(data.num_nodes), "edges": int(data.num_edges), "storage": config.storage}
    try:
        return row | measure(config, data, variant, adjoint, device, cap)
    except (RuntimeError, MemoryError) as error:
        return row | {"failed": str(error).splitlines()[0][:200]}
    finally:
        _release(device)


def model_of(config: Config, data: Data, variant: str, adjoint: str) -> FGrand:
    """The model that is measured."""
    name, *more = adjoint.split("+")
    lean = Full(states="states" in more, block=64 if "blocks" in more else 4)
    options: dict[str, Any] = {"order": config.order, "t": config.t, "step": config.step, "source": config.source}
    options |= {"adjoint": "direct" if name == "loop" else name, "check_finite": False}
    options |= {"history": lean if config.history == "auto" else config.history}
    # captured steps are for small states: their static inputs and outputs are ten more rows
    options["stepper"] = "single"
    if name not in ("direct", "loop"):
        options["storage"] = "host" if "host" in more else config.storage
    if variant == "l" and {"columns", "recompute"} & set(more):
        options["columns"] = config.columns
    options |= {"recompute": "recompute" in more, "keep_attention": "all" if "queries" in more else "attention" in more}
    if "powers" in more:  # there are no steps that the others would say something of
        options = {k: v for k, v in options.items() if k not in ("adjoint", "history", "stepper", "storage")}
        options["powers"] = True
    kind = Loop if name == "loop" else FGrand
    return kind(data.num_features, data.num_classes, config.hidden, variant, config.heads, **options)


class Loop(FGrand):
    """The same equation solved by the same scheme in a plain loop over time, which autograd differentiates."""

    def evolve(self, z: Tensor, graph: Graph, weight: Tensor | None, known: Any = None) -> Tensor:
        """See :class:`FGrand`."""
        func, order, step = self.block.func, float(self.order), self.block.options["step"]
        steps, slopes, start = round(self.block.t / step), list[Tensor](), z
        lag = torch.arange(steps + 1, dtype=torch.float64)
        shares = ((lag[1:] ** order - lag[:-1] ** order) * step**order / math.gamma(order + 1)).tolist()
        for _ in range(steps):
            slopes.append(func(torch.zeros(()), z, graph, weight, start if self.source else None))
            z = start
            for share, slope in zip(shares, reversed(slopes), strict=False):
                z = z + share * slope
        return z


def measure(
    config: Config, data: Data, variant: str, adjoint: str, device: torch.device, cap: float | None = None
) -> Row:
    """Median seconds and peak MiB of inference and of a training step; the graph and the model count as memory.

    ``cap`` is the fraction of the GPU's memory that may be taken once the graph is there; ``kept_mib`` is what was on
    the device before any of it, and belongs to no figure of this row unless it is 0.
    """
    _release(device)
    kept = round(torch.cuda.memory_allocated(device) / 2**20, 1) if device.type == "cuda" else 0.0
    torch.manual_seed(config.seed)
    model = model_of(config, data, variant, adjoint).to(device)
    x, y, mask = data.x.to(device), data.y.to(device), data.train_mask.nonzero()[:, 0].to(device)
    graph = Graph.from_edge_index(data.edge_index.to(device), int(data.num_nodes))
    cuda = device.type == "cuda"
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=cuda)

    @torch.no_grad()
    def infer() -> None:
        model.eval()(x, graph)

    def train() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model.train()(x, graph).index_select(0, mask), y[mask]).backward()
        optimiser.step()

    if cap is not None:
        _clear(device)
        torch.cuda.set_per_process_memory_fraction(cap, device)
    before = 0.0 if cuda else resident_mib("VmRSS")
    replayed = "replay" in adjoint.split("+")
    calls = [Replay(call) if cuda and replayed else call for call in (infer, train)]
    with torch.cuda.stream(_stream(device)) if cuda and replayed else contextlib.nullcontext():
        inference, training = (_timed(call, config.repeats, device, before) for call in calls)
    if any(isinstance(call, Replay) and call.failed for call in calls):
        raise RuntimeError("the step could not be captured")
    return {
        "inference_s": inference[0],
        "inference_mib": None if replayed else inference[1],  # a captured step holds its memory all the time
        "training_s": training[0],
        "training_mib": None if replayed else training[1],
        "kept_mib": kept,
    }


def largest_batch(config: Config, draw: Callable[[int], Data], variant: str, adjoint: str, device: torch.device) -> Row:
    """The largest batch with which a training step fits into the memory allowed, to a twentieth."""
    row: Row = {"source": "measured", "graph": "synthetic-products", "variant": variant, "adjoint": adjoint}
    if device.type != "cuda":
        return row | {"failed": "the largest batch is looked for on a GPU only"}
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    whole = SIZES["products"].nodes if config.scale == 1 else int(draw(2**40).num_nodes)
    total = torch.cuda.get_device_properties(device).total_memory
    cap = min(config.cap_gib * 2**30 or total, total)

    def peak(size: int) -> float | None:
        try:
            found = _attempt(replace(config, repeats=1), draw(size), variant, adjoint, device, cap / total)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        return found.get("training_mib")

    best, mib = largest_that(peak, cap / 2**20, 40_000, whole)
    fitting = draw(best) if best else None
    edges = None if fitting is None else int(fitting.num_edges)
    return row | {
        "cap_gib": round(cap / 2**30, 1),
        "largest": best,
        "edges": edges,
        "training_mib": mib,
        "of": whole,
        "columns": config.columns,
    }


def largest_that(peak: Callable[[int], float | None], cap: float, start: int, most: int) -> tuple[int, float]:
    """The largest size that fits, to a twentieth, and its peak; ``peak(size)`` is None where it does not fit.

    The two largest sizes known tell the parts of the peak that grow with nodes and with pairs of them, and so where
    ``cap`` may be reached; a guess that cannot be right gives way to the middle of what is left.
    """
    fits, over, size = dict[int, float](), most + 1, min(start, most)
    while size:
        found = peak(size)
        if found is None:
            over = size
        else:
            fits[size] = found
        low = max(fits, default=0)
        if not low:
            size //= 2
        elif low == most or over <= max(low + 1, math.ceil(1.05 * low)):
            break
        elif len(fits) == 1:
            size = min(2 * low, most) if over > most else math.ceil((low * over) ** 0.5)
        else:
            size = max(math.ceil(1.05 * low), min(_size_at(0.95 * cap, fits), 3 * low))
            size = min(size, most) if size < over else math.ceil((low * over) ** 0.5)
    return (low, fits[low]) if fits else (0, 0.0)


def _size_at(cap: float, fits: dict[int, float]) -> int:
    """Where a peak ``a n + b n²`` through the two largest sizes known reaches ``cap``."""
    (m, p), (n, q) = sorted(fits.items())[-2:]
    b = max(0.0, (q / n - p / m) / (n - m))
    a = q / n - b * n
    return int(cap / a) if b == 0 else int((math.sqrt(a * a + 4 * b * cap) - a) / (2 * b))


def _timed(call: Callable[[], None], repeats: int, device: torch.device, before: float) -> tuple[float, float]:
    """Median seconds and peak MiB above ``before``; a few calls first warm up, or one that is captured then."""
    for _ in range(4 if isinstance(call, Replay) else WARM_UP):
        call()
    cuda = device.type == "cuda"
    _clear(device)
    taken = []
    for _ in range(repeats):
        began = clock(device)
        call()
        taken.append(clock(device) - began)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if cuda else resident_mib("VmHWM") - before
    return round(statistics.median(taken), 4), round(peak, 1)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The one on which steps are captured: each stream has workspaces of its own for matrix products."""
    return torch.cuda.Stream(device)


def _release(device: torch.device) -> None:
    """Leave nothing on the device; captured steps, which hold on to those workspaces, must be gone before."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
    _clear(device)


def _clear(device: torch.device) -> None:
    """Give memory back and let the peak start again."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # glibc: keep no freed blocks, or the peak counts them
            ctypes.CDLL("libc.so.6").mallopt(-3, 2**18)
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
