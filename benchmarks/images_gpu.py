"""The paper's image tables on one GPU: cost over T, MNIST, Fashion-MNIST, and what exact gradients buy.

    python benchmarks/images_gpu.py --data DIR --out OUT --minutes 9 --parts cost
    python benchmarks/images_gpu.py --data DIR --out OUT --minutes 9 --parts mnist --jobs 3 --keep runs/images

Every part is one of the package's experiments with fixed settings, printed with --show. Rows are written as they are
found. A training run that meets the time limit leaves a checkpoint under --keep; the same command goes on from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch

from neuralfde.experiments import image_adjoints, image_cost, images
from neuralfde.experiments.runtime import FolderReport, Row, plain

EXPERIMENTS: dict[str, Any] = {
    "cost-mnist": image_cost,
    "cost-fashion": image_cost,
    "mnist": images,
    "fashion": images,
    "adjoints": image_adjoints,
}
#: The last model is tested, chosen by no one: all 60,000 images train, and the recipe was fixed beforehand.
SETTINGS: dict[str, dict[str, Any]] = {
    "cost-mnist": {"dataset": "mnist", "repeats": 2},
    "cost-fashion": {"dataset": "fashion-mnist", "repeats": 2},
    "mnist": {"dataset": "mnist", "t": 20.0, "step": 0.1, "order": 0.5, "batch_size": 128, "epochs": 24,
              "coarse": "2:10,1:6,0.5:5", "lr": 2e-3, "augment": "affine+crop", "pad": 2, "ema": 0.998, "holdout": 0.0},
    "fashion": {"dataset": "fashion-mnist", "t": 1.0, "step": 0.1, "order": 0.3, "batch_size": 128, "epochs": 40,
                "lr": 3e-3, "augment": "flip+crop+erase", "pad": 2, "ema": 0.998, "holdout": 0.0},
    "adjoints": {"dataset": "mnist", "t": 5.0, "step": 0.1, "order": 0.5, "batch_size": 128, "epochs": 6,
                 "limit": 20_000, "lr": 2e-3, "ema": 0.99, "holdout": 0.1},
}  # fmt: skip


class OutOfTime(Exception):
    """The time limit was met."""


class TimedReport(FolderReport):
    """A folder that is written to after every row, says a line now and then, and stops at the deadline."""

    wants_figures = importlib.util.find_spec("matplotlib") is not None

    def __init__(self, out: Path, name: str, config: Any, deadline: float, results: Path) -> None:
        resume = (out / "config.json").is_file()
        super().__init__(out, name, config, resume=resume, every=20.0)
        self.deadline, self.results, self.said = deadline, results, 0.0
        self.curves: dict[str, Any] = {}

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        """See :class:`FolderReport`."""
        if time.monotonic() - self.said > 15:
            self.said = time.monotonic()
            print(
                f"[{self.name}] {task}: {done}/{total} {'' if loss is None else f'loss {loss:.4f} '}{text}", flush=True
            )
        if time.monotonic() > self.deadline and self.name not in ("cost-mnist", "cost-fashion"):
            raise OutOfTime

    def checkpoint(self, key: str, state: Any) -> None:
        """See :class:`FolderReport`."""
        super().checkpoint(key, state)
        self.curves[key] = state["curve"]

    def row(self, row: Row) -> None:
        """See :class:`FolderReport`."""
        super().row(row)
        print(f"[{self.name}] " + json.dumps(plain({k: v for k, v in row.items() if k != "curve"})), flush=True)
        self.write("running")

    def message(self, text: str) -> None:
        """See :class:`FolderReport`."""
        print(text, flush=True)

    def figure(self, name: str, figure: Any) -> None:
        """See :class:`FolderReport`."""
        super().figure(name, figure)
        figure.savefig(self.results / f"{name}.png", dpi=130)

    def write(self, status: str) -> None:
        """Put the state of this part into the results folder."""
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        found = self.finish(status) | {"machine": machine, "torch": torch.__version__}
        found["config"] = json.loads((self.out / "config.json").read_text())
        found["unfinished"] = {k: v for k, v in self.curves.items() if k not in {r["case"] for r in self.rows}}
        (self.results / f"{self.out.name}.json").write_text(json.dumps(plain(found), indent=1) + "\n")


def settings(part: str, given: argparse.Namespace) -> Any:
    """The configuration of a part."""
    kind = EXPERIMENTS[part].Config
    chosen = dict(SETTINGS[part])
    for name in ("compile", "channels_last", "precision", "device", "data"):
        chosen[name] = getattr(given, name)
    for change in given.set:
        name, value = change.split("=", 1)
        default = kind.__dataclass_fields__[name].default if name in kind.__dataclass_fields__ else value
        chosen[name] = value == "1" if isinstance(default, bool) else type(default)(value)
    known = {f.name for f in dataclasses.fields(kind)}
    return kind(**{k: v for k, v in chosen.items() if k in known})


def run_part(part: str, given: argparse.Namespace, deadline: float) -> None:
    """One part, or for trainings one seed of it, in this process."""
    config = settings(part, given)
    if part.startswith("cost"):
        config = dataclasses.replace(config, minutes=max(0.1, (deadline - time.monotonic()) / 60))
    where = part if given.seed is None else f"{part}-{given.seed}"
    if given.seed is not None:
        config = dataclasses.replace(config, seed=given.seed)
    if given.variant:
        where += "-" + given.variant.replace(", ", "-").replace(" ", "-")
        config = dataclasses.replace(config, variants=given.variant)
    folder = Path(given.keep) / where
    if part.startswith("cost") and (folder / "config.json").is_file():
        (folder / "config.json").unlink()  # its time limit differs every time; rows are not taken up again
    if given.show:
        print(json.dumps(dataclasses.asdict(config), indent=1))
        return
    report = TimedReport(folder, part, config, deadline, Path(given.out))
    try:
        EXPERIMENTS[part].run(config, report)
        report.write("done")
    except OutOfTime:
        report.write("interrupted")
        print(f"[{where}] out of time; run the same command again to go on", flush=True)
    for table in folder.glob("*.md"):
        (Path(given.out) / table.name).write_text(table.read_text())


def spread(part: str, given: argparse.Namespace, deadline: float) -> None:
    """The seeds of a training, or the gradients compared, in processes side by side: one alone leaves the GPU idle."""
    tasks = [["--seed", str(s)] for s in range(given.seeds)]
    if part == "adjoints":
        tasks = [["--seed", "0", "--variant", v] for v in image_adjoints.VARIANTS]
    passed = sys.argv[1:]
    running: list[subprocess.Popen[bytes]] = []
    while tasks or running:
        for ended in [p for p in running if p.poll() not in (None, 0)]:
            print(f"[{part}] a process ended with status {ended.returncode}; the same command goes on", flush=True)
        running = [p for p in running if p.returncode is None]
        while tasks and len(running) < given.jobs and time.monotonic() < deadline - 20:
            left = (deadline - time.monotonic()) / 60
            extra = [*passed, "--parts", part, "--minutes", f"{left:.2f}", *tasks.pop(0)]
            running.append(subprocess.Popen([sys.executable, __file__, *extra]))
        if not running:
            break
        time.sleep(0.5)
    if part == "adjoints":
        compare(given)


def compare(given: argparse.Namespace) -> None:
    """The figure and the table of all gradients that have finished."""
    files = sorted(Path(given.out).glob("adjoints-*.json"))
    rows = [r for f in files for r in json.loads(f.read_text())["rows"]]
    order = list(image_adjoints.VARIANTS)
    rows.sort(key=lambda r: (r["seed"], order.index(r["variant"])))
    if rows:
        (Path(given.out) / "image-adjoints-mnist.md").write_text(image_adjoints.markdown(rows))
        if TimedReport.wants_figures:
            image_adjoints.figure(rows).savefig(Path(given.out) / "image-adjoints-mnist.png", dpi=130)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with MNIST/raw and FashionMNIST/raw")
    parser.add_argument("--out", required=True, help="folder for JSON, tables and figures")
    parser.add_argument("--keep", default="runs/images_gpu", help="folder for checkpoints; keep it to go on later")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of the whole call")
    parser.add_argument("--parts", default="cost,mnist,fashion,adjoints")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=3, help="trainings side by side")
    parser.add_argument("--compile", action="store_true", help="torch.compile the field")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--precision", default="float32", help="float32 (TF32 convolutions) or bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting")
    parser.add_argument("--show", action="store_true", help="print the settings and stop")
    parser.add_argument("--seed", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--variant", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    deadline = time.monotonic() + 60 * given.minutes
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    Path(given.out).mkdir(parents=True, exist_ok=True)
    parts = [
        p for part in given.parts.split(",") for p in (["cost-mnist", "cost-fashion"] if part == "cost" else [part])
    ]
    for k, part in enumerate(parts):
        share = time.monotonic() + (deadline - time.monotonic()) / (len(parts) - k)
        if part.startswith("cost") or given.seed is not None or given.show:
            run_part(part, given, share)
        else:
            spread(part, given, share)


if __name__ == "__main__":
    main()
