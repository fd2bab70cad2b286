"""Train F-GRAND on sampled subgraphs of a graph too large for one batch, in one process or in several (``torchrun``).

Batches follow GraphSAINT (Zeng et al., ICLR 2020). A step averages the losses of ``per_step`` batches, dealt out to the
processes in turn, so that the gradient of a step is the same for any number of processes that divides ``per_step``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..data.samplers import NodeSampler, RandomWalkSampler
from ..errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

Sampler = NodeSampler | RandomWalkSampler


def world() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without ``torch.distributed``."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


@contextlib.contextmanager
def processes(backend: str | None = None) -> Iterator[tuple[int, int]]:
    """Join the processes that ``torchrun`` started, if it did; leave them at the end."""
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
        try:
            yield world()
        finally:
            dist.destroy_process_group()
    else:
        yield world()


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    """The model as DDP has it where there are several processes; every rank starts from rank 0's weights."""
    if world()[1] == 1:
        return model
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def train_epoch(
    model: nn.Module, sampler: Sampler, optimiser: torch.optim.Optimizer, device: torch.device, per_step: int = 1
) -> float:
    """One epoch of this rank's batches; returns the mean loss over all processes.

    Args:
        model: F-GRAND, or what :func:`wrap` made of it.
        sampler: made with this process's ``rank`` and ``world``; it must have as many batches on every rank.
        optimiser: of the model's parameters.
        device: where batches go.
        per_step: batches of a step, over all processes.
    """
    ranks = world()[1]
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
