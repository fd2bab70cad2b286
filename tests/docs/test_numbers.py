"""What pages say of settings and of measurements is what the code and the results say; see ``test_results.py`` too."""

import re
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest
import scaling
import torch
from report import graphs_accuracy, graphs_cost, graphs_order, images_accuracy
from report.record import rows
from report.take import NOT_SETTINGS

from neuralfde import FFT, Exponentials, Full
from neuralfde.base import policy
from neuralfde.compat.torchfde import fdeint as torchfde_call
from neuralfde.door import cost
from neuralfde.door.names import METHODS
from neuralfde.fitting.profile import RESOLUTION
from neuralfde.fitting.search import SMALL
from neuralfde.history import panels
from neuralfde_experiments import relaxation
from neuralfde_experiments.data.order_graphs import ORDER_GRAPHS
from neuralfde_experiments.graph_settings import reported_seeds, settings_for

ROOT = Path(__file__).parents[2]
NUMERALS = {3: "third", 5: "Five", 6: "six", 10: "Ten", 11: "Eleven", 12: "twelve"}


def said(page):
    """The text of a page, without marks and line breaks."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(), flags=re.S)
    return " ".join(text.split())


SINGLE, DOUBLE = (panels._SIZES[dtype] for dtype in (torch.float32, torch.float64))
LEVELS = [FFT().block * FFT().growth ** k for k in range(3)]
SETTINGS = [
    ("docs/index.md", f"{NUMERALS[len(METHODS)]} schemes"),
    ("docs/choose.md", f"from {policy.FFT_STEPS} steps on `fft`"),
    (
        "docs/choose.md",
        f"up to {policy.PICARD_NUMBERS[0]} elements ({policy.PICARD_NUMBERS[1]} with an implicit method)",
    ),
    ("docs/choose.md", f"at most {policy.PICARD_WORK[0] >> 10} KiB ({policy.PICARD_WORK[1] >> 20} MiB)"),
    ("docs/choose.md", f"without gradients {policy.PICARD_WORK_FORWARD / 1024:g} KiB where"),
    ("docs/choose.md", "at least {} steps ({} in a training)".format(*policy.REPEATED_STEPS)),
    ("docs/choose.md", f"results take at most {policy.REPEATED_BYTES[0] >> 10} KiB"),
    ("docs/math/steppers.md", f"at most {policy.REPEATED_KEPT >> 20} MiB"),
    (
        "docs/choose.md",
        f"for up to {policy.PICARD_NUMBERS_GPU[1]} elements, and up to {policy.PICARD_NUMBERS_GPU[0]} where steps",
    ),
    ("docs/choose.md", f"at once from {policy.GRAPHS_AT_ONCE} steps on"),
    ("docs/choose.md", f"comes for the {NUMERALS[policy.GRAPHS_REPEATS]} time"),
    ("docs/math/steppers.md", f"Up to {policy.NEWTON_NUMBERS} elements in all steps of an implicit method"),
    ("docs/math/steppers.md", f"Jacobians if a call of `func` computes up to {policy.SAMPLES_WORK >> 10} KiB"),
    (
        "docs/math/steppers.md",
        "up to {} KiB ({} KiB under `vmap`)".format(*(x >> 10 for x in policy.PICARD_WORK_BACKWARD)),
    ),
    (
        "docs/math/steppers.md",
        f"of up to {policy.KERNEL_FADING} elements, and a block has up to {policy.KERNEL_BLOCK} steps",
    ),
    ("docs/math/steppers.md", f"A sample has up to {policy.KERNEL_FEATURES} elements"),
    ("docs/math/steppers.md", f"at least {policy.SPLIT_STEPS} steps"),
    ("docs/choose.md", f"over {policy.KERNEL_AUTO_STEPS} steps or more with"),
    ("docs/choose.md", f"a state of up to {policy.KERNEL_AUTO_NUMBERS} elements and up to {policy.KERNEL_FADING} per"),
    ("docs/choose.md", f"from {policy.MESH_STEPS} steps on `exponentials`"),
    ("docs/recipes/long.md", f"changes over at {policy.FFT_STEPS} steps"),
    ("docs/recipes/long.md", "1e-8 for float32 states and 1e-11 for float64"),
    ("docs/math/history.md", f"groups steps into blocks of {Full().block}"),
    ("docs/math/history.md", f"one thin product over at most {Full().block - 1} rows"),
    ("docs/math/history.md", f"blocks of {LEVELS[0]}, {LEVELS[1]}, {LEVELS[2]}, … steps"),
    ("docs/math/history.md", f"{SINGLE.moments} for {SINGLE.length} rows in single precision"),
    ("docs/math/history.md", f"{DOUBLE.moments} for {DOUBLE.length} in double"),
    ("docs/math/history.md", f"(`block`, {Exponentials().block})"),
    ("docs/math/history.md", f"up to {policy.MOST_TERMS}, until"),
    ("docs/math/history.md", f"at all lags up to {policy.CHECKED_LAGS:,}".replace(",", " ")),
    ("docs/recipes/fit-data.md", f"Up to {SMALL} unknowns it is Levenberg-Marquardt"),
    ("docs/recipes/fit-data.md", f"a range wider than {RESOLUTION}"),
    ("docs/recipes/fit-data.md", f"R² ≥ {relaxation.Config().straight}"),
    ("docs/scaling.md", f"width {scaling.WIDTH}, {scaling.STEPS} steps, a batch of {scaling.BATCH}"),
    ("docs/performance.md", f"a state of {128 * 64 * 6 * 6:,} elements".replace(",", " ")),
]


@pytest.mark.parametrize(("page", "sentence"), SETTINGS, ids=lambda x: x[:60])
def test_settings_are_those_of_the_code(page, sentence):
    assert sentence in said(page), f"{page} no longer says {sentence!r}"


def test_the_tolerance_that_auto_brings_along():
    for double, tolerance in ((False, 1e-8), (True, 1e-11)):
        size = cost.Size(steps=100, row_bytes=8, sums=1, train=True, double=double)
        assert cost.exponentials_for(size) == Exponentials(tol=tolerance)


def test_the_rates_of_the_exponentials():
    steps, history = 1000, Exponentials()
    rates = history.rates(steps, 5)
    assert rates[0] == pytest.approx(0.1 / steps)
    assert rates[-1] == pytest.approx(30 / history.block)
    assert r"between \(0.1/N\) and \(30/B\)" in said("docs/math/history.md")


def test_what_is_said_of_the_cost_on_graphs():
    text = said("docs/reproduce.md")
    found = [r for r in graphs_cost.costs() if "training_s" in r]
    for variant, leanest in (("l", "exact+recompute"), ("nl", "exact+recompute+host")):
        for size in (169343, 20000):
            own = [r for r in found if (r["variant"], r["nodes"]) == (variant, size)]
            least = min((r for r in own if r["training_mib"]), key=lambda r: r["training_mib"])
            assert least["adjoint"] == leanest
            assert graphs_cost.ratio(least, "training_s") > 3
    assert "least memory if attention is computed again in the backward pass and, for `l`, only some columns" in text
    assert "for `nl`, rows of the past are kept in host memory. Both take several times as long." in text


def test_what_is_said_of_the_accuracies_on_graphs():
    assert f"within their first {graphs_accuracy.SHORT} epochs, are left out" in said("docs/reproduce.md")
    splits = {s for r in graphs_accuracy.trainings() if r["stage"] in ("explore", "judge") for s in r["seeds"]}
    reported = {*range(10), *reported_seeds("cora")}
    assert splits.isdisjoint(reported), "settings were chosen on splits that are reported"
    assert not [r for loss in ("plain", "agreement") for r in graphs_accuracy.chosen(loss).values() if r["averaged"]]


def test_what_is_said_of_orders_on_graphs():
    found = {(d, w): graphs_order.reported(graphs_order.rows(), d, w) for d in ORDER_GRAPHS for w in (False, True)}
    sure = {}
    for kind in ("learned", "0.5"):
        apart = {key: graphs_order.ahead(best[kind], best["1"]) for key, best in found.items() if best}
        sure[kind] = {key: gain > 0 for key, (gain, error) in apart.items() if abs(gain) > 2 * error}
    text = said("docs/reproduce.md")
    assert not any(sure["learned"].values())
    assert "A learned one is nowhere ahead of order 1 by more than two standard errors" in text
    worse, better = ({key for key, good in sure["0.5"].items() if good == sign} for sign in (False, True))
    assert worse == {("squirrel", False), ("minesweeper", False)}
    assert better == {("tolokers", False), ("airport-overlapping", False)}
    waves = [row for (_, in_waves), best in found.items() if in_waves for row in best.values()]
    assert len(waves) == 6
    assert min(round(row["test"], 1) for row in waves) >= 98.1, "all orders stand at the published figure"


def test_tuned_settings_are_those_that_validation_chose():
    chosen = graphs_accuracy.chosen()
    assert len(chosen) == 14
    for (dataset, variant), row in chosen.items():
        mine = asdict(settings_for(dataset, "tuned", variant))
        for name, value in row["settings"].items():
            if name in NOT_SETTINGS:  # how long a training may take is the protocol's
                continue
            assert mine[name] == (pytest.approx(value) if isinstance(value, float) else value), (dataset, variant, name)


def test_what_is_said_of_the_recipes_for_images():
    text = said("docs/reproduce.md")
    *others, reported, again = images_accuracy.trained("mnist")
    assert (reported["reported"], again["settings"]["views"]) == (True, reported["settings"]["views"])
    means = [statistics.mean(images_accuracy.errors(r)) for r in others]
    assert min(means) > images_accuracy.TARGET["mnist"] >= statistics.mean(images_accuracy.errors(reported))
    assert max(means) - min(means) < min(max(e) - min(e) for e in map(images_accuracy.errors, others))
    assert f"{NUMERALS[len(others) + 1]} recipes were trained to their end and tested" in text
    assert "The four recipes with one view differ by no more than their seeds do" in text
    compared = rows("images-accuracy", "mnist: recipes compared on held-out images")
    assert f"taken from {NUMERALS[len(compared)]} recipes with one view" in text
    assert max(compared, key=lambda r: r["last_five"])["recipe"] == "affine, no smoothing"
    fashion = rows("images-accuracy", "fashion-mnist: recipes compared on held-out images")
    assert max(fashion, key=lambda r: r["held_out_accuracy"])["recipe"] == "nothing erased"


def test_the_names_of_torchfde():
    names = [base + end for base in ("predictor", "corrector", "l1", "gl", "trap", "glmulti") for end in ("-f", "-o")]
    assert f"here all {NUMERALS[len(names)]} exist" in said("docs/migrate/torchfde.md")
    for name in names:
        options = {"multi_coefficient": torch.ones(1)} if name.startswith("glmulti") else {}
        order = torch.tensor([0.5]) if options else 0.5
        assert torch.isfinite(
            torchfde_call(lambda t, z: -z, torch.ones(1), order, t=1.0, step_size=0.5, method=name, options=options)
        )
