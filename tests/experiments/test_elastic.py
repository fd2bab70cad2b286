"""Training under ``torchrun``: a process dies and the run goes on, with as many processes or with another number."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from neuralfde import InputError
from neuralfde.cli.experiment import Report
from neuralfde_experiments import graph_sampled, images, lotka_volterra
from neuralfde_experiments.data.images import load_images
from neuralfde_experiments.image_training import Trainer
from neuralfde_experiments.processes import Processes

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}/experiments/src", "OMP_NUM_THREADS": "1"}
CHILDREN = "/proc/{0}/task/{0}/children"
RUNS = {
    "images": (
        images,
        {"epochs": 12, "limit": 320, "batch_size": 32, "width": 8, "t": 0.5, "step": 0.25, "lr": 0.002, "threads": 1},
        {"checkpoint_every": 7, "holdout": 0.1, "augment": "none"},
    ),
    "graph-sampled": (
        graph_sampled,
        {"scale": 0.01, "batch_size": 600, "batches": 4, "hidden": 16, "heads": 2, "t": 2.0, "step": 1.0, "epochs": 24},
        {"order": 0.8, "lr": 0.005},
    ),
    "lotka-volterra": (lotka_volterra, {"trajectories": 16, "epochs": 30, "intervals": "none"}),
}

pytestmark = pytest.mark.skipif(not Path(CHILDREN.format(os.getpid())).exists(), reason="needs /proc")


def settings(name):
    module, *parts = RUNS[name]
    found = {k: v for part in parts for k, v in part.items()}
    return {"device": "cpu", **found} if hasattr(module.Config, "device") else found


def launch(name, out, processes, *more, restarts=0):
    options = [f"--{k.replace('_', '-')}={v}" for k, v in settings(name).items()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    torchrun += [f"--max-restarts={restarts}", "-m", "neuralfde", "run", name]
    return subprocess.Popen(
        [*torchrun, *options, f"--out={out}", *more],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def checkpointed(run, out):
    """Wait until there is something to go on from; the workers."""
    deadline = time.monotonic() + 300  # processes start slowly on a busy machine
    while not (out / "checkpoint.pt").exists():
        assert run.poll() is None, run.communicate()[0][-3000:]
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.02)
    return [int(pid) for pid in Path(CHILDREN.format(run.pid)).read_text().split()]


def finished(run, out):
    text = run.communicate(timeout=400)[0]
    assert run.returncode == 0, text[-3000:]
    found = json.loads((out / "results.json").read_text())
    assert found["status"] == "done"
    return found["rows"], text


def alone(name):
    module = RUNS[name][0]
    return module.run(module.Config(**settings(name)), Report())


def agree(name, rows):
    """As if nothing had happened: every epoch once, and the losses or estimates of a run in one process to rounding."""
    (got,), (want,) = rows, alone(name)
    if "curve" not in want:
        assert got["estimates"] == pytest.approx(want["estimates"], rel=1e-6)
        return
    assert [c["epoch"] for c in got["curve"]] == [c["epoch"] for c in want["curve"]]
    for a, b in zip(got["curve"], want["curve"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.05, abs=0.02)


@pytest.mark.parametrize("name", RUNS)
def test_torchrun_starts_a_lost_process_again(name, tmp_path):
    run = launch(name, tmp_path, 2, restarts=2)
    os.kill(checkpointed(run, tmp_path)[1], signal.SIGKILL)
    rows, text = finished(run, tmp_path)
    assert "exitcode: -9" in text or "Signal 9" in text or "SIGKILL" in text  # it really was lost
    agree(name, rows)


def test_a_run_of_two_processes_goes_on_with_one(tmp_path):
    name = "images"
    run = launch(name, tmp_path, 2)
    workers = checkpointed(run, tmp_path)
    for pid in (run.pid, *workers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.communicate()
    assert not (tmp_path / "results.json").exists()
    rows, _ = finished(launch(name, tmp_path, 1, "--resume"), tmp_path)
    agree(name, rows)


def test_an_experiment_of_one_process_says_so(tmp_path):
    environment = {**ENVIRONMENT, "WORLD_SIZE": "2", "RANK": "0"}
    command = [sys.executable, "-m", "neuralfde", "run", "graph-cost"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "lotka-volterra" in done.stderr


def test_a_limit_of_time_is_for_one_process():
    config = images.fill(images.Config(device="cpu", minutes=1.0))
    with pytest.raises(InputError, match="use epochs="):
        Trainer(config, load_images("digits"), 0, Processes(torch.device("cpu"), 0, 2))
