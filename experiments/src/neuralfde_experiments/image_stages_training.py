"""Training of the staged image model: test accuracy and the direction of gradients, epoch by epoch."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralfde import FDEBlock, Full
from neuralfde.cli.experiment import Row
from neuralfde.cli.measuring import peak_mib
from neuralfde.errors import InputError, NonFiniteError

from .data.images import ImageData
from .image_stages_model import StagedFDE
from .image_training import Trainer, _Logs, common
from .processes import Processes

if TYPE_CHECKING:
    from .image_stages import Config

#: Steps per block. A block holds a row for each of its steps besides the past: with 64, ten steps take 1.7 times the
#: memory.
BLOCK = 2
#: The number of images on whose loss gradients are compared.
COMPARED = 64


def build(config: Config, data: ImageData) -> StagedFDE:
    """The model of a configuration, on the CPU."""
    if config.depth != 2:
        raise InputError(f"--depth {config.depth}: a field has two convolutions here. Leave it out.")
    return StagedFDE(
        (1, *data.train_images.shape[1:]),
        expansion=config.expansion,
        halvings=2 if config.downsamplings < 0 else config.downsamplings,
        pieces=config.pieces,
        history=Full(BLOCK) if config.history == "auto" else config.history,
        **common(config, data),
    )


class StageTrainer(Trainer):
    """A :class:`Trainer` that tests every epoch, compares gradients now and then, and ends if the loss is not finite.

    A loss that is not finite ends the training: its epoch has None for a loss, and the row says ``finite: False``.
    """

    config: Config
    model: StagedFDE
    build = staticmethod(build)
    judged_at_once = 2500
    judged_by = "single"  # so many images keep a GPU busy: capturing would gain nothing

    @property
    def lost(self) -> bool:
        """Whether the loss was not finite."""
        return bool(self.curve) and self.curve[-1]["loss"] is None

    def train_step(self) -> None:
        """One step; a state that is not finite is found at the end of the epoch, as in captured steps."""
        try:
            super().train_step()
        except (NonFiniteError, InputError) as error:
            self._check_lost(error)
            self.sums += torch.nan
            self.step += 1

    def end_epoch(self, log: _Logs) -> None:
        """See :class:`Trainer`."""
        try:
            super().end_epoch(log)
        except (NonFiniteError, InputError) as error:
            self._check_lost(error)
            epoch = -(-self.step // self.examples.steps)
            self.curve.append({"epoch": epoch, "loss": None, "seconds": round(self.seconds, 3)})

    def _check_lost(self, error: NonFiniteError | InputError) -> None:
        """A solve refuses initial states that are not finite, as such weights make them; other refusals are errors."""
        if isinstance(error, InputError) and all(bool(w.isfinite().all()) for w in [*self.weights, *self.mean]):
            raise error

    def more(self, epoch: int, weights: list[Tensor]) -> Row:
        """The test accuracy and, in the first and every few epochs, cosines of gradients."""
        row: Row = {"test_accuracy": self.judge(self.examples.test, weights)[0]}
        every = self.config.cosine_every
        if every and (epoch == 1 or epoch % every == 0):
            row["cosines"] = self.cosines()
        return row

    def cosines(self) -> dict[str, float | None]:
        """Cosines between this gradient and the true one: of the images, and of each stage's weights.

        The true one is that of autograd through the solver, in float64. None if the gradient is not finite.
        """
        images, labels = (x[:COMPARED] for x in self.examples.train)
        ((x, y),) = self.examples.parts((images, labels), COMPARED)
        with self._precision():
            ours = gradients(self.model, x, y, self.config.adjoint)
        true = gradients(copy.deepcopy(self.model).double(), x.double(), y, "direct")
        found = {k: float(F.cosine_similarity(g.double(), true[k], dim=0)) for k, g in ours.items()}
        return {k: x if math.isfinite(x) else None for k, x in found.items()}

    def result(self) -> Row:
        """See :class:`Trainer`; of a training that was lost, the accuracy before."""
        if not self.lost:
            return {"finite": True, **super().result()}
        before = [c["test_accuracy"] for c in self.curve if "test_accuracy" in c]
        epochs = round(self.step / self.examples.steps, 2)
        kept = before[-1] if before else None
        return {"finite": False, "test_accuracy": kept, "epochs": epochs, "seconds": round(self.seconds, 3)}


def gradients(model: StagedFDE, images: Tensor, labels: Tensor, adjoint: str) -> dict[str, Tensor]:
    """Gradients of the loss with respect to the images, and to the weights of each stage, each as one vector.

    They are computed with a copy of the model, which is neither compiled nor captured.
    """
    model = copy.deepcopy(model)
    for block in model.stages:
        assert isinstance(block, FDEBlock)
        block.options |= {"adjoint": adjoint, "stepper": "single"}
    images = images.clone().requires_grad_()
    F.cross_entropy(model(images).to(images.dtype), labels).backward()
    every: dict[str, list[nn.Parameter]] = {
        f"stage {k + 1}": list(stage.parameters()) for k, stage in enumerate(model.stages)
    }
    found = {k: torch.cat([p.grad.flatten() for p in own if p.grad is not None]) for k, own in every.items()}
    assert images.grad is not None
    return {"images": images.grad.flatten(), **found}


def step_mib(config: Config, data: ImageData, processes: Processes) -> float:
    """The peak memory of one training step in MiB, not captured; an earlier step has made the optimiser's state."""
    plain = dataclasses.replace(config, capture=False, compile=False)
    trainer = StageTrainer(plain, data, config.seed, processes)
    batch = trainer.examples.batch(0)
    trainer.update(*batch)
    return peak_mib(lambda: trainer.update(*batch), processes.device)
