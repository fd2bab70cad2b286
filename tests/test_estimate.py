from dataclasses import replace

import pytest
import torch

from neuralfde import (
    Caputo,
    ConvergenceError,
    CustomKernel,
    FDEBlock,
    InputError,
    MultiTerm,
    Trapezoid,
    VariableOrder,
    Window,
    fdeint,
    solve,
    suggest_step,
)
from neuralfde.problems import problem

T64 = torch.float64


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "gl"])
@pytest.mark.parametrize("name", ["relaxation", "brusselator"])
def test_the_estimate_is_of_the_size_of_the_error(name, method):
    p = problem(name)
    found = solve(p.func, p.z0, p.t, p.order, steps=80, method=method, estimate_error=True)
    error = p.error(found.ys[-1])
    assert error / 4 < float(found.error[-1].max()) < 4 * error


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "gl", "l1", "bdf2"])
@pytest.mark.parametrize("name", ["relaxation", "smooth", "rotation", "brusselator", "riccati"])
def test_the_embedded_pair_follows_the_error_of_every_method(name, method):
    """Within a factor of 12 up to t = 2: what each step adds, not how the equation damps or amplifies it."""
    p = problem(name)
    ratios = []
    for steps in (40, 160):
        found = solve(p.func, p.z0, p.t, p.order, steps=steps, method=method, estimate_error="embedded")
        error = p.error(found.ys[-1])
        ratios.append(float(found.error[-1].max()) / error)
        assert 1 / 2 < ratios[-1] < 12
    assert 1 / 3 < ratios[0] / ratios[1] < 3  # the estimate falls as fast as the error does


@pytest.mark.parametrize("name", ["tempered", "variable", "bagley-torvik-cubic", "basset", "distributed"])
def test_the_embedded_pair_of_other_operators(name):
    p = problem(name)
    found = solve(p.func, p.z0, p.t, p.order, steps=80, estimate_error="embedded", **{"method": "gl", **p.options})
    assert 1 / 2 < float(found.error[-1].max()) / p.error(found.ys[-1]) < 12


def test_the_embedded_pair_tells_every_step_and_costs_one_evaluation():
    p, calls = problem("rotation"), [0]

    def counted(t, z):
        calls[0] += 1
        return p.func(t, z)

    grid = torch.linspace(0, p.t, 81, dtype=T64)
    for _ in range(2):  # the first time one call shows that vectorised calls say the same
        calls[0] = 0
        plain = solve(counted, p.z0, grid, p.order, steps=80, method="abm")
    before, calls[0] = calls[0], 0
    found = solve(counted, p.z0, grid, p.order, steps=80, method="abm", estimate_error="embedded")
    assert calls[0] == before + 1
    torch.testing.assert_close(found.ys, plain.ys)
    exact = torch.stack([p.solution(float(t)) for t in grid])
    true = (found.ys - exact).abs().amax(1)
    assert float(found.error[0].max()) == 0
    later = slice(4, None)
    ratio = found.error[later].amax(1) / true[later]
    assert float(ratio.min()) > 1 / 4
    assert float(ratio.max()) < 8


def test_the_embedded_pair_sees_a_truncated_history_and_graded_grids():
    p = problem("relaxation")
    full = solve(p.func, p.z0, p.t, p.order, steps=80, method="abm", estimate_error="embedded")
    short = solve(p.func, p.z0, p.t, p.order, steps=80, method="abm", estimate_error="embedded", history=Window(8))
    assert p.error(short.ys[-1]) / 3 < float(short.error[-1].max())
    assert float(short.error[-1].max()) > 100 * float(full.error[-1].max())
    graded = solve(p.func, p.z0, p.t, p.order, steps=80, method="abm", estimate_error="embedded", grading=2.0)
    assert float(graded.error[-1].max()) < float(full.error[-1].max())


def test_the_embedded_pair_in_structures_between_nodes_and_in_training():
    z0 = {"a": torch.ones(2, requires_grad=True), "b": torch.zeros(1)}
    t = torch.tensor([0.0, 0.33, 1.0])
    found = solve(
        lambda t, z: {"a": -z["a"], "b": z["a"][:1]}, z0, t, 0.5, steps=10, method="abm", estimate_error="embedded"
    )
    assert found.error["a"].shape == (3, 2)
    assert found.error["b"].dtype == torch.float32
    assert not found.error["a"].requires_grad
    found.ys["b"].sum().backward()
    assert z0["a"].grad is not None
    for options, words in (
        ({"steps": 5}, "there are 5"),
        ({"steps": 4, "order": CustomKernel([0.0, 1.0, 0.5, 0.25, 0.1]), "method": "predictor"}, "CustomKernel"),
        ({"steps": 4, "estimate_error": "embeded"}, "Did you mean 'embedded'"),
    ):
        given = {"order": 0.5, "estimate_error": "embedded", **options}
        with pytest.raises(InputError, match=words):
            solve(lambda t, z: -z, torch.ones(2), 1.0, **given)


@pytest.mark.parametrize("estimate", [True, "embedded"])
def test_weights_of_one_step_size_have_no_estimate(estimate):
    fixed = CustomKernel([0.0, *[0.1] * 16])
    with pytest.raises(InputError, match="for one step size"):
        solve(lambda t, z: -z, torch.ones(2), 1.0, fixed, steps=16, estimate_error=estimate)
    by_step = CustomKernel(lambda order, h, n: torch.cat([torch.zeros(1), h * torch.ones(n)]))
    found = solve(lambda t, z: -z, torch.ones(2), 1.0, by_step, steps=16, estimate_error=True)
    assert 0 < float(found.error.max()) < 0.1


def test_weights_that_are_not_finite_are_refused_wherever_they_are():
    class Broken(Trapezoid):
        def kernel(self, order, step, steps):
            found = super().kernel(order, step, steps)
            return replace(found, local=found.local * torch.nan)

    with pytest.raises(InputError, match="weights are not finite from step 0 on"):
        solve(lambda t, z: -z, torch.ones(2), 1.0, 0.5, steps=16, method=Broken())


def test_estimates_at_many_times_and_in_structures():
    t = torch.tensor([0.0, 0.5, 1.0], dtype=T64)
    found = solve(lambda t, z: {"a": -z["a"]}, {"a": torch.ones(2, dtype=T64)}, t, 0.5, steps=20, estimate_error=True)
    assert found.error["a"].shape == (3, 2)
    assert float(found.error["a"][0].max()) == 0
    assert solve(lambda t, z: -z, torch.ones(2), 1.0, 0.5, steps=4).error is None
    with pytest.raises(InputError, match="there are 5"):
        solve(lambda t, z: -z, torch.ones(2), 1.0, 0.5, steps=5, estimate_error=True)


@pytest.mark.parametrize("tol", [1e-3, 1e-4])
def test_the_suggested_step_holds_the_tolerance(tol):
    p = problem("relaxation", order=0.6)
    step = suggest_step(p.func, p.z0, p.t, p.order, tol)
    assert p.error(fdeint(p.func, p.z0, p.t, p.order, step=step, method="abm")) < 3 * tol
    assert step == p.t / 16 / 2 ** round(torch.log2(torch.tensor(p.t / 16 / step)).item())


def test_a_step_that_cannot_be_found():
    p = problem("relaxation")
    with pytest.raises(ConvergenceError, match="higher order"):
        suggest_step(p.func, p.z0, p.t, p.order, 1e-9, method="predictor", max_steps=64)
    with pytest.raises(InputError, match="positive"):
        suggest_step(p.func, p.z0, p.t, p.order, 0.0)


class Decay(torch.nn.Module):
    def forward(self, t, z):
        return -z


def test_blocks_with_many_orders_and_operators():
    z = torch.rand(2, 3)
    block = FDEBlock(Decay(), order=torch.tensor([0.3, 0.5, 0.7]), learn_order=True, steps=8)
    block(z).sum().backward()
    assert block.raw_order.grad.shape == (3,)
    assert "3 orders" in repr(block)
    terms = MultiTerm(torch.nn.Parameter(torch.tensor([0.9, 0.4])), [torch.nn.Parameter(torch.tensor(1.0)), 0.5])
    block = FDEBlock(Decay(), order=terms, steps=8, method="gl")
    assert len(list(block.parameters())) == 2
    block(z).sum().backward()
    assert all(p.grad is not None for p in block.parameters())
    line = torch.nn.Linear(1, 1)
    block = FDEBlock(Decay(), order=VariableOrder(Curve(line)), steps=8)
    block(z).sum().backward()
    assert line.weight.grad is not None
    assert len(list(block.parameters())) == 2
    with pytest.raises(InputError, match=r"nn\.Parameter"):
        FDEBlock(Decay(), order=terms, learn_order=True, steps=8)


class Curve(torch.nn.Module):
    def __init__(self, line):
        super().__init__()
        self.line = line

    def forward(self, t):
        return torch.sigmoid(self.line(t[:, None].float()))[:, 0]


def test_blocks_with_a_velocity_and_a_horizon():
    z = torch.rand(2, 3)
    v = torch.rand(2, 3, requires_grad=True)
    block = FDEBlock(Decay(), order=Caputo(1.5), steps=8, method="abm")
    block(z, velocity=v).sum().backward()
    assert v.grad is not None
    horizon = torch.tensor([[1.0], [2.0]], requires_grad=True)
    FDEBlock(Decay(), order=0.5, steps=8)(z, horizon=horizon).sum().backward()
    assert horizon.grad.shape == (2, 1)
