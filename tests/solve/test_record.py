"""What a forward pass leaves for the backward pass: given back as soon as it is not needed, and used once."""

import gc
import weakref
from typing import ClassVar

import pytest
import torch

from neuralfde import fdeint
from neuralfde.rhs.field import value_wanted


class Linear(torch.nn.Module):
    wanted: ClassVar[list[bool]] = []  # of the class: what changes there is not noticed

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(-0.5, dtype=torch.float64))
        self.wanted.clear()

    def forward(self, t, z):
        self.wanted.append(value_wanted())
        return self.rate * z


def test_the_value_is_wanted_forward_for_a_learned_order_and_where_it_is_compared():
    for order, times in ((0.6, 1), (torch.tensor(0.6, dtype=torch.float64, requires_grad=True), 5)):
        func, z0 = Linear(), torch.ones(100, dtype=torch.float64, requires_grad=True)
        out = fdeint(func, z0, 1.0, order, step=0.25)
        assert all(func.wanted)
        func.wanted.clear()
        out.sum().backward()
        assert len(func.wanted) >= 4
        assert func.wanted.count(True) == min(times, len(func.wanted))


def test_rows_are_given_back_before_the_whole_pass_ends():
    func, z0 = Linear(), torch.ones(1000, dtype=torch.float64, requires_grad=True)
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            gc.collect()
            seen.append(rows() is None)
            return grad

    out = fdeint(func, Look.apply(z0), 1.0, 0.6, step=0.1)
    node = out.grad_fn
    while not hasattr(node, "record"):
        node = node.next_functions[0][0]
    rows = weakref.ref(node.record.tape)
    out.sum().backward(retain_graph=True)
    assert seen == [True]
    first = z0.grad.clone()
    out.sum().backward()
    torch.testing.assert_close(z0.grad, 2 * first)


@pytest.mark.parametrize("history", ["full", "fft"])
def test_a_second_backward_pass_is_the_first(history):
    func, z0 = Linear(), torch.ones(1000, dtype=torch.float64, requires_grad=True)
    out = fdeint(func, z0, 1.0, 0.6, step=0.1, history=history).sum()
    a = torch.autograd.grad(out, [z0, func.rate], retain_graph=True)
    b = torch.autograd.grad(out, [z0, func.rate])
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-13, atol=0)
