"""Does memory help to forecast? All trainings of ``neuralfde run forecasting``, in parallel on the cores of a machine.

    python benchmarks/forecasting.py --data DIR --out OUT --workers 10 --minutes 9

Writes OUT/forecasting.json after every training; called again, it continues with what is missing. It stops after
``minutes``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path

import torch

from neuralfde.cli.experiment import write_json
from neuralfde.cli.measuring import machine
from neuralfde.cli.processes import leave_with_parent
from neuralfde_experiments.forecasting import Config, Job, Row, do, jobs, markdown


def settings(config: Config) -> Row:
    """What was asked for, without folders."""
    return {k: v for k, v in vars(config).items() if k != "data"}


def known(path: Path, config: Config) -> list[Row]:
    """The rows of an earlier call with the same settings."""
    if not path.is_file():
        return []
    found = json.loads(path.read_text())
    if found["settings"] != settings(config):
        raise SystemExit(f"{path} was made with other settings; use another folder for --out.")
    return found["rows"]  # type: ignore[no-any-return]


def job_of(row: Row) -> Job:
    """The job that a row is of."""
    return Job(*(row[k] for k in Job._fields))


def answer(config: Config, job: Job) -> Row:
    """The row of a job, or why there is none."""
    try:
        return do(job, config)
    except Exception as error:
        return job._asdict() | {"failed": f"{type(error).__name__}: {error}"[:300]}


def alone() -> None:
    """A worker: one thread, and no longer than the process that started it."""
    torch.set_num_threads(1)
    leave_with_parent()


def fill(config: Config, path: Path, workers: int, end: float) -> list[Row]:
    """Do what is missing until ``end``, the file whole after every job; failures are told and tried next time."""
    rows = known(path, config)
    done = {job_of(r) for r in rows}
    head = {"machine": machine(torch.device("cpu")), "command": "python benchmarks/forecasting.py", "workers": workers}
    head["settings"] = settings(config)
    missing, began = [job for job in jobs(config) if job not in done], time.time()
    with multiprocessing.get_context("spawn").Pool(workers, alone) as pool:
        answers = pool.imap_unordered(partial(answer, config), missing)
        for k in range(len(missing)):
            try:
                row = answers.next(max(0.0, end - time.time()))
            except multiprocessing.TimeoutError:
                print(f"out of time: {len(missing) - k} of {len(missing)} are left", flush=True)
                break
            print(f"[{time.time() - began:5.0f} s] {k + 1} of {len(missing)}", json.dumps(row), flush=True)
            if "failed" not in row:
                rows.append(row)
                write_json(path, {**head, "rows": rows}, indent=1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the series")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--sets", default=Config.sets, help="some of the sets")
    parser.add_argument("--horizons", default=Config.horizons)
    parser.add_argument("--seeds", type=int, default=Config.seeds)
    parser.add_argument("--iterations", type=int, default=Config.iterations)
    given = parser.parse_args()
    end = time.time() + 60 * given.minutes
    chosen = {k: getattr(given, k) for k in ("sets", "horizons", "seeds", "iterations")}
    config = Config(data=given.data, **chosen)
    given.out.mkdir(parents=True, exist_ok=True)
    print(markdown(fill(config, given.out / "forecasting.json", given.workers, end)))


if __name__ == "__main__":
    main()
