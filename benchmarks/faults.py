"""Faults: experiments that are killed at random moments and resumed, and files that are damaged in many ways.

    python benchmarks/faults.py --trials 60 --files 240 --seed 0

A trial starts an experiment with ``--out``, ends it by SIGKILL, SIGTERM or Ctrl-C at a random moment, up to three
times, resumes it each time, and compares every number of ``results.json`` that is not a time, and every saved weight,
bit for bit with those of an undisturbed run. Damaged files are those of an interrupted run, which is then resumed: it
must end with the same numbers, or refuse in one line and leave the other files as they are. Processes are forked from
one that has imported everything. Writes results/faults.json unless ``--dry`` is given.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner

from neuralfde.cli import execution
from neuralfde.cli.experiment import available, load
from neuralfde.cli.folder import FolderReport
from neuralfde_command import app
from neuralfde_experiments import forecasting, graph_training
from neuralfde_experiments.data.series import Panel
from neuralfde_experiments.graph_synthetic import GraphSize, synthetic_graph

LV = "--trajectories 6 --samples 5 --steps 5 --batch-size 2"
IMAGES = "--limit 96 --batch-size 16 --width 8 --t 0.5 --step 0.25 --threads 1 --holdout 0.1 --checkpoint-every 1"
GRAPH = "--hidden 8 --heads 2 --t 2 --step 1 --device cpu"
FORECAST = "--sets fulda --horizons 24 --latent 4 --width 8 --batch 8"
#: Every experiment that trains or fits, in small.
RUNS = {
    "lotka-volterra": f"run lotka-volterra {LV} --epochs 16 --learn-order",
    "lotka-volterra, lm": f"run lotka-volterra {LV} --optimiser lm --repeats 3 --noise 0.01",
    "neural-field": "run neural-field --epochs 25 --width 4 --trajectories 6 --samples 4 --steps 4 --batch-size 2",
    "images": f"run images {IMAGES} --epochs 4 --learn-order --augment affine --save model.pt",
    "image-adjoints": f"run image-adjoints {IMAGES} --epochs 2 --ema 0.9",
    "image-stages": f"run image-stages {IMAGES} --epochs 2 --adjoint exact,paper",
    "graphs": f"run graphs {GRAPH} --seeds 3 --orders 0.6,1.0 --choose-on 1 --epochs 12 --evaluate-every 3",
    "graph-sampled": f"run graph-sampled {GRAPH} --scale 0.01 --batch-size 600 --batches 4 --epochs 6",
    "forecasting": f"run forecasting {FORECAST} --seeds 2 --iterations 24 --every 2 --patience 3 --data .",
    "lynx-hare": "run lynx-hare --first 1912 --last 1912 --ahead 2 --steps-per-year 2",
    "relaxation": "run relaxation --path relaxation.csv",
    "demo": "demo --epochs 2 --trajectories 4 --no-lynx --size tiny",
}
#: The run whose files are damaged: one seed is finished, the other was on its way.
DAMAGED = f"run lotka-volterra {LV} --epochs 6 --repeats 2 --target 9"
FILES = ("checkpoint.pt", "checkpoint.previous.pt", "results.json", "config.json", "both checkpoints")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDS = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}
#: What a run leaves that a time or a name of its own is in.
TIMES = ("seconds", "run", "checksum")
DAMAGES = ("truncated", "flipped bits", "empty", "another file", "hostile")


def import_everything() -> None:
    """What the processes would otherwise import one by one, each of them again."""
    for name in available():
        load(name)
    Figure().add_subplot().figure.savefig(io.BytesIO())
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    CliRunner().invoke(app.app, ["run", "lotka-volterra", "--epochs", "0"])


class Often(FolderReport):
    """Checkpoints at every opportunity, so that a short run has as many as a long one; pictures are left out."""

    wants_figures = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"every": 0.0, **kwargs})


def tiny_graph(name, root=None, **_):
    data = synthetic_graph(GraphSize(1700, 5000, 12, 3, 0.5, 0.2, 0.9))
    data.name = name
    return data


def tiny_series(name, root=None):
    t = torch.arange(800.0)
    return Panel(torch.sin(t / 4)[None] + 1e-3 * t, t[:, None] / 800, torch.zeros(800, 2), (500, 650, 800), (24,))


def start(command: str, folder: Path, *more: str, before=lambda: None) -> int:
    """Fork a process that runs the command in a folder; its number."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "relaxation.csv").exists():
        times = torch.logspace(-2, 2, 30, dtype=torch.float64).tolist()
        (folder / "relaxation.csv").write_text("\n".join(f"{t}\t{5 * t**-0.3 / (1 + t / 50) ** 0.2}" for t in times))
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
        os.chdir(folder)
        out = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.set_num_threads(1)
        execution.FolderReport, graph_training.named_graph, forecasting._panel = Often, tiny_graph, tiny_series
        sys.argv = ["neuralfde", *command.split(), "--out", "out", "--quiet", *more]
        before()
        app.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def end(pid: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def numbers(folder: Path):
    """All that is compared: results without times, and saved weights as bytes."""
    found = json.loads((folder / "out" / "results.json").read_text())
    weights = folder / "model.pt"
    saved = torch.load(weights, weights_only=True) if weights.exists() else {}
    return _without_times(found), {k: v.numpy().tobytes() for k, v in saved.items()}


def _without_times(value):
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in TIMES}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def said(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")


def kill_and_resume(name: str, reference: tuple, trial: Path, draw: random.Random) -> dict:
    """One trial; what happened in it."""
    want, seconds, codes = reference
    found, more = {"kills": [], "restored": 0}, ()
    for _ in range(draw.randint(1, 3)):
        number = draw.choice(SIGNALS)
        pid = start(RUNS[name], trial, *more)
        time.sleep(draw.uniform(0.02, seconds))
        os.kill(pid, number)
        code = end(pid)
        if code not in ENDS[number] | codes or "Traceback" in said(trial):
            raise AssertionError(f"{name}: {number.name} ended with {code}\n{said(trial)}")
        if code in codes:  # it was over before the signal came
            if found["kills"]:
                break
            shutil.rmtree(trial)
            return kill_and_resume(name, (want, seconds / 2, codes), trial, draw)
        found["kills"].append(number.name)
        left = [p.name for p in (trial / "out").iterdir()] if (trial / "out").exists() else []
        found["restored"] += "checkpoint.pt" in left or "results.json" in left
        more = ("--resume",) if "config.json" in left else ()
    code = end(start(RUNS[name], trial, *more))
    found["equal"] = code in codes and numbers(trial) == want
    if not found["equal"]:
        print(name, trial, code, said(trial)[-500:], numbers(trial)[0], want[0], sep="\n", flush=True)
    return found


def undisturbed(name: str, folder: Path) -> tuple:
    """The numbers, the seconds and the exit codes of a run that nobody disturbs."""
    began = time.monotonic()
    code = end(start(RUNS[name], folder))
    if code not in (0, 3):
        raise AssertionError(f"{name} ended with {code}\n{said(folder)}")
    return numbers(folder), time.monotonic() - began, {code}


class Bomb:
    """What runs when it is unpickled carelessly: it leaves a file."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def bomb(form: str) -> bytes:
    """A hostile file: a bare pickle, one in an archive of ``torch.save``, that as a checkpoint with its checksum."""
    if form == "pickle":
        return pickle.dumps(Bomb())
    kept = io.BytesIO()
    torch.save({"case": "seed-1", "state": Bomb()}, kept)
    if form == "archive":
        return kept.getvalue()
    import hashlib

    return b"neuralfde checkpoint 1 " + hashlib.sha256(kept.getvalue()).hexdigest().encode() + b"\n" + kept.getvalue()


def damaged(content: bytes, how: str, draw: random.Random) -> bytes:
    if how == "truncated":
        return content[: draw.randrange(1, len(content))]
    if how == "flipped bits":
        found = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
        return bytes(found)
    if how == "another file":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("x", "y")
        other = io.BytesIO()
        torch.save({"weights": torch.ones(3)}, other)
        return draw.choice(
            (archive.getvalue(), other.getvalue(), b"{}", b"[]", b"null", draw.randbytes(500), b"\n" * 9)
        )
    return b"" if how == "empty" else bomb(draw.choice(("pickle", "archive", "checkpoint")))


def damage_and_resume(source: Path, trial: Path, file: str, how: str, want: tuple, draw: random.Random) -> str:
    """Damage one file of an interrupted run and resume it: went on, refused, or what is wrong."""
    shutil.copytree(source, trial)
    hit = [trial / "out" / name for name in (FILES[:2] if file == "both checkpoints" else (file,))]
    for path in hit:
        path.write_bytes(damaged(path.read_bytes(), how, draw))
    kept = {p: p.read_bytes() for p in (trial / "out").iterdir() if p not in hit}
    began = time.monotonic()
    code = end(start(DAMAGED, trial, "--resume"))
    text = said(trial)
    if (trial / "exploded").exists():
        return "ran code"
    if "Traceback" in text or code not in (0, 2):
        return f"crashed with {code}: {text[-300:]}"
    if code == 0:
        return "went on" if numbers(trial) == want else "other numbers"
    if len(text.strip().splitlines()) != 1 or time.monotonic() - began > 30:
        return f"more than a line: {text}"
    return "refused" if all(p.exists() and p.read_bytes() == c for p, c in kept.items()) else "lost a file"


def folders(root: Path) -> list[dict]:
    """A full disk, a file that may not grow, a folder of somebody else, a file for a folder, and one that vanishes."""
    command, rows = RUNS["lotka-volterra"], []

    def row(fault: str, folder: Path, pid: int, expected: int) -> None:
        code, text = end(pid), said(folder).strip()
        good = code == expected and len(text.splitlines()) == 1
        rows.append({"fault": fault, "exit code": code, "line": text.replace(str(root), "…"), "as documented": good})

    full = root / "full"
    row("disk full", full, start(command, full, before=lambda: _full(Path("out"))), 4)
    small = root / "small"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # noqa: E731
    row("file size limited", small, start(command, small, before=limit), 4)
    taken = root / "taken"
    row("a file in its place", taken, start(command, taken, before=lambda: Path("out").write_text("")), 2)
    if os.geteuid() == 0:
        foreign = root / "foreign"
        row("folder not writable", foreign, start(command, foreign, before=lambda: os.seteuid(65534)), 2)
    gone = root / "gone"
    pid = start(RUNS["lotka-volterra"].replace("--epochs 16", "--epochs 3000"), gone)
    while not (gone / "out" / "checkpoint.pt").exists():
        time.sleep(0.01)
    (gone / "out").rename(root / "moved")  # in one step: between the files of a removal the run may write a new one
    row("folder vanished", gone, pid, 4)
    return rows


def _full(out: Path) -> None:
    out.mkdir()
    (out / "checkpoint.pt.part").symlink_to("/dev/full")


def interrupted(folder: Path) -> None:
    """A run that was killed with a finished row and two checkpoints of the case after it."""

    class Fatal(Often):
        def flush(self):
            super().flush()
            if self.rows and len(self.seen) > 2:
                os.kill(os.getpid(), signal.SIGKILL)

        def checkpoint(self, key, state):
            self.seen = [*getattr(self, "seen", []), key] if self.rows else []
            super().checkpoint(key, state)

    code = end(start(DAMAGED, folder, before=lambda: setattr(execution, "FolderReport", Fatal)))
    if code != -9 or not all((folder / "out" / name).exists() for name in FILES[:4]):
        raise AssertionError(f"the run that was to be killed ended with {code}\n{said(folder)}")


def trials(count: int, seed: int, root: Path, names: tuple[str, ...] = tuple(RUNS)) -> list[dict]:
    """One row for each experiment."""
    rows = []
    for k, name in enumerate(names):
        draw, each = random.Random(f"{seed} {name}"), -(-count // len(names))
        reference = undisturbed(name, root / f"{k}")
        found = [kill_and_resume(name, reference, root / f"{k}-{n}", draw) for n in range(each)]
        kills = collections.Counter(kill for one in found for kill in one["kills"])
        row = {"experiment": name, "trials": each, **{number.name: kills[number.name] for number in SIGNALS}}
        row |= {key: sum(one[key] for one in found) for key in ("restored", "equal")}
        rows.append(row | {"seconds of a run": round(reference[1], 2)})
        print(rows[-1], flush=True)
    return rows


def damages(count: int, seed: int, root: Path) -> list[dict]:
    """One row for each file and kind of damage."""
    draw = random.Random(f"{seed} files")
    end(start(DAMAGED, root / "whole"))
    want = numbers(root / "whole")
    interrupted(root / "source")
    found: dict[tuple[str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    pairs = [(file, how) for file in FILES for how in DAMAGES]
    for n in range(count):
        file, how = pairs[n % len(pairs)]
        outcome = damage_and_resume(root / "source", root / f"{n}", file, how, want, draw)
        found[file, how][outcome] += 1
        shutil.rmtree(root / f"{n}")
        if outcome not in ("went on", "refused"):
            print(file, how, outcome, flush=True)
    return [{"file": f, "damage": h, "cases": c.total(), **c} for (f, h), c in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--files", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write no result file")
    given = parser.parse_args()
    import_everything()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.chmod(root, 0o755)
        parts = {
            "kill and resume": trials(given.trials, given.seed, root / "trials"),
            "damaged files": damages(given.files, given.seed, root / "files"),
            "folders": folders(root / "folders"),
        }
    bad = [r for r in parts["kill and resume"] if r["equal"] < r["trials"]]
    bad += [r for r in parts["damaged files"] if r.get("went on", 0) + r.get("refused", 0) < r["cases"]]
    bad += [r for r in parts["folders"] if not r["as documented"]]
    for part, rows in parts.items():
        print(part, *rows, sep="\n")
        if not given.dry:
            from report.record import here, put

            put("faults", part, rows, **here(), command=f"python benchmarks/faults.py --seed {given.seed}")
    sys.exit(f"{len(bad)} rows are not as promised: {bad}" if bad else 0)


if __name__ == "__main__":
    main()
