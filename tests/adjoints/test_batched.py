"""The backward pass of small states in blocks: the same gradient, and a way back where func cannot be vectorised."""

import logging

import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

import neuralfde as nf
from neuralfde import choices
from tests.stubs import F64, Net, TreeNet, flat, relative


def gradients(func, batched, z0=None, t=2.0, method="predictor", history="full", steps=150, **options):
    torch.manual_seed(1)
    z0 = torch.randn(2, 3, dtype=F64) if z0 is None else z0
    beta = torch.tensor(0.6, dtype=F64, requires_grad=True)
    u = torch.randn(3, dtype=F64, requires_grad=True)
    func.zero_grad()
    y = nf.fdeint(
        func, z0, t, beta, steps=steps, method=method, history=history, args=(u,),
        adjoint=nf.Exact(batched=batched), **options,
    )  # fmt: skip
    sum(x.square().sum() for x in torch.utils._pytree.tree_leaves(y)).backward()
    return flat([beta.grad, u.grad, *[p.grad for p in func.parameters()]])


METHODS = [*[name for name, scheme in choices.METHODS.items() if not scheme.implicit], nf.ABM(corrections=3)]
IMPLICIT = [name for name, scheme in choices.METHODS.items() if scheme.implicit]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("history", ["full", nf.Full(block=16), nf.FFT(block=8, growth=2)])
@pytest.mark.parametrize("steps", [5, 64, 150])
def test_same_gradient(method, history, steps):
    func = Net()
    slow = gradients(func, False, method=method, history=history, steps=steps)
    assert relative(gradients(func, True, method=method, history=history, steps=steps), slow) < 1e-12


@pytest.mark.parametrize("method", IMPLICIT)
@pytest.mark.parametrize("history", ["full", nf.Window(40), nf.FFT(block=8, growth=2)])
@pytest.mark.parametrize("steps", [3, 150])
def test_same_gradient_of_implicit_schemes(method, history, steps):
    func, sharp = Net(), nf.NewtonKrylov(tol=1e-14)
    slow = gradients(func, False, method=method, history=history, steps=steps, solver=sharp)
    assert relative(gradients(func, True, method=method, history=history, steps=steps, solver=sharp), slow) < 1e-11


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
@pytest.mark.parametrize("options", [{"grading": 2.0}, {"history": nf.Window(30), "storage": "host"}])
def test_graded_grids_and_stored_rows(method, options):
    options = {"history": "full", "method": method, "solver": None, **options}
    if method == "trapezoid":
        options["solver"] = nf.NewtonKrylov(tol=1e-14)
    func = Net()
    assert relative(gradients(func, True, **options), gradients(func, False, **options)) < 1e-11


def test_trajectories_and_nested_states():
    times = torch.linspace(0, 2, 11, dtype=F64)
    func = Net()
    assert relative(gradients(func, None, t=times), gradients(func, False, t=times)) < 1e-12
    tree, z0 = TreeNet(), {"x": torch.ones(2, 3, dtype=F64), "rest": (torch.ones(2, dtype=F64),)}
    assert relative(gradients(tree, True, z0=z0), gradients(tree, False, z0=z0)) < 1e-12


def test_small_states_are_taken_in_blocks_by_default():
    calls = []

    class Counted(Net):
        def forward(self, t, z, u=None):
            calls.append(1)
            return super().forward(t, z, u)

    func = Counted()
    gradients(func, None)
    in_blocks = len(calls)
    calls.clear()
    gradients(func, False)
    assert in_blocks < 0.6 * len(calls)


class Branching(Net):
    """Looks at the state, which no vectorised call can."""

    def forward(self, t, z, u=None):
        return super().forward(t, z, u) * (2.0 if z.detach().sum().item() > 0 else 1.0)


class Mixing(nn.Module):
    """Means something else when it is vectorised."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=F64))

    def forward(self, t, z, u=None):
        return -z * self.weight * (1 + 0.1 * is_batchedtensor(z))


def test_falls_back_with_one_line(caplog):
    func = Branching()
    slow = gradients(func, False)
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        assert relative(gradients(func, True), slow) < 1e-12
    assert sum("step by step" in r.message for r in caplog.records) == 1


def test_other_values_when_vectorised_are_noticed(caplog):
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        z0 = torch.ones(2, 3, dtype=F64)
        y = nf.fdeint(Mixing(), z0, 1.0, 0.5, steps=150, adjoint=nf.Exact(batched=True))
        y.square().sum().backward()
    assert sum("other values" in r.message for r in caplog.records) == 1
