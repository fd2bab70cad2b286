"""The command: help, options, exit codes, JSON, interruption."""

import io
import json
import subprocess
import sys

import pytest

pytest.importorskip("typer")
from rich.console import Console
from typer.testing import CliRunner

from neuralfde import __version__
from neuralfde.cli import demo
from neuralfde.cli.console import ConsoleReport
from neuralfde.cli.experiment import available, load
from neuralfde.cli.report import Report
from neuralfde_command.app import app
from neuralfde_experiments import lotka_volterra as lv

FAST = ["--optimiser", "lm", "--trajectories", "4", "--samples", "5", "--steps", "5"]


def invoke(*args):
    return CliRunner().invoke(app, list(args))


def test_help_teaches():
    result = invoke("--help")
    assert result.exit_code == 0
    for words in ("neuralfde demo", "neuralfde run lotka-volterra", "Exit codes", "130"):
        assert words in result.output
    assert invoke("--version").output.strip() == __version__


@pytest.mark.parametrize("words", [[], ["run"], ["fit"], ["demo"], *(["run", name] for name in available())])
def test_help_fits_into_80_columns(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke(*words, "--help").output.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines if "Usage" not in line)
    if len(words) == 2:
        assert {line.strip() for line in lines} >= {line.strip() for line in load(words[1]).examples}, "wrapped"


def test_a_table_of_nine_columns_is_not_cut_at_80(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in invoke("run", "lotka-volterra", *FAST, "--quiet").output


def test_help_and_lists_need_no_torch():
    code = (
        "import sys; from neuralfde_command.app import app; "
        "[app(words, standalone_mode=False) for words in (['--version'], ['--help'], ['run'])]; "
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("\nFalse\n")
    assert all(name in found.stdout for name in ("demo", "a tour", *available()))


def test_every_bar_shows_its_latest_value():
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    with ConsoleReport(Report(), console) as report:
        report.progress("a", 1, 2, 0.5)
        report.progress("b", 1, 2, text="order 0.7")
    shown = console.file.getvalue()
    assert "loss 5.000e-01" in shown
    assert "order 0.7" in shown


def test_help_of_an_experiment_lists_its_configuration():
    result = invoke("run", "lotka-volterra", "--help")
    assert result.exit_code == 0
    for words in ("--adjoint", "--learn-order", "--noise", "--out", "--resume", "--json", "--seed", "Examples"):
        assert words in result.output
    lines = invoke("run", "graph-cost", "--help").output.splitlines()
    assert "      columns     variant l: some columns at a time" in lines  # a table in a docstring keeps its lines
    listed = invoke("run", "--help").output
    for name in ("lotka-volterra", "lynx-hare", "relaxation", "neural-field"):
        assert name in listed


def test_run_prints_a_table_and_ends_with_zero():
    result = invoke("run", "lotka-volterra", *FAST, "--quiet")
    assert result.exit_code == 0, result.output
    assert "worst" in result.output


def test_json_is_all_there_is_on_stdout():
    result = invoke("run", "lotka-volterra", *FAST, "--json", "--seed", "2")
    found = json.loads(result.stdout)
    assert found["status"] == "done"
    assert found["rows"][0]["seed"] == 2
    assert list(found["targets"].values()) == [True]


def test_out_keeps_everything_and_resume_needs_it(tmp_path):
    out = tmp_path / "lv"
    adam = [*FAST, "--optimiser", "adam", "--epochs", "2", "--target", "9"]
    result = invoke("run", "lotka-volterra", *adam, "--out", str(out), "--quiet")
    assert result.exit_code == 0, result.output
    names = {p.name for p in out.iterdir()}
    assert {"config.json", "results.json", "seed-0.png", "checkpoint.pt"} <= names
    assert json.loads((out / "config.json").read_text())["trajectories"] == 4
    again = invoke("run", "lotka-volterra", *adam, "--out", str(out), "--resume", "--quiet")
    assert again.exit_code == 0
    refused = invoke("run", "lotka-volterra", *FAST, "--resume")
    assert refused.exit_code == 2
    assert "--out" in refused.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "lotka-voltera"], "lotka-volterra"),
        (["run", "lotka-volterra", "--nois", "3"], "--noise"),
        (["run", "lotka-volterra", "--epochs", "many"], "--epochs"),
        (["run", "lotka-volterra", "--observe", "wolf"], "'both', 'predator', 'prey'"),
        (["run", "lotka-volterra", "--adjoint", "exakt", *FAST], "exact"),
        (["run", "relaxation"], "--path"),
        (["dmo"], "dmo"),
    ],
)
def test_wrong_usage_ends_with_two_and_a_hint(args, words):
    result = invoke(*args)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_missed_target_ends_with_three():
    result = invoke("run", "lotka-volterra", *FAST, "--optimiser", "adam", "--epochs", "1", "--quiet")
    assert result.exit_code == 3
    assert "NOT reached" not in result.stdout
    assert "NOT reached" in result.stderr


def test_ctrl_c_keeps_what_was_reached(tmp_path, monkeypatch):
    original = lv._one

    def interrupted(config, seed, report):
        if seed == 1:
            raise KeyboardInterrupt
        return original(config, seed, report)

    monkeypatch.setattr(lv, "_one", interrupted)
    args = ["run", "lotka-volterra", *FAST, "--repeats", "2", "--out", str(tmp_path), "--quiet"]
    result = invoke(*args)
    assert result.exit_code == 130
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["status"] == "interrupted"
    assert [r["seed"] for r in kept["rows"]] == [0]
    monkeypatch.setattr(lv, "_one", original)
    assert invoke(*args, "--resume").exit_code == 0
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 2


def test_bench_compares_gradients():
    result = invoke("bench", "--steps", "8", "--batch", "2", "--repeats", "1", "--json")
    rows = {r["adjoint"]: r for r in json.loads(result.stdout)["rows"]}
    assert rows["exact"]["gradient_error"] < 1e-5 < rows["paper"]["gradient_error"]


def test_bench_counts_the_graphs_of_direct_differentiation():
    result = invoke("bench", "--steps", "200", "--batch", "256", "--repeats", "1", "--json")
    rows = {r["adjoint"]: r for r in json.loads(result.stdout)["rows"]}
    assert rows["direct"]["peak_mib"] > 1.5 * rows["exact"]["peak_mib"] > 0


def test_demo_leaves_a_self_contained_page(tmp_path):
    result = invoke(
        "demo", "--epochs", "1", "--trajectories", "4", "--no-lynx", "--out", str(tmp_path), "--quiet", "--size", "tiny"
    )
    assert result.exit_code in (0, 3), result.output
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 5  # one beside each table
    assert page.count("<table") == 5
    assert "http" not in page
    assert "prefers-color-scheme:dark" in page


def test_gradient_errors_of_the_demo():
    row = demo.gradient_errors(0.5, 0)
    assert row["exact_error"] < 1e-12 < 1e-3 < row["paper_error"]


def test_importing_the_package_does_not_import_the_command_line():
    code = "import sys, neuralfde; print([m for m in ('typer', 'rich', 'matplotlib', 'scipy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
