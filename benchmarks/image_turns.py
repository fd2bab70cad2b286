"""Trainings that take turns on one GPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping

import torch

from neuralfde.cli.experiment import Report
from neuralfde_experiments.image_training import Trainer

#: Steps that may wait on a GPU: enough that it never waits itself, few enough that the others have their turn.
AHEAD = 3


class Turns:
    """The steps of a training, and whether it is time for the next.

    Args:
        trainer: the training.
        report: hears of it.
        key: its name.
    """

    def __init__(self, trainer: Trainer, report: Report, key: str) -> None:
        self.stream, self.steps = trainer.stream, trainer.steps(report, key)
        self.waiting: deque[torch.cuda.Event] = deque()

    @property
    def ready(self) -> bool:
        """Whether the next step would find a GPU that is not full of earlier ones."""
        while self.waiting and self.waiting[0].query():
            self.waiting.popleft()
        return len(self.waiting) < AHEAD

    def take(self) -> bool:
        """Do one more step, if there is one."""
        if next(self.steps, self) is self:
            return False
        if self.stream is not None:
            self.waiting.append(self.stream.record_event())
        return True


def side_by_side(trainers: Mapping[str, Trainer], reports: Mapping[str, Report]) -> Iterator[str]:
    """Train several models in turns, each with its report: a GPU overlaps what one of them alone leaves idle.

    Gives the key of each one as it ends.
    """
    running = {key: Turns(trainer, reports[key], key) for key, trainer in trainers.items()}
    while running:
        ready = [key for key in running if running[key].ready]
        for key in ready:
            if not running[key].take():
                del running[key]
                yield key
        if not ready:
            time.sleep(1e-4)
