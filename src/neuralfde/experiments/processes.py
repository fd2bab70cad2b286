"""One process or several started by ``torchrun``: who this one is, and what it may say."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from neuralfde.errors import InputError

from .runtime import Report


def restarts() -> int:
    """How often ``torchrun --max-restarts`` has started the processes anew after losing one."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Processes:
    """This process among all that train together.

    Args:
        device: where this process computes.
        rank: its number.
        count: how many there are.
    """

    def __init__(self, device: torch.device, rank: int = 0, count: int = 1) -> None:
        self.device, self.rank, self.count = device, rank, count

    @classmethod
    def from_environment(cls, device: str = "auto") -> Processes:
        """Read what ``torchrun`` sets; with one process nothing is started. Where GPUs are few, they are shared."""
        if device not in ("auto", "cpu", "cuda"):
            raise InputError(f"device={device!r} is none of auto, cpu, cuda.")
        kind = device if device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
        count, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
        place = torch.device(kind, local % max(1, torch.cuda.device_count())) if kind == "cuda" else torch.device("cpu")
        return cls(place, int(os.environ.get("RANK", "0")) if count > 1 else 0, count)

    def __enter__(self) -> Processes:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1 and not dist.is_initialized():
            # torchrun keeps one store over its restarts: without a name of its own, this start would read addresses
            # that the lost processes left there, and wait for them
            store = dist.PrefixStore(f"start {restarts()}", next(dist.rendezvous("env://"))[0])
            apart = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
            backend = "nccl" if self.device.type == "cuda" and apart else "gloo"  # nccl wants a GPU for each process
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the processes."""
        if self.count == 1:
            return model
        return nn.parallel.DistributedDataParallel(model)

    def total(self, value: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def quieten(self, report: Report) -> Report:
        """The report itself in the first process; in the others one that reads but says and writes nothing."""
        return report if self.rank == 0 else _Reader(report)


class _Reader(Report):
    def __init__(self, source: Report) -> None:
        super().__init__()
        self.source = source

    def restored(self, key: str) -> dict[str, Any] | None:
        """What the run goes on from, the same in every process."""
        return self.source.restored(key)

    def known(self, key: str) -> dict[str, Any] | None:
        """A finished row, the same in every process."""
        return self.source.known(key)
