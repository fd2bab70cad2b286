"""No number of the pages is typed by hand: measured ones are read from the results, settings from the code."""

import importlib.util
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from neuralfde import FFT, Exponentials, Full
from neuralfde.base.policy import FFT_STEPS
from neuralfde.compat.torchfde import fdeint as torchfde_call
from neuralfde.door import cost
from neuralfde.door.names import METHODS
from neuralfde.fitting.profile import RESOLUTION
from neuralfde.fitting.search import SMALL
from neuralfde.history import exponentials, panels
from neuralfde_experiments import relaxation
from neuralfde_experiments.graph_settings import settings_for

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
NUMERALS = {10: "Ten", 12: "twelve"}


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme = script(ROOT / "benchmarks" / "readme.py")
scaling = script(ROOT / "benchmarks" / "scaling.py")
render_graphs = script(ROOT / "benchmarks" / "render_graphs.py")


def said(page):
    """The text of a page, without marks and line breaks."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(), flags=re.S)
    return " ".join(text.split())


@pytest.mark.parametrize("page", readme.pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_measured_figures_are_those_of_the_results(page):
    assert readme.filled(page.read_text()) == page.read_text(), "stale: run python benchmarks/readme.py"


def test_every_figure_is_used_and_a_wrong_one_is_noticed():
    text = "".join(page.read_text() for page in readme.pages())
    assert all(f"<!-- {name}:start -->" in text for name in readme.FIGURES)
    wrong = text.replace(readme.bias_network(), "1 % to 2 %")
    assert wrong != text == readme.filled(wrong)
    with pytest.raises(SystemExit, match="no figure 'nothing'"):
        readme.filled("<!-- nothing:start -->1<!-- nothing:end -->")


def test_pictures_of_the_site_are_those_of_the_results():
    for picture in (ROOT / "docs" / "figures").iterdir():
        if (RESULTS / picture.name).exists():
            assert picture.read_bytes() == (RESULTS / picture.name).read_bytes(), picture.name


SINGLE, DOUBLE = (panels._SIZES[dtype] for dtype in (torch.float32, torch.float64))
LEVELS = [FFT().block * FFT().growth ** k for k in range(3)]
SETTINGS = [
    ("docs/index.md", f"{NUMERALS[len(METHODS)]} schemes"),
    ("docs/choose.md", f"from {FFT_STEPS} steps on `fft`"),
    ("docs/recipes/long.md", f"changes over at {FFT_STEPS} steps"),
    ("docs/recipes/long.md", "1e-8 for float32 states and 1e-11 for float64"),
    ("docs/math/history.md", f"groups steps into blocks of {Full().block}"),
    ("docs/math/history.md", f"one thin product over at most {Full().block - 1} rows"),
    ("docs/math/history.md", f"blocks of {LEVELS[0]}, {LEVELS[1]}, {LEVELS[2]}, … steps"),
    ("docs/math/history.md", f"{SINGLE.moments} for {SINGLE.length} rows in single precision"),
    ("docs/math/history.md", f"{DOUBLE.moments} for {DOUBLE.length} in double"),
    ("docs/math/history.md", f"(`block`, {Exponentials().block})"),
    ("docs/math/history.md", f"up to {exponentials.MOST_TERMS}, until"),
    ("docs/math/history.md", f"at all lags up to {exponentials._CHECKED:,}".replace(",", " ")),
    ("docs/recipes/fit-data.md", f"Up to {SMALL} unknowns it is Levenberg-Marquardt"),
    ("docs/recipes/fit-data.md", f"a range wider than {RESOLUTION}"),
    ("docs/recipes/fit-data.md", f"R² ≥ {relaxation.Config().straight}"),
    ("docs/scaling.md", f"width {scaling.WIDTH}, {scaling.STEPS} steps, a batch of {scaling.BATCH}"),
    ("docs/performance.md", f"a state of {128 * 64 * 6 * 6:,} numbers".replace(",", " ")),
]


@pytest.mark.parametrize(("page", "sentence"), SETTINGS, ids=lambda x: x[:60])
def test_settings_are_those_of_the_code(page, sentence):
    assert sentence in said(page), f"{page} no longer says {sentence!r}"


def test_the_tolerance_that_auto_brings_along():
    for double, tolerance in ((False, 1e-8), (True, 1e-11)):
        size = cost.Size(steps=100, row_bytes=8, sums=1, train=True, double=double)
        assert cost._exponentials(size) == Exponentials(tol=tolerance)


def test_the_rates_of_the_exponentials():
    steps, history = 1000, Exponentials()
    rates = history.rates(steps, 5)
    assert rates[0] == pytest.approx(0.1 / steps)
    assert rates[-1] == pytest.approx(30 / history.block)
    assert r"between \(0.1/N\) and \(30/B\)" in said("docs/math/history.md")


def graph_trainings():
    files = {run: render_graphs.read(name)["rows"] for run, name in render_graphs.RUNS.items()}
    return [row | {"run": run} for run, rows in files.items() for row in rows if "dataset" in row]


def test_what_is_said_of_the_graphs():
    text = said("docs/reproduce.md")
    rows = [r for r in render_graphs.costs() if "training_s" in r]
    for variant, leanest in (("l", "exact+recompute"), ("nl", "exact+recompute+host")):
        for size in (169343, 20000):
            found = [r for r in rows if (r["variant"], r["nodes"]) == (variant, size)]
            assert min((r for r in found if r["training_mib"]), key=lambda r: r["training_mib"])["adjoint"] == leanest
            kept = [render_graphs.ratio(r, "training_s") for r in found if "states" in r["adjoint"]]
            assert kept
            assert max(kept) < 1
    assert "least memory where attention is computed again and, for `l`, some columns are solved at a time" in text
    assert "With the states kept it is faster than direct differentiation" in text


def test_tuned_settings_are_those_that_validation_chose():
    chosen = render_graphs.best(graph_trainings(), ("final", "other"))
    assert len(chosen) == 14
    for (dataset, variant), row in chosen.items():
        mine = asdict(settings_for(dataset, "tuned", variant))
        for name, value in row["settings"].items():
            assert mine[name] == (pytest.approx(value) if isinstance(value, float) else value), (dataset, variant, name)


def test_the_names_of_torchfde():
    names = [base + end for base in ("predictor", "corrector", "l1", "gl", "trap", "glmulti") for end in ("-f", "-o")]
    assert f"here all {NUMERALS[len(names)]} exist" in said("docs/migrate/torchfde.md")
    for name in names:
        options = {"multi_coefficient": torch.ones(1)} if name.startswith("glmulti") else {}
        order = torch.tensor([0.5]) if options else 0.5
        assert torch.isfinite(
            torchfde_call(lambda t, z: -z, torch.ones(1), order, t=1.0, step_size=0.5, method=name, options=options)
        )
