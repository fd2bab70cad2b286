"""``neuralfde solve``: a quick look at an equation in a file."""

import json

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from neuralfde_command.app import app

MODEL = """
import torch

def swing(t, z, a=1.0):
    return torch.stack([z[..., 1], -a * z[..., 0]], -1)

def plain(t, z):
    return -z

def wide(t, z):
    return torch.ones(3)
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


def invoke(*args):
    return CliRunner().invoke(app, ["solve", *map(str, args)])


def test_a_function_is_solved_shown_and_drawn(model, tmp_path):
    result = invoke(
        f"{model}:swing", "--initial", "1,0", "--order", "1", "--end", "3.14159265", "--out", tmp_path / "out"
    )
    assert result.exit_code == 0, result.output
    assert "█" in result.output
    assert max(map(len, result.output.split("everything")[0].splitlines())) <= 80
    assert (tmp_path / "out" / "solution.png").is_file()
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert len(rows) == 11
    assert rows[-1]["z1"] == pytest.approx(-1, abs=1e-4)
    assert rows[5]["z2"] == pytest.approx(-1, abs=1e-4)
    other = json.loads(invoke(f"{model}:swing", "--initial", "1,0", "--set", "a=-1", "--json", "--rows", 3).stdout)
    assert other["rows"][-1]["z1"] > 100


def test_the_table_says_how_much_it_depends_on_the_steps(model):
    assert "with 500 steps values differ by up to" in invoke(f"{model}:plain").stdout
    few = invoke(f"{model}:plain", "--steps", 9, "--end", 20).stdout
    assert "with 4 steps" in few
    assert "take more --steps" in few
    for rows in (2, 11, 500):
        fine, coarse = (
            json.loads(invoke(f"{model}:plain", "--steps", n, "--rows", rows, "--json").stdout)["rows"]
            for n in (40, 20)
        )
        there = {row["time"]: row["z1"] for row in coarse}
        change = max(abs(row["z1"] - there[row["time"]]) for row in fine if row["time"] in there)
        assert change > 0
        told = invoke(f"{model}:plain", "--steps", 40, "--rows", rows).stdout
        assert float(told.split("differ by up to ")[1].split(",")[0]) >= 0.99 * change


def test_orders_above_one_and_functions_without_parameters(model):
    found = json.loads(invoke(f"{model}:plain", "--order", 2, "--velocity", 0, "--end", 3.14159265, "--json").stdout)
    assert found["rows"][-1]["z1"] == pytest.approx(-1, abs=1e-3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "needs a model"),
        (["relaxation"], "closed form"),
        (["{model}:swing", "--initial", "1,0", "--set", "b=2"], "the parameters are a"),
        (["{model}:swing"], "fails at the initial values"),
        (["{model}:wide"], "must give a tensor like z"),
        (["{model}:plain", "--order", "1.5"], "velocity"),
        (["{model}:nothing"], "has no function"),
        (["lotka-volterra", "--initial", "1,1", "--set", "a=1,b=1"], "Give numbers: --set c=1,d=1."),
        (["lotka-volterra", "--initial", "1,1", "--set", "a=1,b=1,c=1,d=1,e=1"], "the parameters are a, b, c, d"),
        (["logistic", "--initial", "1,2", "--set", "rate=1,capacity=3"], "2 values for the variables z"),
    ],
)
def test_refused_in_one_line(model, args, words):
    result = invoke(*[arg.replace("{model}", model) for arg in args])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
