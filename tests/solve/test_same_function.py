"""The backward pass evaluates ``func`` again: it is the same function there, or an error says so."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import neuralfde as nf

F64 = torch.float64
Z = torch.tensor([0.8, -0.3, 0.5], dtype=F64)
#: Picard's iteration, single steps with kept slopes, with kept rows, and with rows that are computed again.
WAYS = [
    {"stepper": "auto"},
    {"stepper": "single"},
    {"stepper": "single", "history": "exponentials"},
    {"stepper": "single", "history": "exponentials", "storage": "checkpoint"},
    {"stepper": "single", "method": "abm"},
    {"stepper": "single", "method": "trapezoid"},
    {"stepper": "auto", "method": "trapezoid"},
]


class Net(nn.Module):
    def __init__(self, *more):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3, dtype=F64)
        self.more = nn.Sequential(*more)
        self.register_buffer("rate", torch.tensor(0.7, dtype=F64))

    def forward(self, t, z):
        return self.more(torch.tanh(self.layer(z))) - self.rate * z


def solved(func, steps=70, **way):
    return nf.fdeint(func, Z.clone().requires_grad_(), 1.0, 0.7, steps=steps, **way).sum()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_hook_acts_once_on_the_total(way):
    seen, grads = [], []
    for sign in (1, -1):
        net = Net()
        net.layer.weight.register_hook(lambda g, sign=sign: [seen.append(1), sign * g][1])
        net.layer.bias.register_post_accumulate_grad_hook(lambda p: [p.grad.mul_(2), None][1])
        solved(net, **way).backward()
        grads.append((net.layer.weight.grad, net.layer.bias.grad))
    plain = Net()
    solved(plain, **way).backward()
    assert len(seen) == 2
    for sign, (weight, bias) in zip((1, -1), grads, strict=True):
        torch.testing.assert_close(weight, sign * plain.layer.weight.grad, rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(bias, 2 * plain.layer.bias.grad, rtol=1e-13, atol=1e-15)


def test_a_hook_that_raises_leaves_the_hooks_in_place():
    net, calls = Net(), []

    def refuse(g):
        calls.append(1)
        raise RuntimeError("no")

    net.layer.weight.register_hook(refuse)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            solved(net).backward()
    assert len(calls) == 2


def rebind(net, state):
    state["factor"] = 2.0


CHANGES = {
    "a weight, by .data": lambda net, state: net.layer.weight.data.mul_(1.1),
    "a buffer": lambda net, state: net.rate.mul_(1.1),
    "a variable of a loop": rebind,
}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_func_that_was_changed_before_the_backward_pass_is_refused(change, way):
    net, state = Net(), {"factor": 1.0}
    y = solved(lambda t, z: state["factor"] * net(t, z), params=net.parameters(), **way)
    CHANGES[change](net, state)
    with pytest.raises(nf.ChangedFunctionError, match="before backward"):
        y.backward()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_modes_and_frozen_parameters_are_those_of_the_call(way):
    found = []
    for meddle in (False, True):
        torch.manual_seed(3)
        net = Net(nn.Dropout(0.4))
        if "trapezoid" in way.values():
            net.eval()  # an implicit stage with noise of its own has no solution that is continued
        y = solved(net, **way)
        if meddle:
            net.train(not net.training)
            net.layer.bias.requires_grad_(False)
        (grad,) = torch.autograd.grad(y, net.layer.weight)
        found.append(grad)
        assert net.layer.bias.requires_grad is not meddle
    torch.testing.assert_close(*found, rtol=1e-13, atol=0)


def test_buffers_are_updated_in_the_forward_pass_only():
    net = Net(nn.BatchNorm1d(3, dtype=F64))
    z0 = torch.randn(4, 3, dtype=F64)
    y = nf.fdeint(net, z0.requires_grad_(), 1.0, 0.7, steps=20)
    counted, mean = net.more[0].num_batches_tracked.clone(), net.more[0].running_mean.clone()
    y.sum().backward()
    assert counted == 20
    assert torch.equal(net.more[0].num_batches_tracked, counted)
    assert torch.equal(net.more[0].running_mean, mean)


def test_noise_from_a_generator_of_its_own_is_refused():
    own = torch.Generator().manual_seed(0)
    y = solved(lambda t, z: -z * torch.rand(3, generator=own, dtype=F64), stepper="single")
    with pytest.raises(nf.ChangedFunctionError, match="generator of its own"):
        y.backward()


def late(w):
    return lambda t, z: -z if t < 0.5 else -w * z


HOLDERS = {
    "a closure": late,
    "a default": lambda w: lambda t, z, w=w: -z if t < 0.5 else -w * z,
    "a list": lambda w: lambda t, z, held=[w]: -z if t < 0.5 else -held[0] * z,
    "an inner function": lambda w: (lambda f: lambda t, z: f(t, z))(late(w)),
    "a tensor computed before": lambda w: late(2 * w),
}


@pytest.mark.parametrize("adjoint", ["exact", "direct", "paper"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_tensor_that_is_used_later_only_is_found(holder, adjoint):
    w = torch.ones(3, dtype=F64, requires_grad=True)
    y = solved(HOLDERS[holder](w), steps=20, adjoint=adjoint)
    with pytest.raises(nf.CapturedTensorError, match="args="):
        y.backward()


def test_what_is_within_reach_but_not_used_does_no_harm():
    w = torch.ones(3, dtype=F64, requires_grad=True)
    solved(lambda t, z: -z * w.detach()).backward()


@pytest.mark.parametrize("stepper", ["auto", "single"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_func_that_works_in_place_harms_nobody(mode, stepper):
    z0, expected = Z.clone(), nf.fdeint(lambda t, z: -2 * z, Z, 1.0, 0.7, steps=40)
    with mode():
        found = nf.fdeint(lambda t, z: z.mul_(-2), z0, 1.0, 0.7, steps=40, stepper=stepper)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    assert torch.equal(z0, Z)


def test_a_func_that_works_in_place_can_be_trained():
    grads = []
    for func in (lambda t, z: z.mul_(-2), lambda t, z: -2 * z):
        z0 = Z.clone().requires_grad_()
        nf.fdeint(func, z0, 1.0, 0.7, steps=40).sum().backward()
        grads.append(z0.grad)
    torch.testing.assert_close(*grads, rtol=1e-13, atol=0)


def test_writing_in_place_later_only_is_refused():
    with pytest.raises(nf.InputError, match="in place"), torch.no_grad():
        nf.fdeint(lambda t, z: -z if t < 0.5 else z.neg_(), Z, 1.0, 0.7, steps=40, stepper="single")


def test_noise_in_threads_gives_the_gradients_of_each_solve_alone():
    """Where func is linear in each number, z(T) = grad · z0 for the masks of that solve."""
    wrong = []

    def work():
        for _ in range(10):
            z0 = Z.clone().requires_grad_()
            y = nf.fdeint(lambda t, z: -nn.functional.dropout(z, 0.5), z0, 1.0, 0.7, steps=20)
            (grad,) = torch.autograd.grad(y.sum(), z0)
            if not torch.allclose(grad * z0, y, rtol=1e-12, atol=0):
                wrong.append(grad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_state_that_settles_is_noticed_at_the_first_steps():
    """The power iteration of spectral norm moves on with every call, and late values agree to single precision."""
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    out = nf.fdeint(Holding(layer), torch.randn(3, 4), 1.0, 0.7, steps=10)
    with pytest.raises(nf.ChangedFunctionError, match="keeps state"):
        out.sum().backward()


class Holding(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, t, z):
        return self.layer(z)


@pytest.mark.parametrize("adjoint", ["exact", "direct"])
def test_weights_that_a_call_computes_and_keeps_are_its_own(adjoint):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3, dtype=F64)
    prune.random_unstructured(layer, "weight", 0.5)
    out = nf.fdeint(Holding(layer), Z, 1.0, 0.7, steps=10, adjoint=adjoint)
    (found,) = torch.autograd.grad(out.sum(), layer.weight_orig)
    free = (layer.weight_orig * layer.weight_mask).detach().requires_grad_()
    out = nf.fdeint(
        lambda t, z, a: nn.functional.linear(z, a, layer.bias.detach()), Z, 1.0, 0.7, steps=10, args=(free,)
    )
    (expected,) = torch.autograd.grad(out.sum(), free)
    torch.testing.assert_close(found, expected * layer.weight_mask, rtol=1e-12, atol=1e-14)
