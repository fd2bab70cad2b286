"""What the build of the site puts behind the blocks of a page."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]
PAGE = """# A page

```python
print("took 3, 0.5 s")
```

## A figure

```python drawn
from matplotlib import pyplot as plt

plt.plot([1, 2])
plt.title("a line")
```
"""


@pytest.fixture
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.pages["recipes/a.md"] = PAGE
    return module


def test_outputs_and_figures_stand_behind_their_blocks(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="recipes/a.md"))
    text = hooks.on_page_markdown(PAGE, page, None, None)
    assert "{ .text .output }\ntook 3\n" in text, "times of the day are left out"
    assert text.index("data-of") < text.index("How it is drawn") < text.index("    plt.plot")
    html = hooks.on_page_content(text, page, None, None)
    assert html.count("<svg") == 1
    assert "currentColor" in html
    assert 'aria-label="a line"' in html


def test_another_page_shows_the_figure_below_a_heading(hooks):
    span = '<span class="figure" data-of="recipes/a.md#a-figure"></span>'
    assert hooks.on_page_content(span, None, None, None).startswith("<svg")
    hooks.pages["recipes/b.md"] = "```python\nx = 1\n```\n"
    with pytest.raises(ValueError, match="draws no figure"):
        hooks.on_page_content(span.replace("a.md#a-figure", "b.md"), None, None, None)
    with pytest.raises(ValueError, match="no heading"):
        hooks.on_page_content(span.replace("a-figure", "nothing"), None, None, None)


def test_a_notebook_becomes_a_page_that_shows_its_values(hooks):
    text = hooks.from_notebook(ROOT / "examples" / "notebooks" / "first_steps.ipynb")
    assert text.startswith("# First steps\n")
    assert "```python\n" in text
    hooks.pages["notebooks/a.md"] = "```python\n1 + 1\n```\n\n```python\n2;\n```\n"
    assert [told for told, _ in hooks.ran("notebooks/a.md", hooks.pages["notebooks/a.md"])] == ["2\n", ""]
