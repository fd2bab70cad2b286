"""Who may import whom, and what importing the package costs."""

import ast
import subprocess
import sys
from pathlib import Path

import neuralfde

SOURCE = Path(neuralfde.__file__).parent

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
    {"data"},
    {"experiments"},
    {"cli"},
]
LEVEL = {name: k for k, row in enumerate(ROWS) for name in row}


def imported_parts(path: Path) -> set[str]:
    here = ("neuralfde", *path.relative_to(SOURCE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            full = [*base, *(node.module.split(".") if node.module else [])]
            if full[:1] == ["neuralfde"]:
                found |= {full[1]} if len(full) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("neuralfde.")}
    return found


def test_parts_import_only_what_lies_below_them():
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        assert part in LEVEL, f"{part} has no place in the table of layers"
        for other in imported_parts(path):
            allowed = other == part or other not in LEVEL or LEVEL[other] < LEVEL[part]
            assert allowed, f"{path.relative_to(SOURCE)} imports {other}"


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
