"""Single steps of a small state whose blocks are pulled back at once have the gradients of single steps."""

import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

import neuralfde as nf
from neuralfde.solve.steppers.whole_blocks import WholeBlocks
from tests.stubs import F64, relative

#: Single steps forward, and blocks of them at once backward.
AT_ONCE = nf.Single(jacobians=True, iterated=True)


class Net(nn.Module):
    """A network of time and state; ``branch`` makes it look at a value, which cannot be vectorised."""

    def __init__(self, branch=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 16, dtype=F64), nn.Linear(16, 8, dtype=F64)
        self.idle = nn.Linear(2, 2, dtype=F64)
        self.branch = branch

    def forward(self, t, z, u):
        v = self.b(torch.tanh(self.a(z))) * u - 0.1 * t * z
        return v if not self.branch or float(z.detach().sum()) > -1e9 else -v


@pytest.fixture
def used(monkeypatch):
    """One entry for every block that was pulled back at once."""
    seen, pulled = [], WholeBlocks.pulled

    def watched(self, *given):
        found = pulled(self, *given)
        seen.extend([1] * (found is not None))
        return found

    monkeypatch.setattr(WholeBlocks, "pulled", watched)
    return seen


def gradients(func, adjoint, t=3.0, storage="device", history="full", order=0.7, steps=150, **options):
    torch.manual_seed(1)
    z0 = torch.randn(10, 8, dtype=F64, requires_grad=True)
    u = torch.randn(8, dtype=F64, requires_grad=True)
    order = torch.tensor(order, dtype=F64, requires_grad=True)
    options = {"stepper": AT_ONCE if adjoint == "exact" else "auto", **options}
    y = nf.fdeint(
        func, z0, t, order, steps=steps, args=(u,), adjoint=adjoint, storage=storage, history=history, **options
    )
    return torch.autograd.grad(y.square().sum(), [order, z0, u, *func.a.parameters(), *func.b.parameters()])


@pytest.mark.parametrize("t", [3.0, torch.linspace(0, 3, 11, dtype=F64)])
@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("method", ["predictor", "gl-explicit"])
def test_gradients_are_those_of_autograd(used, t, branch, method):
    func = Net(branch)
    exact, direct = gradients(func, "exact", t, method=method), gradients(func, "direct", t, method=method)
    assert bool(used) is not branch
    assert max(map(relative, exact, direct)) < 1e-12


@pytest.mark.parametrize("options", [{"grading": 2.0}, {"order": [0.5 + 0.05 * k for k in range(8)]}], ids=str)
def test_graded_grids_and_orders_of_their_own(used, options):
    func = Net()
    exact = gradients(func, "exact", **options)
    assert used
    assert max(map(relative, exact, gradients(func, "direct", **options))) < 1e-12


def test_states_from_a_file_are_those_of_their_own_step(used, tmp_path):
    func = Net()
    options = {"history": "exponentials"}
    file = gradients(func, "exact", storage=nf.Host(path=str(tmp_path)), **options)
    assert used
    assert max(map(relative, file, gradients(func, "exact", storage="device", **options))) < 1e-12


class Otherwise(Net):
    """Means something else when it is vectorised."""

    def forward(self, t, z, u):
        return super().forward(t, z, u) * (1 + 0.1 * is_batchedtensor(z))


class Halved(Net):
    """Has another gradient by a hook that is not put under vmap, and not in the code of ``forward``."""

    def forward(self, t, z, u):
        return self.halved(super().forward(t, z, u))

    def halved(self, v):
        if v.requires_grad:
            v.register_hook(lambda grad: grad / 2)
        return v


class Dropping(Net):
    def forward(self, t, z, u):
        return nn.functional.dropout(super().forward(t, z, u), 0.1)


class Counting(Net):
    calls = 0

    def forward(self, t, z, u):
        self.calls += 1
        return super().forward(t, z, u)


@pytest.mark.parametrize("kind", [Otherwise, Halved, Dropping])
def test_what_is_not_the_same_when_it_is_vectorised_is_pulled_step_by_step(used, kind):
    func, found = kind(), []
    for adjoint in ("exact", "direct"):
        torch.manual_seed(5)
        found.append(gradients(func, adjoint))
    assert not used
    assert max(map(relative, *found)) < 1e-12


def test_a_func_that_counts_its_calls_is_pulled_step_by_step(used):
    gradients(Counting(), "exact", stepper="auto")
    assert not used


@pytest.mark.parametrize("options", [{"steps": 10, "stepper": "auto"}, {"stepper": "single"}], ids=str)
def test_few_steps_and_those_that_are_asked_for_are_pulled_step_by_step(used, options):
    gradients(Net(), "exact", **options)
    assert not used
