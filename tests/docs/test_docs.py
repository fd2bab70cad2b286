"""Every Python block of the documentation and of the README runs, page by page, from top to bottom."""

import importlib
import re
import textwrap
import tomllib
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
import yaml
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import neuralfde

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```\s*$", re.M | re.S
)
QUOTED = re.compile(r'title="(src/[^"]+)"')  # a block with such a title is a quotation; "# …" stands for lines left out
OMISSION = re.compile(r"^ *# …\n", re.M)
SHELL = {"bash", "console", "text", "toml", "yaml", "bibtex", ""}


def blocks(page):
    for match in FENCE.finditer(page.read_text()):
        if QUOTED.search(match["info"]):
            continue
        line = page.read_text()[: match.start("body")].count("\n")
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.M)
        yield match["language"], line, body


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace = {"__name__": "page"}
    for language, line, body in blocks(page):
        if language in SHELL:
            continue
        assert language == "python", f"{page.name}:{line}: a block of an unknown language {language!r}"
        code = compile("\n" * line + body, str(page), "exec")  # tracebacks point at the page
        exec(code, namespace)
    drawn = bool(plt.get_fignums()) or any(isinstance(value, Figure) for value in namespace.values())
    plt.close("all")
    if page.parent.name == "recipes" and page.name != "index.md":
        assert capsys.readouterr().out, "a recipe shows what it prints"
        assert drawn, "a recipe shows a figure"


def quotations():
    for page in PAGES:
        for match in FENCE.finditer(page.read_text()):
            if title := QUOTED.search(match["info"]):
                yield pytest.param(title[1], match["body"], id=f"{page.name}:{title[1]}")


@pytest.mark.parametrize(("path", "quoted"), list(quotations()))
def test_quotations_are_those_of_the_source(path, quoted):
    lines = re.sub(r"  # type: ignore.*", "", (ROOT / path).read_text()).splitlines()
    for part in OMISSION.split(quoted):
        wanted, count = textwrap.dedent(part).splitlines(), len(part.splitlines())
        starts = (
            k for k in range(len(lines)) if textwrap.dedent("\n".join(lines[k : k + count])).splitlines() == wanted
        )
        found = next(starts, None)
        assert found is not None, f"{path} has no lines\n{part}"
        lines = lines[found + count :]  # what is quoted next comes later


def test_files_in_the_table_of_files_exist():
    table = (ROOT / "docs" / "math" / "engine.md").read_text().partition("## Where it is")[2]
    named = [name for row in re.findall(r"^\| (`[^|]+) \|", table, re.M) for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "src" / "neuralfde" / name).exists()] == []


def test_pages_have_no_empty_links():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http", "mailto")):
                path = (page.parent / target).resolve()
                if path.parent == ROOT / "docs" / "notebooks":  # made of a notebook when the site is built
                    path = ROOT / "examples" / "notebooks" / f"{path.stem}.ipynb"
                assert path.exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_citation_is_valid_and_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()  # what the format asks for
    assert all({"type", "title", "authors"} <= work.keys() for work in cited["references"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert cited["version"] == version == neuralfde.__version__


def test_the_reference_shows_no_markup_of_another_tool():
    shown = re.findall(r"^::: ([\w.]+)", (ROOT / "docs" / "api.md").read_text(), re.M)
    for name in shown:
        module, _, last = name.rpartition(".")
        assert not re.search(r":(func|class|meth):", getattr(importlib.import_module(module), last).__doc__), name
