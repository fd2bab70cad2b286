"""What the wheels must do in an environment of their own, as `make smoke` makes it.

    smoke.py --bare          neuralfde with torch alone: import, solve, differentiate; the command says what it needs
    smoke.py --cli           with the extra `cli` too: the demo and the benchmark run; `run` says how to get experiments
    smoke.py --experiments   with neuralfde-experiments too: the command finds and runs them

It imports nothing but torch and neuralfde.
"""

import importlib.util
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points

import torch

import neuralfde
from neuralfde.cli import pelts
from neuralfde.cli.experiment import available
from neuralfde.compat.torchfde import fdeint_adjoint

for name in ("numpy", "scipy", "matplotlib", "pytest"):
    assert importlib.util.find_spec(name) is None or "--bare" not in sys.argv, f"{name} is installed: not a bare test"

rate = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
order = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
one = torch.ones(1, dtype=torch.float64)
for method in ("predictor", "abm", "trapezoid", "gl", "l1"):
    z = neuralfde.fdeint(lambda t, z, k: -k * z, one, 1.0, order, steps=100, method=method, args=(rate,))
    z.sum().backward()
    assert abs(z.item() - 0.427583576) < 1e-2, (method, z)
assert rate.grad is not None
assert order.grad is not None


class Slope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)

    def forward(self, t, z):
        return self.net(z)


neuralfde.FDEBlock(Slope(), order=0.7, learn_order=True, t=1.0, step=0.1)(torch.ones(3, 2)).sum().backward()
fdeint_adjoint(Slope(), torch.ones(3, 2), torch.tensor(0.5), 1.0, 0.1, "gl-f").sum().backward()


def command(*words, status=0):
    """What `neuralfde ...` prints; it must end with this status."""
    run = [sys.executable, "-m", "neuralfde", *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


if "--bare" in sys.argv:
    assert 'pip install "neuralfde[cli]"' in command("demo", status=1)
if "--cli" in sys.argv:
    assert '"gradient_error"' in command("bench", "--steps", "8", "--batch", "2", "--repeats", "1", "--json")
    with tempfile.TemporaryDirectory() as out:
        tiny = ("--size", "tiny", "--trajectories", "4", "--epochs", "1", "--no-lynx")
        assert "report.html" in command("demo", *tiny, "--out", out, status=3)  # too short a fit to reach its target
    assert len(pelts.load()[0]) == 21  # what the demo shows last comes with the wheel
    assert available() == []
    assert "pip install ./experiments" in " ".join(command("run", "--help").split())
    assert "pip install ./experiments" in command("run", "lotka-volterra", status=2)
if "--experiments" in sys.argv:
    assert len(entry_points(group="neuralfde.experiments")) == 1
    assert {"images", "lotka-volterra"} <= set(available())  # by name: not all their packages are here
    command("run", "lotka-volterra", "--optimiser", "lm", "--trajectories", "4", "--samples", "5", "--steps", "5")
print(f"neuralfde {neuralfde.__version__} solves with torch {torch.__version__}, Python {sys.version.split()[0]}")
