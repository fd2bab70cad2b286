"""Train F-GRAND on sampled subgraphs of a graph too large for one batch, in one process or in several (``torchrun``).

Batches follow GraphSAINT (Zeng et al., ICLR 2020). A step averages the losses of ``per_step`` batches, dealt out to the
processes in turn, so that the gradient of a step is the same for any number of processes that divides ``per_step``. The
epoch is chosen on validation; test accuracy decides nothing.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from neuralfde.cli.experiment import ADJOINTS, Options, Report, Row, device_option, option
from neuralfde.errors import InputError

from .data.files import existing_root
from .data.samplers import NodeSampler, RandomWalkSampler
from .graph_settings import TABLES, Settings, canonical, settings_for
from .graph_synthetic import named_graph
from .graph_training import build, optimiser_for
from .processes import Processes

if TYPE_CHECKING:
    from torch_geometric.data import Data

PROCESSES = True
SUMMARY = "F-GRAND on parts of a large graph"
EXAMPLES = (
    "neuralfde run graph-sampled --scale 0.05 --epochs 3",
    "neuralfde run graph-sampled --dataset coauthor-physics --data DIR",
    "torchrun --nproc-per-node 4 -m neuralfde run graph-sampled --out out",
)
COLUMNS = ("dataset", "nodes", "val", "test", "epoch")
Sampler = NodeSampler | RandomWalkSampler
SAMPLERS = {"walk": RandomWalkSampler, "node": NodeSampler}


@dataclass(frozen=True)
class Config(Options):
    """Which graph, how it is sampled, and the model; ``None`` takes the value of the graph's table."""

    dataset: str = option(
        "synthetic-arxiv", "a name that 'run graphs' knows, or synthetic-arxiv, synthetic-products", reads=settings_for
    )
    scale: float = option(1.0, "share of the nodes, for synthetic graphs", above=0, most=10)
    sampler: str = option("walk", "walk: random walks; node: nodes by degree", choices=tuple(SAMPLERS))
    batch_size: int = option(10_000, "nodes of a batch", least=1)
    batches: int = option(0, "batches of an epoch, over all processes; 0: enough to cover the nodes once")
    per_step: int = option(4, "batches of a step, over all processes; a multiple of their number", least=1)
    variant: str = option("l", "l: attention computed once; nl: at every evaluation", choices=("l", "nl"))
    adjoint: str = option("exact", "exact, direct or paper", choices=ADJOINTS)
    settings: str = option("paper", "hyper-parameters: paper (tab:s3hyperpara) or tuned (ours)", choices=tuple(TABLES))
    order: float | None = option(None, "order of the derivative", above=0, most=1)
    learn_order: bool = option(False, "train the order")
    hidden: int | None = option(None, "width of the state", least=1)
    heads: int | None = option(None, "attention heads", least=1)
    t: float | None = option(None, "integration time", above=0, most=1e6)
    step: float | None = option(None, "step size", least=1e-6)
    lr: float | None = option(None, "learning rate", above=0, most=100)
    epochs: int | None = option(None, "epochs", least=1)
    evaluate_every: int = option(1, "epochs between evaluations", least=1)
    seed: int = option(0, "seed of the split, the weights and the batches")
    device: str = device_option()
    data: str | None = option(
        None, "data folder; default: the environment variable NEURALFDE_DATA", reads=existing_root
    )


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row: accuracies of the epoch that is best on validation, and the curve over the epochs."""
    report = Report() if report is None else report
    with Processes.from_environment(config.device) as processes:
        report = processes.quieten(report)
        return [report.case(f"seed {config.seed}", lambda: train(config, report, processes))]


def train(config: Config, report: Report, processes: Processes) -> Row:
    """Train to the last epoch, from a checkpoint if there is one, which any number of processes may have left."""
    key, device = f"seed {config.seed}", processes.device
    given = {k: v for k, v in asdict(config).items() if k in Settings.__dataclass_fields__}
    settings, data = settings_for(config.dataset, config.settings, config.variant, **given), _graph(config)
    torch.manual_seed(config.seed)
    model = build(data, settings, config.variant, config.adjoint, config.learn_order).to(device)
    optimiser, curve = optimiser_for(model, settings), list[Row]()
    state = report.restored(key)
    if state is not None:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        curve = list(state["curve"])
    sampler, wrapped = _sampler(config, data, processes), processes.wrap(model)
    for epoch in range(len(curve), settings.epochs):
        sampler.set_epoch(epoch)
        torch.manual_seed((config.seed * 100_003 + epoch) * 1_009 + processes.rank)  # dropout, the same if resumed
        row: Row = {"epoch": epoch + 1, "loss": train_epoch(wrapped, sampler, optimiser, device, config.per_step)}
        if (epoch + 1) % config.evaluate_every == 0 or epoch + 1 == settings.epochs:
            found = accuracies(model, sampler, device, config.batch_size)
            row |= {part: round(100 * value, 3) for part, value in found.items()}
        curve.append(row)
        state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "curve": curve}
        report.checkpoint(key, state)
        report.progress(config.dataset, epoch + 1, settings.epochs, row["loss"])
    best = max((r for r in curve if "val" in r), key=lambda r: r["val"])
    return {"dataset": str(data.name), "nodes": sampler.nodes, **best, "curve": curve}


def _graph(config: Config) -> Data:
    return named_graph(canonical(config.dataset), config.data, scale=config.scale, seed=config.seed)


def _sampler(config: Config, data: Data, processes: Processes) -> Sampler:
    steps = math.ceil((config.batches or data.num_nodes / config.batch_size) / config.per_step)
    return SAMPLERS[config.sampler](
        data,
        config.batch_size,
        batches=steps * config.per_step,
        seed=config.seed,
        rank=processes.rank,
        world=processes.count,
    )


def train_epoch(
    model: nn.Module, sampler: Sampler, optimiser: torch.optim.Optimizer, device: torch.device, per_step: int = 1
) -> float:
    """One epoch of this rank's batches; returns the mean loss over all processes.

    Args:
        model: F-GRAND, or what :meth:`Processes.wrap` made of it.
        sampler: made with this process's ``rank`` and ``world``; it must have as many batches on every rank.
        optimiser: of the model's parameters.
        device: where batches go.
        per_step: batches of a step, over all processes.
    """
    ranks = sampler.world
    if per_step % ranks or sampler.batches % per_step:
        raise InputError(
            f"per_step={per_step} must be a multiple of the {ranks} processes and divide the {sampler.batches} batches "
            "of an epoch: otherwise the processes wait for each other."
        )
    model.train()
    share, total = per_step // ranks, torch.zeros((), device=device)
    for k, batch in enumerate(sampler):
        last = (k + 1) % share == 0
        with contextlib.nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync():
            loss = batch_loss(model, batch, device) / share
            loss.backward()
        total += loss.detach()
        if last:
            optimiser.step()
            optimiser.zero_grad()
    if ranks > 1:
        dist.all_reduce(total)
    return float(total) / (sampler.batches // per_step) / ranks


def batch_loss(model: nn.Module, batch: Data, device: torch.device) -> Tensor:
    """Mean cross entropy of the batch's training nodes; of a batch without any it is zero, with zero gradients."""
    batch = batch.to(device)
    logits = model(batch.x, batch.edge_index)[batch.train_mask]
    loss = F.cross_entropy(logits, batch.y[batch.train_mask], reduction="sum")
    return loss / max(1, len(logits))


@torch.no_grad()
def accuracies(
    model: nn.Module, sampler: Sampler, device: torch.device, batch_size: int, seed: int = 0
) -> dict[str, float]:
    """Accuracy on each part of the split, every node classified once, in random parts of ``batch_size`` nodes."""
    model.eval()
    right: dict[str, list[Tensor]] = {"train": [], "val": [], "test": []}
    order = torch.randperm(sampler.nodes, generator=torch.Generator().manual_seed(seed))
    for part in order.split(batch_size):
        batch: Any = sampler.subgraph(part.sort().values).to(device)
        hit = model(batch.x, batch.edge_index).argmax(1) == batch.y
        for name, found in right.items():
            found.append(hit[batch[f"{name}_mask"]].double())
    return {name: float(torch.cat(found).mean()) for name, found in right.items()}
