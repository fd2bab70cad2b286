"""One process, or several started by ``torchrun``: the index of this one, and what it may report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from neuralfde.cli.experiment import Report, Row, place, rank_and_count, restarts

Result = TypeVar("Result")
LET_GO = 0.5
"""Seconds after the last collective until gloo's threads hold none of its tensors any more."""


class Processes:
    """This process among all that train together.

    Args:
        device: where this process computes.
        rank: its index.
        count: the number of processes.
    """

    def __init__(self, device: torch.device, rank: int = 0, count: int = 1) -> None:
        self.device, self.rank, self.count = device, rank, count
        self._started = False

    @classmethod
    def from_environment(cls, device: str = "auto") -> Processes:
        """Read what ``torchrun`` sets; a single process starts no group. If there are too few GPUs, they are shared."""
        (rank, count), local, chosen = rank_and_count(), int(os.environ.get("LOCAL_RANK", "0")), place(device)
        if chosen.type == "cuda":
            chosen = torch.device("cuda", local % torch.cuda.device_count())
        return cls(chosen, rank, count)

    def __enter__(self) -> Processes:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1 and not dist.is_initialized():
            # torchrun keeps one store over its restarts: without a new name, this start would read the addresses of
            # lost processes there, and wait for them
            store = dist.PrefixStore(f"start {restarts()}", next(dist.rendezvous("env://"))[0])
            apart = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
            backend = "nccl" if self.device.type == "cuda" and apart else "gloo"  # nccl needs a GPU for each process
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.count)
            self._started = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            gloo = dist.get_backend() == "gloo"
            dist.destroy_process_group()
            if gloo:  # its threads are still freeing tensors, which aborts a process that is already exiting
                time.sleep(LET_GO)

    @property
    def group(self) -> Any:
        """The process group of all processes; None for a single process."""
        return dist.group.WORLD if self.count > 1 else None

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

    def deal(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[Result]:
        """The results of all tasks in the same order, the same in every process; each task is done by one process.

        The processes take a task each, exchange their results, and take the next ones.
        """
        for first in range(0, len(tasks), self.count):
            now = tasks[first : first + self.count]
            own = now[self.rank]() if self.rank < len(now) else None
            found: list[Any] = [own] * self.count
            if self.count > 1:
                dist.all_gather_object(found, own)
            yield from found[: len(now)]

    def cases(
        self, report: Report, computes: Mapping[str, Callable[[], Row]], task: str = "", value: str = ""
    ) -> list[Row]:
        """The rows of independent cases, distributed over the processes.

        ``task`` names them in ``Report.progress``, and ``value`` the column whose latest number is shown there.
        """
        found = self.deal([compute for key, compute in computes.items() if report.known(key) is None])
        rows: list[Row] = []
        for key in computes:
            rows.append(report.case(key, found.__next__))
            if task:
                text = f"{value.replace('_', ' ')} {rows[-1][value]:.3g}" if value else key
                report.progress(task, len(rows), len(computes), text=text)
        return rows

    def quieten(self, report: Report) -> Report:
        """The report itself in the first process; in the others one that reads, but shows and writes nothing."""
        return report if self.rank == 0 else _Reader(report)


class _Reader(Report):
    def __init__(self, source: Report) -> None:
        super().__init__()
        self.source = source

    def restored(self, key: str) -> dict[str, Any] | None:
        """The checkpoint from which the run continues, the same in every process."""
        return self.source.restored(key)

    def known(self, key: str) -> dict[str, Any] | None:
        """A finished row, the same in every process."""
        return self.source.known(key)
