"""Tables and figures of the image experiments from their JSON files.

python benchmarks/images_gpu.py --out OUT --parts render      of a run on a GPU
python benchmarks/render_images.py FOLDER ...                 of ``neuralfde run images`` or ``image-adjoints``, --out
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from neuralfde_experiments import image_adjoints
from neuralfde_experiments.image_cost_table import PAPER_MEMORY, figure, markdown

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"

#: tab:mnist and the text of the paper's section on images: test error in per cent with its adjoint and direct.
PAPER = {"mnist": (0.36, 0.39), "fashion-mnist": (7.95, 7.65)}
#: Peak of a training step of torchfde's example network by direct differentiation on an H200, batches of 128, in MiB.
TORCHFDE_DIRECT = {20: 2035, 200: 19154}
TARGET = {"mnist": 0.33, "fashion-mnist": 7.0}
NAMES = {"mnist": "MNIST, T=20, β=0.5", "fashion-mnist": "Fashion-MNIST, T=1, β=0.3"}
#: The step of the solver for which the targets are set, the paper's.
STEP = 0.1


def probe(found: Row) -> str:
    """How fast the ways to train are."""
    columns = [k for k in found["ways"][0] if k != "way"]
    lines = ["| way | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for r in found["ways"]:
        cells = [f"{r[c]:.4g}" if isinstance(r.get(c), float) else str(r.get(c, r.get("error", "–"))) for c in columns]
        lines.append(f"| {r['way']} | " + " | ".join(cells) + " |")
    lines += ["", f"Fastest: {found.get('fastest')}; overlap of all trainings: {found.get('overlap', 0):.2f}.", ""]
    lines += [f"- {k}: {1000 * v:.2f} ms a step" for k, v in found.get("stages", {}).items()]
    return "\n".join(lines) + "\n"


def accuracy(found: Row) -> str:
    """Test errors of the seeds and their mean, beside the paper's."""
    lines = [
        "| set | seeds | test error, % | mean, % | target | paper: adjoint, direct | epochs | minutes, all at once |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in NAMES:
        rows = sorted((r for r in found["rows"] if r["dataset"] == name), key=lambda r: r["seed"])
        if rows:
            errors = [r["test_error"] for r in rows]
            step = found["settings"][name]["step"]
            reached = "reached" if statistics.mean(errors) < TARGET[name] + 1e-9 else "missed"
            target = f"≤ {TARGET[name]:.2f}: {reached}" if step == STEP else "none"
            lines.append(
                f"| {NAMES[name]}, h={step:g} | {len(rows)} | {', '.join(f'{e:.2f}' for e in errors)} | "
                f"{statistics.mean(errors):.2f} | {target} | {PAPER[name][0]:.2f}, {PAPER[name][1]:.2f} | "
                f"{statistics.mean(r['epochs'] for r in rows):.1f} | {max(r['seconds'] for r in rows) / 60:.1f} |"
            )
    return "\n".join(lines) + "\n"


def recipes(found: Row) -> str:
    """Recipes compared on training images held out, as far as each came in the time."""
    head = "| recipe | epochs | training loss | held-out accuracy, % | mean of the last five, % | held-out loss |"
    lines = [head, "| --- |" + " ---: |" * 5]
    for label, curve in found["curves"].items():
        last, late = curve[-1], statistics.fmean(c["held_out_accuracy"] for c in curve[-5:])
        judged = f"{last['held_out_accuracy']:.2f} | {late:.2f} | {last['held_out_loss']:.4f}"
        lines.append(f"| {label} | {last['epoch']} | {last['loss']:.4f} | {judged} |")
    return "\n".join(lines) + "\n"


def cost(rows: Sequence[Row], dataset: str) -> str:
    """Time and memory over T, without horizons that were left out altogether."""
    return markdown(measured(rows), dataset)


def direct(found: Row) -> str:
    """Memory of direct differentiation, ours and torchfde's, for the same network."""
    lines = ["| training memory of `direct`, MiB | T | ours | torchfde |", "| --- |" + " ---: |" * 3]
    for r in found["rows"]:
        theirs = TORCHFDE_DIRECT.get(r["T"]) if r["batch_size"] == 128 else None
        lines.append(f"| batches of {r['batch_size']} | {r['T']} | {r['train_mib']:.0f} | {theirs or '–'} |")
    return "\n".join(lines) + "\n"


def smoke(found: Row) -> str:
    """A short training in several ways."""
    lines = ["| way | ended with | loss | training accuracy, % | s | log files |", "| --- |" + " ---: |" * 5]
    for r in found["rows"]:
        numbers = f"{r['loss']:.4f} | {r['accuracy']:.2f} | {r['seconds']:.1f}" if "loss" in r else "– | – | –"
        ended = "out of time" if r["status"] is None else str(r["status"])
        lines.append(f"| {r['way']} | {ended} | {numbers} | {'' if r['log files'] is None else r['log files']} |")
    return "\n".join(lines) + "\n"


def seeds(found: Row) -> str:
    """Test accuracies of the seeds of one run, and what they took."""
    rows = found["rows"]
    lines = ["| set | seed | test accuracy, % | epochs | s |", "| --- |" + " ---: |" * 4]
    lines += [
        f"| {r['dataset']} | {r['seed']} | {r['test_accuracy']:.2f} | {r['epochs']:g} | {r['seconds']:.1f} |"
        for r in rows
    ]
    accuracy, seconds = (statistics.mean(r[k] for r in rows) for k in ("test_accuracy", "seconds"))
    lines.append(f"| {rows[0]['dataset']} | mean | {accuracy:.2f} | | {seconds:.1f} |")
    return "\n".join(lines) + "\n"


def measured(rows: Sequence[Row]) -> list[Row]:
    """Rows of horizons that have any figure, by horizon."""
    seen = {r["T"] for r in rows if "train_seconds" in r}
    return sorted((r for r in rows if r["T"] in seen), key=lambda r: r["T"])


def with_earlier(rows: Sequence[Row], results: Path) -> list[Row]:
    """The rows, and those of an earlier run for horizons which these leave out; such rows are marked."""
    found = measured(rows)
    seen = {r["T"] for r in found}
    before = measured(json.loads(results.read_text())["rows"]) if results.is_file() else []
    return measured([*found, *({**r, "earlier": True} for r in before if r["T"] not in seen)])


def with_other_sets(found: Row, results: Path) -> Row:
    """The trainings found, and those of an earlier run for sets which these leave out."""
    before = json.loads(results.read_text()) if results.is_file() else {"rows": [], "settings": {}}
    seen = {r["dataset"] for r in found["rows"]}
    rows = [*found["rows"], *(r for r in before["rows"] if r["dataset"] not in seen)]
    return {**found, "rows": rows, "settings": {**before["settings"], **found["settings"]}}


def earlier(rows: Sequence[Row]) -> str:
    """Which columns of a cost table are of an earlier run."""
    horizons = sorted({r["T"] for r in rows if r.get("earlier")})
    told = ", ".join(str(t) for t in horizons)
    return f" T = {told}: from an earlier run on the same kind of machine." if horizons else ""


def left_out(rows: Sequence[Row], dataset: str) -> str:
    """Which of the paper's horizons are not measured."""
    absent = sorted(set(PAPER_MEMORY[dataset]["direct"]) - {r["T"] for r in rows})
    return f" Not measured: T = {', '.join(map(str, absent))}." if absent else ""


def curves(found: Row) -> Any:
    """Training loss and accuracy of every run over the epochs."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes = picture.subplots(1, 2)
    for axis, (field, label) in zip(
        axes, (("loss", "training loss"), ("accuracy", "training accuracy, %")), strict=True
    ):
        for r in found["rows"]:
            style = {"color": "C0" if r["dataset"] == "mnist" else "C1", "linewidth": 1.0}
            first = r is next(x for x in found["rows"] if x["dataset"] == r["dataset"])
            name = NAMES[r["dataset"]] if first else None
            axis.plot([c["epoch"] for c in r["curve"]], [c[field] for c in r["curve"]], label=name, **style)
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3, linewidth=0.5)
    axes[0].legend(frameon=False, fontsize=9)
    return picture


def render(out: Path, results: Path, label: str = "h200") -> None:
    """Copy the JSON files of a run to the results, with a table and a figure of each."""
    results.mkdir(parents=True, exist_ok=True)
    for path in sorted(out.glob("*.json")):
        found, picture, note = json.loads(path.read_text()), None, ""
        stem = "images" if path.stem == "images" else f"image-{path.stem}"
        if path.stem == "probe":
            made = probe(found)
        elif path.stem.startswith("validate"):
            made = recipes(found)
        elif path.stem == "images":
            fresh = {r["dataset"] for r in found["rows"]}
            found = with_other_sets(found, results / f"{stem}-{label}.json")
            made, picture = accuracy(found), curves(found)
            kept = [NAMES[name].split(",")[0] for name in NAMES if name in found["settings"] and name not in fresh]
            note = "".join(f" {name}: from an earlier run on the same kind of machine." for name in kept)
        elif path.stem in ("direct", "smoke"):
            made = direct(found) if path.stem == "direct" else smoke(found)
        elif path.stem == "adjoints":
            stem = "image-adjoints-mnist"
            made, picture = image_adjoints.markdown(found["rows"]), image_adjoints.figure(found["rows"])
        else:
            dataset = path.stem.removeprefix("cost-")
            found["rows"] = rows = with_earlier(found["rows"], results / f"{stem}-{label}.json")
            made, picture = markdown(rows, dataset), figure(rows, dataset)
            note = earlier(rows) + left_out(rows, dataset)
        save(results / f"{stem}-{label}", found, made, picture, note)


def render_folder(folder: Path, results: Path) -> None:
    """Put a run of the command line on this machine among the results, with its table and figure."""
    found = {"machine": this_machine(), **json.loads((folder / "results.json").read_text())}
    dataset = found["rows"][0]["dataset"]
    if found["experiment"] == "image-adjoints":
        rows = found["rows"]
        made, picture = image_adjoints.markdown(rows), image_adjoints.figure(rows)
        save(results / f"image-adjoints-{dataset}-cpu", found, made, picture)
    else:
        save(results / f"images-{dataset}-cpu", found, seeds(found))


def save(path: Path, found: Row, made: str, picture: Any = None, note: str = "") -> None:
    """Write JSON, table and figure, and say in the table where it was measured."""
    at = found["machine"]
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(
        f"{made}\nMeasured on {at['device']}, torch {at['torch']}, {at['date']}.{note}\n"
    )
    if picture is not None:
        picture.savefig(path.with_suffix(".png"), dpi=130)
    print(f"{path.name}: written to {path.parent}")


def this_machine() -> dict[str, str]:
    """A CPU by its name, torch and the day."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    return {"device": f"{cpu}, {os.cpu_count()} cores", "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        render_folder(Path(name), RESULTS)
