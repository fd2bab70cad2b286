"""Batches of images on the device: everything random is a function of the seed and the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neuralfde.errors import InputError

from .data.augment import augment
from .data.images import ImageData
from .image_schedules import current, stages
from .processes import Processes

if TYPE_CHECKING:
    from .images import Config


class Examples:
    """The training part, reshuffled every epoch, a held-out part and the test part.

    The order is a function of (seed, epoch) and the augmentation of (seed, step), so that a run can be continued from
    any step, and several processes agree without communication.

    Args:
        config: the experiment's settings.
        data: the images.
        seed: that of the hold-out, the order and the augmentation.
        processes: this process among all.

    Shapes:
        ``train``, ``held`` and ``test``: images (count, 1, rows, columns) uint8 and labels (count,).
    """

    def __init__(self, config: Config, data: ImageData, seed: int, processes: Processes) -> None:
        self.config, self.seed, self.processes = config, seed, processes
        self.mean, self.std = data.mean, data.std
        chosen = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(seed))
        chosen = chosen[: config.limit] if config.limit else chosen
        held = round(config.holdout * len(chosen))
        if held == len(chosen):
            raise InputError(f"--holdout {config.holdout:g} leaves none of {held} images to train on. Hold out fewer.")
        self.held = self._place(data.train_images[chosen[:held]], data.train_labels[chosen[:held]])
        self.train = self._place(data.train_images[chosen[held:]], data.train_labels[chosen[held:]])
        self.test = self._place(data.test_images, data.test_labels)
        self.steps = max(1, len(self.train[1]) // config.batch_size)
        self.noise = torch.Generator(processes.device)
        self._epoch, self._order = -1, torch.empty(0)
        early, _, last = config.augment.rpartition(",")
        self.kinds = stages("augment", early, last, str)
        for kinds, _ in self.kinds:  # try each on one image, so that a misspelt name is refused now
            augment(self.train[0][:1].float(), kinds, config.pad, self.noise)

    def _place(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images[:, None].to(self.processes.device), labels.to(self.processes.device)

    def batch(self, step: int, share: float = 0.0) -> tuple[Tensor, Tensor]:
        """This process's part of the batch of a step, after a share of the training, augmented and normalised.

        Several views of an image are as many rows apart as there are images.
        """
        epoch, k = divmod(step, self.steps)
        images, labels = self.train
        if epoch != self._epoch:
            order = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
            self._order, self._epoch = torch.randperm(len(labels), generator=order).to(images.device), epoch
        chosen = self._order[k * self.config.batch_size : (k + 1) * self.config.batch_size]
        self.noise.manual_seed((self.seed + 1) * 1_000_003 + step)
        x = images[chosen].repeat(self.config.views, 1, 1, 1).float() / 255
        x = (augment(x, current(self.kinds, share), self.config.pad, self.noise) - self.mean) / self.std
        mine = slice(self.processes.rank, None, self.processes.count)
        x = x.unflatten(0, (self.config.views, -1))[:, mine].flatten(0, 1)
        return x, labels[chosen][mine].repeat(self.config.views)

    def parts(self, part: tuple[Tensor, Tensor], size: int) -> list[tuple[Tensor, Tensor]]:
        """This process's batches of images to be evaluated, normalised."""
        mine = slice(self.processes.rank, None, self.processes.count)
        pairs = zip(part[0][mine].split(size), part[1][mine].split(size), strict=True)
        return [((x.float() / 255 - self.mean) / self.std, y) for x, y in pairs]
