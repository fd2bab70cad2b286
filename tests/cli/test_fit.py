"""``neuralfde fit``: tables as people have them, models by name and from a file, and what is refused."""

import json

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


def test_every_closed_form_is_its_equation():
    t, (start,) = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64), doubles([1.3])
    solved = fdeint(lambda t, z: -(z - 0.3) / 2**0.7, start, t, 0.7, steps=2000, method="trapezoid")[:, 0]
    assert torch.allclose(fit_models.MODELS["zener"].curve(t, *doubles(0.7, 0.3, 1.0, 2.0)), solved, atol=1e-5)
    early = fit_models.MODELS["maxwell"].curve(t[1:] * 1e-9, *doubles(0.2, 1.0, 0.5, 1.0))
    assert float((early[1] / early[0]).log2()) == pytest.approx(-0.2, abs=1e-3)


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
    result = invoke(*args.split())
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_model_with_no_name_is_an_input_error():
    with pytest.raises(InputError, match=r"FILE\.py:function"):
        fit_models.model_of("nothing")
