"""A solve that the caller captures into a CUDA graph: no copy between host and device, and no look at any value.

A state on the meta device stands for one on a GPU: it has no values, so that looking at one is an error.
"""

import contextlib
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import neuralfde as nf
from neuralfde.base import caches
from neuralfde.base.policy import TABLE_NUMBERS
from neuralfde.models.image import ConvFDE
from tests.stubs import Autonomous


class NoCopies(TorchDispatchMode):
    """Raises where a tensor leaves or enters the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        found = {x.device.type for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        copies = "copy" in func.name() and len(given | found) > 1
        assert not copies, f"{func.name()} copies between {given} and {found}"
        return out


@pytest.fixture
def capture(monkeypatch):
    """Pretends that a capture has begun once it is called."""

    def begin():
        for module in ("base.caches", "base.structure", "solver", "rhs.field", "rhs.first"):
            monkeypatch.setattr(f"neuralfde.{module}.capturing", lambda: True)

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # which does not know the meta device
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
    monkeypatch.setattr(caches._ON_DEVICE, "entries", OrderedDict())
    monkeypatch.setattr(caches, "_IN_GRAPHS", set())
    return begin


def loss_of(model, images):
    nn.functional.cross_entropy(model(images), torch.zeros(2, dtype=torch.long, device="meta")).backward()


@pytest.mark.parametrize("adjoint", ["exact", "direct", "paper"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_training_step_can_be_captured_once_it_has_run(capture, adjoint, channels_last):
    model = ConvFDE(width=8, t=2.0, step=0.1, adjoint=adjoint, history="full", channels_last=channels_last)
    model.to("meta").fde.fixed_order = torch.tensor(0.5, dtype=torch.float64)  # on the meta device it has no value
    images = torch.empty(2, 1, 28, 28, device="meta")
    warm_up(model, images)
    capture()
    with NoCopies():
        loss_of(model, images)
    assert all(p.grad is not None for p in model.parameters())
    assert caches._IN_GRAPHS


def warm_up(model, images):
    """As many solves as it takes, with the looks at values switched off one by one."""
    model.fde.options["check_finite"] = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neuralfde.solver.capturing", lambda: True)
        loss_of(model, images)


def test_a_capture_without_warm_up_is_refused(capture):
    capture()
    z0 = torch.empty(3, device="meta")
    with pytest.raises(nf.UnsupportedError, match="Run the same solve once before the capture"):
        nf.fdeint(lambda t, z: -z, z0, 1.0, 0.5, steps=4, history="full", storage="device")


def test_a_learned_order_is_refused_in_a_capture(capture):
    capture()
    order = torch.empty((), device="meta", requires_grad=True)
    with pytest.raises(nf.UnsupportedError, match="an order that is learned"):
        nf.fdeint(lambda t, z: -z, torch.zeros(3), 1.0, order, steps=4, history="full", storage="device")


def test_noise_is_refused_in_a_capture(capture):
    field, z0 = Autonomous(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))), torch.zeros(2, 3)
    nf.fdeint(field, z0, 1.0, 0.5, steps=4)
    capture()
    with pytest.raises(nf.UnsupportedError, match="draws random numbers"):
        nf.fdeint(field, z0, 1.0, 0.5, steps=4)


def test_numbers_are_found_by_their_contents_and_their_number_is_limited():
    like = torch.empty(1, dtype=torch.float32, device="meta")
    first = caches.to_device(torch.tensor([1.0, 2.0], dtype=torch.float64), like)
    assert first.dtype == torch.float32
    assert caches.to_device(torch.tensor([1.0, 2.0], dtype=torch.float64), like) is first
    assert caches.to_device(torch.tensor([1.0, 3.0], dtype=torch.float64), like) is not first
    for k in range(caches._ON_DEVICE.size + 5):
        caches.to_device(torch.tensor([float(k)]), like)
    assert len(caches._ON_DEVICE.entries) == caches._ON_DEVICE.size
    large = torch.zeros(TABLE_NUMBERS + 1)
    assert caches.to_device(large, like) is not caches.to_device(large, like)


def test_an_order_is_fetched_again_after_a_change(monkeypatch):
    class Elsewhere(torch.Tensor):
        """A tensor on the CPU that says it is not."""

        fetched = 0

        @property
        def device(self):
            return torch.device("meta")

        def to(self, *args, **kwargs):
            Elsewhere.fetched += 1
            return self.as_subclass(torch.Tensor).to(*args, **kwargs)

    order = torch.tensor(0.5).as_subclass(Elsewhere)
    assert [float(caches.to_host(order)) for _ in range(3)] == [0.5] * 3
    assert Elsewhere.fetched == 1
    order.fill_(0.75)
    assert [float(caches.to_host(order)) for _ in range(3)] == [0.75] * 3
    assert Elsewhere.fetched == 2
