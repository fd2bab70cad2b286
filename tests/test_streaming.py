"""A solve that goes on where another one stopped, and what is said before and after a solve."""

import pytest
import torch

import neuralfde as nf
from neuralfde.door.cost import Size, choose
from neuralfde.door.names import METHODS
from tests.stubs import F64, Net

Z0 = torch.linspace(-1, 1, 6, dtype=F64).view(2, 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("history", ["full", nf.Window(15)])
def test_pieces_make_the_trajectory_of_one_solve(method, history):
    func = Net()
    options = {"method": method, "history": history}
    with torch.no_grad():
        whole = nf.solve(func, Z0, 1.0, 0.6, step=0.025, **options).ys[-1]
        first = nf.solve(func, Z0, 0.4, 0.6, step=0.025, resume=True, **options)
        second = nf.solve(func, Z0, 0.5, 0.6, resume=first.state, **options)
        third = nf.solve(func, Z0, torch.tensor([0.5, 0.75, 1.0]), 0.6, resume=second.state, **options)
    torch.testing.assert_close(third.ys[-1], whole, rtol=1e-10, atol=1e-10)
    assert third.state.steps == 40


@pytest.mark.parametrize("history", ["full", "exponentials", nf.Window(15)])
def test_truncated_gradients(history):
    func, found = Net(), []
    begun = nf.solve(func, Z0, 0.5, 0.6, step=0.01, history=history, resume=True)
    for adjoint in ("exact", nf.Exact(), "direct"):
        func.zero_grad()
        ys = nf.solve(func, Z0, 1.2, 0.6, history=history, resume=begun.state, adjoint=adjoint).ys
        ys.square().sum().backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in func.parameters()]))
    assert not begun.state.slopes.requires_grad
    torch.testing.assert_close(found[0], found[2], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found[1], found[2], rtol=1e-11, atol=1e-11)


def test_what_does_not_go_on_is_refused():
    state = nf.solve(Net(), Z0, 0.5, 0.6, step=0.05, resume=True).state
    for given, match in (
        ({"t": 0.4}, "not after"),
        ({"t": torch.tensor([0.0, 1.0])}, "stopped at"),
        ({"t": 1.0, "step": 0.1}, "has step"),
        ({"t": 1.0, "steps": 3}, "keeps its step"),
        ({"t": 1.0, "method": "abm"}, "same method"),
        ({"t": 1.0, "adjoint": "paper"}, "'exact' or 'direct'"),
    ):
        with pytest.raises(nf.InputError, match=match):
            nf.solve(Net(), Z0, given.pop("t"), 0.6, resume=state, **given)


def test_auto_says_what_it_chose_and_why(monkeypatch):
    stats = nf.solve(Net(), Z0, 1.0, 0.6, steps=10).stats
    assert isinstance(stats.history, nf.Full)
    assert stats.storage == nf.Device()
    assert "within half of the free" in stats.why
    size, cpu = Size(20_000, 1 << 20, 1, True, False), torch.device("cpu")
    for free, history, storage in (
        (1 << 40, nf.FFT, nf.Device),
        (30 << 30, nf.Exponentials, nf.Checkpoint),
    ):
        monkeypatch.setattr("neuralfde.door.cost._host_free", lambda free=free: free)
        past, kept, why = choose(None, None, size, cpu, needs_rows=False)
        assert isinstance(past, history)
        assert isinstance(kept, storage)
        assert "GiB" in why
    past, kept, _ = choose(None, nf.Checkpoint(), size, cpu, needs_rows=False)
    assert isinstance(past, nf.Exponentials)


def test_rows_stay_on_the_device_unless_asked_and_the_reason_says_what_else_there_is(monkeypatch):
    assert nf.fdeint.__kwdefaults__["storage"] == "device"
    z0 = torch.ones(1000, requires_grad=True)
    for free, advised in ((1 << 30, False), (1 << 20, True)):
        monkeypatch.setattr("neuralfde.door.cost._host_free", lambda free=free: free)
        found = nf.plan(lambda t, z: -z, z0, 1.0, 0.5, steps=1000)
        assert found.storage == nf.Device()
        assert ("try 'auto'" in found.why) == advised
        assert isinstance(found.history, nf.Exponentials if advised else nf.Full)
    assert nf.plan(lambda t, z: -z, z0, 1.0, 0.5, steps=1000, storage="auto").storage == nf.Checkpoint()
    assert "auto" not in nf.plan(lambda t, z: -z, z0, 1.0, 0.5, steps=1000, adjoint="direct").why  # it keeps no rows


@pytest.mark.parametrize("history", ["full", nf.Exponentials(terms=24)])
@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_predictions_are_what_a_solve_then_takes(history, method):
    z0 = torch.randn(40, 50, dtype=F64, requires_grad=True)
    predicted = nf.plan(lambda t, z: -z, z0, 1.0, 0.5, steps=400, history=history, method=method)
    held = nf.solve(lambda t, z: -z, z0, 1.0, 0.5, steps=400, history=history, method=method).stats.history_bytes
    assert 0.3 < predicted.device_bytes / held < 3
    assert "evaluations of func" in str(predicted)
    with pytest.raises(nf.InputTypeError, match="no argument"):
        nf.plan(lambda t, z: -z, z0, 1.0, 0.5, step_size=0.1)
