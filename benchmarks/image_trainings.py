"""The trainings of ``images_gpu.py``: the speed of each way, recipes compared on held-out images, and all seeds."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from image_turns import Turns, side_by_side
from report import images_cost, record

from neuralfde.cli.experiment import Report, Row, write_json
from neuralfde.cli.measuring import clock, machine
from neuralfde_experiments import images
from neuralfde_experiments.data.images import ImageData, load_images
from neuralfde_experiments.image_schedules import stages
from neuralfde_experiments.image_training import Trainer
from neuralfde_experiments.processes import Processes

#: Ways to train, from the safest on; the fastest that gives the losses of the first is taken.
WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "captured": {"capture": True},
    "captured, compiled, channels last": {"capture": True, "compile": True, "channels_last": True},
    "captured, compiled": {"capture": True, "compile": True},
}
#: For MNIST with the coarsest of its steps alone, with which most of a training goes.
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "fashion-mnist": {
        "as planned": {"augment": "flip+crop+erase"},
        "nothing erased": {},
        "lr 6e-3": {"augment": "flip+crop+erase", "lr": 6e-3},
        "weight decay 0.1": {"augment": "flip+crop+erase", "weight_decay": 0.1},
        "smoothing 0.1": {"augment": "flip+crop+erase", "smoothing": 0.1},
    },
    "mnist": {
        label: {"step": 2.0, "coarse": "", "views": 1, **changes}
        for label, changes in {
            "affine": {"augment": "affine+crop"},
            "bend": {"augment": "bend+crop"},
            "elastic": {"augment": "elastic+crop"},
            "affine, weight decay 0.1": {"augment": "affine+crop", "weight_decay": 0.1},
            "affine, no smoothing": {"augment": "affine+crop", "smoothing": 0.0},
            "bend, weight decay 0.1": {"augment": "bend+crop", "weight_decay": 0.1},
        }.items()
    },
}
#: Steps before a measurement: warm-up, capture and a few replays.
FIRST = 8
#: Seconds at the end of a training for testing and writing, and for the seeds that started while the first compiled.
TESTING = 40.0
#: Seconds at the end of a call that is not the last for the epochs that are running.
SAVING = 12.0


def apart(script: str, part: str, until: float, deadline: float) -> None:
    """Run a part of a script in a process of its own, with this script's options, until then."""
    asked = [sys.executable, script, *sys.argv[1:], "--parts", part, "--until", str(until)]
    try:
        ended = f"status {subprocess.run(asked, timeout=until - time.time() + 20).returncode}"
    except subprocess.TimeoutExpired:
        ended = "stopped, out of time"
    print(f"{part}: {ended}, {(deadline - time.time()) / 60:.1f} minutes left", flush=True)


def recipe(dataset: str, given: argparse.Namespace, **changes: Any) -> images.Config:
    """The settings of a training, all of them filled in."""
    chosen = {"dataset": dataset, "data": given.data, "device": given.device, "checkpoint_every": 10**9}
    for change in given.set:
        name, value = change.split("=", 1)
        kind = type(images.Config.__dataclass_fields__[name].default)
        chosen[name] = value == "1" if kind is bool else kind(value)
    return images.fill(images.Config(**{**chosen, **changes}))


def trainer(config: images.Config, data: ImageData, seed: int) -> Trainer:
    """One training in this process."""
    return Trainer(config, data, seed, Processes.from_environment(config.device))


class Speed:
    """Seconds of a step of each training when all take turns, and the loss of the first steps of the first one.

    Args:
        trainers: what is measured.
        seconds: for how long, after warm-up and capture.
    """

    def __init__(self, trainers: list[Trainer], seconds: float) -> None:
        running = [Turns(t, Report(), "probe") for t in trainers]
        for turns in running:
            for _ in range(FIRST):
                turns.take()
        device = trainers[0].processes.device
        self.loss = float(trainers[0].sums[0] / trainers[0].sums[2])
        start, self.counts = clock(device), [0] * len(trainers)
        while clock() - start < seconds:
            for k, turns in enumerate(running):
                self.counts[k] += turns.ready and turns.take()
        self.took = clock(device) - start

    @property
    def step(self) -> float:
        """Seconds of a step of the first training."""
        return self.took / max(1, self.counts[0])


def probe(given: argparse.Namespace, deadline: float) -> None:
    """Seconds of a training step in every way; then of every stage, and of all trainings at once, in the best way."""
    found: dict[str, Any] = {"machine": machine(), "ways": [], "stages": {}}
    sets = {name: load_images(name, given.data) for name in given.sets.split(",")}
    for way, flags in WAYS.items():
        last = found["ways"][-1]["setting up, s"] if len(found["ways"]) > 2 else 0.0
        if given.way not in ("", way) or time.time() + last > deadline - given.probe_reserve:
            continue
        began = time.perf_counter()
        row: Row = {"way": way}
        for name, data in sets.items():
            t = trainer(recipe(name, given, epochs=1000, coarse="", **flags), data, 0)
            try:
                speed = Speed([t], given.probe_seconds)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
                break
            row |= {f"{name}, s": speed.step, f"{name}, loss": speed.loss}
            row[f"{name}, captured"] = t.replay is not None and t.replay.graph is not None
        row["setting up, s"] = round(time.perf_counter() - began, 1)
        found["ways"].append(row)
        print(json.dumps(row), flush=True)
        write(given, "probe", found)
    way = fastest(found)
    found["fastest"] = way
    for name, data in sets.items():
        asked = recipe(name, given)
        for step, _ in stages("coarse", asked.coarse, asked.step):
            t = trainer(recipe(name, given, epochs=1000, coarse="", step=step, **WAYS[way]), data, 0)
            found["stages"][f"{name}, h={step:g}"] = Speed([t], given.probe_seconds).step
    configs = {name: recipe(name, given, epochs=1000, coarse="", **WAYS[way]) for name in sets}
    every = [trainer(c, sets[name], seed) for name, c in configs.items() for seed in range(given.seeds)]
    speed = Speed(every, 3 * given.probe_seconds)
    alone = [found["stages"][f"{t.config.dataset}, h={t.config.step:g}"] for t in every]
    found["steps of all at once"] = speed.counts
    found["overlap"] = sum(n * s for n, s in zip(speed.counts, alone, strict=True)) / speed.took
    write(given, "probe", found)
    print(images_cost.ways({**found, "rows": found["ways"]}), flush=True)


def fastest(found: dict[str, Any]) -> str:
    """The way with the least time over both sets, among those with the losses of the first one."""
    good = [r for r in found["ways"] if "error" not in r]
    same = [r for r in good if all(abs(r[k] / good[0][k] - 1) < 0.01 for k in r if k.endswith("loss"))]
    return min(same, key=lambda r: sum(v for k, v in r.items() if k.endswith("mnist, s")))["way"]


class TimeIsUp(Exception):
    """A training has to wait for the next call."""


class Told(Report):
    """Says a line now and then, writes the curves, and ends a call at a checkpoint when its time is up.

    Args:
        name: of the training.
        found: what is written.
        given: the command line.
        file: where it is written.
        until: when no further epoch begins.
        states: checkpoints of all trainings, those of an earlier call to begin with.
    """

    def __init__(
        self,
        name: str,
        found: dict[str, Any],
        given: argparse.Namespace,
        file: str,
        until: float = float("inf"),
        states: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.found, self.given, self.file, self.said = name, found, given, file, 0.0
        self.until, self.states = until, {} if states is None else states

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        """See :class:`Report`."""
        if time.monotonic() - self.said > 20:
            self.said = time.monotonic()
            print(f"[{self.name}] {done}/{total} loss {loss or 0:.4f} {text}", flush=True)

    def checkpoint(self, key: str, state: Any) -> None:
        """See :class:`Report`."""
        self.found["curves"][self.name] = state["curve"]
        write(self.given, self.file, self.found)
        self.states[self.name] = copy.deepcopy(state)  # the training goes on changing its own
        if time.time() > self.until:
            raise TimeIsUp

    def restored(self, key: str) -> Any:
        """See :class:`Report`."""
        return self.states.get(key)


def train(given: argparse.Namespace, deadline: float) -> None:
    """All seeds of the sets, tested as they end; a training for several calls goes on from the states it left."""
    sets = {name: load_images(name, given.data) for name in given.sets.split(",")}
    probed, place = probed_before(given), Processes.from_environment(given.device).device
    earlier = torch.load(given.resume, map_location=place, weights_only=True) if given.resume else {}
    states = earlier.get("states", {})
    way = given.way or probed.get("fastest", "captured")
    seconds = deadline - time.time() - TESTING
    spent = max((s["seconds"] for s in states.values()), default=0.0)
    whole = max(spent + seconds, 60 * given.whole)
    configs = {name: recipe(name, given, **WAYS[way]) for name in sets}
    settings = {name: dataclasses.asdict(c) for name, c in configs.items()}
    if earlier.get("settings", settings) != settings:
        raise SystemExit(f"the training in {given.resume} has other settings: resume it with its own.")
    found: dict[str, Any] = {"machine": machine(), "way": way, "rows": [], "curves": {}}
    found["settings"] = {name: {**asked, "minutes": whole / 60} for name, asked in settings.items()}
    configs = {name: dataclasses.replace(c, minutes=whole / 60) for name, c in configs.items()}
    print(f"{way}; epochs {[c.epochs for c in configs.values()]}; {seconds:.0f} of {whole:.0f} s", flush=True)
    seeds = range(given.seed, given.seed + given.seeds)
    trainers = {f"{n}, seed {s}": trainer(c, sets[n], s) for n, c in configs.items() for s in seeds}
    until = deadline - SAVING if whole > spent + seconds else float("inf")  # the rest is for another call
    reports = {key: Told(key, found, given, "images", until, states) for key in trainers}
    weights = {}
    try:
        for key in side_by_side(trainers, reports):
            t = trainers[key]
            dataset, seed = t.config.dataset, int(key.split()[-1])
            found["rows"].append({"dataset": dataset, "seed": seed, **t.result(), "curve": t.curve})
            weights[key] = [w.cpu() for w in t.best["weights"]]
            torch.save(weights, Path(given.out) / "weights.pt")
            write(given, "images", found)
            print(f"[{key}] test error {found['rows'][-1]['test_error']:.2f} %", flush=True)
    except TimeIsUp:
        torch.save({"settings": settings, "states": states}, Path(given.out) / "states.pt")
        print(f"to be resumed: {[(key, s['step']) for key, s in states.items()]}", flush=True)
        return


def validate(given: argparse.Namespace, deadline: float) -> None:
    """Recipes for one of the sets compared on training images held out, all in the same time."""
    name, way = given.sets.split(",")[0], probed_before(given).get("fastest", "captured")
    data = load_images(name, given.data)
    limits = {"minutes": (deadline - time.time() - 8) / 60, "epochs": 1000, "holdout": 1 / 6, **WAYS[given.way or way]}
    found: dict[str, Any] = {"machine": machine(), "way": way, "rows": [], "curves": {}}
    runs = {label: trainer(recipe(name, given, **{**limits, **c}), data, 0) for label, c in CANDIDATES[name].items()}
    file = f"validate-{name}"
    for label in side_by_side(runs, {label: Told(label, found, given, file) for label in runs}):
        found["rows"].append({"recipe": label, **runs[label].curve[-1]})
        print(json.dumps(found["rows"][-1]), flush=True)
    write(given, file, found)


def write(given: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    """Put a JSON file into the folder."""
    write_json(Path(given.out) / f"{name}.json", found, indent=1)


def probed_before(given: argparse.Namespace) -> dict[str, Any]:
    """What the probe found: in this folder, or among the results; nothing where there was none."""
    path = Path(given.out) / "probe.json"
    if path.is_file():
        return json.loads(path.read_text())  # type: ignore[no-any-return]
    if (record.RESULTS / "images-cost.json").is_file():
        return record.run("images-cost", "ways")
    return {}
