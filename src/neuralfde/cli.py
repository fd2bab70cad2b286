"""The command ``neuralfde``. Needs the extra ``cli``: pip install "neuralfde[cli]".

Exit codes: 0 done; 2 wrong usage or input; 3 done, but a target was not reached or a solve did not converge;
130 interrupted (what was reached is kept).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import typer
    from rich.console import Console
    from typer.core import TyperGroup
except ImportError as error:  # pragma: no cover - exercised by hand in an environment without the extra
    sys.exit(f'the command line needs further packages ({error.name}). Install them with: pip install "neuralfde[cli]"')

from .errors import ConvergenceError, InputError, InputTypeError, NonFiniteError, nearest
from .experiments import Experiment, available, load, read
from .experiments.console import ConsoleReport, table
from .experiments.processes import restarts
from .experiments.runtime import FolderReport, Report, plain

_CODES = "Exit codes: 0 done, 2 wrong usage or input, 3 a target was not reached, 130 interrupted (results are kept)."
_TEACH = f"""Neural fractional differential equations with exact gradients.

Start here:

    neuralfde demo                                  a short tour, with a report in demo-output/

    neuralfde run lotka-volterra                    find the parameters of an equation from data

    neuralfde run lotka-volterra --adjoint paper    the same with the paper's gradients

    neuralfde run lotka-volterra --help             every option, with its default

    neuralfde run lynx-hare --out out/lynx          keep configuration, results, pictures, checkpoint

    neuralfde run lotka-volterra --out out/lv --resume     go on after Ctrl-C

    neuralfde bench --json > bench.json             this machine's speed, for machines

{_CODES}
"""


class Experiments(TyperGroup):
    """``run <experiment>``: a command is built from the experiment's ``Config`` when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The experiments that are installed."""
        return available()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the experiment and turn its configuration into options."""
        return command(load(cmd_name)) if cmd_name in available() else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As usual, with a hint for a name that is not known."""
        if args and not args[0].startswith("-") and args[0] not in available():
            ctx.fail(f"there is no experiment {args[0]!r}. {nearest(args[0], available())}")
        return super().resolve_command(ctx, args)


app = typer.Typer(help=_TEACH, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
app.add_typer(
    typer.Typer(cls=Experiments, no_args_is_help=True, rich_markup_mode=None),
    name="run",
    help="Run an experiment; 'neuralfde run NAME --help' lists its options.",
)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from . import __version__

        typer.echo(__version__)
        raise typer.Exit(0)


def command(experiment: Experiment, out: str | None = None) -> Any:
    """An experiment as a command: one option for each field of its ``Config``, and the common ones."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name=experiment.name, help=_help(experiment))(function(experiment, out))
    return typer.main.get_command(single)


def function(experiment: Experiment, default_out: str | None = None) -> Callable[..., None]:
    """A function with the signature typer reads."""

    def invoke(**given: Any) -> None:
        common = {k: given.pop(k) for k in ("out", "resume", "as_json", "quiet")}
        _execute(experiment, given, **common)

    hints = typing.get_type_hints(experiment.config)
    parameters = []
    for field in dataclasses.fields(experiment.config):
        flag = "--" + field.name.replace("_", "-")
        names = (f"{flag}/--no-{flag[2:]}",) if hints[field.name] is bool else (flag,)
        shown = typer.Option(field.default, *names, help=field.metadata.get("help", ""))
        parameters.append((field.name, hints[field.name], shown))
    parameters += [
        ("out", str, typer.Option(default_out or "", "--out", help="folder for configuration, results and pictures")),
        ("resume", bool, typer.Option(False, "--resume", help="go on with the interrupted run in --out")),
        ("as_json", bool, typer.Option(False, "--json", help="print the results as JSON and nothing else")),
        ("quiet", bool, typer.Option(False, "--quiet", help="no progress bars")),
    ]
    invoke.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=a) for n, a, d in parameters]
    )
    invoke.__annotations__ = {n: a for n, a, _ in parameters}
    return invoke


def _help(experiment: Experiment) -> str:
    examples = "\n\n".join(f"    {line}" for line in experiment.examples)
    return f"{experiment.help.strip()}\n\nExamples:\n\n{examples}\n\n{_CODES}"


def _execute(
    experiment: Experiment, settings: dict[str, Any], out: str, resume: bool, as_json: bool, quiet: bool
) -> None:
    console = Console(stderr=as_json)
    try:
        config = experiment.config(**settings)
        if resume and not out:
            raise InputError("--resume needs the folder of the interrupted run: --out DIR.")
        rank, launched = _place(experiment)
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
    if not all(kept.verdicts.values()) and not launched:  # torchrun takes every status but 0 for a crash
        raise typer.Exit(3)


def _place(experiment: Experiment) -> tuple[int, bool]:
    """This process's rank, and whether ``torchrun`` started it."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1 and not experiment.processes:
        shared = [name for name in available() if load(name).processes]
        raise InputError(
            f"{experiment.name} runs in one process, not in {count}. Start it without torchrun; these share their "
            f"work: {', '.join(shared)}."
        )
    return (int(os.environ["RANK"]) if count > 1 else 0), "TORCHELASTIC_RUN_ID" in os.environ


def _after_interrupt(out: str, rows: int) -> str:
    if out:
        return f"interrupted; {rows} finished rows and a checkpoint are in {out}. Go on with --resume."
    return f"interrupted after {rows} finished rows. With --out DIR a run can be resumed."


def _stop(text: str, code: int) -> None:
    typer.echo(text, err=True)
    raise typer.Exit(code)


def _builtin(name: str, out: str | None) -> None:
    import importlib

    module = importlib.import_module(f"neuralfde.experiments.{name}")
    experiment = read(name, module)
    app.command(name=name, help=_help(experiment))(function(experiment, out))


_builtin("demo", "demo-output")
_builtin("bench", None)


def main() -> None:
    """The entry point."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
