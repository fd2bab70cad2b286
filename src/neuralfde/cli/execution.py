"""One run of an experiment: its reports, what is printed at the end, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

from ..errors import ConvergenceError, InputError, InputTypeError, NonFiniteError
from .console import ConsoleReport, table
from .experiment import Experiment
from .folder import FolderReport, plain
from .installed import available, load
from .report import Report
from .torchrun import launched, rank_and_count, restarts


def execute(
    experiment: Experiment, settings: dict[str, Any], out: str, resume: bool, as_json: bool, quiet: bool
) -> None:
    """Run an experiment and end the command as its outcome asks."""
    console = Console(stderr=as_json)
    try:
        config = experiment.config(**settings)
        if resume and not out:
            raise InputError("--resume needs the folder of the interrupted run: --out DIR.")
        rank = _rank(experiment)
        resume = resume or (bool(out) and restarts() > 0 and (Path(out) / "config.json").is_file())
        kept = FolderReport(Path(out), experiment.name, config, resume, writes=rank == 0) if out else Report()
        report = ConsoleReport(kept, console, quiet or as_json) if rank == 0 else kept
        status = "done"
        try:
            with report:
                experiment.run(config, report)
        except KeyboardInterrupt:
            status = "interrupted"
    except (InputError, InputTypeError) as error:
        _stop(str(error), 2)
    except (ConvergenceError, NonFiniteError) as error:
        _stop(str(error), 3)
    except ImportError as error:
        _stop(f"{experiment.name} needs a package that is not installed: {error}", 2)
    found = {"experiment": experiment.name, "status": status, "targets": kept.verdicts, "rows": kept.rows}
    if isinstance(kept, FolderReport):
        found = kept.finish(status)
    if rank > 0:
        return
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
    elif kept.rows:
        console.print(table(kept.rows, experiment.name, experiment.columns))
    if status == "interrupted":
        _stop(_after_interrupt(out, len(kept.rows)), 130)
    if out and not as_json:
        console.print(f"everything is in {out}", highlight=False)
    if not all(kept.verdicts.values()) and not launched():  # torchrun takes every status but 0 for a crash
        raise typer.Exit(3)


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
    typer.echo(text, err=True)
    raise typer.Exit(code)
