"""Operations that are repeated give what the function gives; functions that a list would not do justice are called."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import neuralfde as nf
from neuralfde.rhs.repeated import Program, Repeated
from tests.stubs import F64, relative

ELSEWHERE = torch.zeros(2, dtype=F64)
A = torch.tensor([[0.3, -1.0], [1.0, 0.2]], dtype=F64)
NETWORK = nn.Sequential(nn.Linear(2, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)).to(F64)


@torch.library.custom_op("repeated_by_tests::add", mutates_args=())
def named_like_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 5 - y


def accumulated(t, z):
    out = z * 2
    out += t
    return out.mul_(z)


def by_hand(t, z):
    x = z.detach().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad((x.sin() * x).sum() * t, x)
    return found


REPEATED = {
    "network": lambda t, z: NETWORK(z),
    "matrix and time": lambda t, z: torch.tanh(z @ A) * t + (A**2).sum(),
    "views": lambda t, z: torch.stack([z[1], z[0]]).view(1, 2).transpose(0, 1).reshape(2),
    "the state itself": lambda t, z: z,
    "a view of it": lambda t, z: z.flip(0) if z.ndim > 3 else z.view(2, 1).squeeze(1),
    "a constant": lambda t, z: torch.ones(2, dtype=F64),
    "of time alone": lambda t, z: t * torch.ones_like(z),
    "concatenated": lambda t, z: torch.cat([t.view(1), z])[:2].exp(),
    "complex": lambda t, z: torch.view_as_real(torch.view_as_complex(z.view(1, 2)) ** 2 * (1 + 2j)).view(2),
    "in place": accumulated,
    "a gradient inside": by_hand,
    "where": lambda t, z: torch.where(z > 0.5, z.exp(), z * t),
}

CALLED = {
    "a branch by time": lambda t, z: z if t > 0.4 else -z,
    "a number of the time": lambda t, z: z * float(t),
    "a list": lambda t, z: z * t.tolist(),
    "a branch by state": lambda t, z: z if z.sum() > 1 else -z,
    "numpy": lambda t, z: torch.from_numpy(np.sin(z.numpy())),
    "an array": lambda t, z: torch.as_tensor(np.asarray(z) * 2),
    "random numbers": lambda t, z: z + torch.rand(2, dtype=F64),
    "numbers in memory": lambda t, z: z.new_empty(2).copy_(z),
    "shapes that depend on numbers": lambda t, z: z[z > -9.0],
    "written elsewhere": lambda t, z: torch.add(z * 2, 1, out=ELSEWHERE),
    "an operation of one's own": lambda t, z: torch.ops.repeated_by_tests.add(z, z),
    "the state written to": lambda t, z: z.mul_(2),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_program_gives_what_its_function_gives(name):
    function = REPEATED[name]
    program, kept = Program(torch.no_grad()(function)), []
    for k in range(5):
        t, z = torch.tensor(0.1 * k, dtype=F64), torch.tensor([0.2 + k, 1.0 - 0.3 * k], dtype=F64)
        kept.append((program(t, z), function(t, z)))
        assert program.repeats
    assert all(torch.equal(*pair) for pair in kept)  # nor is any of them overwritten


@pytest.mark.parametrize("name", CALLED)
def test_what_a_list_would_not_know_is_called(name):
    program = Program(torch.no_grad()(CALLED[name]))
    program(torch.tensor(0.3, dtype=F64), torch.tensor([0.2, 0.7], dtype=F64))
    assert not program.repeats


def test_a_function_that_does_something_else_the_second_time_is_called():
    calls = iter(range(9))
    program = Program(lambda z: z * 2 if next(calls) == 0 else z * 3)
    z = torch.rand(3)
    assert [torch.equal(program(z), k * z) for k in (2, 3, 3)] == [True] * 3
    assert not program.repeats


def test_constants_are_not_computed_again_and_what_nobody_reads_is_left_out():
    program = Program(lambda z: [(A @ A).sum() * z, z.exp()][0])
    for _ in range(2):
        program(torch.rand(2, dtype=F64))
    assert len(program._calls) == 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16)).to(F64)

    def forward(self, t, z):
        return self.net(z) * torch.cos(t)


@pytest.fixture
def seen(monkeypatch):
    """The programs that a solve makes."""
    made, begin = [], Repeated.__init__

    def noted(self, field):
        begin(self, field)
        made.append(self.program)

    monkeypatch.setattr(Repeated, "__init__", noted)
    return made


@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_mapped_solves_are_those_of_a_loop(method, seen):
    nets, z0 = [Net() for _ in range(6)], torch.randn(16, dtype=F64)
    stacked = {k: p.detach() for k, p in stack_module_state(nets)[0].items()}

    def end(params):
        return nf.fdeint(lambda t, z: functional_call(nets[0], params, (t, z)), z0, 1.0, 0.7, steps=40, method=method)

    def loss(params):
        return end(params).square().sum()

    values, grads = vmap(end)(stacked), vmap(torch.func.grad(loss))(stacked)
    assert seen
    assert all(program.repeats for program in seen)
    for k, net in enumerate(nets):
        out = nf.fdeint(net, z0, 1.0, 0.7, steps=40, method=method)
        found = torch.autograd.grad(out.square().sum(), list(net.parameters()))
        assert relative(values[k], out) < 1e-13
        for g, (name, _) in zip(found, net.named_parameters(), strict=True):
            assert relative(grads[name][k], g) < 1e-12


@pytest.mark.parametrize("branch", [False, True])
def test_a_complex_equation_that_changes_its_mind(branch, seen):
    z0 = torch.linspace(0.1, 1, 80, dtype=F64) * (1 + 0.5j)

    def switched(t, z):
        slow = bool(t > 0.5) if branch else t > 0.5
        return z * 1j * (0.2 if slow else 1.0) if branch else torch.where(slow, 0.2, 1.0) * z * 1j

    found = nf.fdeint(switched, z0, 1.0, 0.8, steps=30, stepper="single")
    assert [program.repeats for program in seen] == [not branch]
    pairs = nf.fdeint(
        lambda t, x: torch.view_as_real(switched(t, torch.view_as_complex(x))),
        torch.view_as_real(z0), 1.0, 0.8, steps=30, stepper="single",
    )  # fmt: skip
    assert relative(found, torch.view_as_complex(pairs)) < 1e-14


def test_hooks_act_in_every_step(seen):
    net, z0, calls = Net(), torch.randn(3, 16, dtype=F64), []
    net.net.register_forward_hook(lambda *given: calls.append(1))
    vmap(lambda z: nf.fdeint(net, z, 1.0, 0.7, steps=40, stepper="single"))(z0)
    assert not seen
    assert len(calls) >= 40
