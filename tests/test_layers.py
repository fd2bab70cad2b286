"""Who may import whom, and what importing the package costs."""

import ast
import subprocess
import sys
from pathlib import Path

import neuralfde
import neuralfde_experiments

SOURCE = Path(neuralfde.__file__).parent
EXPERIMENTS = Path(neuralfde_experiments.__file__).parent

#: Each part may import the parts of earlier rows, and its own row's only where it is the same part.
ROWS = [
    {"errors"},
    {"transfer", "foreign"},
    {"special", "grid", "structure", "watch", "demand"},
    {"operators"},
    {"tableaux"},
    {"meshes", "starting", "embedded"},
    {"history", "storage", "field"},
    {"schemes", "automatic"},
    {"streaming"},
    {"orders"},
    {"loop"},
    {"adjoints"},
    {"choices"},
    {"reading"},
    {"solving"},
    {"api"},
    {"nn", "estimate"},
    {"models", "problems", "fitting", "compat", "progress"},
    {"cli"},
]
LEVEL = {name: k for k, row in enumerate(ROWS) for name in row}

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
)


def imported(path: Path, package: Path = SOURCE) -> set[str]:
    """Full names of what a file imports: the module, and after a dot what is taken from it."""
    here = (package.name, *path.relative_to(package).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            full = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*full, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imported_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("neuralfde.")}


def test_parts_import_only_what_lies_below_them():
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        assert part in LEVEL, f"{part} has no place in the table of layers"
        for other in imported_parts(path):
            allowed = other == part or other not in LEVEL or LEVEL[other] < LEVEL[part]
            assert allowed, f"{path.relative_to(SOURCE)} imports {other}"


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


def test_every_public_name_exists_and_is_documented():
    for name in neuralfde.__all__:
        thing = getattr(neuralfde, name)
        assert thing.__doc__, name
