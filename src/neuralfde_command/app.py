"""The command ``neuralfde``. Needs the extra ``cli``: pip install "neuralfde[cli]".

Commands are imported when they are asked for, so that help and lists need no torch.

Exit codes: 0 done; 2 wrong usage or input; 3 done, but a target was not reached or a solve did not converge; 4 the run
could not go on (disk, folder, memory); 130 interrupted, 143 terminated (what was reached is kept).
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

try:
    import rich  # noqa: F401
    import typer
    from typer.core import TyperCommand, TyperGroup
except ImportError as error:  # pragma: no cover - `make smoke` sees it, in an environment without the extra
    sys.exit(f'the command line needs further packages ({error.name}). Install them with: pip install "neuralfde[cli]"')

from . import experiments

#: every command of its own, and its module
COMMANDS = {
    "demo": "neuralfde.cli.demo",
    "fit": "neuralfde.cli.fit_file",
    "solve": "neuralfde.cli.solve_file",
    "bench": "neuralfde.cli.bench",
}
CODES = (
    "Exit codes: 0 done; 2 wrong usage or input; 3 a target was not reached or a solve failed; 4 the disk, the folder "
    "or the memory did not suffice; 130 interrupted, 143 terminated (results are kept)."
)
#: \b begins lines that stay as they are
_TEACH = f"""Neural fractional differential equations with exact gradients.

\b
Start here:
    neuralfde demo                     a tour, with a page in demo-output/
    neuralfde fit data.csv --out out   a model, fitted to a table of yours
    neuralfde solve model.py:func      a quick look at an equation of yours
    neuralfde bench --json             this machine's speed, for machines
    neuralfde run                      the experiments that are installed

\b
With the package neuralfde-experiments:
    neuralfde run lotka-volterra                   parameters from data
    neuralfde run lotka-volterra --adjoint paper   by the paper's gradients
    neuralfde run lotka-volterra --help            every option
    neuralfde run lynx-hare --out out/lynx         keep everything there
    neuralfde run lynx-hare --out out/lynx --resume     after Ctrl-C

{CODES}
"""


class Commands(TyperGroup):
    """Lists modules by what their files say of them, and makes a command of one when it is called."""

    def modules(self) -> dict[str, str]:
        """From names to modules."""
        return COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name."""
        return [*self.modules(), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command as a list shows it, with its summary."""
        if cmd_name not in self.modules():
            return super().get_command(ctx, cmd_name)
        return TyperCommand(cmd_name, short_help=experiments.summary(self.modules()[cmd_name]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself: a module becomes one."""
        if args[0] not in self.modules():
            return super().resolve_command(ctx, args)
        from neuralfde.cli.command import command
        from neuralfde.cli.experiment import read

        return args[0], command(read(args[0], importlib.import_module(self.modules()[args[0]]))), args[1:]


class Experiments(Commands):
    """``run <experiment>``: those of every package that announces some."""

    def modules(self) -> dict[str, str]:
        """See ``Commands``."""
        return experiments.modules()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As usual, with a hint for a name that is not known."""
        if not args[0].startswith("-") and args[0] not in self.modules():
            ctx.fail(experiments.unknown(args[0]))
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Where this repository's experiments are missing, how to install them."""
        if not experiments.ours_is_here():
            formatter.write_paragraph()
            formatter.write_text(experiments.HOW_TO_INSTALL)


app = typer.Typer(cls=Commands, help=_TEACH, add_completion=False, rich_markup_mode=None)
_run = typer.Typer(cls=Experiments, rich_markup_mode=None)
app.add_typer(
    _run,
    name="run",
    help="Run an experiment; 'neuralfde run NAME --help' lists its options.",
    short_help="run an experiment; without a name: which there are",
)


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and leave.")
) -> None:
    if version:
        typer.echo(_version())
        raise typer.Exit(0)
    _list(ctx)


@_run.callback(invoke_without_command=True)
def _list(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _version() -> str:
    try:
        return installed_version("neuralfde")
    except PackageNotFoundError:  # a source tree
        from neuralfde import __version__

        return __version__


def main() -> None:
    """The entry point."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
