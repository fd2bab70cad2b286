"""The examples, in their short form, and the notebooks, from top to bottom."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def run(*command):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def number(pattern, text):
    return float(re.search(pattern, text)[1])


def example(name, *options):
    return run(sys.executable, "-W", "error", str(EXAMPLES / name), "--quick", *options)


def test_classify():
    assert number(r"accuracy ([\d.]+)", example("classify.py")) > 0.9


def test_learn_order():
    assert abs(number(r"order: ([\d.]+)", example("learn_order.py")) - 0.8) < 0.03


def test_allen_cahn():
    assert number(r"loss ([\d.e-]+)", example("allen_cahn.py")) < 0.05


def test_irregular():
    assert number(r"samples ([\d.]+)", example("irregular.py")) < 0.15


def test_lightning():
    pytest.importorskip("lightning", reason='Lightning is not installed: pip install "neuralfde[lightning]"')
    out = run(sys.executable, str(EXAMPLES / "lightning_module.py"), "--quick")  # its own warnings are not ours
    assert number(r"accuracy ([\d.]+)", out) > 0.9


@pytest.mark.parametrize("option", [(), ("--shard",)])
def test_two_processes(option):
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    out = run(*launch, str(EXAMPLES / "ddp.py"), "--quick", *option)
    assert number(r"final loss ([\d.]+)", out) < 0.7
    assert "2 processes" in out


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_notebooks(notebook):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("nbclient")
    book = nbformat.read(notebook, as_version=4)
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        client.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path.name
