"""Weights on graded grids: against mpmath, against the uniform tables, and where the first cells are tiny."""

import mpmath as mp
import pytest
import torch

from neuralfde import fdeint
from neuralfde.problems import problem
from neuralfde.weights import meshes, uniform

T64 = torch.float64


def graded(steps, r):
    return (torch.arange(steps + 1, dtype=T64)[:, None] / steps) ** r


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.9, 1.0, 1.5])
@pytest.mark.parametrize("r", [1.0, 3.0, 9.0])
def test_cells_against_mpmath(beta, r):
    t, order = graded(40, r), torch.tensor([[beta]], dtype=T64)
    rect, trap = meshes.rectangle(order, t, implicit=False)[..., 0], meshes.trapezoid(order, t)[..., 0]
    with mp.workdps(60):
        b, x = mp.mpf(beta), [mp.mpf(float(v)) for v in t[:, 0]]
        for n, j in ((1, 0), (2, 0), (2, 1), (40, 0), (40, 1), (40, 20), (40, 38), (40, 39), (17, 3)):
            far, near = x[n] - x[j], x[n] - x[j + 1]
            want = (far**b - near**b) / mp.gamma(b + 1)
            assert abs(float(rect[n, j]) - want) < 1e-13 * want
            left = (b / (b + 1) * (far ** (b + 1) - near ** (b + 1)) - near * (far**b - near**b)) / (far - near)
            if j == 0:
                assert abs(float(trap[n, 0]) - left / mp.gamma(b + 1)) < 1e-12 * left


@pytest.mark.parametrize("beta", [0.3, 0.8, 1.0])
def test_uniform_grids_give_the_uniform_weights(beta):
    steps, h, order = 30, 0.1, torch.tensor([beta], dtype=T64)
    t = h * torch.arange(steps + 1, dtype=T64)[:, None]
    lag = torch.arange(steps, 0, -1)
    rect = meshes.rectangle(order[None], t, implicit=False)[steps, :-1]
    torch.testing.assert_close(rect, uniform.rectangle(order, h, steps)[lag], rtol=1e-12, atol=0)
    l1 = meshes.l1(order[None], t)[steps, 1:-1]
    torch.testing.assert_close(l1, uniform.l1(order, h, steps)[lag[1:]], rtol=1e-11, atol=1e-14)


def test_l1_reaches_its_order_on_a_strongly_graded_grid():
    p = problem("relaxation", order=0.2)
    coarse, fine = (
        p.error(fdeint(p.func, p.z0, p.t, 0.2, steps=n, method="l1", grading=9.0, solver="fixed-point"))
        for n in (50, 100)
    )
    assert coarse / fine > 2**1.6
