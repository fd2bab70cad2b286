"""Take in what scripts leave in a folder: each file becomes a part of the result file of its question."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import graphs_cost
from .horizons import CPU, GPU
from .images_cost import measured_horizons
from .record import Row, here, known, put

#: question, name of the part, rows, and what is said of the run
Run = tuple[str, str, list[Row], Row]
ABOUT = ("date", "hardware", "torch", "python", "command")
CURVE = ("loss", "accuracy")
FOLDERS = ("data", "save", "tensorboard")
#: of a row of a search; how long a trial may take is the search's, not the setting's
NOT_SETTINGS = ("epochs", "patience", "val", "epoch")


def take(folder: Path, name: str = "") -> Iterator[str]:
    """Put all that is found into the result files; says which part of which question each file is."""
    for path in sorted(folder.glob("*.json")):
        taker = next((t for start, t in TAKERS.items() if path.stem.startswith(start)), None)
        if taker is None:
            yield f"{path.name}: not known, left alone"
            continue
        for question, part, rows, about in taker(json.loads(path.read_text()), path, name):
            put(question, part, without_folders(rows), **without_folders(about))
            yield f"{path.name}: {question}, {part}, {len(rows)} rows"


def without_folders(found: Any) -> Any:
    """What was found, without the folders of the machine that it was measured on."""
    if isinstance(found, dict):
        return {k: without_folders(v) for k, v in found.items() if k not in FOLDERS}
    return [without_folders(v) for v in found] if isinstance(found, list) else found


def about(found: Row, path: Path) -> Row:
    """Date, hardware and versions, as the scripts write them in several ways."""
    flat = {**found.get("machine", {}), **{k: v for k, v in found.items() if not isinstance(v, (list, dict))}}
    if "device" in flat and "hardware" not in flat:
        flat["hardware"] = "CPU" if flat["device"] == "cpu" else flat["device"]
    if "hardware" not in flat:  # the command line says nothing of its machine: the run was made on this one
        flat = {**here(), **flat}
    if "date" not in flat:
        flat["date"] = time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))
    return {k: flat[k] for k in ABOUT if k in flat}


def graph_cost(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``graphs_gpu.py``; the paper's figures are the experiment's."""
    for graph in ("arxiv", "products"):
        if rows := [r for r in found["rows"] if r.get("source") == "measured" and r["graph"].endswith(graph)]:
            before = [
                r for r in graphs_cost.costs() if r["graph"].endswith(graph)
            ]  # each with what it is compared with
            seen = {graphs_cost.method(r) for r in rows if "training_s" in r or r.get("largest")}
            rows += [r | {"earlier": True} for r in before if graphs_cost.method(r) not in seen]
            yield "graphs-cost", graph, rows, about(found, path)


def graph_kernels(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``graph_kernels.py``: times, not the profiles."""
    rows = [r for r in found["rows"] if "operation" in r or "training_s" in r]
    yield "graphs-kernels", "arxiv", rows, about(found, path)


def search(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``graphs_search.py``: a row for each setting tried, and for each training on the reported splits."""
    rows: dict[str, list[Row]] = {"graphs-accuracy": [], "graphs-order": []}
    for r in found["rows"]:
        order = r["case"].split()[1] == "order"
        kind = {"kind": r["track"]} if order else {}
        rows["graphs-order" if order else "graphs-accuracy"] += [kind | row for row in graph_rows(r)]
    more = {k: found[k] for k in ("minutes", "workers", "mps", "beside") if k in found}
    for question, own in rows.items():
        if own:
            yield question, name or path.stem, own, about(found, path) | more


def graph_rows(row: Row) -> Iterator[Row]:
    """Flat rows of one job of a search; one that failed, or only a part of a training, is none."""
    head = {"dataset": row["dataset"], "variant": row["variant"], "stage": row["case"].split()[2]}
    if "test" in row:
        kept = {k: row[k] for k in ("val", "test", "deviation", "order", "epoch", "cut") if k in row}
        splits = [{k: s[k] for k in ("seed", "val", "test", "epoch", "order")} for s in row["splits"]]
        yield {**head, **kept, "settings": row["settings"], "splits": splits}
        return
    seeds = row.get("seeds", [])
    seeds = {2: [100, 101], 4: [102, 103, 104, 105]}[seeds] if isinstance(seeds, int) else seeds
    for own in row.get("tried", ()):
        settings = {k: v for k, v in (row["settings"] | own).items() if k not in NOT_SETTINGS}
        yield {**head, "seeds": seeds, "val": own["val"], "settings": settings}


def image_trainings(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of the part ``train``: a part for each set, with the curves of its trainings."""
    for dataset, settings in found["settings"].items():
        rows = []
        for r in sorted((r for r in found["rows"] if r["dataset"] == dataset), key=lambda r: r["seed"]):
            kept = {k: r[k] for k in ("dataset", "seed", "test_error", "epochs", "seconds", "peak_mib")}
            rows.append(kept | {"curve": {k: [round(c[k], 5) for c in r["curve"]] for k in CURVE}})
        told = {"reported": not name, "way": found["way"], "settings": settings}
        yield "images-accuracy", f"{dataset}: {name or 'reported'}", rows, about(found, path) | told


def image_recipes(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of the part ``validate``: the last epoch of each recipe and the mean of the last five."""
    keep = ("epoch", "loss", "accuracy", "held_out_accuracy", "held_out_loss")
    rows = []
    for label, curve in found["curves"].items():
        late = statistics.fmean(c["held_out_accuracy"] for c in curve[-5:])
        rows.append({"recipe": label, **{k: curve[-1][k] for k in keep}, "last_five": late})
    dataset = path.stem.removeprefix("validate-")
    yield "images-accuracy", f"{dataset}: recipes compared on held-out images", rows, about(found, path)


def image_cost(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of the part ``cost``."""
    dataset = path.stem.removeprefix("cost-")
    rows = measured_horizons(with_earlier("images-cost", dataset, measured_horizons(found["rows"]), "T"))
    yield "images-cost", dataset, rows, about(found, path) | {"settings": found["settings"]}


def image_ways(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of the part ``probe``."""
    more = {k: found[k] for k in ("fastest", "stages", "overlap") if k in found}
    yield "images-cost", "ways", found["ways"], about(found, path) | more


def image_stages(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``image_stages.py``: the settings are those of the first training, the seeds and adjoints are in the rows.

    Trainings of other seeds with the same settings join those known; with others they are a part of their own.
    """
    settings = found["rows"][0]["settings"]
    new = {
        (r["seed"], r["adjoint"]): {k: v for k, v in r.items() if k not in ("settings", "case")} for r in found["rows"]
    }
    usual = name or f"{found['rows'][0]['dataset']}, β = {found['rows'][0]['order']:g}"
    for part in (usual, f"{usual}, {settings.get('epochs')} epochs"):
        earlier = next((run for run in known("image-stages") if run["part"] == part), None)
        if earlier is None:
            break
        if _alike(earlier["settings"]) == _alike(settings):
            new, settings = {(r["seed"], r["adjoint"]): r for r in earlier["rows"]} | new, earlier["settings"]
            break
    rows = [new[key] for key in sorted(new, key=lambda key: (key[0], ("exact", "direct", "paper").index(key[1])))]
    yield "image-stages", part, rows, about(found, path) | {"settings": settings}


def _alike(settings: Row) -> Row:
    """The settings, without those in which trainings of one table may differ."""
    return {k: v for k, v in settings.items() if k not in ("seed", "repeats", "adjoint", "cosine_every", *FOLDERS)}


def as_they_are(question: str, part: str) -> Callable[[Row, Path, str], Iterator[Run]]:
    """Of parts whose rows are kept as they were written."""

    def taker(found: Row, path: Path, name: str) -> Iterator[Run]:
        yield question, part, found["rows"], about(found, path) | {"settings": found.get("settings", {})}

    return taker


def command_line(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``neuralfde run images``, ``image-adjoints`` or ``image-stages``, with ``--out``."""
    if found["experiment"] == "image-stages":
        yield from image_stages(found, path, name)
    if found["experiment"] not in ("images", "image-adjoints"):
        return
    dataset = found["rows"][0]["dataset"]
    if found["experiment"] == "image-adjoints":
        yield "images-gradients", dataset, found["rows"], about(found, path)
    else:
        rows = [{k: v for k, v in r.items() if k != "curve"} for r in found["rows"]]
        yield "images-accuracy", f"{dataset}: {name or 'five seeds'}", rows, about(found, path)


def horizon_rows(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``horizons.py``."""
    part = CPU if found["device"] == "cpu" else GPU
    rows = with_earlier("horizons", part, [r for r in found["rows"] if r["total_s"] is not None], "name", "t")
    yield "horizons", part, rows, about(found, path) | {"bare": found["bare"]}


def modules(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``modules.py``."""
    for part, rows in found["parts"].items():
        yield "engine", part, rows, about(found, path)


def peers_gpu(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``peers_gpu.py``."""
    for part, rows in found["parts"].items():
        yield "peers-gpu", part, rows, about(found, path) | {k: found[k] for k in ("torchfde", "torchdiffeq")}


def versions(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``compare.py``."""
    for place, rows in found["parts"].items():
        yield "engine", f"speed on a {'GPU' if place == 'cuda' else 'CPU'}", rows, about(found, path)


def with_earlier(question: str, part: str, rows: list[Row], *keys: str) -> list[Row]:
    """The rows, and those of an earlier run that these had no time for; such rows are marked."""
    seen = {tuple(r[k] for k in keys) for r in rows}
    before = [r for run in known(question) if run["part"] == part for r in run["rows"]]
    return rows + [r | {"earlier": True} for r in before if tuple(r[k] for k in keys) not in seen]


def on_a_plane(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``allen_cahn.py``: a part for each grid."""
    yield "pde", f"allen-cahn {found['rows'][0]['points']}", found["rows"], about(found, path)


def implicit_steps(found: Row, path: Path, name: str) -> Iterator[Run]:
    """Of ``stiff_gpu.py``: trainings, and the rows of ``composing.py`` on a GPU."""
    trainings = [r for r in found["rows"] if "ratio" in r]
    yield "stiff", "on a GPU", trainings, about(found, path)
    many = [r for r in found["rows"] if "figure" in r]
    if many:
        yield "composing", "on a GPU", many, about(found, path)


#: by how the name of the file begins
TAKERS: dict[str, Callable[[Row, Path, str], Iterator[Run]]] = {
    "graphs-cost": graph_cost,
    "graph-kernels": graph_kernels,
    "graph-filter": as_they_are("graphs-filter", "cora"),
    "search": search,
    "image-stages": image_stages,
    "images": image_trainings,
    "validate-": image_recipes,
    "cost-": image_cost,
    "probe": image_ways,
    "direct": as_they_are("images-cost", "direct"),
    "smoke": as_they_are("images-cost", "short trainings"),
    "adjoints": as_they_are("images-gradients", "mnist"),
    "results": command_line,
    "horizons": horizon_rows,
    "modules": modules,
    "compare": versions,
    "peers-gpu": peers_gpu,
    "kernel": as_they_are("kernel", "training step"),
    "forecasting": as_they_are("forecasting", "five sets"),
    "pde-allen-cahn": on_a_plane,
    "stiff-gpu": implicit_steps,
}
