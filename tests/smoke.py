"""What a wheel must do in an environment with torch alone: import, solve, differentiate.

Run by `make smoke` with the interpreter of an empty environment; it imports nothing but torch and neuralfde.
"""

import importlib.util
import sys

import torch

import neuralfde
from neuralfde.compat.torchfde import fdeint_adjoint
from neuralfde.experiments import available

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
assert {"images", "lotka-volterra"} <= set(available())  # by name: their packages are not here
print(f"neuralfde {neuralfde.__version__} solves with torch {torch.__version__}, Python {sys.version.split()[0]}")
