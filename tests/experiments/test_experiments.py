"""Every experiment as the command line runs it, in small."""

import dataclasses
import json

import pytest
import torch

from neuralfde import InputError
from neuralfde.cli import pelts
from neuralfde.cli.experiment import FolderReport, Report, available, load
from neuralfde.special import mittag_leffler
from neuralfde_experiments import lotka_volterra as lv
from neuralfde_experiments import lynx_hare, neural_field, relaxation

SMALL = lv.Config(optimiser="lm", trajectories=3, samples=5, steps=5)


@pytest.mark.parametrize("name", ["lotka-volterra", "lynx-hare", "relaxation", "neural-field"])
def test_every_experiment_is_a_frozen_config_and_a_run(name):
    experiment = load(name)
    assert name in available()
    assert dataclasses.is_dataclass(experiment.config)
    config = experiment.config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3
    assert all(f.metadata["help"] for f in dataclasses.fields(config))
    assert experiment.examples
    assert all(line.startswith(f"neuralfde run {name}") for line in experiment.examples)


def test_a_misspelt_experiment_gets_a_hint():
    with pytest.raises(InputError, match="Did you mean 'lynx-hare'"):
        load("lynx-hair")


@pytest.mark.parametrize("adjoint", ["exact", "paper", "direct"])
def test_lotka_volterra_with_every_adjoint(adjoint):
    config = dataclasses.replace(SMALL, optimiser="adam", adjoint=adjoint, epochs=2, batch_size=2)
    row = lv.run(config)[0]
    assert row["adjoint"] == adjoint
    assert row["worst_error"] > 0
    assert set(row["estimates"]) == set("abcd")


def test_lotka_volterra_finds_parameters_and_order():
    config = dataclasses.replace(SMALL, learn_order=True, trajectories=6, horizon=2.0, samples=10, steps=10)
    report = Report()
    row = lv.run(config, report)[0]
    assert row["worst_error"] < 1e-3
    assert row["order_error"] < 1e-3
    assert all(report.verdicts.values())
    assert row["identifiable"]


def test_lotka_volterra_from_the_prey_alone_with_noise():
    config = dataclasses.replace(
        SMALL, observe="prey", noise=0.01, trajectories=10, horizon=2.0, samples=10, steps=10, target=0.5
    )
    row = lv.run(config)[0]
    assert row["worst_error"] < 0.5
    assert set(row["covered"]) == set("abcd")


@pytest.mark.parametrize("change", [{"observe": "wolf"}, {"optimiser": "sgd"}])
def test_lotka_volterra_refuses(change):
    with pytest.raises(InputError):
        lv.run(dataclasses.replace(SMALL, **change))


def test_the_lynx_and_hare_table_is_shipped():
    years, counts = pelts.load()
    assert years.tolist() == list(range(1900, 1921))
    assert counts[0].tolist() == [30.0, 4.0]


def test_lynx_hare_forecasts(tmp_path):
    config = lynx_hare.Config(first=1912, last=1912, ahead=2, steps_per_year=2)
    report = FolderReport(tmp_path, "lynx-hare", config)
    rows = lynx_hare.run(config, report)
    assert [r["model"] for r in rows] == ["integer", "fractional"] * 2
    assert rows[0]["order"] == 1.0
    assert rows[1]["order"] < 1.0
    assert all(0 < r["held_out_rmse_log"] < 2 for r in rows)
    assert (tmp_path / "integer-1912.png").is_file()
    with pytest.raises(InputError, match="the data end in 1920"):
        lynx_hare.run(lynx_hare.Config(last=1919))


def test_relaxation_of_a_made_up_spring_pot(tmp_path):
    times = torch.logspace(-2, 2, 30, dtype=torch.float64)
    lines = ["Time\tModulus", *(f"{t}\t{5 * t**-0.3}" for t in times.tolist())]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    config = relaxation.Config(path=str(tmp_path / "data.csv"), model="springpot")
    report = FolderReport(tmp_path / "out", "relaxation", config)
    row = relaxation.run(config, report)[0]
    assert row["order"] == pytest.approx(0.3, abs=1e-6)
    assert row["r_squared_log"] == pytest.approx(1.0)
    assert all(report.verdicts.values())
    assert (tmp_path / "out" / "relaxation.png").is_file()


def test_the_power_law_range_is_found_from_the_data_alone():
    times = torch.logspace(-2, 3, 201, dtype=torch.float64)
    bent = times**-0.2 / (1 + times / 10) ** 0.5  # slope -0.2 early, -0.7 late
    found = relaxation.power_law(times, bent, 0.999)
    assert 0.2 < -found.slope < 0.22
    assert 1 < found.until < 30
    assert found.r_squared >= 0.999
    everywhere = relaxation.line(times, bent)
    assert everywhere.until == 1000
    assert -everywhere.slope > 0.25
    straight = relaxation.power_law(times, times**-0.3, 0.999)
    assert straight.slope == pytest.approx(-0.3)
    assert straight.until == 1000
    jagged = relaxation.power_law(times, 1.5 + times.log().sin(), 0.999)  # nowhere that straight: the best there is
    assert 0 < jagged.r_squared <= 1


@pytest.mark.parametrize("model", ["maxwell", "zener"])
def test_relaxation_finds_the_order_of_a_model_it_is_given(tmp_path, model):
    x = torch.linspace(-4, 6, 25, dtype=torch.float64)
    if model == "maxwell":
        g = (-0.1 * x).exp() * mittag_leffler(-(0.5 * (x - 3)).exp(), 0.5, 0.9)
    else:
        g = 0.2 + mittag_leffler(-(0.4 * (x - 1)).exp(), 0.4)
    (tmp_path / "data.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(x.exp().tolist(), g.tolist(), strict=True)))
    row = relaxation.run(relaxation.Config(path=str(tmp_path / "data.csv"), model=model))[0]
    assert row["order"] == pytest.approx(0.1 if model == "maxwell" else 0.4, abs=1e-3)
    assert row["r_squared_log"] > 0.99999


def test_relaxation_says_what_is_wrong_with_a_file(tmp_path):
    for path, words in (("", "--path"), (str(tmp_path / "none.csv"), "No such file")):
        with pytest.raises(InputError, match=words):
            relaxation.run(relaxation.Config(path=path))
    (tmp_path / "short.csv").write_text("1,2\n2,3\n")
    with pytest.raises(InputError, match="at least 10"):
        relaxation.run(relaxation.Config(path=str(tmp_path / "short.csv")))
    (tmp_path / "broken.csv").write_text("t,g\n1,2\n2,3\n3,4\n4,x\n")
    with pytest.raises(InputError, match="line 5"):
        relaxation.run(relaxation.Config(path=str(tmp_path / "broken.csv")))
    with pytest.raises(InputError, match="Did you mean 'zener'"):
        relaxation.run(relaxation.Config(path="x", model="zenner"))


def test_relaxation_reads_decimal_commas_and_asks_which_columns(tmp_path):
    rows = [(k + 1, 5 * (k + 1) ** -0.3) for k in range(12)]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(f"{t:.3f};{g:.6f}".replace(".", ",") for t, g in rows))
    _, modulus, left_out = relaxation.read(str(path))
    assert modulus.tolist() == pytest.approx([round(g, 6) for _, g in rows])
    assert left_out == 0
    path.write_text("\n".join(["n,t,G", "0,0,7", *(f"{k},{t},{g}" for k, (t, g) in enumerate(rows))]))
    with pytest.raises(InputError, match=r"3 columns \(n, t, G\).*--columns"):
        relaxation.read(str(path))
    assert relaxation.read(str(path), "t,G")[2] == 1


def test_neural_field_learns(tmp_path):
    config = neural_field.Config(epochs=3, width=4, trajectories=4, samples=4, steps=4, target=10.0)
    report = FolderReport(tmp_path, "neural-field", config)
    row = neural_field.run(config, report)[0]
    assert row["parameters"] == 42
    assert 0 < row["field_error"] < 10
    assert (tmp_path / "field.png").is_file()


class Interrupt(FolderReport):
    """Stops a run as Ctrl-C would."""

    def __init__(self, *args, at, **kwargs):
        super().__init__(*args, **kwargs)
        self.at, self.seen = at, 0

    def progress(self, *args, **kwargs):
        self.seen += 1
        if self.seen > self.at:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_resumed_where_it_stopped(tmp_path):
    config = dataclasses.replace(SMALL, optimiser="adam", epochs=4, repeats=2, batch_size=2, intervals="none")
    whole = lv.run(config)
    stopped = Interrupt(tmp_path, "lotka-volterra", config, at=6)
    with pytest.raises(KeyboardInterrupt):
        lv.run(config, stopped)
    stopped.finish("interrupted")
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["status"] == "interrupted"
    assert len(kept["rows"]) == 1
    again = FolderReport(tmp_path, "lotka-volterra", config, resume=True)
    assert again.restored("seed-1")["iteration"] == 2
    rows = lv.run(config, again)
    for a, b in zip(rows, whole, strict=True):
        assert a["estimates"] == pytest.approx(b["estimates"], rel=1e-12)
    with pytest.raises(InputError, match="other settings: epochs"):
        FolderReport(tmp_path, "lotka-volterra", dataclasses.replace(config, epochs=9), resume=True)
    with pytest.raises(InputError, match="nothing to resume"):
        FolderReport(tmp_path / "none", "lotka-volterra", config, resume=True)
