"""The calls whose results under torchfde itself are kept in ``torchfde.json``.

With torchfde installed (https://github.com/kangqiyu/torchfde), write them again with::

    python tests/compat/torchfde_cases.py

The file was made with the solvers of its commit 959e12b.
The problem has no random numbers, so that it is the same on every machine and with every release of torch.
"""

import json
from pathlib import Path

import torch
from torch import nn

FILE = Path(__file__).with_name("torchfde.json")


class Slope(nn.Module):
    """A time-dependent network on one tensor, with fixed weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)
        with torch.no_grad():
            for k, p in enumerate(self.parameters()):
                p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float32) * 1.7 + k).reshape(p.shape) * 0.8)

    def forward(self, t, y):
        return self.second(torch.tanh(self.first(y))) - 0.5 * y + 0.3 * torch.sin(3 * t)


class Pair(nn.Module):
    """The same on a tuple whose second part does not feed back, as in torchfde's ``examples/test_tuple.py``."""

    def __init__(self):
        super().__init__()
        self.slope = Slope()

    def forward(self, t, y):
        out = self.slope(t, y[0])
        return (out, out)


def start():
    return torch.cos(torch.arange(6, dtype=torch.float32)).reshape(2, 3).requires_grad_()


def cases():
    """name -> (adjoint?, tuple state?, the arguments after ``func`` and ``y0``)."""
    found = {}
    for method in ("predictor", "corrector", "l1", "gl", "trap", "glmulti"):
        multi = method == "glmulti"
        beta = torch.tensor([0.3, 0.9]) if multi else torch.tensor(0.4)
        terms = {"multi_coefficient": torch.tensor([0.2, 0.8])} if multi else {}
        whole = (beta, 2.0, 0.1, method, {"corrector_step": 3, **terms})
        found[f"{method}"] = (False, False, whole)
        found[f"{method}, tuple"] = (False, True, whole)
        found[f"{method}, short memory"] = (False, False, (beta, 2.0, 0.1, method, {"memory": 5, **terms}))
        if method != "corrector":  # torchfde's corrector has no trajectory
            found[f"{method}, trajectory"] = (False, False, (beta, 1.0, 0.1, method, {"return_history": True, **terms}))
    for method in ("predictor", "gl", "trap"):
        for suffix in ("f", "o"):
            for pair in (False, True):
                arguments = (torch.tensor(0.6), 2.0, 0.1, f"{method}-{suffix}", {"corrector_step": 5})
                found[f"{method}-{suffix}{', tuple' * pair}"] = (True, pair, arguments)
    return found


def run(fdeint, fdeint_adjoint, case, **more):
    """The solution and the gradients of its weighted sum with respect to the start and every parameter, flat."""
    adjoint, pair, arguments = case
    func, y0 = (Pair() if pair else Slope()), start()
    out = (fdeint_adjoint if adjoint else fdeint)(func, (y0, y0) if pair else y0, *arguments, **more)
    parts = out if pair else (out,)
    loss = sum((p * torch.linspace(-1, 1, p.numel()).reshape(p.shape)).sum() * (k + 1) for k, p in enumerate(parts))
    grads = torch.autograd.grad(loss, [y0, *func.parameters()])
    return {
        "solution": torch.cat([p.detach().flatten() for p in parts]).tolist(),
        "gradient": torch.cat([g.flatten() for g in grads]).tolist(),
    }


if __name__ == "__main__":
    import torchfde

    results = {name: run(torchfde.fdeint, torchfde.fdeint_adjoint, case) for name, case in cases().items()}
    rounded = {n: {k: [float(f"{x:.8g}") for x in v] for k, v in r.items()} for n, r in results.items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(r)}" for name, r in rounded.items())
    FILE.write_text("{\n" + lines + "\n}\n")
