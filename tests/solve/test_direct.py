"""Direct differentiation keeps what func's own graph needs, and nothing beside it."""

import pytest
import torch

from neuralfde import Exponentials, Window, fdeint
from neuralfde.cli.measuring import peak_mib

STATE = (32, 64)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(8, STATE[1]) for _ in range(2))
        self.linear = torch.nn.Linear(STATE[1], STATE[1])

    def forward(self, t, z):
        return self.norms[1](self.linear(torch.relu(self.norms[0](z))))


def held(func, work, *found):
    """Bytes of the tensors that autograd saves in ``work``, and of those found in its result, without the parameters.

    Each storage counts once and as a whole: a view holds all of it.
    """
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        result = work()
    storages = [x.untyped_storage() for x in (*saved, *(x for find in found for x in find(result))) if x is not None]
    known = {p.untyped_storage().data_ptr() for p in func.parameters()}
    return sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in known}.values())


def traced(out):
    """The tensors that the record of a solve holds for every step."""
    node = out.grad_fn
    while not hasattr(node, "record"):
        node = node.next_functions[0][0]
    return [
        x
        for trace in node.record.steps.traces
        for part in trace
        for x in (part if isinstance(part, tuple) else (part,))
    ]


@pytest.mark.parametrize("history", ["full", "fft", Exponentials(terms=30), Window(32)])
def test_a_step_keeps_the_graph_of_func_and_nothing_else(history):
    torch.manual_seed(0)
    func, z0 = Field(), torch.randn(STATE, requires_grad=True)
    own = held(func, lambda: func(torch.tensor(0.1), z0))
    row = z0.nbytes
    statistics = 2 * 2 * 8 * STATE[0] * 4  # mean and deviation of each group of both norms
    assert own == 3 * row + statistics  # the inputs of two norms and of the linear layer

    def solve(steps, **options):
        return held(func, lambda: fdeint(func, z0, 0.01 * steps, 0.5, steps=steps, adjoint="direct", **options), traced)

    one, two = (solve(n, history=history) for n in (150, 300))
    assert (two - one) / 150 == pytest.approx(own, abs=16)
    order = torch.tensor(0.5, requires_grad=True)  # its gradient reads the slopes
    learned = [
        held(func, lambda n=n: fdeint(func, z0, 0.01 * n, order, steps=n, adjoint="direct", history=history), traced)
        for n in (150, 300)
    ]
    assert (learned[1] - learned[0]) / 150 == pytest.approx(own + row, abs=0.03 * row)  # and the weights' graph


def test_the_peak_of_a_whole_training_step_is_the_row_of_the_history_more():
    torch.manual_seed(0)
    func, z0 = Field(), torch.randn(STATE, requires_grad=True)
    own = held(func, lambda: func(torch.tensor(0.1), z0))

    def train(steps):
        fdeint(func, z0, 0.01 * steps, 0.5, steps=steps, adjoint="direct").square().sum().backward()

    for steps in (300, 900):
        peak = 2**20 * peak_mib(lambda n=steps: train(n), torch.device("cpu"))
        assert peak < steps * (own + 1.25 * z0.nbytes)  # the quarter: moments of distant rows
