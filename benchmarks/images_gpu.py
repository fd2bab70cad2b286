"""The paper's image experiments on one GPU: accuracy on MNIST and Fashion-MNIST, gradients compared, cost over T.

    python benchmarks/images_gpu.py --data DIR --out OUT --parts probe,validate --minutes 3
    python benchmarks/images_gpu.py --data DIR --out OUT --parts train --sets mnist --minutes 9.75
    python benchmarks/images_gpu.py --data DIR --out OUT --parts cost,direct,adjoints,smoke --minutes 5.4
    python benchmarks/render.py --take OUT

``probe`` finds the fastest way to train that gives the same losses; ``validate`` compares recipes on held-out training
images; ``train`` trains all seeds of the sets in the fastest way, in turns on their own streams (over several calls
with ``--whole``, then ``--resume``), and shortens them, with their learning rates, if time is short; ``cost`` measures
time and memory over T; ``direct`` the memory of direct differentiation for a field that adds time as a channel, as
torchfde's example does; ``adjoints`` trains with different gradients; ``smoke`` trains in mixed precision with
TensorBoard logs, and in two processes. Each part is a separate process, so that none can affect another, and leaves
JSON files in ``OUT``, from which the last command makes tables and figures. No run chooses anything by test images: its
recipe is fixed, and its last models are tested.
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

import torch
from image_trainings import WAYS, apart, probe, train, validate, write
from report import images_cost
from torch import nn
from torch.nn import functional as F
from workloads import image_model, image_problem

from neuralfde.cli.experiment import Report, Row
from neuralfde.cli.measuring import machine, peak_mib
from neuralfde_experiments import image_adjoints, image_cost
from neuralfde_experiments.processes import Processes

SETS = ("mnist", "fashion-mnist")
ADJOINTS = {"dataset": "mnist", "t": 5.0, "step": 0.1, "order": 0.5, "batch_size": 128, "epochs": 4, "limit": 10_000,
            "lr": 2e-3, "ema": 0.99, "augment": "affine+crop", "views": 1, "holdout": 0.1, "capture": True}  # fmt: skip
HORIZONS = {"mnist": "20,200,100,50,10,5,1,70,60,40,30", "fashion-mnist": "20,170,100,50,10,1,70,60,40,30"}
COSTS = "direct,paper,exact,exact-constant"
#: A short training, and the ways in which it is done.
SMOKE = {"dataset": "mnist", "limit": 4096, "epochs": 2, "t": 1, "step": 0.1, "ema": 0.9, "views": 1}
SMOKE_WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one process": (1, ()),
    "two processes": (2, ()),
    "bfloat16, TensorBoard": (1, ("--precision=bfloat16", "--tensorboard=FOLDER/logs")),
}


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
        print(images_cost.cost(image_cost.run(config, Rows(given, f"cost-{dataset}", config)), dataset), flush=True)


def direct(given: argparse.Namespace, deadline: float) -> None:
    """Memory of a training step by direct differentiation, the second one of each horizon."""
    place = Processes.from_environment(given.device).device
    images_, labels = image_problem(place, given.batch_size)
    found: dict[str, Any] = {"machine": machine(), "rows": []}
    for t in (int(x) for x in (given.horizons or "20,200").split(",")):
        model = image_model(order=0.5, t=float(t), step=0.1, adjoint="direct").to(place)

        def step(model: nn.Module = model) -> None:
            model.zero_grad(set_to_none=True)
            F.cross_entropy(model(images_), labels).backward()

        step()
        found["rows"].append({"T": t, "batch_size": given.batch_size, "train_mib": peak_mib(step, place)})
        write(given, "direct", found)
    print(images_cost.direct(found["rows"]), flush=True)


def smoke(given: argparse.Namespace, deadline: float) -> None:
    """A short training in each way, all at once; two processes share one GPU where there is only one."""
    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for k, (way, (count, options)) in enumerate(SMOKE_WAYS.items()):
            launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m"] if count > 1 else []
            settings = [f"--{name.replace('_', '-')}={value}" for name, value in SMOKE.items()]
            settings += [f"--{x.replace('_', '-')}" for x in given.set]
            settings += [f"--data={given.data}", f"--device={given.device}", f"--out={folder}/{k}", "--quiet", *options]
            asked = [sys.executable, "-m", *launch, "neuralfde", "run", "images", *settings]
            asked = [x.replace("FOLDER", folder) for x in asked]
            with Path(folder, f"{k}.log").open("w") as log:
                running[way] = subprocess.Popen(asked, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
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
    print(images_cost.smoke(found["rows"]), flush=True)


PARTS = {
    "probe": probe, "validate": validate, "train": train, "adjoints": adjoints, "cost": cost, "direct": direct,
    "smoke": smoke,
}  # fmt: skip


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder with MNIST/raw and FashionMNIST/raw")
    parser.add_argument("--out", required=True, help="folder for the JSON files")
    parser.add_argument("--parts", default="probe,train,cost,direct,adjoints,smoke", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=13.0, help="time limit of the whole call")
    parser.add_argument("--whole", type=float, default=0.0, help="minutes of a training over several calls")
    parser.add_argument("--resume", default="", help="states.pt of the call before")
    parser.add_argument("--sets", default=",".join(SETS), help="which sets to probe and train")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each set")
    parser.add_argument("--seed", type=int, default=0, help="of the first training")
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
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


#: Seconds a part may take of what is left, where another one follows.
SHARES = {"probe": 100.0, "validate": 75.0, "adjoints": 60.0, "cost": 200.0, "direct": 20.0, "smoke": 35.0}


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
        rest = sum(SHARES.get(p, 0.0) for p in parts[k + 1 :])
        left = deadline - time.time() - rest
        seconds = left if part == "train" or k + 1 == len(parts) else min(left, SHARES[part])
        apart(__file__, part, time.time() + seconds, deadline)


if __name__ == "__main__":
    main()
