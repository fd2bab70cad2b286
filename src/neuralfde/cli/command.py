"""An experiment as a command: one option for each field of its ``Config``, and the common ones."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

import typer

from neuralfde_command.app import CODES

from .execution import execute
from .experiment import Experiment
from .options import described, flag


def command(experiment: Experiment) -> Any:
    """The command of an experiment."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(experiment.name, help=_help(experiment))(_function(experiment))
    return typer.main.get_command(single)


def _function(experiment: Experiment) -> Callable[..., None]:
    """A function with the signature typer reads."""

    def invoke(**given: Any) -> None:
        common = {k: given.pop(k) for k in ("out", "resume", "as_json", "quiet")}
        given |= {k: ",".join(v) for k, v in given.items() if isinstance(v, list)}
        execute(experiment, given, **common)

    hints = typing.get_type_hints(experiment.config)
    parameters = []
    for field in dataclasses.fields(experiment.config):
        name = flag(field)
        names = (f"{name}/--no-{name[2:]}",) if hints[field.name] is bool else (name,)
        text = described(field, hints[field.name])
        shown, kind = typer.Option(field.default, *names, help=text), hints[field.name]
        if how := field.metadata.get("positional"):
            kind, default = (list[str], []) if how == "several" else (kind, field.default)
            shown = typer.Argument(default, metavar=field.name.upper(), help=text, show_default=False)
        parameters.append((field.name, kind, shown))
    parameters += [
        ("out", str, typer.Option(experiment.out, "--out", help="folder for configuration, results and pictures")),
        ("resume", bool, typer.Option(False, "--resume", help="go on with the interrupted run in --out")),
        ("as_json", bool, typer.Option(False, "--json", help="print the results as JSON and nothing else")),
        ("quiet", bool, typer.Option(False, "--quiet", help="no progress bars; messages go to stderr")),
    ]
    invoke.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=a) for n, a, d in parameters]
    )
    invoke.__annotations__ = {n: a for n, a, _ in parameters}
    return invoke


def _help(experiment: Experiment) -> str:
    examples = "".join(f"\n    {line}" for line in experiment.examples)
    parts = [*experiment.help.strip().split("\n\n"), *([f"Examples:{examples}"] if examples else [])]
    # \b begins lines that stay as they are
    shown = [f"\b\n{part}" if part.startswith("    ") or "\n    " in part else part for part in parts]
    return "\n\n".join([*shown, CODES])
