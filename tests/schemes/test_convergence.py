"""A scheme's declared order is its observed order; at order 1 it is the classical method."""

import math

import pytest
import torch

from neuralfde import ABM, fdeint, mittag_leffler
from neuralfde.base.grid import Grid
from neuralfde.door import names
from tests.stubs import F64

METHODS = tuple(names.METHODS)


def smooth_problem(beta):
    """D^β z = t² - z + 2t^{2-β}/Γ(3-β), z = t²."""
    return lambda t, z: t**2 - z + 2 * t ** (2 - beta) / math.gamma(3 - beta)


@pytest.mark.parametrize("beta", [0.4, 0.8])
@pytest.mark.parametrize("method", METHODS)
def test_smooth_solutions_converge_at_the_declared_order(method, beta):
    errors = []
    # the next power in the error of a multistep method is only a little higher: its order shows late
    for steps in (320, 640, 1280) if method in ("bdf2", "flmm-trapezoid") else (40, 80, 160):
        z = fdeint(smooth_problem(beta), torch.zeros((), dtype=F64), 1.0, beta, steps=steps, method=method)
        errors.append(abs(float(z) - 1))
    rate = math.log2(errors[1] / errors[2])
    assert abs(rate - names.METHODS[method].expected_order(beta, smooth=True)) < 0.15, errors


@pytest.mark.parametrize("beta", [0.5, 0.8])
@pytest.mark.parametrize("method", METHODS)
def test_generic_solutions_converge_at_the_declared_order(method, beta):
    """D^β z = -z, whose solution begins like 1 - t^β/Γ(β+1)."""
    exact = float(mittag_leffler(torch.tensor(-1.0, dtype=F64), beta))
    errors = []
    for steps in (640, 1280):
        z = fdeint(lambda t, z: -z, torch.ones((), dtype=F64), 1.0, beta, steps=steps, method=method)
        errors.append(abs(float(z) - exact))
    rate = math.log2(errors[0] / errors[1])
    assert abs(rate - names.METHODS[method].expected_order(beta, smooth=False)) < 0.1, errors


def test_more_corrections_come_nearer_to_the_implicit_trapezoid():
    beta = 0.3
    f = smooth_problem(beta)
    z0 = torch.zeros((), dtype=F64)
    limit = fdeint(f, z0, 1.0, beta, steps=40, method="trapezoid")
    gaps = [abs(float(fdeint(f, z0, 1.0, beta, steps=40, method=ABM(corrections=k)) - limit)) for k in (1, 3, 9)]
    assert gaps[0] > 3 * gaps[1] > 9 * gaps[2]


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("bdf2", "imex")])  # two-step methods
def test_order_one_is_the_classical_method(method):
    f = lambda t, z: torch.sin(t) - z * z
    h, steps, z = 0.1, 12, 0.7
    area = 0.0  # what the slopes at past nodes add up to: the Adams pair is summed from the start, as its authors do
    got = fdeint(f, torch.tensor(z, dtype=F64), h * steps, 1.0, steps=steps, method=method)
    for n in range(steps):
        t, t1 = n * h, (n + 1) * h
        slope = math.sin(t) - z * z
        if method in ("predictor", "gl-explicit", "l1-explicit"):
            z = z + h * slope
        elif method == "abm":
            area += h * slope if n else h / 2 * slope
            p = 0.7 + area + (h / 2 * (0 - 0.7 * 0.7))
            p = p if n else 0.7 + h * slope
            z = 0.7 + area + h / 2 * (math.sin(t1) - p * p)
        else:
            theta = 0.5 if method in ("trapezoid", "flmm-trapezoid") else 1.0
            c = z + h * (1 - theta) * slope + h * theta * math.sin(t1)
            z = (-1 + math.sqrt(1 + 4 * h * theta * c)) / (2 * h * theta)
    assert abs(float(got) - z) < 1e-10


@pytest.mark.parametrize("method", METHODS)
def test_relaxation_approaches_the_mittag_leffler_function(method):
    exact = {0.3: 0.456594408330, 0.5: 0.427583576156, 0.7: 0.399611978116, 0.9: 0.376066021425}
    for beta, value in exact.items():
        z = fdeint(lambda t, z: -z, torch.ones((), dtype=F64), 1.0, beta, steps=300, method=method)
        assert abs(float(z) - value) < 3e-3


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_looking_ahead_is_the_same_on_a_uniform_grid_and_on_a_mesh(steps):
    """The weights of single lags, and all weights of a mesh that happens to be uniform."""
    order, times = torch.tensor([0.4, 1.0], dtype=F64, requires_grad=True), torch.linspace(0, 2, steps + 1, dtype=F64)
    found = []
    for given in ({"steps": steps}, {"steps": steps, "history": "fft"}, {"grid": Grid.through(0.0, times)}):
        z = fdeint(
            lambda t, z: torch.cos(t) - z * z, torch.ones(2, dtype=F64), 2.0, order, method=ABM(ahead=True), **given
        )
        found.append(torch.cat([z.detach(), torch.autograd.grad(z.sum(), order)[0]]))
    torch.testing.assert_close(found[0], found[2], rtol=1e-12, atol=0)
    torch.testing.assert_close(found[1], found[2], rtol=1e-12, atol=0)
