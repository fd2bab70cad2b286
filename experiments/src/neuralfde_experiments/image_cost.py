"""Time and memory of a training step and of inference over the horizon T, as in the paper's tables.

The model is the paper's image model with h=0.1 and batches of 128, on MNIST's (β=0.5, T up to 200) or
Fashion-MNIST's (β=0.3, T up to 170) setting. Neither time nor memory depends on the pixels, so the images are random
and no data is needed. On a CPU the list of horizons is short, and memory counts what a step allocates beyond the model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import neuralfde
from neuralfde.cli.experiment import Options, Report, Row, device_option, numbers, option, words
from neuralfde.cli.measuring import clock, peak_mib
from neuralfde.errors import InputError
from neuralfde.models.image import ConvFDE

from .image_cost_table import figure, markdown
from .processes import Processes
from .tables import keep_table

SUMMARY = "time and memory of the image classifier"
EXAMPLES = (
    "neuralfde run image-cost              short on a CPU, the paper's on a GPU",
    "neuralfde run image-cost --dataset fashion-mnist",
    "neuralfde run image-cost --horizons 20,200 --variants exact,paper",
)
COLUMNS = ("dataset", "variant", "T", "train_seconds", "train_mib", "inference_seconds", "inference_mib")
SETTINGS: dict[str, tuple[float, tuple[int, ...]]] = {
    "mnist": (0.5, (1, 5, 10, 20, 30, 40, 50, 60, 70, 100, 200)),
    "fashion-mnist": (0.3, (1, 10, 20, 30, 40, 50, 60, 70, 100, 170)),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "direct": {"adjoint": "direct"},
    "paper": {"adjoint": "paper"},
    "exact": {"adjoint": "exact"},
    "exact-constant": {"adjoint": "exact", "history": "exponentials", "storage": "host"},
    "exact-checkpoint": {"adjoint": "exact", "history": "exponentials", "storage": "checkpoint"},
}


#: A run is not repeated after this many timed seconds.
ENOUGH = 0.5


@dataclass(frozen=True)
class Config(Options):
    """Settings of the experiment; a number left at 0 or a text left empty takes what suits the data set or device."""

    dataset: str = option("mnist", "whose table: mnist or fashion-mnist", choices=tuple(SETTINGS))
    horizons: str = option("", "the horizons T, joined by commas", reads=numbers(int, least=1, most=10**6))
    variants: str = option(
        "",
        f"which of {', '.join(VARIANTS)}, joined by commas; empty: all this version can do",
        reads=words(tuple(VARIANTS)),
    )
    order: float = option(0.0, "order of the equation", above=0, most=1)
    step: float = option(0.1, "step h of the solver", least=1e-6)
    batch_size: int = option(0, "images in a batch", least=1)
    width: int = option(64, "channels of the state", least=1)
    precision: str = option("float32", "float32, or bfloat16 for mixed precision", choices=("float32", "bfloat16"))
    compile: bool = option(False, "compile the field")
    channels_last: bool = option(False, "keep channels last in memory")
    repeats: int = option(
        3, "timed steps, of which the median counts; fewer where they take over half a second", least=1
    )
    minutes: float = option(0.0, "leave out rows that would take the run past this; 0: take the time it takes")
    device: str = device_option()
    seed: int = option(0, "random seed")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each variant and horizon; a row that fails says why."""
    report = Report() if report is None else report
    began = time.monotonic()
    place = Processes.from_environment(config.device).device
    order, horizons, variants, batch = _read(config, place)
    rows: list[Row] = []
    for horizon in horizons:
        for name in variants:
            left = config.minutes * 60 - (time.monotonic() - began) if config.minutes else float("inf")
            before = [r for r in rows if r["variant"] == name and "train_seconds" in r]
            # after a longer run, what is not captured needs no warm-up: kernels are chosen, memory is allocated
            warm = name == "direct" and any(r["T"] > horizon for r in before)
            late = bool(before) and _expected(before[-1], horizon, config.repeats) > left

            def compute(name: str = name, t: int = horizon, warm: bool = warm, late: bool = late) -> Row:
                row: Row = {"dataset": config.dataset, "variant": name, "T": t, "device": place.type}
                if late:
                    return row | {"error": "left out: no time"}
                return row | measure(config, name, t, order, batch, place, warm)

            rows.append(report.case(f"{config.dataset} {name} T={horizon}", compute))
            report.progress("image-cost", len(rows), len(variants) * len(horizons), text=f"{name}, T={horizon}")
    keep_table(report, f"image-cost-{config.dataset}", markdown(rows, config.dataset))
    if report.wants_figures:
        report.figure(f"image-cost-{config.dataset}", figure(rows, config.dataset))
    return rows


def _read(config: Config, place: torch.device) -> tuple[float, tuple[int, ...], list[str], int]:
    order, horizons = SETTINGS[config.dataset]
    if place.type == "cpu":
        horizons = horizons[:3]
    if config.horizons:
        horizons = tuple(int(t) for t in config.horizons.split(","))
    names = config.variants.split(",") if config.variants else [v for v in VARIANTS if can(v)]
    return config.order or order, horizons, names, config.batch_size or (128 if place.type == "cuda" else 16)


def can(variant: str) -> bool:
    """Whether this version of the solver knows the choices of a variant."""
    z0 = torch.ones(1)
    try:
        neuralfde.fdeint(lambda t, z: -z, z0, 1.0, 0.5, steps=4, **VARIANTS[variant])
    except (InputError, neuralfde.InputTypeError):
        return False
    return True


def _expected(before: Row, horizon: int, repeats: int) -> float:
    """The seconds that a row will take, from an earlier one: the work grows about linearly in T."""
    once = (before["train_seconds"] + before["inference_seconds"]) * horizon / before["T"]
    return float(2 * once + min((repeats - 1) * once, 2 * ENOUGH))


def measure(
    config: Config, variant: str, t: int, order: float, batch: int, place: torch.device, warm: bool = False
) -> Row:
    """Time and memory of one variant at one horizon; an error becomes part of the row. ``warm``: without a warm-up."""
    try:
        torch.manual_seed(config.seed)
        images = torch.randn(batch, 1, 28, 28, device=place)
        labels = torch.randint(10, (batch,), device=place)
        model = ConvFDE(
            width=config.width,
            order=order,
            t=float(t),
            step=config.step,
            channels_last=config.channels_last,
            **VARIANTS[variant],
        ).to(place)
        if config.compile:
            model.fde.func.compile(dynamic=False)  # type: ignore[attr-defined]
        cast = torch.autocast(place.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")

        def train() -> None:
            model.zero_grad(set_to_none=True)
            with cast:
                loss = F.cross_entropy(model(images).float(), labels)
            loss.backward()

        def infer() -> None:
            with torch.no_grad(), cast:
                model(images)

        row = _timed("train", train, config.repeats, place, warm)
        model.zero_grad(set_to_none=True)
        return row | _timed("inference", infer, config.repeats, place, warm)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"error": "out of memory"}
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}


def _timed(name: str, work: Callable[[], None], repeats: int, place: torch.device, warm: bool) -> Row:
    """Peak memory and median seconds after a warm-up; long runs are repeated less often."""
    took: list[float] = []

    def clocked() -> None:
        start = clock(place)
        work()
        took.append(clock(place) - start)

    if not warm:
        work()
    memory = peak_mib(clocked, place)
    if place.type == "cpu":
        took.clear()  # on a CPU the profiler that counts memory takes time too
    while not took or (len(took) < repeats and sum(took) < ENOUGH):
        clocked()
    return {f"{name}_seconds": statistics.median(took), f"{name}_mib": memory}
