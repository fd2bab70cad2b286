"""Who may import whom, and what importing the package costs."""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import neuralfde
import neuralfde_experiments

SOURCE = Path(neuralfde.__file__).parent
EXPERIMENTS = Path(neuralfde_experiments.__file__).parent

ROOT = Path(__file__).parents[1]


def table(head: str) -> list[list[str]]:
    """The rows of the table of CONTRIBUTING.md that begins with this head, from top to bottom."""
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    first = lines.index(head) + 2
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


#: Each part may import the parts of earlier rows, and those that its row names.
ROWS = [(names(part), names(imports)) for part, _, imports in table("| part | holds | imports |")]
LEVEL = {name: k for k, (row, _) in enumerate(ROWS) for name in row}
#: Each file of a folder may import those of earlier groups.
INSIDE = {
    names(folder)[0]: [names(group) for group in files.split("→")]
    for folder, files in table("| folder | files, from bottom to top |")
}

#: What a package of experiments may import of neuralfde beside its own names: these modules and what is below them.
PUBLIC = (
    "errors",
    "fitting",
    "models",
    "nn",
    "special",
    "cli.experiment",
    "cli.measuring",
    "cli.pelts",
    "cli.predator_prey",
    "cli.table_file",
)


def imported(path: Path, package: Path = SOURCE, types: bool = True) -> set[str]:
    """Full names of what a file imports: the module, and after a dot what is taken from it.

    Without ``types`` what is imported for annotations alone is left out.
    """
    here = (package.name, *path.relative_to(package).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    skipped = set()
    if not types:
        guards = (n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING"))
        skipped = {id(inner) for guard in guards for inner in ast.walk(guard)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            full = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*full, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if part_of(path) not in ("__init__", "__main__")]


def imported_parts(path: Path) -> set[str]:
    found = {name.split(".")[1] for name in imported(path) if name.startswith("neuralfde.")}
    return found - {part_of(path)}


def test_every_part_has_a_place_in_the_table():
    assert {part_of(path) for path in files()} == set(LEVEL)
    assert sum(len(row) for row, _ in ROWS) == len(LEVEL)


def test_parts_import_only_what_lies_below_them():
    for path in files():
        part, place = part_of(path), path.relative_to(SOURCE)
        for other in imported_parts(path):
            if other in LEVEL:
                assert LEVEL[other] < LEVEL[part], f"{place} imports {other}"
            else:  # a public name of the package, which is made of all parts up to api
                assert LEVEL[part] > LEVEL["api"], f"{place} imports the package itself"


def test_parts_import_what_the_table_says():
    for row, said in ROWS:
        actual = {x for path in files() if part_of(path) in row for x in imported_parts(path) if x in LEVEL}
        assert actual == set(said), f"{row}: the table of CONTRIBUTING.md says {said}, the files {sorted(actual)}"


@pytest.mark.parametrize("folder", INSIDE)
def test_files_of_a_folder_import_only_what_lies_below_them(folder):
    level = {name: k for k, group in enumerate(INSIDE[folder]) for name in group}
    here = SOURCE / folder
    own = {path: ".".join(path.relative_to(here).with_suffix("").parts) for path in here.rglob("*.py")}
    own = {path: name.removesuffix(".__init__") for path, name in own.items() if name != "__init__"}
    assert set(own.values()) == set(level), (
        f"{folder}: the table names {sorted(level)}, the files {sorted(own.values())}"
    )
    prefix = f"neuralfde.{folder}."
    for path, name in own.items():
        for full in imported(path, types=False):
            if not full.startswith(prefix):
                continue
            rest = full.removeprefix(prefix)
            # the longest name of a file that this begins with: 'steppers.base.Steps' is steppers.base
            known = [x for x in level if rest == x or rest.startswith(f"{x}.")]
            assert known, f"{path.relative_to(SOURCE)} imports {full}"
            other = max(known, key=len)
            assert level[other] < level[name], f"{path.relative_to(SOURCE)} imports {other}"


def test_no_folder_of_the_engine_is_left_out():
    engine = [name for row, _ in ROWS[: LEVEL["api"]] for name in row if (SOURCE / name).is_dir()]
    assert set(engine) - {"special", "operators"} == set(INSIDE)


def test_the_library_does_not_know_the_experiments():
    for path in sorted(SOURCE.rglob("*.py")):
        assert not any(name.split(".")[0] == EXPERIMENTS.name for name in imported(path)), path


def test_experiments_use_only_public_names():
    for path in sorted(EXPERIMENTS.rglob("*.py")):
        for name in imported(path, EXPERIMENTS):
            if name.startswith("neuralfde."):
                inner = name.removeprefix("neuralfde.")
                known = inner in neuralfde.__all__ or any(inner == p or inner.startswith(f"{p}.") for p in PUBLIC)
                assert known, f"{path.name} imports {name}"
                assert not any(part.startswith("_") for part in inner.split(".")), f"{path.name} imports {name}"


def test_importing_the_package_loads_torch_and_nothing_else_heavy():
    code = (
        "import sys, torch; before = set(sys.modules); import neuralfde; "
        "extra = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names); "
        "print(sorted(x for x in extra if x not in ('neuralfde', 'torch') and not x.startswith('_')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout


def test_first_trainings_load_nothing_heavy():
    """Some calls of PyTorch import sympy or its compiler at first, which takes longer than thousands of steps."""
    code = (
        "import sys, torch, neuralfde; net = torch.nn.Linear(2, 2); "
        "func = type('Func', (torch.nn.Module,), {'forward': lambda self, t, z: net(z).tanh()})(); func.net = net\n"
        "for how in {}, {'steps': 20}, {'steps': 20, 'method': 'trapezoid'}, {'steps': 20, 'method': 'bdf2'}:\n"
        "    neuralfde.fdeint(func, torch.ones(4, 2), 1.0, 0.6, **how).sum().backward()\n"
        "    print([m for m in ('sympy', 'torch._dynamo', 'triton') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n") == ["[]"] * 4 + [""], found.stdout


def test_every_public_name_exists_and_is_documented():
    for name in neuralfde.__all__:
        thing = getattr(neuralfde, name)
        assert thing.__doc__, name
