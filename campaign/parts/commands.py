"""``neuralfde solve`` and ``neuralfde fit`` with their options: the numbers they print against the textbook."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shlex
import tempfile
from typing import Any

import torch

from neuralfde.door.names import METHODS
from tests.reference.course import Course

from ..case import Case, Failed, Part
from ..compare import Result, allowed, demand_equal

TRUTH = {"rate": 1.1, "gain": 0.4}
END = 2.4
MODEL = "import torch\n\n\ndef decay(t, z, rate=0.8, gain=0.2):\n    return -rate * z + gain * torch.cos(t)\n"
SETTINGS: dict[str, Any] = {
    "command": ("solve", "solve", "fit"),
    "method": ("abm", "predictor", "trapezoid", "gl", "l1", "bdf2", "gl-explicit", "predictor-implicit"),
    "order": (0.7, 0.5, 0.9, 1.0),
    "initial": ((1.0,), (0.5, -1.0), (1.0, 2.0, 3.0)),
    "steps": (12, 24, 30),
    "rows": (2, 5, 11),
    "learn_order": (True, False),
    "log": (False, True),
    "bootstrap": (0, 0, 20),
    "separator": (",", "\t", ";"),
}
#: How far estimates from data without noise may be off.
OFF = 1e-4


def line(case: Case) -> str:
    """The command; its files lie beside it."""
    if case["command"] == "solve":
        given = {"initial": ",".join(map(str, case["initial"])), "end": END, "order": case["order"],
                 "set": ",".join(f"{k}={v}" for k, v in TRUTH.items())}  # fmt: skip
    else:
        given = {"order": 0.75 if case["learn_order"] and case["order"] != 1 else case["order"],
                 "bootstrap": case["bootstrap"]}  # fmt: skip
    given |= {"steps": case["steps"], "method": case["method"]} | ({"rows": case["rows"]} if "set" in given else {})
    words = " ".join(f"--{k} {v}" for k, v in given.items())
    if case["command"] == "solve":
        return f"solve model.py:decay {words} --json"
    flags = ("" if _learned(case) else " --no-learn-order") + (" --log" if case["log"] else "")
    return f"fit data.csv --model model.py:decay {words}{flags} --json"


def _learned(case: Case) -> bool:
    return bool(case["learn_order"] and case["order"] != 1)


def course_of(case: Case, initial: tuple[float, ...]) -> Course:
    """The textbook."""
    mesh = torch.linspace(0, END, case["steps"] + 1, dtype=torch.float64)
    z0, order = torch.tensor(initial, dtype=torch.float64), torch.tensor(case["order"], dtype=torch.float64)
    return Course(lambda t, z: -1.1 * z + 0.4 * torch.cos(t), z0, mesh, order, case["method"], even=True)


def table(case: Case) -> str:
    """Exact data at the grid's own times."""
    course, by = course_of(case, (1.0,)), case["separator"]
    rows = [f"{float(t)!r}{by}{float(z)!r}" for t, z in zip(course.mesh, course.states, strict=True)]
    return f"t{by}z\n" + "\n".join(rows) + "\n"


def check(case: Case) -> float:
    """In this process, as the entry point runs it."""
    from typer.testing import CliRunner

    from neuralfde_command.app import app

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pathlib.Path("model.py").write_text(MODEL)
        pathlib.Path("data.csv").write_text(table(case))
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, shlex.split(line(case)))
    if done.exit_code != 0:
        raise Failed(f"exit code {done.exit_code}: {str(done.stderr or done.output).strip()[-200:]}")
    rows = json.loads(done.stdout)["rows"]
    return _solved(case, rows) if case["command"] == "solve" else _fitted(case, rows)


def _solved(case: Case, rows: list[dict[str, Any]]) -> float:
    course = course_of(case, case["initial"])
    found = torch.tensor([[x for x in r.values() if isinstance(x, float)] for r in rows], dtype=torch.float64)
    right = torch.stack(
        [torch.cat([torch.tensor([t], dtype=torch.float64), course.at(t)]) for t in found[:, 0].tolist()]
    )
    if len(found) != min(case["rows"], case["steps"] + 1):
        raise Failed(f"rows: {len(found)} in place of {case['rows']}")
    tolerance = allowed(torch.float64, case["steps"], METHODS[case["method"]].implicit)
    return demand_equal(Result(found, {}), Result(right, {}), tolerance)


def _fitted(case: Case, rows: list[dict[str, Any]]) -> float:
    estimates = {r["parameter"]: float(r["estimate"]) for r in rows if r.get("parameter") in (*TRUTH, "order")}
    wanted = TRUTH | ({"order": case["order"]} if _learned(case) else {})
    missing = set(wanted) - set(estimates)
    if missing:
        raise Failed(f"missing: {sorted(missing)} in {estimates}")
    off = max(abs(estimates[k] / v - 1) for k, v in wanted.items())
    if off > OFF:
        raise Failed(f"estimates: off by {off:.1e}, allowed {OFF:g}: {estimates}")
    return off / OFF


def script(case: Case) -> str:
    return f"cat > model.py <<'END'\n{MODEL}END\ncat > data.csv <<'END'\n{table(case)}END\nneuralfde {line(case)}\n"


PART = Part("commands", SETTINGS, check, script, share=0.4)
