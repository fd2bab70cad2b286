"""How ``neuralfde run`` finds experiments: by entry points, in a source tree, and what it says without any."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import neuralfde_experiments
from neuralfde import InputError
from neuralfde.cli.experiment import available, load
from neuralfde_command import experiments
from neuralfde_command.app import app

ROOT = Path(__file__).parents[2]
COUNTING = '''"""Count."""

from dataclasses import dataclass

from neuralfde.cli.experiment import option


@dataclass(frozen=True)
class Config:
    """Settings."""

    until: int = option(3, "the last number")
    loud: bool = option(False, "no difference")


def run(config, report):
    """One row for each number."""
    return [report.case(f"number {n}", lambda n=n: {"n": n}) for n in range(1, config.until + 1)]
'''


def invoke(*args):
    return CliRunner().invoke(app, list(args))


@pytest.fixture
def guest(tmp_path, monkeypatch):
    """Another package with one experiment, announced by an entry point."""
    (tmp_path / "guest.py").write_text('EXPERIMENTS = {"counting": "counting", "lynx-hare": "counting"}\n')
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    announced = [EntryPoint("guest", "guest:EXPERIMENTS", experiments.GROUP), experiments.OURS]
    monkeypatch.setattr(experiments, "entry_points", lambda group: announced if group == experiments.GROUP else [])
    yield
    for name in ("guest", "counting"):
        sys.modules.pop(name, None)


@pytest.fixture
def nothing(monkeypatch):
    """As if neuralfde were installed alone."""
    monkeypatch.setattr(experiments, "entry_points", lambda group: [])
    monkeypatch.setattr(experiments, "ours_is_here", lambda: False)


def test_the_entry_point_is_the_one_that_a_source_tree_uses():
    project = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text())["project"]
    announced = project["entry-points"][experiments.GROUP]
    assert announced == {experiments.OURS.name: experiments.OURS.value}
    assert experiments.OURS.load() is neuralfde_experiments.EXPERIMENTS


def test_both_packages_have_one_version():
    ours, theirs = (tomllib.loads((p / "pyproject.toml").read_text()) for p in (ROOT, ROOT / "experiments"))
    assert ours["project"]["version"] == theirs["project"]["version"]


def test_another_package_brings_experiments(guest):
    result = invoke("run", "counting", "--until", "2", "--loud", "--json")
    assert result.exit_code == 0, result.output
    assert [row["n"] for row in json.loads(result.stdout)["rows"]] == [1, 2]
    assert "the last number" in invoke("run", "counting", "--help").output
    assert "counting" in invoke("run", "--help").output


def test_a_guest_does_not_take_the_place_of_an_experiment_of_ours(guest):
    assert experiments.modules()["lynx-hare"] == "neuralfde_experiments.lynx_hare"


def test_without_experiments_it_says_how_to_get_them(nothing):
    assert available() == []
    listed = invoke("run", "--help")
    assert listed.exit_code == 0
    assert "pip install ./experiments" in " ".join(listed.output.split())
    refused = invoke("run", "lotka-volterra")
    assert refused.exit_code == 2
    assert "pip install ./experiments" in " ".join(refused.output.split())
    with pytest.raises(InputError, match="neuralfde-experiments"):
        load("lotka-volterra")


@pytest.mark.parametrize("word", [["--help"], ["--version"], ["bench", "--steps=4", "--batch=2", "--repeats=1"]])
def test_the_rest_of_the_command_needs_no_experiments(nothing, word):
    assert invoke(*word).exit_code == 0


def test_in_a_source_tree_nothing_has_to_be_installed():
    code = (
        "from neuralfde_command import experiments; experiments.entry_points = lambda group: []; "
        "print(*experiments.modules())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}/experiments/src"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == list(neuralfde_experiments.EXPERIMENTS)


def test_the_contract_needs_torch_alone():
    code = (
        "import sys, neuralfde_experiments.images, neuralfde_experiments.lotka_volterra; "
        "print([m for m in ('typer', 'rich', 'matplotlib', 'scipy', 'sklearn') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}/experiments/src"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
