"""Processes that train the jobs of ``graphs_search.py`` on one device, side by side."""

from __future__ import annotations

import argparse
import logging.handlers
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from graph_jobs import Job, Row


def train(job: Job, data: str, device: str, workers: int) -> list[Row]:
    """Do a job: one row for each of the settings and each split."""
    from neuralfde_experiments.graph_training import features_of, graph_of, side_by_side, train_splits

    each = [s for s in job.settings for _ in job.seeds]
    seeds = list(job.seeds) * len(job.settings)
    graph = graph_of(job.dataset, data, device, **features_of(each[0]))
    size = 1 if device == "cpu" else max(1, side_by_side(graph, each[0], job.variant, device) * 2 // workers)
    found: list[Row] = []
    for k in range(0, len(each), size):
        part = slice(k, k + size)
        options: dict[str, Any] = {"variant": job.variant, "learn_order": "learned" in (job.stage, job.track)}
        options |= {"device": device, "root": data, "until": job.until}
        found += train_splits(job.dataset, each[k], seeds[part], each=each[part], **options)
    return found


def work(pipe: Connection, data: str, device: str, workers: int) -> None:
    """A worker: takes jobs until there are none; a job that fails says so."""
    import torch

    from neuralfde.cli.measuring import machine

    torch.set_num_threads(1)
    cuda, notes = device != "cpu", logging.handlers.BufferingHandler(1000)
    logging.getLogger("neuralfde").addHandler(notes)
    pipe.send(machine(torch.device(device)))
    while (job := pipe.recv()) is not None:
        began = time.time()
        try:
            answer: Row = {"rows": train(job, data, device, workers)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
        if notes.buffer:
            answer["notes"] = sorted({r.getMessage()[:300] for r in notes.buffer})
            notes.flush()
        if cuda:
            torch.cuda.empty_cache()
        pipe.send(answer | {"seconds": round(time.time() - began, 2)})


class Workers:
    """Processes that train; one that dies is replaced."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.context = args, get_context("spawn")
        self.idle: list[Connection] = []
        self.processes: dict[Connection, Any] = {}
        self.busy: dict[Connection, Job | None] = {}
        for _ in range(args.workers):
            self.start()

    def start(self) -> None:
        mine, its = self.context.Pipe()
        a = self.args
        process = self.context.Process(target=work, args=(its, a.data, a.device, a.workers), daemon=True)
        process.start()
        its.close()
        self.processes[mine], self.busy[mine] = process, None

    def give(self, job: Job) -> None:
        pipe = self.idle.pop()
        pipe.send(job)
        self.busy[pipe] = job

    def answers(self, seconds: float) -> Iterator[tuple[Job | None, Row]]:
        """What has come in within so many seconds: of a job, or of a worker that has just begun."""
        for pipe in wait(list(self.busy), seconds):
            assert isinstance(pipe, Connection)
            job = self.busy.pop(pipe)
            try:
                answer = pipe.recv()
                self.idle.append(pipe)
            except (EOFError, OSError):
                answer = {"failed": "its process ended", "seconds": 5.0}
                self.processes.pop(pipe)
                self.start()
            yield job, answer

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()


def share_the_gpu() -> bool:
    """Start NVIDIA's service by which processes compute at once and not in turns, where it works."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    folder = tempfile.mkdtemp()
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    try:
        subprocess.run([control, "-d"], check=True, timeout=10, capture_output=True)
        probe = "import torch; torch.ones(8, device='cuda').sum().item()"
        subprocess.run([sys.executable, "-c", probe], check=True, timeout=40, capture_output=True)
        return True
    except (subprocess.SubprocessError, OSError):
        stop_sharing()
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
        return False


def stop_sharing() -> None:
    with tempfile.TemporaryFile() as quiet:
        subprocess.run(
            ["nvidia-cuda-mps-control"], input=b"quit\n", timeout=20, stdout=quiet, stderr=quiet, check=False
        )
