"""The count of modules sees functions of the package, and numbers at the level of a module."""

import modules
import torch

from neuralfde import fdeint
from neuralfde.base import grid


def test_functions_of_the_package_are_seen_and_bodies_of_modules_are_not():
    assert modules.ran(lambda: grid.request(1.0, 0.25, None, 1.0)) == ["base/checks.py", "base/grid.py"]
    body = compile("class A:\n  x = 1", grid.__file__, "exec")
    assert modules.ran(lambda: exec(body, {})) == []


def test_the_backward_pass_is_seen():
    z0 = torch.ones(2, requires_grad=True)
    out = fdeint(lambda t, z: -z, z0, 1.0, 0.6, steps=4)
    assert "solve/loop.py" in modules.ran(lambda: out.sum().backward())


def test_numbers_at_the_level_of_a_module():
    text = "A = 1 << 4\n_B: float = -1e-6\nC, D2 = 2, 3.0\nE = True\nF = f(1)\nlow = 4\ndef g():\n    H = 1\n"
    assert modules.constants(text) == ["A", "_B", "C", "D2"]


def test_what_belongs_to_the_core():
    assert modules.is_core("solve/loop.py")
    assert modules.is_core("api.py")
    assert not modules.is_core("models/graph.py")
