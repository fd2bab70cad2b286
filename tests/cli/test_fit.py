"""``neuralfde fit``: tables as people have them, models by name and from a file, and what is refused."""

import json
from functools import partial

import pytest
import torch

pytest.importorskip("typer")
from typer.testing import CliRunner

from neuralfde import InputError, fdeint
from neuralfde.cli import fit_data, fit_file, fit_models
from neuralfde.cli.report import Report
from neuralfde.special import mittag_leffler
from neuralfde_command.app import app


def invoke(*args):
    return CliRunner().invoke(app, ["fit", *map(str, args)])


def estimates(rows):
    return {row["parameter"]: row["estimate"] for row in rows if "parameter" in row}


def doubles(*values):
    return [torch.tensor(v, dtype=torch.float64) for v in values]


@pytest.fixture
def relaxed(tmp_path):
    """A relaxation as a German measuring device exports it."""
    times = torch.logspace(-2, 3, 30, dtype=torch.float64)
    values = 2 * mittag_leffler(-((times / 5) ** 0.6), 0.6)
    rows = [f"{t:.9g};{v:.9g}".replace(".", ",") for t, v in zip(times.tolist(), values.tolist(), strict=True)]
    (tmp_path / "data.csv").write_bytes("\r\n".join(["Zeit;Modul", "s;µPa", *rows]).encode("cp1252"))
    return tmp_path / "data.csv"


def test_a_table_is_fitted_and_shown(relaxed, tmp_path):
    result = invoke(relaxed, "--log", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert estimates(found["rows"]) == pytest.approx({"amplitude": 2, "tau": 5, "order": 0.6}, rel=1e-4)
    for row in found["rows"][:3]:
        assert row["low"] <= row["estimate"] <= row["high"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "E_β" in page
    assert '<svg role="img"' in page
    assert (tmp_path / "out" / "fit.png").is_file()
    shown = invoke(relaxed, "--log", "--no-learn-order", "--order", "0.6", "--quiet").stdout
    assert "amplitude" in shown
    assert "order" not in shown


def test_files_that_repeat_an_experiment_and_intervals_by_bootstrap(relaxed, tmp_path):
    torch.manual_seed(0)
    times = torch.logspace(-2, 3, 25, dtype=torch.float64)
    paths = []
    for k in range(2):
        values = 2 * mittag_leffler(-((times / 5) ** 0.6), 0.6) * (1 + 0.02 * torch.randn(25, dtype=torch.float64))
        rows = [f"{t:.9g}\t{v:.9g}" for t, v in zip(times.tolist(), values.tolist(), strict=True)]
        paths.append(tmp_path / f"{k}.txt")
        paths[-1].write_text("\n".join(["Zeit\tModul", "s\tPa", *rows]))
    both = json.loads(invoke(*paths, "--log", "--json", "--bootstrap", "40").stdout)["rows"]
    assert both[-1]["points"] == 50
    for row, truth in zip(both, (2.0, 5.0, 0.6), strict=False):
        assert row["low"] < row["estimate"] < row["high"]
        assert row["estimate"] == pytest.approx(truth, rel=0.1)
    (one,) = (row for row in json.loads(invoke(paths[0], "--log", "--json").stdout)["rows"] if row["case"] == "order")
    assert one["high"] - one["low"] > both[2]["high"] - both[2]["low"]
    read = fit_data.measured(f"{paths[0]},{paths[1]}", 0, "Zeit", "", [1], Report())
    assert (read.clock, read.labels) == ("Zeit (s)", ("Modul (Pa)",))


def test_of_many_columns_two_are_fitted(relaxed, tmp_path):
    lines = relaxed.read_bytes().decode("cp1252").splitlines()
    (tmp_path / "more.csv").write_text("\n".join(f"{k or 'Nr.'};{line};gut, {k}" for k, line in enumerate(lines)))
    rows = json.loads(invoke(tmp_path / "more.csv", "--time", "Zeit", "--values", "Modul", "--json").stdout)["rows"]
    assert estimates(rows) == pytest.approx({"amplitude": 2, "tau": 5, "order": 0.6}, rel=1e-4)
    other = tmp_path / "other.csv"
    other.write_text("time;Modul\n1;2\n")
    told = invoke(relaxed, other)
    assert told.exit_code == 2
    assert "other.csv has the columns time, Modul, and " in told.stderr


def noisy_rows(times, values, deviation=0.01, seed=0):
    noise = deviation * torch.randn(len(times), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return "\n".join(f"{t!r},{v!r}" for t, v in zip(times.tolist(), (values + noise).tolist(), strict=True))


def test_a_search_that_fails_is_told_by_the_exit_code(relaxed, monkeypatch):
    monkeypatch.setattr(fit_file, "fit_curve", partial(fit_file.fit_curve, iterations=1))
    result = invoke(relaxed, "--json")
    (whole,) = (row for row in json.loads(result.stdout)["rows"] if row["case"] == "fit")
    assert not whole["converged"]
    assert result.exit_code == 3


def test_a_closed_form_says_what_is_doubtful(tmp_path):
    """A rest that is not there has an interval from zero on, and a curve that misses the points is told."""
    times = torch.linspace(0, 10, 60, dtype=torch.float64)
    values = 2 * mittag_leffler(-(times**0.7), 0.7)
    (tmp_path / "data.csv").write_text(noisy_rows(times, values - 0.02))
    rows = fit_file.run(fit_file.Config(str(tmp_path / "data.csv"), "zener"))
    (rest,) = (row for row in rows if row["case"] == "rest")
    assert rest["low"] == 0
    assert 0 < rest["high"] < 0.2
    assert any("rest ended at a bound" in text for text in rows[-1]["warnings"])
    (tmp_path / "data.csv").write_text(noisy_rows(times, values + 0.2 * times.sin()))
    rows = fit_file.run(fit_file.Config(str(tmp_path / "data.csv"), "relaxation"))
    assert any("residuals are correlated" in text for text in rows[-1]["warnings"])


def test_the_curve_begins_where_the_data_do_and_repeats_count_in_r_squared(tmp_path):
    times = torch.linspace(0, 4, 12, dtype=torch.float64)
    values = 2 * mittag_leffler(-(times**0.7), 0.7)
    rows = "\n".join(noisy_rows(times, values, 0.3, seed) for seed in range(5))
    (tmp_path / "data.csv").write_text(rows)
    (tmp_path / "mine.py").write_text("def decay(t, z, rate=1.0):\n    return -rate * z\n")
    data = fit_data.measured(str(tmp_path / "data.csv"), 0, "1", "", [1], Report())
    config = fit_file.Config(str(tmp_path / "data.csv"))
    curve = fit_file._curve(config, fit_models.MODELS["relaxation"], data, Report())
    assert float(curve.line[0][0]) == 0
    model = f"{tmp_path}/mine.py:decay"
    solved = fit_file.run(fit_file.Config(str(tmp_path / "data.csv"), model, steps=110, method="trapezoid"))[-1]
    assert solved["r_squared"] == pytest.approx(curve.r_squared, abs=1e-3)


def test_repeats_are_measurements_of_their_own_for_every_kind_of_model(tmp_path):
    """Intervals and the band of one more measurement are those of all rows, not of the means at the times."""
    times = torch.linspace(0, 4, 12, dtype=torch.float64)
    rows = [noisy_rows(times[: 12 - seed], 2 * torch.exp(-0.7 * times[: 12 - seed]), 0.1, seed) for seed in range(4)]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    (tmp_path / "mine.py").write_text("def decay(t, z, rate=1.0):\n    return -rate * z\n")
    data = fit_data.measured(str(tmp_path / "data.csv"), 0, "1", "", [1], Report())
    config = fit_file.Config(str(tmp_path / "data.csv"), order=1.0, learn_order=False, steps=330, method="trapezoid")
    curve = fit_file._curve(config, fit_models.MODELS["relaxation"], data, Report())
    solved = fit_file._equation(config, fit_models.model_of(f"{tmp_path}/mine.py:decay"), data, Report())
    assert solved.estimates["rate"] == pytest.approx(1 / curve.estimates["tau"], rel=1e-4)
    low, high = solved.intervals["rate"]
    slow, fast = sorted(1 / t for t in curve.intervals["tau"])
    assert high - low == pytest.approx(fast - slow, rel=0.01)
    widths = [float((band[1] - band[0]).mean()) for band in (curve.band, solved.band)]
    assert widths[1] == pytest.approx(widths[0], rel=0.01)


def test_doubts_are_told_without_bars_too(tmp_path):
    times = torch.linspace(0, 10, 60, dtype=torch.float64)
    (tmp_path / "data.csv").write_text(noisy_rows(times, 2 * mittag_leffler(-(times**0.7), 0.7) + 0.2 * times.sin()))
    quiet = invoke(tmp_path / "data.csv", "--quiet")
    assert "note: neighbouring residuals are correlated" in quiet.stderr
    assert "note: " not in quiet.stdout
    assert "note: " not in invoke(tmp_path / "data.csv", "--json").stderr


def test_every_closed_form_is_its_equation():
    t, (start,) = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64), doubles([1.3])
    solved = fdeint(lambda t, z: -(z - 0.3) / 2**0.7, start, t, 0.7, steps=2000, method="trapezoid")[:, 0]
    assert torch.allclose(fit_models.MODELS["zener"].curve(t, *doubles(0.7, 0.3, 1.0, 2.0)), solved, atol=1e-5)
    early = fit_models.MODELS["maxwell"].curve(t[1:] * 1e-9, *doubles(0.2, 1.0, 0.5, 1.0))
    assert float((early[1] / early[0]).log2()) == pytest.approx(-0.2, abs=1e-3)


def test_a_search_that_begins_far_from_the_order_is_begun_elsewhere_too(tmp_path):
    """A polymer melt: from order 0.8 the search ends at R² 0.96, with 94 % less than the first value."""
    times = torch.linspace(0.2, 1800, 300, dtype=torch.float64)
    values = fit_models.MODELS["maxwell"].curve(times, *doubles(0.41, 1e5, 0.995, 118))
    noise = 0.1 * torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (tmp_path / "melt.csv").write_text(
        "\n".join(f"{t},{v}" for t, v in zip(times.tolist(), (values * noise.exp()).tolist(), strict=True))
    )
    found = estimates(fit_file.run(fit_file.Config(str(tmp_path / "melt.csv"), "maxwell", log=True)))
    assert found["order"] == pytest.approx(0.41, abs=0.05)
    assert found["tau"] == pytest.approx(118, rel=0.1)


def test_an_equation_from_rows_in_disorder_with_repeats(tmp_path):
    times, (start,) = torch.linspace(0, 10, 16, dtype=torch.float64), doubles([1.0])
    values = fdeint(lambda t, z: 0.8 * z * (1 - z / 10), start, times, 0.9, steps=60, method="abm")[:, 0]
    rows = [f"{v}, 7, {t}" for t, v in zip(times.tolist(), values.tolist(), strict=True)]
    (tmp_path / "data.txt").write_text("\n".join(["made on", "Monday", "size, other, day", *reversed(rows), rows[3]]))
    config = fit_file.Config(str(tmp_path / "data.txt"), "logistic", skip=2, time="day", values="size", steps=60)
    found = estimates(fit_file.run(config))
    assert found == pytest.approx({"rate": 0.8, "capacity": 10, "z(0)": 1, "order": 0.9}, rel=1e-3)


def test_a_model_of_ones_own(tmp_path):
    times = torch.linspace(0, 2, 12, dtype=torch.float64).tolist()
    (tmp_path / "data.tsv").write_text("\n".join(f"{t}\t{3 * 2.718281828459045 ** (-2 * t)}" for t in times))
    (tmp_path / "mine.py").write_text("def decay(t, z, rate=1.0):\n    return -rate * z\n")
    options = {"order": 1.0, "learn_order": False, "steps": 200}
    rows = fit_file.run(fit_file.Config(str(tmp_path / "data.tsv"), f"{tmp_path}/mine.py:decay", **options))
    assert estimates(rows) == pytest.approx({"rate": 2, "column 2(0)": 3}, rel=1e-3)


def test_first_guesses_come_from_the_data():
    times = torch.linspace(0, 20, 81, dtype=torch.float64)
    wave = torch.stack([3 + (times * 2 * torch.pi / 5).sin(), 2 + (times * 2 * torch.pi / 5).cos()], -1)
    assert fit_models.MODELS["lotka-volterra"].guess(times, wave)["a"] == pytest.approx(2 * torch.pi / 5, rel=0.01)
    sick = torch.exp(-((times - 8) ** 2) / 8)[:, None]
    guess = fit_models.MODELS["sir"].guess(times, sick)
    assert guess["contact"] * float(fit_models.MODELS["sir"].initial(sick)[0]) == pytest.approx(2 * guess["recovery"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", "needs a file"),
        ("none.csv", "cannot be read"),
        ("data.csv --model relaxtion", "Did you mean 'relaxation'"),
        ("data.csv --model none.py:f", "no file"),
        ("data.csv --model bad.py:f", "cannot be run"),
        ("data.csv --model empty.py:f", "def f"),
        ("data.csv --model logistic", "--values"),
        ("data.csv --time hour", "no column 'hour'"),
        ("data.csv --values 1,2", "1 measured variables"),
        ("data.csv --values 2 --start speed=1", "the parameters are amplitude, tau"),
        ("data.csv --values 2 --start tau", "--start"),
        ("data.csv --values 2 --start tau=-1", "positive"),
        ("data.csv --values 3 --log", "positive measurements"),
        ("short.csv", "distinct times"),
        ("past.csv --values 2", "not be negative"),
        ("data.csv --values 2 --start tau=x", "name=value"),
        ("data.csv --values 2 --model wrong.py:name", "fails at the initial values: NameError"),
        ("data.csv --values 2 --model wrong.py:shape", "it must give a tensor like z"),
        ("data.csv,more.csv --values 2", "has no column '2'"),
        ("twice.csv --values x", "has 2 columns 'x'. Choose one by its number."),
        ("data.csv --values 2 --bootstrap 1", "at least 2"),
    ],
)
def test_refused_in_one_line(tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{k} {k * k + 1} {-k}" for k in range(9))
    (tmp_path / "data.csv").write_text(rows)
    (tmp_path / "short.csv").write_text("1 2\n2 3\n")
    (tmp_path / "past.csv").write_text(rows.replace("0 1 0", "-1 1 0"))
    (tmp_path / "bad.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "more.csv").write_text("1\n2\n")
    (tmp_path / "twice.csv").write_text("t x x\n" + rows)
    (tmp_path / "wrong.py").write_text(
        "def name(t, z, rate=1.0):\n    return zz\n\ndef shape(t, z, rate=1.0):\n    return z[0]\n"
    )
    result = invoke(*args.split())
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_model_with_no_name_is_an_input_error():
    with pytest.raises(InputError, match=r"FILE\.py:function"):
        fit_models.model_of("nothing")


INSTRUMENT = "time,G\ns,Pa\n-0.5,-0.001\n0,-3\n"


def test_early_and_late_rows_and_gaps_are_left_out(tmp_path):
    times = torch.logspace(-2, 3, 30, dtype=torch.float64)
    values = (2 * mittag_leffler(-((times / 5) ** 0.6), 0.6)).tolist()
    cells = ["" if k == 5 else "NaN" if k == 12 else f"{v:.12g}" for k, v in enumerate(values)]
    cells[25:] = ["7"] * 5  # the sample has slipped
    rows = [f"{t:.12g},{cell}" for t, cell in zip(times.tolist(), cells, strict=True)]
    path = tmp_path / "data.csv"
    path.write_text(INSTRUMENT + "\n".join(rows) + "\n,\n")
    told = invoke(path, "--values", "G", "--log")
    assert told.exit_code == 2
    assert "line 10 " in told.stderr
    assert "--gaps leaves out" in told.stderr
    told = invoke(path, "--values", "G", "--log", "--gaps")
    assert told.exit_code == 2
    for word in ("2 rows", "from time -0.5 to 0", "--since"):
        assert word in " ".join(told.stderr.split())
    told = invoke(path, "--values", "G", "--gaps", "--since", "-0.5")
    assert "must not be negative. --since leaves out" in " ".join(told.stderr.split())
    given = ["--values", "G", "--log", "--gaps", "--since", "0.001", "--until", "150"]
    found = invoke(path, *given, "--json", "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    assert estimates(rows) == pytest.approx({"amplitude": 2, "tau": 5, "order": 0.6}, rel=1e-4)
    assert rows[-1]["points"] == 23
    told = " ".join(invoke(path, *given).output.split())
    assert "2 rows before --since, 5 rows after --until, 2 rows without" in told
    assert (
        "0 distinct times in the range of --since" in invoke(path, "--values", "G", "--gaps", "--since", "1e9").stderr
    )


def test_advice_names_options_of_the_command():
    text = "Pass more steps= (this fit took 200), or grading= above 1; learn_order=True."
    told = "Pass more --steps (this fit took 200), or grading= above 1; learn_order=True."
    assert fit_file._as_options(text) == told


def test_gaps_of_one_column_leave_the_others(tmp_path):
    times = torch.linspace(0, 10, 41, dtype=torch.float64)
    start, noise = torch.tensor([2.0, 1.0], dtype=torch.float64), torch.Generator().manual_seed(0)
    states = fdeint(lambda t, z: fit_models.lotka_volterra(t, z, 1, 0.8, 0.5, 0.4), start, times, 0.9, steps=400)
    states = states + 0.01 * torch.randn(states.shape, dtype=torch.float64, generator=noise)
    lines = [[f"{t}", f"{x}", f"{y}"] for t, (x, y) in zip(times.tolist(), states.tolist(), strict=True)]
    for row, column, gap in ((0, 1, ""), (7, 1, "na"), (3, 2, "NULL"), (8, 1, ""), (8, 2, ""), (40, 2, "")):
        lines[row][column] = gap
    (tmp_path / "data.csv").write_text("t,x,y\n" + "\n".join(",".join(line) for line in lines))
    path = str(tmp_path / "data.csv")
    data = fit_data.measured(path, 0, "1", "", [2], Report(), gaps=True)
    assert data.values.shape == (40, 2)
    assert int(data.values.isnan().sum()) == 4
    rows = fit_file.run(fit_file.Config(path, "lotka-volterra", gaps=True, method="predictor", steps=400))
    found = estimates(rows)
    for name, value in {"a": 1, "b": 0.8, "c": 0.5, "d": 0.4, "order": 0.9, "x(0)": 2, "y(0)": 1}.items():
        assert found[name] == pytest.approx(value, rel=0.03)
    assert rows[-1]["r_squared"] > 0.99
