"""Bad inputs to every public call and to the command line: a typed error that names a remedy, within three seconds."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shlex
import tempfile
import time
from typing import Any

import torch

from .. import bad_inputs, bad_options
from ..case import REMEDY, TYPED, Case, Failed, Part

#: Seconds of work that a refusal may take; other programs do not count.
SOON = 3.0
CALLS = bad_inputs.inputs()
COMMANDS = [shlex.join(line) for line in bad_options.lines()]


def check(case: Case) -> float:
    """A call, or a command that begins with ``$``."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in bad_options.FILES.items():
            pathlib.Path(name).write_text(text)
        said = _command(case["input"][2:]) if case["input"].startswith("$ ") else _call(case["input"])
    took = time.process_time() - began
    if took > SOON:
        raise Failed(f"slow: refused after {took:.1f} s")
    if not REMEDY.search(said):
        raise Failed(f"no remedy: {said[:200]}")
    return took / SOON


def _call(expression: str) -> str:
    names: dict[str, Any] = {}
    exec(bad_inputs.HEAD, names)
    try:
        given = eval(expression, names)
    except TYPED as error:
        return str(error) + "".join(getattr(error, "__notes__", ()))
    except Exception as error:
        # a func that raises: the library leaves the error as it is and explains in a note how it was called;
        # or what Python itself says to a call without its arguments
        notes = "".join(getattr(error, "__notes__", ()))
        if notes:
            return f"{error}. {notes}"
        if isinstance(error, TypeError) and re.search("(positional|keyword|keyword-only) argument", str(error)):
            return f"{error}: pass what it takes."
        raise
    shown = given.shape if isinstance(given, torch.Tensor) else given
    raise Failed(f"accepted: {str(shown)[:80]}")


def _command(line: str) -> str:
    """The command in this process, as the entry point runs it."""
    from typer.testing import CliRunner

    from neuralfde_command.app import app

    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, shlex.split(line))
    if isinstance(done.exception, Failed):  # the time was up
        raise done.exception
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Failed(f"a traceback: {type(done.exception).__name__}: {str(done.exception)[:150]}")
    if done.exit_code != 2:
        raise Failed(f"exit code {done.exit_code}, not 2: {done.output.strip()[-150:]!r}")
    return str(done.stderr or done.output)


def script(case: Case) -> str:
    if case["input"].startswith("$ "):
        return f"neuralfde {case['input'][2:]}; echo $?\n"
    return f"{bad_inputs.HEAD}{case['input']}\n"


SETTINGS = {"input": [*CALLS, *[f"$ {line}" for line in COMMANDS]]}
PART = Part("inputs", SETTINGS, check, script, each=True, limit=10.0)
