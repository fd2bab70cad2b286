"""A thousand training steps in a process of their own: how much it grows."""

from __future__ import annotations

import os
import subprocess
import sys

from ..case import Case, Failed, Part

#: Steps before the count begins: the allocator finds its size, and caches fill up. Those of PyTorch's libraries hold
#: something for every shape they meet, and iterations of implicit steps need two thousand steps to have met all.
WARM_UP, STEPS = 2000, 1000
LARGEST_MIB = 1.0
HEAD = """\
import gc

import torch
from torch import nn

from neuralfde import *

torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
w = nn.Parameter(torch.ones(4))


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.drop = net, nn.Dropout(0.1)

    def forward(self, t, z):
        return self.net(z)


field = Field()
block = FDEBlock(field, order=0.6, learn_order=True, steps=4)
optimiser = torch.optim.Adam([*net.parameters(), w, *block.parameters()][:6])
state = None


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

"""
TAIL = """

for n in range({warm_up} + {steps}):
    if n == {warm_up}:
        before = resident()
    optimiser.zero_grad()
    train(torch.randn(5, 4)).square().mean().backward()
    optimiser.step()
print(resident() - before)
"""
WAYS = {
    "module": "return fdeint(field, z, 1.0, 0.6, steps=4)",
    "new function every time": "return fdeint(lambda t, x: torch.sin(w * x), z, 1.0, 0.6, steps=4, params=[w])",
    "new numbers every time": "return fdeint(field, z, 1 + torch.rand(()).item(), torch.rand(()).item(), steps=4)",
    "learned order": "return block(z)",
    "single steps": "return fdeint(field, z, 1.0, 0.6, steps=4, stepper='single')",
    "direct": "return fdeint(field, z, 1.0, 0.6, steps=4, adjoint='direct')",
    "implicit": "return fdeint(field, z, 1.0, 0.6, steps=4, method='trapezoid')",
    "dropout": "return fdeint(lambda t, x: field.drop(net(x)), z, 1.0, 0.6, steps=4, params=net.parameters())",
    "checkpoint": "return fdeint(field, z, 1.0, 0.6, steps=20, history='exponentials', storage='checkpoint')",
    "raising": (
        "def bad(t, x):\n        if t > 0.5:\n            raise ArithmeticError\n        return net(x)\n\n    "
        "try:\n        fdeint(bad, z, 1.0, 0.6, steps=4, params=net.parameters())\n    "
        "except ArithmeticError:\n        pass\n    return net(z)"
    ),
}
SETTINGS = {"way": list(WAYS)}


def script(case: Case) -> str:
    return f"{HEAD}\ndef train(z):\n    {WAYS[case['way']]}\n{TAIL.format(warm_up=WARM_UP, steps=STEPS)}"


def check(case: Case) -> float:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script(case)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if done.returncode:
        raise Failed(f"raised: {done.stderr.strip().splitlines()[-1]}")
    grown = float(done.stdout)
    if grown > LARGEST_MIB:
        raise Failed(f"grown: by {grown:.2f} MiB in {STEPS} training steps, allowed {LARGEST_MIB:g}")
    return max(0.0, grown) / LARGEST_MIB


PART = Part("leak", SETTINGS, check, script, each=True, limit=300.0, share=0.2)
