"""Parameter gradients gathered over blocks of steps are those of single steps."""

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.adjoints.gathered import Gathered
from tests.stubs import relative

F64 = torch.float64


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


def gradients(func, adjoint, t=3.0, storage="device", history="full"):
    torch.manual_seed(1)
    z0 = torch.randn(10, 8, dtype=F64, requires_grad=True)
    u = torch.randn(8, dtype=F64, requires_grad=True)
    y = nf.fdeint(func, z0, t, 0.7, steps=400, args=(u,), adjoint=adjoint, storage=storage, history=history)
    return torch.autograd.grad(y.square().sum(), [z0, u, *func.a.parameters(), *func.b.parameters()])


@pytest.mark.parametrize("t", [3.0, torch.linspace(0, 3, 11, dtype=F64)])
@pytest.mark.parametrize("branch", [False, True])
def test_gathered_gradients_are_those_of_autograd(monkeypatch, t, branch):
    used = []
    pull = Gathered.pull
    monkeypatch.setattr(Gathered, "pull", lambda self, *given: (used.append(1), pull(self, *given))[1])
    func = Net(branch)
    exact, direct = gradients(func, "exact", t), gradients(func, "direct", t)
    assert bool(used) is not branch
    assert max(map(relative, exact, direct)) < 1e-12


def test_states_from_a_file_are_those_of_their_own_step(tmp_path):
    func = Net()
    options = {"history": "exponentials"}
    file = gradients(func, "exact", storage=nf.Host(path=str(tmp_path)), **options)
    assert max(map(relative, file, gradients(func, "exact", storage="device", **options))) < 1e-12
