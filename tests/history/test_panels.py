"""Moments of panels stand for their rows to rounding, or are not used."""

import pytest
import torch

import neuralfde as nf
from neuralfde.door.names import METHODS
from neuralfde.history import panels

F64 = torch.float64


def lags(method, order, steps, dtype):
    weights = METHODS[method].kernel(torch.tensor([order], dtype=F64), 0.01, steps).weights
    return weights.permute(0, 2, 1).to(dtype)


@pytest.mark.parametrize("method", [m for m in METHODS if not m.startswith("flmm")])
@pytest.mark.parametrize("order", [0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_weights_of_every_smooth_kernel_pass(method, order, dtype):
    row = torch.zeros(1, 100, dtype=dtype)
    assert panels.table_for(lags(method, order, 1500, dtype), row) is not None


def test_oscillating_and_kinked_weights_do_not():
    row = torch.zeros(1, 100)
    assert panels.table_for(lags("flmm-trapezoid", 0.5, 1500, torch.float32), row) is None
    kinked = 1.0 / torch.arange(1, 1502, dtype=torch.float32).clamp(max=700)
    assert panels.table_for(kinked.reshape(1, 1, -1), row) is None


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 5e-6), (F64, 1e-13)])
@pytest.mark.parametrize("method", ["predictor", "abm", "gl"])
@pytest.mark.parametrize("wide", [False, True])
def test_both_passes_agree_with_the_rows_themselves(monkeypatch, method, dtype, tol, wide):
    torch.manual_seed(0)
    if wide:
        monkeypatch.setattr(panels, "PANELS_WIDE", 8)
    net = torch.nn.Linear(4, 4, dtype=dtype)
    found = []
    for table in (panels.table_for, lambda lags, row: None):
        monkeypatch.setattr(panels, "table_for", table)
        z0 = torch.linspace(-1, 1, 80, dtype=dtype).reshape(20, 4).requires_grad_()
        order = torch.tensor(0.6, dtype=dtype, requires_grad=True)
        f = lambda t, z: torch.tanh(net(z)) - 0.3 * z
        y = nf.fdeint(f, z0, 4.0, order, params=net.parameters(), method=method, steps=1300, history="full")
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [z0, order, *net.parameters()])])
    for a, b in zip(*found, strict=True):
        assert float((a - b).norm() / b.norm()) < tol
