"""Three fractional stages on one GPU: exact, direct and the paper's gradients from the same seeds.

    python benchmarks/image_stages.py --data DIR --out OUT --parts pilot --minutes 1.5
    python benchmarks/image_stages.py --data DIR --out OUT --parts memory,train --minutes 9.5 --epochs 20
    python benchmarks/render.py --take OUT

``pilot`` measures seconds per epoch for several ways and widths, of one training and of all at once; ``memory`` the
peak of one training step for each adjoint, with nothing else on the GPU; ``train`` trains all seeds and adjoints in
turns, each on its own stream, for ``--epochs`` epochs, and writes ``image-stages-….json`` after every epoch. If time
runs out it leaves ``states.pt``, from which ``--resume`` continues. Each part is a separate process. If a session is
too short for all seeds, ``--seed 1 --seeds 1`` trains only the second; ``--take`` adds it to the others.
Convolutions run in TF32, PyTorch's default; the states, their sums and all norms are float32.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from image_trainings import SAVING, Speed, TimeIsUp, Told, apart, write
from image_turns import side_by_side

from neuralfde.cli.experiment import Row
from neuralfde.cli.measuring import machine
from neuralfde_experiments import image_stages, images
from neuralfde_experiments.data.images import load_images
from neuralfde_experiments.image_stages_training import StageTrainer, step_mib
from neuralfde_experiments.processes import Processes

FAST = {"capture": True, "compile": True, "channels_last": True}
#: What the pilot tries, the likeliest first: changes to the settings of a training.
WAYS: dict[str, dict[str, Any]] = {
    "compiled, channels last": {},
    "direct": {"adjoint": "direct"},
    "paper": {"adjoint": "paper"},
    "bfloat16": {"precision": "bfloat16"},
    "captured alone": {"compile": False, "channels_last": False},
    "width 32": {"width": 32},
    "width 16": {"width": 16},
}


def recipe(given: argparse.Namespace, **changes: Any) -> image_stages.Config:
    """The settings of a training, all of them filled in."""
    chosen: dict[str, Any] = {"dataset": given.dataset, "data": given.data, "device": given.device, **FAST}
    chosen |= {"order": given.order, "epochs": given.epochs, "checkpoint_every": 10**9}
    for change in given.set:
        name, value = change.split("=", 1)
        kind = type(image_stages.Config.__dataclass_fields__[name].default)
        chosen[name] = value == "1" if kind is bool else kind(value)
    return images.fill(image_stages.Config(**{**chosen, **changes}), image_stages.PRESETS)


def pilot(given: argparse.Namespace, deadline: float) -> None:
    """Seconds an epoch of one exact training in every way; then of all trainings at once, in the way of the run."""
    data, processes = load_images(given.dataset, given.data), Processes.from_environment(given.device)
    found: dict[str, Any] = {"machine": machine(), "rows": []}

    def measure(label: str, configs: list[image_stages.Config]) -> None:
        began = time.time()
        row: Row = {"way": label}
        try:
            trainers = [StageTrainer(c, data, k // 3, processes) for k, c in enumerate(configs)]
            steps = [t.examples.steps for t in trainers]
            speed = Speed(trainers, given.probe_seconds * len(trainers) ** 0.5)  # type: ignore[arg-type]
            epochs = [speed.took / max(1, n) * s for n, s in zip(speed.counts, steps, strict=True)]
            row |= {"loss": speed.loss, "seconds an epoch": [round(x, 3) for x in epochs]}
            row |= {"captured": [t.replay is not None and t.replay.graph is not None for t in trainers]}
            row["seconds for one epoch of all"] = round(max(epochs), 2)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        row["setting up, s"] = round(time.time() - began, 1)
        found["rows"].append(row)
        print(json.dumps(row), flush=True)
        write(given, "pilot", found)

    every = [recipe(given, adjoint=a, epochs=1000) for _ in range(given.seeds) for a in given.adjoints.split(",")]
    for label, changes in list(WAYS.items())[:1]:
        measure(label, [recipe(given, **{"adjoint": "exact", "epochs": 1000, **changes})])
    measure("all at once", every)
    for label, changes in list(WAYS.items())[1:]:
        if time.time() < deadline - 15:
            measure(label, [recipe(given, **{"adjoint": "exact", "epochs": 1000, **changes})])


def memory(given: argparse.Namespace, deadline: float) -> None:
    """The peak of a training step of each adjoint, one after the other."""
    data, processes = load_images(given.dataset, given.data), Processes.from_environment(given.device)
    found: dict[str, Any] = {"machine": machine(), "rows": []}
    for name in given.adjoints.split(","):
        c = recipe(given, adjoint=name)
        found["rows"].append({"adjoint": name, "order": c.order, "step_mib": step_mib(c, data, processes)})
        print(json.dumps(found["rows"][-1]), flush=True)
        write(given, "memory", found)


def train(given: argparse.Namespace, deadline: float) -> None:
    """All seeds and adjoints, tested after every epoch; only the first seed compares gradients."""
    data, processes = load_images(given.dataset, given.data), Processes.from_environment(given.device)
    path = Path(given.out) / "memory.json"
    peaks = {r["adjoint"]: r["step_mib"] for r in json.loads(path.read_text())["rows"]} if path.is_file() else {}
    file = f"image-stages-{given.dataset}-{recipe(given).order:g}"
    states = torch.load(given.resume, map_location=processes.device, weights_only=True) if given.resume else {}
    found: dict[str, Any] = {"machine": machine(), "rows": [], "curves": {}}
    found["command"] = (
        f"python benchmarks/image_stages.py --data DIR --out OUT --dataset {given.dataset} --order {given.order:g} "
        f"--epochs {given.epochs} --seed {given.seed} --seeds {given.seeds} --adjoints {given.adjoints}"
    )
    trainers = {}
    for seed in range(given.seed, given.seed + given.seeds):
        for name in given.adjoints.split(","):
            changes = {} if seed == given.seed else {"cosine_every": 0}
            config = recipe(given, adjoint=name, **changes)
            trainers[f"{name}, seed {seed}"] = StageTrainer(config, data, seed, processes)
    reports = {key: Told(key, found, given, file, deadline - SAVING, states) for key in trainers}
    try:
        for key in side_by_side(trainers, reports):  # type: ignore[arg-type]
            row = image_stages.row_of(trainers[key], int(key.split()[-1])) | {"peak_mib": None}
            found["rows"].append({"step_mib": peaks.get(row["adjoint"]), **row})
            write(given, file, found)
            print(f"[{key}] {row['test_accuracy']} %, finite: {row['finite']}, {row['seconds']:.0f} s", flush=True)
    except TimeIsUp:
        torch.save(states, Path(given.out) / "states.pt")
        print(f"to be resumed: {[(key, s['step']) for key, s in states.items()]}", flush=True)
    rows = sorted(found["rows"], key=lambda r: (r["seed"], given.adjoints.split(",").index(r["adjoint"])))
    print(image_stages.markdown(rows), flush=True)


PARTS = {"pilot": pilot, "memory": memory, "train": train}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder with FashionMNIST/raw")
    parser.add_argument("--out", required=True, help="folder for the JSON files")
    parser.add_argument("--parts", default="memory,train", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit of the whole call")
    parser.add_argument("--epochs", type=int, default=0, help="of each training; 0: those of the recipe")
    parser.add_argument("--dataset", default="fashion-mnist", choices=tuple(image_stages.PRESETS))
    parser.add_argument("--order", type=float, default=0.6)
    parser.add_argument("--adjoints", default="exact,direct,paper")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each adjoint")
    parser.add_argument("--seed", type=int, default=0, help="of the first training")
    parser.add_argument("--resume", default="", help="states.pt of the call before")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--probe-seconds", type=float, default=1.5, help="timed seconds of a way in the pilot")
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Each part in a process of its own, so that memory is measured alone."""
    given = arguments()
    deadline = given.until or time.time() + 60 * given.minutes
    Path(given.out).mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    if given.until:
        torch._dynamo.config.recompile_limit = 64
        PARTS[given.parts](given, deadline)
        return
    for part in given.parts.split(","):
        apart(__file__, part, deadline, deadline)


if __name__ == "__main__":
    main()
