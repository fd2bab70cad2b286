"""The forecasting experiment in small: what models see, what is compared, and that a run goes on where it ended."""

import json
import math

import forecasting as driver
import pytest
import torch
from report import forecasting as rendered

from neuralfde import InputError
from neuralfde.cli.experiment import FolderReport
from neuralfde_experiments import forecast_training, forecasting
from neuralfde_experiments.data import series
from neuralfde_experiments.data.series import Panel, load_series
from neuralfde_experiments.forecast_models import MODELS, PATCH, build, size
from neuralfde_experiments.forecast_training import WINDOW, Windows, naive

SMALL = forecasting.Config(
    sets="fulda", horizons="24", seeds=2, latent=4, width=8, iterations=4, batch=8, every=2, data="."
)


def made_up(length=800, seasons=(24,)):
    """Two waves of period 24 that rise slowly; what is known ahead is the time."""
    t = torch.arange(length, dtype=torch.float32)
    values = torch.stack([(k + 1) * torch.sin(2 * torch.pi * t / 24) + 1e-3 * t for k in range(2)])
    return Panel(values, t[:, None] / length, torch.zeros(length, 2), (500, 650, length), seasons)


@pytest.fixture
def panel(monkeypatch):
    found = made_up()
    monkeypatch.setattr(forecasting, "_panel", lambda name, root: found)
    return found


def test_models_see_the_past_and_what_is_known_ahead_and_nothing_else():
    panel = made_up()
    windows = Windows(panel, 48)
    which = torch.tensor([[1, 700]])
    inputs, level, target = windows.batch(which)
    patches = (WINDOW + 48) // PATCH
    assert inputs.shape == (patches, 1, windows.inputs)
    assert torch.equal(target[0], panel.values[1, 700:748])
    assert float(level) == pytest.approx(float(panel.values[1, 676:700].mean()))
    seen = inputs[:, 0, :PATCH].flatten()
    torch.testing.assert_close(seen[:WINDOW] + level[0], panel.values[1, 700 - WINDOW : 700])
    assert not seen[WINDOW:].any()
    assert inputs[:, 0, PATCH].tolist() == [1.0] * (WINDOW // PATCH) + [0.0] * 2
    told = inputs[:, 0, PATCH + 2 : 2 * PATCH + 2].flatten()
    torch.testing.assert_close(told, torch.arange(700 - WINDOW, 748) / 800)


def test_parts_do_not_share_what_is_forecast():
    windows = Windows(made_up(), 48)
    ends = []
    for number, (first, last) in enumerate([(WINDOW, 500), (500, 650), (650, 800)]):
        now = windows.part(number)[:, 1]
        ends.append((int(now.min()), int(now.max()) + 48))
        assert ends[-1] == (first, last)
    with pytest.raises(InputError, match="multiple of 24"):
        Windows(made_up(), 25)
    with pytest.raises(InputError, match="part 1"):
        Windows(made_up(), 336).part(1)


@pytest.mark.parametrize("model", MODELS)
def test_a_forecast_depends_on_all_inputs_before_it_and_on_none_after(model):
    torch.manual_seed(0)
    forecaster = build(model, 5, 4, 8)
    torch.nn.init.normal_(forecaster.head[2].weight)
    inputs = torch.randn(6, 1, 5, requires_grad=True)
    first = forecaster(inputs, 2 * PATCH)[0, :PATCH].sum()
    (slope,) = torch.autograd.grad(first, inputs)
    assert slope[:5].abs().sum((1, 2)).min() > 0
    assert not slope[5].any()


def test_the_lstm_has_about_as_many_parameters_and_no_more():
    sizes = [size(build(model, 60, 32, 64)) for model in MODELS]
    assert sizes[0] == sizes[1] + 32, "an order for each number of the state"
    assert 0.95 * sizes[1] < sizes[2] <= sizes[1]


def test_the_naive_forecast_repeats_the_season_that_does_best():
    found = naive(Windows(made_up(seasons=(1, 24)), 48))
    assert found["season"] == 24
    rise = 1e-3 * torch.tensor([24.0] * 24 + [48.0] * 24)
    assert found["mse"] == pytest.approx(float(rise.square().mean()), rel=1e-2)
    assert found["mae"] == pytest.approx(float(rise.mean()), rel=1e-2)


def test_a_training_is_tested_with_the_weights_that_validation_preferred(panel):
    windows, seen = Windows(panel, 24), []
    row = forecast_training.train(
        "learned order", windows, 0, 4, 8, 3e-2, 25, 16, 5, 3, tell=lambda done, loss: seen.append((loss, done))
    )
    assert (row["validation_mse"], row["iterations"]) == min(seen)
    assert row["stopped"] <= 25
    assert row["mse"] < 0.5 * float(windows.batch(windows.part(2)).target.var())
    assert 0 < row["orders"][0] < row["order"] < row["orders"][1] < 1


def test_the_experiment_has_a_row_for_each_training_and_goes_on_where_it_ended(panel, tmp_path, monkeypatch):
    report = FolderReport(tmp_path, "forecasting", SMALL)
    rows = forecasting.run(SMALL, report)
    assert len(rows) == 1 + 3 * 2
    monkeypatch.setattr(forecasting, "do", lambda *args: pytest.fail("it was done before"))
    again = forecasting.run(SMALL, FolderReport(tmp_path, "forecasting", SMALL, resume=True))
    assert [r["mse"] for r in again] == [r["mse"] for r in rows]
    table = (tmp_path / "forecasting.md").read_text()
    assert table.count("| fulda |") == 1
    assert "±" in table


def test_a_training_that_was_interrupted_goes_on_to_the_same_numbers(panel, tmp_path):
    class Fatal(FolderReport):
        def checkpoint(self, key, state):
            super().checkpoint(key, state)
            if key.endswith("LSTM 0"):
                self.flush()
                raise KeyboardInterrupt

    want = forecasting.run(SMALL)
    with pytest.raises(KeyboardInterrupt):
        forecasting.run(SMALL, Fatal(tmp_path, "forecasting", SMALL))
    report = FolderReport(tmp_path, "forecasting", SMALL, resume=True)
    assert report.restored("fulda 24 LSTM 0")["done"] == 2
    rows = forecasting.run(SMALL, report)
    assert [{k: v for k, v in r.items() if k != "seconds"} for r in rows] == [
        {k: v for k, v in r.items() if k != "seconds"} for r in want
    ]


def test_differences_are_taken_seed_by_seed():
    own = {MODELS[0]: {0: 1.0, 1: 3.0, 2: 9.0}, "LSTM": {0: 2.0, 1: 6.0}}
    assert forecasting.paired(own, "LSTM") == (-2.0, pytest.approx(1.0))
    assert forecasting.paired(own, "order 1") is None
    mean, error = forecasting.mean_and_error([1.0])
    assert mean == 1
    assert math.isnan(error)


def test_the_driver_goes_on_with_what_is_missing(panel, tmp_path, monkeypatch, capsys):
    class Here:  # the pool's calls in this process, where the made-up series are
        def __init__(self, *args):
            pass

        def Pool(self, *args):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def imap_unordered(self, call, jobs):
            class Answers(list):
                def next(self, timeout):
                    if not timeout:
                        raise driver.multiprocessing.TimeoutError
                    return call(self.pop(0))

            return Answers(jobs)

    monkeypatch.setattr(driver.multiprocessing, "get_context", lambda kind: Here())
    path = tmp_path / "forecasting.json"
    assert driver.fill(SMALL, path, 1, end=0.0) == []
    assert "7 of 7 are left" in capsys.readouterr().out
    rows = driver.fill(SMALL, path, 1, end=math.inf)
    kept = json.loads(path.read_text())
    assert len(rows) == len(kept["rows"]) == 7
    path.write_text(json.dumps(kept | {"rows": kept["rows"][:-1]}))
    again = driver.fill(SMALL, path, 1, end=math.inf)
    assert [r["mse"] for r in again] == [r["mse"] for r in rows]
    assert "1 of 1" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="other settings"):
        driver.known(path, forecasting.Config())


def test_files_are_found_checked_and_normalised_by_their_training_part(tmp_path, monkeypatch):
    lines = ["date,tmax,tmin,tmean,Prec,Q", "#,C,C,C,mm,m3", *(f"d,0,0,0,{k % 3},{k + 1}" for k in range(20))]
    content = "\n".join(lines).encode()
    with pytest.raises(InputError, match="spotpy"):
        load_series("fulda", tmp_path)
    (tmp_path / "fulda_river.csv").write_bytes(content)
    with pytest.raises(InputError, match="not the published file"):
        load_series("fulda", tmp_path)
    found = series.panel(series.SERIES["fulda"], [line.split(",") for line in lines])
    assert found.ends == (14, 16, 20)
    assert found.values.shape == (1, 20)
    assert found.known.shape == (20, 1)
    assert abs(float(found.values[0, :14].mean())) < 1e-6
    assert float(found.values[0, :14].square().mean()) == pytest.approx(1)
    with pytest.raises(InputError, match="at least 14400"):
        series.panel(series.SERIES["etth1"], [["0"] * 8] * 20)


def test_the_page_has_every_row_says_who_wins_and_does_without_results(monkeypatch):
    monkeypatch.setattr(rendered, "known", lambda question: [])
    assert {place() for place in rendered.PLACES.values()} == {rendered.ABSENT}
    rows = []
    for job in forecasting.jobs(forecasting.Config()):
        own = {"learned order": 1.0 + 0.01 * job.seed, "order 1": 1.2, "LSTM": 0.9 if job.horizon > 96 else 1.1}
        error = {"mse": own.get(job.model, 2.0), "mae": 1.0, "season": 24}
        rows.append(job._asdict() | error | {"order": 0.7, "orders": [0.5, 0.9], "parameters": 1000})
    run = {"part": rendered.PART, "torch": "2", "hardware": "made up", "date": "today", "rows": rows}
    monkeypatch.setattr(rendered, "known", lambda question: [run])
    table = rendered.forecasts("mse")
    assert table.count("\n| ") == 1 + 5 * 4
    assert "| ETTh1 | 24 | **1.0200** | 1.2000 | 1.1000 | 2.0000 | −0.1800 ± 0.0071 | −0.0800 ± 0.0071 | 5 |" in table
    assert rendered.verdicts("order 1").startswith("20 of 20 better, 0 worse, 0 within")
    assert rendered.verdicts("LSTM").startswith("10 of 20 better, 10 worse")
    assert rendered.naive_wins() == "nowhere"
    assert "| Fulda | 1,000 | 1,000 | 1,000 | 24 | 0.70 | 0.50 … 0.90 |" in rendered.setup()
    assert len(rendered.figure().axes) == 5
