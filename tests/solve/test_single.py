"""One step after the other: what every other stepper is held to, and what ``stepper=`` says about itself."""

from typing import ClassVar

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.door.names import ADJOINTS, METHODS, STEPPERS
from neuralfde.rhs.field import value_wanted
from tests.stubs import F64, Net, relative

Z = torch.tensor([1.2, 2.7], dtype=F64)


def relax(t, z):
    return torch.cos(t) - z


@pytest.mark.parametrize("method", METHODS)
def test_func_is_evaluated_where_the_scheme_says(method):
    """Explicit schemes: at every grid point but the last, once a stage, beside the call at the door."""
    times, scheme = [], METHODS[method]

    class Seen(nn.Module):
        def forward(self, t, z):
            return -z

    net = Seen()
    net.register_forward_pre_hook(lambda module, given: times.append(float(given[0])))
    found = nf.solve(net, Z, 1.0, 0.7, steps=20, method=method, stepper="single")
    assert found.stats.stepper == "single"
    assert found.stats.evaluations == len(times)
    grid = [k / 20 for k in range(21)]
    assert all(min(abs(t - g) for g in grid) < 1e-12 for t in times)
    if not scheme.implicit:
        counts = [sum(abs(t - g) < 1e-12 for t in times) for g in grid]
        # the first slope comes from the door; a corrector looks at the last point too, for its state, as IMEX does
        assert counts == ([1, *[scheme.stages] * 19, scheme.stages - 1] if scheme.stages else [1] * 21)


def test_the_slope_from_the_door_is_used_once():
    calls = []
    nf.fdeint(lambda t, z: (calls.append(float(t)), -z)[1], Z, 1.0, 0.7, steps=8, stepper="single")
    assert calls.count(0.0) == 1


@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_callbacks_in_both_passes(adjoint):
    func, seen = Net(), []
    z0 = torch.randn(2, 3, dtype=F64, requires_grad=True)
    y = nf.fdeint(func, z0, 1.0, 0.7, steps=20, adjoint=adjoint, callback=lambda n, total: seen.append((n, total)))
    forward = [(n, 20) for n in range(21)]
    assert seen == forward
    y.sum().backward()
    assert seen[:21] == forward
    assert seen[21:] in (forward, forward[:-1])  # the paper's equation ends before the initial row


class Asked:
    """Where ``func`` writes without being seen to change anything: attributes of a class are not compared."""

    wanted: ClassVar[list[bool]] = []


def test_the_value_is_not_wanted_where_only_the_derivative_is_used():
    wanted = Asked.wanted

    def func(t, z, rate):
        Asked.wanted.append(value_wanted())
        return rate * z

    rate = torch.tensor(-0.5, dtype=F64, requires_grad=True)
    y = nf.fdeint(func, torch.ones(3, dtype=F64), 1.0, 0.6, steps=200, args=(rate,), stepper="single")
    assert all(wanted)
    wanted.clear()
    y.sum().backward()
    assert len(wanted) > 100
    assert wanted.count(True) == 1  # the step that is compared with the forward pass


def test_statistics_say_what_ran_and_why():
    asked = nf.solve(relax, Z, 1.0, 0.7, steps=100, stepper="single").stats
    assert (asked.stepper, asked.why.split("; ")[-1]) == ("single", "stepper=single: as asked for")
    small = nf.solve(relax, Z, 1.0, 0.7, steps=100).stats
    assert small.stepper == "picard"
    assert "stepper=picard: a small state" in small.why
    large = nf.solve(relax, torch.ones(1000), 1.0, 0.7, steps=100).stats
    assert large.stepper == "recorded"
    assert "a state of 1000 elements" in large.why
    unknown = nf.solve(lambda t, z: -z * float(t), torch.ones(1000), 1.0, 0.7, steps=100).stats
    assert unknown.stepper == "single"
    assert "cannot be repeated without calling it: __float__" in unknown.why


def test_objects_are_accepted_in_place_of_names():
    by_name = {name: nf.fdeint(relax, Z, 1.0, 0.7, steps=100, stepper=name) for name in ("single", "picard")}
    assert torch.equal(nf.fdeint(relax, Z, 1.0, 0.7, steps=100, stepper=nf.Single()), by_name["single"])
    assert torch.equal(nf.fdeint(relax, Z, 1.0, 0.7, steps=100, stepper=nf.Picard()), by_name["picard"])


def test_bad_steppers_are_refused_at_the_door():
    calls = []
    func = lambda t, z: (calls.append(1), -z)[1]
    with pytest.raises(nf.InputError, match=r"unknown stepper 'pikard'.*'picard'"):
        nf.fdeint(func, Z, 1.0, 0.5, steps=4, stepper="pikard")
    with pytest.raises(nf.InputTypeError, match="stepper must be a name or an object, got int"):
        nf.fdeint(func, Z, 1.0, 0.5, steps=4, stepper=3)
    for stepper in ("picard", "cuda-graph"):
        with pytest.raises(nf.InputError, match="adjoint='direct'"):
            nf.fdeint(func, Z, 1.0, 0.5, steps=4, stepper=stepper, adjoint="direct")
    assert not calls


@pytest.mark.parametrize("stepper", ["auto", "single"])
def test_direct_keeps_the_graph_of_each_step(stepper):
    func = Net()
    z0 = torch.randn(2, 3, dtype=F64, requires_grad=True)
    grads = [
        torch.autograd.grad(
            nf.fdeint(func, z0, 1.0, 0.7, steps=30, adjoint=adjoint, stepper=stepper).square().sum(), z0
        )[0]
        for adjoint in ("direct", "exact")
    ]
    assert relative(*grads) < 1e-12


@pytest.mark.parametrize("stepper", [s for s in STEPPERS if s not in ("cuda-graph", "kernel")])
def test_a_block_takes_a_stepper(stepper):
    block = nf.FDEBlock(Net(), order=0.7, t=1.0, steps=60, stepper=stepper)
    z0 = torch.linspace(-1, 1, 6, dtype=F64).view(2, 3)
    expected = nf.fdeint(block.func, z0, 1.0, 0.7, steps=60, stepper="single")
    assert relative(block(z0), expected) < 1e-12
    with pytest.raises(nf.InputError, match="stepper"):
        nf.FDEBlock(Net(), order=0.7, steps=4, stepper="pikard")


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "bdf2"])
@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_the_length_of_a_block_changes_nothing(method, block):
    def gradients(history):
        func, order = Net(), torch.tensor([0.5, 0.7, 0.9], dtype=F64, requires_grad=True)
        torch.manual_seed(0)
        for p in func.parameters():
            nn.init.normal_(p)
        z0 = torch.linspace(-1, 1, 6, dtype=F64).view(2, 3).requires_grad_()
        y = nf.fdeint(func, z0, 1.0, order, steps=23, method=method, history=history, stepper="single")
        return [y, *torch.autograd.grad(y.square().sum(), [z0, order, *func.parameters()])]

    assert max(map(relative, gradients(nf.Full(block=block)), gradients(nf.Full(block=32)))) < 1e-11
