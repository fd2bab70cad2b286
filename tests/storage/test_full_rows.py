"""Rows of a full history on the host, and states kept beside it, give what rows on the device give."""

import pytest
import torch

import neuralfde as nf
from neuralfde.history import host_rows
from tests.stubs import F64, Net, relative

KEPT = {"host": {"history": "full", "storage": "host"}, "states": {"history": nf.Full(states=True)}}
SCHEMES = ["predictor", "abm", "trapezoid", "gl", "l1", "flmm-trapezoid"]


def solve(device="cpu", dtype=F64, order=0.6, between=False, **options):
    torch.manual_seed(0)
    func = Net().to(device, dtype)
    z0 = torch.linspace(-1, 1, 6, dtype=dtype, device=device).view(2, 3).requires_grad_()
    order = torch.tensor(order, dtype=F64, requires_grad=True)
    times = torch.linspace(0, 2, 5 if not between else 4, dtype=F64)
    y = nf.fdeint(func, z0, times, order, steps=None if between else 40, step=0.05 if between else None, **options)
    (y**2).sum().backward()
    return [y.detach(), z0.grad, order.grad, *[p.grad for p in func.parameters()]]


def same(got, expected, tol):
    return all(relative(a, b) < tol for a, b in zip(got, expected, strict=True))


@pytest.fixture(params=[1 << 22, 7], ids=["at once", "in parts"])
def parts(request, monkeypatch):
    monkeypatch.setattr(host_rows, "FETCH_CHUNK", request.param)


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("method", SCHEMES)
def test_same_solution_and_gradients(kept, method, parts):
    options = {"method": method}
    assert same(solve(**options, **KEPT[kept]), solve(**options, history="full"), 1e-11)


def test_states_between_grid_points(parts):
    assert same(solve(between=True, **KEPT["host"]), solve(between=True, history="full"), 1e-11)


def test_graded_grids(parts):
    assert same(solve(grading=2.0, **KEPT["host"]), solve(grading=2.0, history="full"), 1e-11)


def test_one_order_per_channel(parts):
    order = [0.5, 0.7, 0.9]
    assert same(solve(order=order, **KEPT["host"]), solve(order=order, history="full"), 1e-11)


def test_host_rows_count_as_the_hosts():
    plan = nf.plan(Net(), torch.ones(2, 3), 1.0, 0.5, steps=50, history="full", storage="host")
    there = nf.plan(Net(), torch.ones(2, 3), 1.0, 0.5, steps=50, history="full")
    assert plan.host_bytes == 51 * 24
    assert plan.device_bytes == there.device_bytes - 51 * 24
    assert plan.history.host
    assert nf.plan(Net(), torch.ones(2, 3), 1.0, 0.5, steps=50, history=nf.Full(host=True)).host_bytes == 51 * 24


def test_what_cannot_take_rows_away_is_refused():
    with pytest.raises(nf.errors.InputError, match="storage='host' too"):
        solve(history="full", storage="checkpoint")
    with pytest.raises(nf.errors.InputError, match="storage='host' too"):  # not silently another storage
        solve(history=nf.Full(host=True), storage="checkpoint")
    with pytest.raises(nf.errors.InputError, match="direct"):
        solve(history="full", storage="host", adjoint="direct")


@pytest.mark.gpu
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("method", SCHEMES)
def test_the_same_on_a_gpu(kept, method, parts):
    assert same([g.cpu() for g in solve("cuda", method=method, **KEPT[kept])], solve(method=method), 1e-9)


@pytest.mark.gpu
def test_host_rows_take_no_memory_of_the_gpu():
    def peak(**options):
        z0 = torch.ones(1 << 20, device="cuda", requires_grad=True)
        rate = torch.ones((), device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # what other tests have left
        y = nf.fdeint(lambda t, z, rate: -rate * z, z0, 1.0, 0.5, args=(rate,), steps=64, stepper="single", **options)
        y.sum().backward()
        return torch.cuda.max_memory_allocated() - before

    assert peak(**KEPT["host"]) < 0.5 * peak(history="full")
