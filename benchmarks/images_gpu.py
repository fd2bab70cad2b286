"""The paper's image experiments on one GPU: accuracy on MNIST and Fashion-MNIST, gradients compared, cost over T.

    python benchmarks/images_gpu.py --data DIR --out OUT --parts probe,validate --minutes 3
    python benchmarks/images_gpu.py --data DIR --out OUT --parts train --sets mnist --minutes 9.5
    python benchmarks/images_gpu.py --data DIR --out OUT --parts cost,direct,adjoints,smoke --minutes 4.6
    python benchmarks/images_gpu.py --out OUT --parts render

``probe`` finds the fastest way to train that gives the same losses; ``validate`` compares recipes on training images
held out; ``train`` takes the fastest way, chooses the number of epochs by the speed found and the time there is, and
trains all seeds of the sets in turns on their own streams; ``cost`` measures time and memory over T; ``direct`` the
memory of direct differentiation for a field that lays out the time as a channel, as torchfde's example does;
``adjoints`` trains with different gradients; ``smoke`` trains in mixed precision with TensorBoard logs, and in two
processes; ``render`` makes tables and figures of the JSON files, and needs no GPU. Each part is a process of its own,
so that none can hurt another. The recipes are fixed before any test image is looked at, and the last model is tested,
chosen by no one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import render_images
import torch
from torch.nn import functional as F
from workloads import ImageField, ImageModel, image_problem

from neuralfde.data.images import ImageData, load_images
from neuralfde.experiments import image_adjoints, image_cost, images
from neuralfde.experiments.image_schedules import stages
from neuralfde.experiments.image_training import Trainer, side_by_side
from neuralfde.experiments.memory import peak_mib
from neuralfde.experiments.processes import Processes
from neuralfde.experiments.runtime import Report, Row, plain

SETS = ("mnist", "fashion-mnist")
ENVIRONMENT = {**os.environ, "PYTHONPATH": sys.path[0]}
#: Epochs without a probe, and the most that are worth while.
EPOCHS = {"mnist": (60, 120), "fashion-mnist": (40, 60)}
#: Ways to train, from the safest on; the fastest that gives the losses of the first is taken.
WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "captured": {"capture": True},
    "captured, compiled, channels last": {"capture": True, "compile": True, "channels_last": True},
    "captured, compiled": {"capture": True, "compile": True},
}
CANDIDATES: dict[str, dict[str, Any]] = {
    "as planned": {"augment": "flip+crop+erase"},
    "nothing erased": {},
    "lr 6e-3": {"augment": "flip+crop+erase", "lr": 6e-3},
    "weight decay 0.1": {"augment": "flip+crop+erase", "weight_decay": 0.1},
    "smoothing 0.1": {"augment": "flip+crop+erase", "smoothing": 0.1},
}
ADJOINTS = {"dataset": "mnist", "t": 5.0, "step": 0.1, "order": 0.5, "batch_size": 128, "epochs": 4, "limit": 10_000,
            "lr": 2e-3, "ema": 0.99, "augment": "affine+crop", "holdout": 0.1, "capture": True}  # fmt: skip
HORIZONS = {"mnist": "20,200,100,50,10,5,1,70,60,40,30", "fashion-mnist": "20,170,100,50,10,1,70,60,40,30"}
COSTS = "direct,paper,exact,exact-constant"
#: A short training, and the ways in which it is done.
SMOKE = {"dataset": "mnist", "limit": 4096, "epochs": 2, "t": 1, "step": 0.1, "ema": 0.9}
SMOKE_WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one process": (1, ()),
    "two processes": (2, ()),
    "bfloat16, TensorBoard": (1, ("--precision=bfloat16", "--tensorboard=FOLDER/logs")),
}
#: Steps before a measurement: warm-up, capture and a few replays.
FIRST = 8
#: The part of the time for which epochs are planned.
AIM = 0.86
#: Seconds at the end of a training for testing and writing, and for the seeds that started while the first compiled.
TESTING = 40.0


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
        running = [t.steps(Report(), "probe") for t in trainers]
        for steps in running:
            for _ in range(FIRST):
                next(steps)
        wait()
        self.loss = float(trainers[0].sums[0] / trainers[0].sums[2])
        start, self.counts = time.perf_counter(), [0] * len(trainers)
        while time.perf_counter() - start < seconds:
            for k, steps in enumerate(running):
                if trainers[k].ready:
                    next(steps)
                    self.counts[k] += 1
        wait()
        self.took = time.perf_counter() - start

    @property
    def step(self) -> float:
        """Seconds of a step of the first training."""
        return self.took / max(1, self.counts[0])


def wait() -> None:
    """Until the device has done all it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
        for step, _ in stages(asked.coarse, asked.step):
            t = trainer(recipe(name, given, epochs=1000, coarse="", step=step, **WAYS[way]), data, 0)
            found["stages"][f"{name}, h={step:g}"] = Speed([t], given.probe_seconds).step
    configs = {name: recipe(name, given, epochs=1000, coarse="", **WAYS[way]) for name in sets}
    every = [trainer(c, sets[name], seed) for name, c in configs.items() for seed in range(given.seeds)]
    speed = Speed(every, 3 * given.probe_seconds)
    alone = [found["stages"][f"{t.config.dataset}, h={t.config.step:g}"] for t in every]
    found["steps of all at once"] = speed.counts
    found["overlap"] = sum(n * s for n, s in zip(speed.counts, alone, strict=True)) / speed.took
    write(given, "probe", found)
    print(render_images.probe(found), flush=True)


def fastest(found: dict[str, Any]) -> str:
    """The way with the least time over both sets, among those with the losses of the first one."""
    good = [r for r in found["ways"] if "error" not in r]
    same = [r for r in good if all(abs(r[k] / good[0][k] - 1) < 0.01 for k in r if k.endswith("loss"))]
    return min(same, key=lambda r: sum(v for k, v in r.items() if k.endswith("mnist, s")))["way"]


def epochs_for(given: argparse.Namespace, found: dict[str, Any], seconds: float) -> dict[str, int]:
    """Epochs that fit: the sets share the device in the ratio of the most epochs that are worth while."""
    if "overlap" not in found:
        return {name: usual for name, (usual, _) in EPOCHS.items()}
    cost = 0.0
    for name in given.sets.split(","):
        asked, before, most = recipe(name, given), 0.0, EPOCHS[name][1]
        for step, end in stages(asked.coarse, asked.step):
            steps = (end - before) * most * given.seeds * (60_000 // asked.batch_size)
            cost += steps * found["stages"][f"{name}, h={step:g}"] / max(1.0, found["overlap"])
            before = end
    share = min(1.0, AIM * seconds / cost)
    return {name: max(3, int(share * most)) for name, (_, most) in EPOCHS.items()}


class Told(Report):
    """Says a line now and then and writes the curves."""

    def __init__(self, name: str, found: dict[str, Any], given: argparse.Namespace, file: str) -> None:
        super().__init__()
        self.name, self.found, self.given, self.file, self.said = name, found, given, file, 0.0

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        """See :class:`Report`."""
        if time.monotonic() - self.said > 20:
            self.said = time.monotonic()
            print(f"[{self.name}] {done}/{total} loss {loss or 0:.4f} {text}", flush=True)

    def checkpoint(self, key: str, state: Any) -> None:
        """See :class:`Report`."""
        self.found["curves"][self.name] = state["curve"]
        write(self.given, self.file, self.found)


def train(given: argparse.Namespace, deadline: float) -> None:
    """All seeds of both sets, tested as they end."""
    sets = {name: load_images(name, given.data) for name in given.sets.split(",")}
    probed = probed_before(given)
    way = given.way or probed.get("fastest", "captured")
    seconds = deadline - time.time() - TESTING
    epochs = epochs_for(given, probed, seconds)
    limits = {"minutes": seconds / 60, **WAYS[way]}
    configs = {name: recipe(name, given, epochs=epochs[name], **limits) for name in sets}
    found: dict[str, Any] = {"machine": machine(), "way": way, "rows": [], "curves": {}}
    found["settings"] = {name: dataclasses.asdict(c) for name, c in configs.items()}
    print(f"{way}; epochs {epochs}; {seconds:.0f} s", flush=True)
    trainers = {f"{n}, seed {s}": trainer(c, sets[n], s) for n, c in configs.items() for s in range(given.seeds)}
    weights = {}
    for key in side_by_side(trainers, {key: Told(key, found, given, "images") for key in trainers}):
        t = trainers[key]
        dataset, seed = t.config.dataset, int(key.split()[-1])
        found["rows"].append({"dataset": dataset, "seed": seed, **t.result(), "curve": t.curve})
        weights[key] = [w.cpu() for w in t.best["weights"]]
        torch.save(weights, Path(given.out) / "weights.pt")
        write(given, "images", found)
        print(f"[{key}] test error {found['rows'][-1]['test_error']:.2f} %", flush=True)
    print(render_images.accuracy(found), flush=True)


def validate(given: argparse.Namespace, deadline: float) -> None:
    """Recipes for Fashion-MNIST compared on training images held out, all in the same time."""
    name, way = "fashion-mnist", probed_before(given).get("fastest", "captured")
    data = load_images(name, given.data)
    limits = {"minutes": (deadline - time.time() - 8) / 60, "epochs": 1000, "holdout": 1 / 6, **WAYS[given.way or way]}
    found: dict[str, Any] = {"machine": machine(), "way": way, "rows": [], "curves": {}}
    runs = {label: trainer(recipe(name, given, **{**limits, **c}), data, 0) for label, c in CANDIDATES.items()}
    for label in side_by_side(runs, {label: Told(label, found, given, "validate") for label in runs}):
        found["rows"].append({"recipe": label, **runs[label].curve[-1]})
        print(json.dumps(found["rows"][-1]), flush=True)
    write(given, "validate", found)


class Rows(Report):
    """Writes every row as it comes."""

    def __init__(self, given: argparse.Namespace, file: str, config: Any) -> None:
        super().__init__()
        self.given, self.file = given, file
        self.found: dict[str, Any] = {"machine": machine(), "settings": dataclasses.asdict(config), "rows": []}

    def row(self, row: Row) -> None:
        """See :class:`Report`."""
        self.found["rows"].append(row)
        write(self.given, self.file, self.found)


def adjoints(given: argparse.Namespace, deadline: float) -> None:
    """The same training with different gradients, one after another, so that times can be compared."""
    config = image_adjoints.Config(**{**ADJOINTS, "data": given.data, "device": given.device})
    rows = image_adjoints.run(config, Rows(given, "adjoints", config))
    print(image_adjoints.markdown(rows), flush=True)


def cost(given: argparse.Namespace, deadline: float) -> None:
    """Time and memory over T, the most telling horizons first; those for which no time is left are left out."""
    for k, dataset in enumerate(HORIZONS):
        minutes = (deadline - time.time()) / 60 / (len(HORIZONS) - k)
        config = image_cost.Config(
            dataset=dataset, horizons=given.horizons or HORIZONS[dataset], variants=COSTS, minutes=max(0.01, minutes),
            repeats=3, device=given.device, batch_size=given.batch_size,
        )  # fmt: skip
        print(render_images.cost(image_cost.run(config, Rows(given, f"cost-{dataset}", config)), dataset), flush=True)


def direct(given: argparse.Namespace, deadline: float) -> None:
    """Memory of a training step by direct differentiation, the second one of each horizon."""
    place = Processes.from_environment(given.device).device
    images_, labels = image_problem(place, given.batch_size)
    found: dict[str, Any] = {"machine": machine(), "rows": []}
    for t in (int(x) for x in (given.horizons or "20,200").split(",")):
        model = ImageModel(ImageField(), order=0.5, t=float(t), step=0.1, adjoint="direct").to(place)

        def step(model: ImageModel = model) -> None:
            model.zero_grad(set_to_none=True)
            F.cross_entropy(model(images_), labels).backward()

        step()
        found["rows"].append({"T": t, "batch_size": given.batch_size, "train_mib": peak_mib(step, place)})
        write(given, "direct", found)
    print(render_images.direct(found), flush=True)


def smoke(given: argparse.Namespace, deadline: float) -> None:
    """A short training in each way, all at once; two processes share one GPU where there is only one."""
    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for k, (way, (count, options)) in enumerate(SMOKE_WAYS.items()):
            launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m"] if count > 1 else []
            settings = [f"--{name.replace('_', '-')}={value}" for name, value in SMOKE.items()]
            settings += [f"--{x.replace('_', '-')}" for x in given.set]
            settings += [f"--data={given.data}", f"--device={given.device}", f"--out={folder}/{k}", "--quiet", *options]
            asked = [sys.executable, "-m", *launch, "neuralfde.cli", "run", "images", *settings]
            asked = [x.replace("FOLDER", folder) for x in asked]
            with Path(folder, f"{k}.log").open("w") as log:
                running[way] = subprocess.Popen(
                    asked, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT, start_new_session=True
                )
        found: dict[str, Any] = {"machine": machine(), "settings": SMOKE, "rows": []}
        for k, (way, process) in enumerate(running.items()):
            row: Row = {"way": way, "status": None}
            try:
                row["status"] = process.wait(max(1.0, deadline - time.time() - 2))
                row |= json.loads(Path(folder, str(k), "results.json").read_text())["rows"][0]["curve"][-1]
            except (subprocess.TimeoutExpired, OSError, LookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # the processes it started too
                row["error"] = Path(folder, f"{k}.log").read_text()[-2000:]
            row["log files"] = len(list(Path(folder, "logs").glob("*/events*"))) if "TensorBoard" in way else None
            found["rows"].append(row)
            write(given, "smoke", found)
    print(render_images.smoke(found), flush=True)


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def write(given: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    """Put a JSON file into the folder."""
    part = Path(given.out) / f"{name}.json.part"
    part.write_text(json.dumps(plain(found), indent=1) + "\n")
    part.replace(part.with_suffix(""))


def probed_before(given: argparse.Namespace) -> dict[str, Any]:
    """What the probe found: in this folder, or among the results; nothing where there was none."""
    for path in (Path(given.out) / "probe.json", Path(given.results) / "image-probe-h200.json"):
        if path.is_file():
            return json.loads(path.read_text())  # type: ignore[no-any-return]
    return {}


PARTS = {
    "probe": probe, "validate": validate, "train": train, "adjoints": adjoints, "cost": cost, "direct": direct,
    "smoke": smoke,
}  # fmt: skip


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder with MNIST/raw and FashionMNIST/raw")
    parser.add_argument("--out", required=True, help="folder for the JSON files")
    parser.add_argument(
        "--parts", default="probe,train,cost,direct,adjoints,smoke", help=f"of {', '.join(PARTS)}, render"
    )
    parser.add_argument("--minutes", type=float, default=13.0, help="time limit of the whole call")
    parser.add_argument("--sets", default=",".join(SETS), help="which sets to probe and train")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--way", default="", choices=["", *WAYS], help="how to train; empty: as the probe found")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting of every training"
    )
    parser.add_argument("--horizons", default="", help="the horizons of the cost tables")
    parser.add_argument("--batch-size", type=int, default=128, help="images in a batch of the parts cost and direct")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--probe-seconds", type=float, default=1.0, help="timed seconds of a measurement")
    parser.add_argument(
        "--probe-reserve", type=float, default=30.0, help="seconds kept for the second half of the probe"
    )
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"), help="where render writes")
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


#: Seconds a part may take of what is left, where another one follows.
SHARES = {"probe": 100.0, "validate": 75.0, "adjoints": 60.0, "cost": 165.0, "direct": 20.0, "smoke": 35.0}


def main() -> None:
    """Each part in a process of its own; the last one has all the time that is left."""
    given = arguments()
    parts, deadline = given.parts.split(","), given.until or time.time() + 60 * given.minutes
    Path(given.out).mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    if given.until:
        torch._dynamo.config.recompile_limit = 64
        PARTS[parts[0]](given, deadline)
        return
    for k, part in enumerate(parts):
        if part == "render":
            render_images.render(Path(given.out), Path(given.results))
            continue
        rest = sum(SHARES.get(p, 0.0) for p in parts[k + 1 :])
        left = deadline - time.time() - rest
        seconds = left if part == "train" or k + 1 == len(parts) else min(left, SHARES[part])
        options = [*sys.argv[1:], "--parts", part, "--until", str(time.time() + seconds)]
        try:
            ended = f"status {subprocess.run([sys.executable, __file__, *options], timeout=seconds + 20).returncode}"
        except subprocess.TimeoutExpired:
            ended = "stopped, out of time"
        print(f"{part}: {ended}, {(deadline - time.time()) / 60:.1f} minutes left", flush=True)


if __name__ == "__main__":
    main()
