"""The command ``neuralfde``. Needs the extra ``cli``: pip install "neuralfde[cli]".

Exit codes: 0 done; 2 wrong usage or input; 3 done, but a target was not reached or a solve did not converge; 4 the run
could not go on (disk, folder, memory); 130 interrupted, 143 terminated (what was reached is kept).
"""

from __future__ import annotations

import sys
from typing import Any

try:
    import rich  # noqa: F401
    import typer
    from typer.core import TyperGroup
except ImportError as error:  # pragma: no cover - `make smoke` sees it, in an environment without the extra
    sys.exit(f'the command line needs further packages ({error.name}). Install them with: pip install "neuralfde[cli]"')

from . import bench, demo, fit_file, solve_file
from .command import CODES, add, command
from .experiment import read
from .installed import HOW_TO_INSTALL, available, load, ours_is_here, unknown

_TEACH = f"""Neural fractional differential equations with exact gradients.

Start here:

    neuralfde demo                     a tour, with a page in demo-output/

    neuralfde fit data.csv --out out   a model, fitted to a table of yours

    neuralfde solve model.py:func      a quick look at an equation of yours

    neuralfde bench --json             this machine's speed, for machines

    neuralfde run                      the experiments that are installed

With the package neuralfde-experiments:

    neuralfde run lotka-volterra                   parameters from data

    neuralfde run lotka-volterra --adjoint paper   by the paper's gradients

    neuralfde run lotka-volterra --help            every option

    neuralfde run lynx-hare --out out/lynx         keep everything there

    neuralfde run lynx-hare --out out/lynx --resume     after Ctrl-C

{CODES}
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
            ctx.fail(unknown(args[0]))
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Where this repository's experiments are missing, how to install them."""
        if not ours_is_here():
            formatter.write_paragraph()
            formatter.write_text(HOW_TO_INSTALL)


app = typer.Typer(help=_TEACH, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
app.add_typer(
    typer.Typer(cls=Experiments, no_args_is_help=True, rich_markup_mode=None),
    name="run",
    help="Run an experiment; 'neuralfde run NAME --help' lists its options.",
)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit(0)


add(app, read("demo", demo), out="demo-output")
add(app, read("bench", bench))
add(app, read("fit", fit_file))
add(app, read("solve", solve_file))


def main() -> None:
    """The entry point."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
