"""A solve that fails, in either pass: what it says, and that it leaves nothing behind."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde import solver

F64 = torch.float64
LARGE = 1 << 12


class Failing(nn.Module):
    """Raises in one of its evaluations."""

    def __init__(self, when):
        super().__init__()
        self.layer = nn.Linear(2, 2, dtype=F64)
        self.drop = nn.Dropout(0.1)
        self.when, self.calls = when, 0

    def forward(self, t, z):
        self.calls += 1
        if self.calls == self.when:
            raise ArithmeticError
        return self.drop(self.layer(z))


def large_tensors():
    return [x for x in gc.get_objects() if type(x) is torch.Tensor and x.numel() >= LARGE]


WAYS = [
    {},
    {"method": "abm", "history": "exponentials"},
    {"history": "exponentials", "storage": "checkpoint"},
    {"adjoint": "direct"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("when", [3, 60])  # in the forward and, but for direct, in the backward pass
def test_a_func_that_raises_leaves_nothing_behind(when, way, tmp_path):
    if way.get("history") and "storage" not in way:
        way = way | {"storage": nf.Host(path=str(tmp_path))}
    net, threads = Failing(when), threading.active_count()
    net.layer.weight.register_hook(lambda g: g)
    there = {id(x) for x in large_tensors()}
    rows = torch.ones(LARGE, 2, dtype=F64, requires_grad=True)
    torch.manual_seed(0)
    held = weakref.ref(rows)
    try:
        nf.fdeint(net, rows, 1.0, 0.7, steps=40, **way).sum().backward()
    except ArithmeticError:
        failed = True
    else:
        failed = False
    assert failed or way.get("adjoint") == "direct"
    assert len(net.layer.weight._backward_hooks) == 1
    assert net.training
    del rows
    gc.collect()
    assert held() is None
    assert not [x.shape for x in large_tensors() if id(x) not in there]
    assert threading.active_count() <= threads
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("when", [3, 14])  # in the forward and in the backward pass
@pytest.mark.parametrize(
    ("way", "remedy"),
    [
        ({"history": "exponentials", "storage": "checkpoint"}, "No history or storage takes less"),
        ({"adjoint": "direct"}, "adjoint='exact'"),
    ],
)
def test_where_memory_runs_out_the_error_says_once_what_takes_less(when, way, remedy):
    count = [0]

    def short(step, total):
        count[0] += 1
        if count[0] == when:
            raise torch.OutOfMemoryError("out of memory")

    z0 = torch.ones(2, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        nf.fdeint(lambda t, z: -z, z0, 1.0, 0.5, steps=10, callback=short, **way).sum().backward()
    assert len(caught.value.__notes__) == 1
    assert remedy in caught.value.__notes__[0]
    assert "are free" in caught.value.__notes__[0]


def test_a_storage_that_would_fit_is_named():
    def short(step, total):
        raise torch.OutOfMemoryError("out of memory")

    z0 = torch.ones(100, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        nf.fdeint(lambda t, z: -z, z0, 1.0, 0.5, steps=5000, callback=short)
    assert "history='exponentials', storage='checkpoint' would take" in caught.value.__notes__[0]


@pytest.mark.parametrize("when", [12, 40])  # in the forward and in the backward pass
@pytest.mark.parametrize("way", [{}, {"history": "exponentials"}, {"adjoint": "direct"}], ids=str)
def test_what_would_fit_is_asked_when_the_solve_has_let_go_of_its_rows(when, way, monkeypatch):
    there, left, count = {id(x) for x in large_tensors()}, [], [0]

    def advice(*given):
        new = [x.untyped_storage() for x in large_tensors() if id(x) not in there]
        left.append(sum({x.data_ptr(): x.nbytes() for x in new}.values()) / (4 * z0.numel()))
        return "Something smaller."

    def short(step, total):
        count[0] += 1
        if count[0] == when:
            raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(solver, "less_memory", advice)
    z0 = torch.ones(1000, 5, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
        nf.fdeint(lambda t, z: -z, z0, 1.0, 0.5, steps=30, callback=short, stepper="single", **way).sum().backward()
    assert len(caught.value.__notes__) == 1
    assert caught.value.__notes__[0].startswith(f"Something smaller. Memory ran out in short, {__file__}:")
    assert len(left) == 1
    assert left[0] < 8  # rows: the first state and slope, and what else is alive outside of the solve
