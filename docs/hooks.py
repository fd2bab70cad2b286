"""Pages that show what they say: mkdocs runs their Python blocks and puts behind each what it prints and draws.

The blocks of a page run from top to bottom in one namespace, in a folder of their own and on one thread, as the tests
run them. Figures stand in the page as SVG whose text and axes have the colour of the text around them, light or dark.

- A block ```` ```python drawn ```` is folded away; its figure is not.
- ``<span class="figure" data-of="recipes/control.md#find-a-control"></span>`` shows the first figure of a page, or the
  first below a heading.
- The notebooks of ``examples/`` are pages of the site.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.append(str(Path(__file__).parent / "figures"))
import style

ROOT = Path(__file__).parents[1]
RUN = (
    *("index.md", "start.md", "choose.md", "orders.md", "pde.md", "composing.md"),
    *("recipes/", "notebooks/", "migrate/"),
    *("math/volterra.md", "math/adjoint.md", "math/bias.md", "math/history.md"),
)
BLOCK = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)
SPAN = re.compile(r'<span class="figure" data-of="([^"#]+)#?([^"]*)"></span>')
OF_THE_DAY = re.compile(  # left out, so that two builds are the same
    r", [\d.]+ s$|(?<=within half of the free) [\d.]+ GiB", re.M
)
HEADING = re.compile(r"^#+ (.+)$", re.M)
pages: dict[str, str] = {}


def on_files(files: Any, config: Any) -> Any:
    """Notebooks become pages."""
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        files.append(
            File.generated(
                config, f"notebooks/{path.stem}.md", content=from_notebook(path)
            )
        )
    for file in files.documentation_pages():
        pages[file.src_uri] = file.content_string
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Outputs and places of figures behind the blocks."""
    name = page.file.src_uri
    if not name.startswith(RUN):
        return markdown
    found = enumerate(ran(name, pages[name]))

    def shown(match: re.Match[str]) -> str:
        k, (printed, figures) = next(found)
        code = match[0].replace(match["info"], "", 1)
        after = (
            [f"```{{ .text .output }}\n{printed.rstrip()}\n```"]
            if printed.strip()
            else []
        )
        after += (
            [f'<span class="figure" data-of="{name}#{k}"></span>'] if figures else []
        )
        if match["info"].strip() != "drawn":
            return "\n\n".join([code, *after])
        folded = "\n".join(f"    {line}" for line in code.splitlines())
        return "\n\n".join([*after, f'??? note "How it is drawn"\n\n{folded}'])

    return BLOCK.sub(shown, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Figures in their places."""

    def figure(match: re.Match[str]) -> str:
        name, where = match.groups()
        found = ran(name, pages[name])
        return "".join(
            found[int(where)][1] if where.isdigit() else first_figure(name, where)
        )

    return SPAN.sub(figure, html)


def first_figure(name: str, heading: str) -> list[str]:
    """The figures of the first block of a page that draws any, or of the first below a heading."""
    headings = {slug(m[1]): m.end() for m in HEADING.finditer(pages[name])}
    if heading and heading not in headings:
        raise ValueError(f"{name} has no heading {heading}")
    start = headings.get(heading, 0)
    for match, (_, figures) in zip(
        BLOCK.finditer(pages[name]), ran(name, pages[name]), strict=True
    ):
        if match.start() >= start and figures:
            return figures
    raise ValueError(f"{name}#{heading} draws no figure")


def slug(heading: str) -> str:
    """A heading as its anchor."""
    return re.sub(r"[^\w]+", "-", heading.lower()).strip("-")


@functools.cache  # `mkdocs serve` runs a page again when its text has changed
def ran(name: str, text: str) -> list[tuple[str, list[str]]]:
    """For each Python block what it prints, and the figures that it leaves open or gives a name, as SVG."""
    import torch
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    torch.set_num_threads(1)  # the same digits on every machine
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "page"}
    found, seen, before = [], set(), os.getcwd()
    with tempfile.TemporaryDirectory() as folder, style.for_pages():
        os.chdir(folder)
        try:
            for match in BLOCK.finditer(text):
                line = text[: match.start("body")].count("\n")
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    execute(
                        "\n" * line + match["body"],
                        name,
                        namespace,
                        shows=name.startswith("notebooks/"),
                    )
                opened = [plt.figure(number) for number in plt.get_fignums()]
                named = [v for v in namespace.values() if isinstance(v, Figure)]
                new = [f for f in dict.fromkeys(opened + named) if f not in seen]
                seen.update(new)
                plt.close("all")
                told = OF_THE_DAY.sub("", printed.getvalue())
                found.append((told, [style.in_page(figure) for figure in new]))
        finally:
            os.chdir(before)
            plt.close("all")
    return found


def execute(code: str, name: str, namespace: dict[str, Any], shows: bool) -> None:
    """Run a block; in a notebook the value of its last line is shown, unless a semicolon ends it."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        if shows and value is not None and not code.rstrip().endswith(";"):
            print(value)


def from_notebook(path: Path) -> str:
    """The cells of a notebook as a page."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    title, *rest = [
        text if kind == "markdown" else f"```python\n{text}\n```"
        for kind, text in texts
    ]
    where = f"The notebook is `examples/notebooks/{path.name}` in the repository."
    return "\n\n".join([title, where, *rest]) + "\n"
