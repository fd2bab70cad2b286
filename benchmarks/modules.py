"""What a reader opens: the modules that a default solve runs through, and the size of the core.

    python benchmarks/modules.py               # writes results/engine.json; the GPU too, if there is one
    python benchmarks/modules.py --out OUT     # writes OUT/modules.json, for a run on another machine
    python benchmarks/modules.py --json        # shows all as JSON, with the name of every module

Each solve, ``fdeint(func, z0, 1.0, 0.6, steps=N)`` and its backward pass, is done twice in a separate process, and the
files of the package whose functions run are recorded: in the first call, which fills the caches, and in the second.
Bodies of modules and classes do not count, nor do functions that dataclasses make.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from core import MLP
from report.engine import CPU, GPU, SOURCE
from report.record import here, put

import neuralfde
from neuralfde.cli.experiment import write_json
from neuralfde.cli.measuring import machine

PACKAGE = Path(neuralfde.__file__).parent
#: Folders that are built on the solver and no part of it.
AROUND = ("models", "fitting", "problems", "compat", "cli")
#: Where numbers belong: the one list of thresholds, and the coefficients of formulas.
NUMBERS = ("base/policy.py", "special/", "weights/")
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Case:
    """A solve with defaults; ``shape`` is that of the state, ``hidden`` the width of the network's inner layer."""

    what: str
    shape: tuple[int, ...]
    hidden: int
    steps: int
    device: str = "cpu"


CASES = {
    "small": Case("a small state, 6 numbers", (6,), 8, 100),
    "large": Case("a larger one, 64 × 32", (64, 32), 64, 300),
    "gpu": Case("the same on a GPU", (64, 32), 64, 300, "cuda"),
}


def ran(work: Callable[[], object]) -> list[str]:
    """Files of the package, relative to it, whose functions run in ``work``."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        # threads of the autograd engine are none of Python's and would not be seen: backward passes run in this one
        with torch.autograd.set_multithreading_enabled(False):
            work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted({name for code in codes if (name := _module(code))})


def _module(code: CodeType) -> str:
    """The file of a function of the package; nothing for other code, such as the body of a module or of a class."""
    path = Path(code.co_filename)
    function = code.co_flags & inspect.CO_OPTIMIZED
    return path.relative_to(PACKAGE).as_posix() if function and path.is_relative_to(PACKAGE) else ""


def measure(case: Case) -> dict[str, Any]:
    """The modules of the first and of the second training step, and what the solver says of its steps."""
    torch.manual_seed(0)
    func = MLP(case.shape[-1], case.hidden).to(case.device)
    z0 = torch.randn(*case.shape, device=case.device)

    def train() -> None:
        neuralfde.fdeint(func, z0, 1.0, 0.6, steps=case.steps).sum().backward()

    first, later = ran(train), ran(train)
    stats = neuralfde.solve(func, z0, 1.0, 0.6, steps=case.steps).stats
    return {"case": case.what, "steps": case.steps, "stepper": stats.stepper, "first": first, "later": later}


def in_own_process(name: str) -> dict[str, Any]:
    """Caches and modules that were loaded for one case are none of the next one's."""
    done = subprocess.run([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def files(package: Path = PACKAGE) -> Iterator[tuple[str, Path]]:
    """All files of a package, with their names relative to it."""
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package).as_posix(), path


def is_core(name: str) -> bool:
    """Whether a file belongs to the solver itself."""
    return name.split("/")[0] not in AROUND


def constants(source: str) -> list[str]:
    """Names that a module gives to numbers."""
    found: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and _is_number(node.value):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None and _is_number(node.value):
            targets = [node.target]
        else:
            continue
        names = [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
        found += [name for name in names if NAME.fullmatch(name)]
    return found


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is made of nothing but numbers, such as ``1 << 14`` or ``8, 1e-6``."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Tuple) and all(map(_is_number, node.elts))


def source() -> list[dict[str, Any]]:
    """The size of the core, and which files hold numbers that belong elsewhere."""
    core = {name: path.read_text() for name, path in files() if is_core(name)}
    scattered = {
        name: own for name, path in files() if not name.startswith(NUMBERS) and (own := constants(path.read_text()))
    }
    return [
        {"figure": "core", "files": len(core), "lines": sum(len(text.splitlines()) for text in core.values())},
        {"figure": "root", "files": [name for name, _ in files() if "/" not in name]},
        {"figure": "numbers in the core", "files": {k: v for k, v in scattered.items() if is_core(k)}},
        {"figure": "numbers around it", "files": {k: v for k, v in scattered.items() if not is_core(k)}},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="leave modules.json in this folder, not the result file")
    parser.add_argument("--json", action="store_true", help="show all that was found as JSON")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(CASES[given.one])))
        return
    parts = {CPU: [in_own_process("small"), in_own_process("large")], SOURCE: source()}
    if torch.cuda.is_available():
        parts[GPU] = [in_own_process("gpu")]
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        write_json(given.out / "modules.json", {**machine(), "command": "python benchmarks/modules.py", "parts": parts})
    else:
        for part, rows in parts.items():
            put("engine", part, rows, **about(part), command="python benchmarks/modules.py")
    print(json.dumps(parts, indent=1) if given.json else shown(parts))


def about(part: str) -> dict[str, Any]:
    """Date, hardware and versions of a part."""
    return here() | ({"hardware": torch.cuda.get_device_name()} if part == GPU else {})


def shown(parts: dict[str, list[dict[str, Any]]]) -> str:
    """Counts and modules of all solves, and the figures of the source."""
    lines = []
    for r in parts[CPU] + parts.get(GPU, []):
        lines.append(f"{r['case']}, {r['steps']} steps, {r['stepper']}: {len(r['first'])}, then {len(r['later'])}")
        lines += [f"  {name}" for name in r["first"]]
    return "\n".join([*lines, *map(str, parts[SOURCE])])


if __name__ == "__main__":
    main()
