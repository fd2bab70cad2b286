"""Work shared by two processes ends where one process ends."""

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import multiprocessing as mp

from neuralfde.cli.experiment import Report, available, load
from neuralfde_experiments import graph_training, graphs, lynx_hare, neural_field, relaxation
from neuralfde_experiments import lotka_volterra as lv
from neuralfde_experiments.graph_synthetic import GraphSize, synthetic_graph
from neuralfde_experiments.processes import Processes

ROOT = Path(__file__).parents[2]
SMALL = {"trajectories": 5, "samples": 4, "steps": 4, "batch_size": 3}
QUICK = {"t": 2.0, "step": 1.0, "hidden": 8, "heads": 2, "epochs": 6, "evaluate_every": 3, "device": "cpu"}
RUNS = {
    "shared minibatches": (lv, lv.Config(epochs=3, learn_order=True, noise=0.01, **SMALL)),
    "minibatches smaller than the processes": (lv, lv.Config(**{**SMALL, "epochs": 2, "batch_size": 1})),
    "shared, a network": (neural_field, neural_field.Config(epochs=3, width=4, **SMALL)),
    "seeds dealt out": (lv, lv.Config(optimiser="lm", repeats=3, noise=0.01, **SMALL)),
    "origins dealt out": (lynx_hare, lynx_hare.Config(first=1912, last=1912, ahead=2, steps_per_year=2)),
    "splits dealt out": (graphs, graphs.Config(seeds=3, orders="0.6,1.0", choose_on=1, **QUICK)),
    "models dealt out": (relaxation, relaxation.Config(path="relaxation.csv")),
}


def made_up_relaxation(folder):
    times = torch.logspace(-2, 2, 30, dtype=torch.float64)
    lines = (f"{t}\t{5 * t**-0.3 / (1 + t / 50) ** 0.2}" for t in times.tolist())
    (folder / "relaxation.csv").write_text("\n".join(lines))


class Spoken(Report):
    def __init__(self):
        super().__init__()
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def tiny_graph(name, root=None):
    data = synthetic_graph(GraphSize(1700, 5000, 12, 3, 0.5, 0.2, 0.9))
    data.name = name
    return data


def rows_of(name):
    graph_training.named_graph = tiny_graph
    graph_training.graph_of.cache_clear()
    module, config = RUNS[name]
    report = Spoken()
    rows = module.run(config, report)
    return {"rows": rows, "messages": report.messages, "targets": report.verdicts}


def worker(rank, port, folder):
    os.chdir(folder)
    os.environ.update(WORLD_SIZE="2", RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    with Processes.from_environment("cpu"):
        found = {name: rows_of(name) for name in RUNS}
    Path(f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    made_up_relaxation(folder)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (port, folder), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "seconds"}
    return [without_times(v) for v in value] if isinstance(value, list | tuple) else value


def agree(got, want):
    if isinstance(want, dict | list):
        assert len(got) == len(want)
        for key in want if isinstance(want, dict) else range(len(want)):
            agree(got[key], want[key])
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-6, abs=1e-9)
    else:
        assert got == want


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_end_where_one_does(name, two, tmp_path, monkeypatch):
    made_up_relaxation(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(graph_training, "named_graph", graph_training.named_graph)  # and back again
    want = json.loads(json.dumps(rows_of(name)))
    graph_training.graph_of.cache_clear()
    first, second = (without_times(found[name]) for found in two)
    agree(first["rows"], without_times(want["rows"]))
    agree(second["rows"], first["rows"])
    assert first["targets"] == want["targets"]
    assert first["messages"] == want["messages"]  # also what fits of the other process warn of


def test_every_experiment_that_trains_shares_its_work():
    assert {name for name in available() if not load(name).processes} <= {"image-cost", "graph-cost"}


def test_tasks_are_dealt_in_order():
    alone = Processes(torch.device("cpu"))
    assert list(alone.deal([partial(int, n) for n in range(5)])) == list(range(5))


def test_torchrun_keeps_the_pictures_of_every_process(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}/experiments/src", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--first=1912", "--last=1912", "--ahead=2", "--steps-per-year=2", f"--out={tmp_path}"]
    command = [*torchrun, "-m", "neuralfde", "run", "lynx-hare", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["status"] == "done"
    assert [row["case"] for row in found["rows"]] == [
        "integer-1912",
        "fractional-1912",
        "integer-mean",
        "fractional-mean",
    ]
    assert {p.name for p in tmp_path.glob("*.png")} == {"integer-1912.png", "fractional-1912.png"}
