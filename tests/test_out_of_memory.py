"""A GPU that runs out of memory: the error names a storage that then works, and nothing stays behind."""

import gc
import re

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.base import caches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NUMBERS, STEPS = 1 << 18, 400  # a row of 1 MiB
MIB = 1 << 20
COSTLY = {"forward": {"history": "full"}, "backward": {"history": "exponentials", "storage": "device"}}


class Decay(nn.Module):
    """A function that keeps a row or two."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(()))

    def forward(self, t, z):
        return -torch.tanh(self.rate * z)


@pytest.fixture
def limit():
    """Lets the process take so many MiB more than it has taken; all of the device again afterwards."""

    def apply(mib):
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mib * MIB) / total)

    before = torch.cuda.get_per_process_memory_fraction()
    yield apply
    torch.cuda.set_per_process_memory_fraction(before)


def used():
    """What is allocated, in MiB, when nothing is kept for later solves, nor room for products of matrices."""
    caches.clear()
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() / MIB


def solved(func, z0, **way):
    return nf.fdeint(func, z0, 2.0, 0.6, steps=STEPS, stepper="single", **way).square().mean()


def gradient(func, z0, **way):
    func.zero_grad()
    solved(func, z0, **way).backward()
    found, func.rate.grad, z0.grad = func.rate.grad, None, None
    return found


@pytest.mark.parametrize("where", COSTLY)
def test_the_storage_that_is_named_works_and_nothing_stays_allocated(where, limit):
    torch.manual_seed(0)
    func, z0 = Decay().cuda(), torch.randn(NUMBERS, device="cuda", requires_grad=True)
    want = gradient(func, z0, **COSTLY[where])
    before = used()
    if where == "forward":
        limit(215)  # rows alone take twice as much
        with pytest.raises(torch.OutOfMemoryError) as caught:
            solved(func, z0, **COSTLY[where])
    else:
        loss = solved(func, z0, **COSTLY[where])
        limit(8)  # the rows are there, a second memory of the past finds no room
        with pytest.raises(torch.OutOfMemoryError) as caught:
            loss.backward()
        del loss
    (note,) = caught.value.__notes__
    named = re.search(r"history='(\w+)', storage='(\w+)' would take", note)
    assert named is not None, note
    assert used() < before + 4  # although the error is still at hand; a row has 1 MiB
    found = gradient(func, z0, history=named[1], storage=named[2])
    torch.testing.assert_close(found, want, rtol=1e-4, atol=0)
    del caught, found
    func.rate.grad = z0.grad = None
    assert used() < before + 1
