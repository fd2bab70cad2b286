"""One run of an experiment: its reports, what is printed at the end, and the exit code."""

from __future__ import annotations

import _thread
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
import typer
from rich.console import Console

from ..errors import (
    CapturedTensorError,
    ConvergenceError,
    InputError,
    InputTypeError,
    NonFiniteError,
    UnsupportedError,
)
from .console import ConsoleReport, table
from .experiment import Experiment, available, load
from .folder import FolderReport, plain
from .options import check
from .processes import launched, rank_and_count, restarts
from .report import Report

USAGE, MISSED, FAILED = 2, 3, 4


def execute(
    experiment: Experiment, settings: dict[str, Any], out: str, resume: bool, as_json: bool, quiet: bool
) -> None:
    """Run an experiment and end the command as its outcome asks."""
    console, ended, arrived = Console(stderr=as_json), 0, list[int]()
    with answers(experiment.name, out):
        config = experiment.config(**settings)
        check(config)
        if resume and not out:
            raise InputError("--resume needs the folder of the interrupted run: --out DIR.")
        rank = _rank(experiment)
        resume = resume or (bool(out) and restarts() > 0 and (Path(out) / "config.json").is_file())
        kept = FolderReport(Path(out), experiment.name, config, resume, writes=rank == 0) if out else Report()
        report = ConsoleReport(kept, console, quiet, as_json, arrived) if rank == 0 else kept
        for note in kept.notes if isinstance(kept, FolderReport) and rank == 0 else ():
            typer.echo(note, err=True)
        with _interruptible(arrived):
            try:
                with report:
                    experiment.run(config, report)
            except BaseException as error:
                if not arrived and not isinstance(error, KeyboardInterrupt):
                    raise
                # a signal may strike where it breaks something: whatever is raised after it is its doing
                ended = 128 + (arrived or [signal.SIGINT])[-1]
        status = "interrupted" if ended else "done"
        found = {"experiment": experiment.name, "status": status, "targets": kept.verdicts, "rows": kept.rows}
        if isinstance(kept, FolderReport):
            found = kept.finish(status)
    if rank > 0:
        return
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
    elif kept.rows:
        console.print(table(kept.rows, experiment.name, experiment.columns))
    if ended:
        _stop(_after_interrupt(out, len(kept.rows)), ended)
    if out and not as_json:
        console.print(f"everything is in {out}", highlight=False)
    if not all(kept.verdicts.values()) and not launched():  # torchrun takes every status but 0 for a crash
        raise typer.Exit(MISSED)


@contextlib.contextmanager
def answers(name: str, out: str = "") -> Iterator[None]:
    """Every failure that is expected becomes one line with a remedy, and the exit code that is documented for it."""

    def again() -> str:
        there = out and (Path(out) / "config.json").is_file()
        return f" What was finished is in {out}; go on with --resume." if there else ""

    try:
        yield
    except (InputError, InputTypeError, UnsupportedError, CapturedTensorError) as error:
        _stop(str(error), USAGE)
    except (ConvergenceError, NonFiniteError) as error:
        _stop(str(error), MISSED)
    except ImportError as error:
        _stop(f"{name} needs a package that is not installed: {error}. Install it with pip.", USAGE)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _stop(
            f"the run could not go on: {error.strerror or error}{where}. Make room or choose another --out.{again()}",
            FAILED,
        )
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _stop(f"there is not enough memory for this run. Choose smaller sizes or fewer steps.{again()}", FAILED)


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; a CPU allocation that fails is a plain ``RuntimeError``."""
    told = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in told


@contextlib.contextmanager
def _interruptible(arrived: list[int]) -> Iterator[None]:
    """Ctrl-C and SIGTERM both raise ``KeyboardInterrupt``, and are noted in ``arrived``; neither gets lost.

    ``torchrun`` ends its processes in its own way, and quickly.
    """
    if launched() or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> NoReturn:
        arrived.append(number)
        raise KeyboardInterrupt

    def lost(what: Any) -> None:
        """Python drops what is raised while it clears an object away: the signal is sent once more, a little later."""
        if arrived and isinstance(what.exc_value, KeyboardInterrupt):
            threading.Timer(0.05, _thread.interrupt_main, (arrived[-1],)).start()
        else:
            hook(what)

    hook, before = sys.unraisablehook, {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    before = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        sys.unraisablehook = lost
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


def _rank(experiment: Experiment) -> int:
    """This process's number among those that share the work of the experiment, if it can be shared."""
    rank, count = rank_and_count()
    if count > 1 and not experiment.processes:
        shared = [name for name in available() if load(name).processes]
        raise InputError(
            f"{experiment.name} runs in one process, not in {count}. Start it without torchrun; these share their "
            f"work: {', '.join(shared)}."
        )
    return rank


def _after_interrupt(out: str, rows: int) -> str:
    if out:
        return f"interrupted; {rows} finished rows and a checkpoint are in {out}. Go on with --resume."
    return f"interrupted after {rows} finished rows. With --out DIR a run can be resumed."


def _stop(text: str, code: int) -> NoReturn:
    typer.echo(" ".join(text.splitlines()), err=True)
    raise typer.Exit(code)
