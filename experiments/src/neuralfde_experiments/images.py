"""Classify images with a fractional equation in the middle of a convolutional model.

The paper trains on MNIST with T=20, h=0.1, β=0.5 and batches of 128 (test error 0.36 % with its adjoint, 0.39 % with
direct differentiation), and on Fashion-MNIST with T=1, β=0.3 (accuracy 92.05 % and 92.35 %). Here the loss for MNIST,
unlike the paper's, also makes two random views of an image agree. The digits of scikit-learn need no files and take
about a minute on a CPU. Under ``torchrun`` the batch is split over the processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from neuralfde.cli.experiment import (
    ADJOINTS,
    HISTORIES,
    METHODS,
    STORAGES,
    Options,
    Report,
    Row,
    device_option,
    option,
    words,
    writable,
)
from neuralfde.errors import InputError

from .data.augment import KINDS
from .data.images import ImageData, load_images
from .image_schedules import SCHEDULES, stages
from .image_training import Trainer
from .processes import Processes

PROCESSES = True
SUMMARY = "the image classifier"
EXAMPLES = (
    "neuralfde run images                          the digits, on a CPU",
    "neuralfde run images --dataset mnist --data DIR     the paper's run",
    "neuralfde run images --dataset fashion-mnist --data DIR --repeats 3",
    "neuralfde run images --learn-order --tensorboard runs/order",
    "torchrun --nproc-per-node 4 -m neuralfde run images --dataset mnist",
)
COLUMNS = ("dataset", "seed", "test_accuracy", "best_epoch", "order", "epochs", "seconds")
#: The values of fields that are left at 0 (or empty, or as in UNSET): the settings that were measured.
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "epochs": 30, "batch_size": 32, "lr": 4e-3, "schedule": "one-cycle", "ema": 0.99, "t": 1.0, "step": 0.2,
        "coarse": "", "order": 0.5, "width": 48, "augment": "affine", "pad": 1, "threads": 1, "target": 98.5,
        "warmup": 0.2, "floor": 0.0, "weight_decay": 0.02, "smoothing": 0.05, "views": 1, "agreement": 0.0,
    },
    "mnist": {
        "epochs": 68, "batch_size": 128, "lr": 3e-3, "schedule": "linear", "ema": 0.999, "t": 20.0, "step": 0.1,
        "coarse": "2:0.85,0.5:0.98", "order": 0.5, "width": 64, "augment": "affine+crop", "pad": 2, "target": 99.67,
        "warmup": 0.08, "floor": 0.1, "weight_decay": 0.05, "smoothing": 0.0, "views": 2, "agreement": 4.0,
    },
    "fashion-mnist": {
        "epochs": 42, "batch_size": 128, "lr": 3e-3, "schedule": "one-cycle", "ema": 0.998, "t": 1.0, "step": 0.1,
        "coarse": "", "order": 0.3, "width": 64, "augment": "flip+crop", "pad": 2, "target": 93.0,
        "warmup": 0.2, "floor": 0.0, "weight_decay": 0.02, "smoothing": 0.05, "views": 1, "agreement": 0.0,
    },
}  # fmt: skip
UNSET = {**dict.fromkeys(("ema", "floor", "weight_decay", "smoothing", "agreement"), -1.0), "coarse": "auto"}


def _coarse(text: str) -> None:
    if any(step <= 0 for step, _ in stages("coarse", text, 1.0)):
        raise InputError("the steps must be above 0.")


def _kinds(text: str) -> None:
    early, _, last = text.rpartition(",")
    for kinds, _ in stages("augment", early, last, str):
        words(KINDS, "+")(kinds)


@dataclass(frozen=True)
class Config(Options):
    """Settings of the experiment; a number left at 0 or a text left empty gets the value for the data set."""

    dataset: str = option("digits", "mnist, fashion-mnist or digits (embedded in scikit-learn)", choices=tuple(PRESETS))
    data: str = option("", "folder of the image files, as torchvision lays it out; empty: NEURALFDE_DATA")
    download: bool = option(False, "fetch missing image files into the folder")
    epochs: int = option(0, "passes over the training images", least=1)
    minutes: float = option(0.0, "end by then, the learning rate at zero, even with fewer epochs; 0: no limit")
    batch_size: int = option(0, "images in one step, over all processes", least=1)
    lr: float = option(0.0, "largest learning rate", above=0, most=100)
    schedule: str = option("", "learning rate after warm-up: one-cycle, cosine, linear or constant", choices=SCHEDULES)
    warmup: float = option(0.0, "share of the steps in which the learning rate rises", below=1)
    floor: float = option(-1.0, "learning rate at the end, as a share of the largest; -1: by set", least=0, most=1)
    weight_decay: float = option(-1.0, "decay of the convolution and linear weights; -1: by set", least=0, most=1e6)
    smoothing: float = option(-1.0, "label smoothing; -1: by set", least=0, below=1)
    clip: float = option(1.0, "largest norm of the gradient; 0: any", most=1e6)
    ema: float = option(
        -1.0, "decay of the mean of the weights that is evaluated; 0: the weights; -1: by set", least=0, below=1
    )
    augment: str = option(
        "", "crop, flip, affine, bend, elastic, erase joined by + or none; kinds:share,kinds: stages", reads=_kinds
    )
    pad: int = option(0, "pixels of padding for the random crop", most=64)
    views: int = option(0, "random changes of each image in one step", least=1)
    agreement: float = option(
        -1.0, "weight in the loss of agreement between the views of an image; -1: by set", least=0
    )
    order: float = option(0.0, "order of the equation, or where it starts", above=0, most=1)
    learn_order: bool = option(False, "train the order too")
    t: float = option(0.0, "horizon T", above=0, most=1e6)
    step: float = option(0.0, "step h of the solver", least=1e-6)
    coarse: str = option(
        "auto", "coarser steps first, each to a share of the training: step:share,step:share or empty", reads=_coarse
    )
    method: str = option("predictor", "scheme of the solver", choices=METHODS)
    adjoint: str = option("exact", "gradients: exact, paper or direct", choices=ADJOINTS)
    history: str = option("auto", "how the past is summed", choices=HISTORIES)
    storage: str = option("device", "where rows wait for the backward pass", choices=STORAGES)
    width: int = option(0, "channels of the state", least=1)
    depth: int = option(2, "convolutions in the field", least=1)
    downsamplings: int = option(
        -1, "strided convolutions before the equation; -1: by the size of the images", least=0, most=8
    )
    precision: str = option("float32", "float32, or bfloat16 for mixed precision", choices=("float32", "bfloat16"))
    capture: bool = option(False, "replay whole training steps as one CUDA graph; elsewhere nothing changes")
    compile: bool = option(False, "compile the field")
    channels_last: bool = option(False, "keep channels last in memory")
    holdout: float = option(0.0, "share of the training images that choose the best epoch; 0: keep the last", below=1)
    limit: int = option(0, "use only so many training images; 0: all")
    device: str = device_option()
    threads: int = option(
        0, "CPU threads; for images as small as the digits one is as fast as two, and never waits", most=1024
    )
    checkpoint_every: int = option(200, "steps between checkpoints; one is made after every epoch too", least=1)
    save: str = option(
        "", "file for the best model's weights; of several trainings each adds to the name", reads=writable
    )
    tensorboard: str = option("", "folder for TensorBoard logs; empty: none", reads=writable)
    target: float = option(0.0, "accuracy in per cent to be reached, of the mean of the seeds", most=100)
    repeats: int = option(1, "how many seeds to run, from --seed on", least=1)
    seed: int = option(0, "random seed of weights, hold-out, order and augmentation")


Settings = TypeVar("Settings", bound=Config)


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each seed: test error, validation accuracy, order, time, memory and the curve over the epochs."""
    report = Report() if report is None else report
    filled = fill(config)
    data = load_images(filled.dataset, filled.data or None, download=filled.download)
    with Processes.from_environment(filled.device) as processes, cpu_threads(filled.threads):
        report = processes.quieten(report)
        rows = [
            report.case(f"seed-{seed}", lambda seed=seed: train(filled, data, seed, report, processes))  # type: ignore[misc]
            for seed in range(config.seed, config.seed + config.repeats)
        ]
    mean = sum(r["test_accuracy"] for r in rows) / len(rows)
    asked = config.target > 0 or (config.epochs == 0 and config.limit == 0)
    if asked:
        report.verdict(f"accuracy of at least {filled.target:g} %", mean >= filled.target, f"mean {mean:.2f} %")
    return rows


@contextlib.contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Context with this many CPU threads; 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fill(config: Settings, presets: Mapping[str, dict[str, Any]] = PRESETS) -> Settings:
    """The configuration with the values of the data set where none are given."""
    unset = {k: v for k, v in presets[config.dataset].items() if getattr(config, k) == UNSET.get(k, type(v)())}
    if "coarse" in unset and (config.t or config.step):
        unset["coarse"] = ""  # the coarser steps of the data set are for its own horizon and step
    if "agreement" in unset and config.views == 1:
        unset["agreement"] = 0.0
    filled = dataclasses.replace(config, **unset)
    if filled.agreement and filled.views < 2:
        raise InputError(
            f"--agreement {filled.agreement:g} is between views of an image. Use --views 2, or leave it out."
        )
    return filled


def train(
    config: Config,
    data: ImageData,
    seed: int,
    report: Report,
    processes: Processes | None = None,
    key: str = "",
) -> Row:
    """Train one model; test the weights that are best on the held-out images, or the last if none are held out."""
    key = key or f"seed-{seed}"
    if config.save and (config.repeats > 1 or key != f"seed-{seed}"):
        path, added = Path(config.save), key.replace(",", "").replace(" ", "-")
        config = dataclasses.replace(config, save=str(path.with_stem(f"{path.stem}-{added}")))
    trainer = Trainer(config, data, seed, processes or Processes.from_environment(config.device))
    curve = trainer.fit(report, key)
    settings = dataclasses.asdict(config)
    return {"dataset": config.dataset, "seed": seed, **trainer.result(), "curve": curve, "settings": settings}
