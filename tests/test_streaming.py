"""A solve that goes on where another one stopped, and what is said before and after a solve."""

import pytest
import torch

import neuralfde as nf
from neuralfde.door.cost import Size, choose
from neuralfde.door.names import METHODS
from tests.orders.cases import CASES
from tests.orders.gradients import right_hand_side, tensors_of
from tests.stubs import F64, Net

RESUMED = [name for name, scheme in METHODS.items() if scheme.slopes_are_at_states]
Z0 = torch.linspace(-1, 1, 6, dtype=F64).view(2, 3)


@pytest.mark.parametrize("case", [c for c in CASES if "grading" not in c.options and c.method in RESUMED], ids=str)
def test_pieces_make_the_trajectory_of_one_solve(case):
    """At every step count, for every method and kind of order; gradients of what came after, too."""
    x = tensors_of(case)
    a, factor = x.pop("a"), x.get("horizon", torch.tensor(1.0, dtype=F64)).detach()
    z0, order = x["z0"].detach(), case.operator(x)
    options = {"method": case.method, **{k: x[k].detach() for k in case.given}}
    more = {k: v for k, v in options.items() if k != "velocity"}  # the second initial value belongs to the past

    def func(t, z):  # `a` is learned from what comes after step 3
        return right_hand_side(t, z, torch.where(t > 0.33 * factor, a, a.detach()))

    def piece(t, past, stop=10, **given):
        t, given = torch.arange(t, stop + 1, dtype=F64) / 10, {**given, "history": nf.Full(block=3), "params": [a]}
        return nf.solve(func, z0 if past is None else None, t, order, past=past, resume=past is None, **given)

    whole, state = piece(0, None, step=0.1, **options), None
    for n in range(10):  # one step after the other
        found = piece(n, state, n + 1, **({"step": 0.1, **options} if n == 0 else more))
        torch.testing.assert_close(found.ys[-1], whole.ys[n + 1], rtol=1e-9, atol=1e-9)
        state = found.state
        if n == 2:  # three steps, a block: within the starting steps
            third = piece(3, state, **more)
    torch.testing.assert_close(third.ys, whole.ys[3:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*[torch.autograd.grad(y.ys[4 - 11 :].sum(), a)[0] for y in (third, whole)])


@pytest.mark.parametrize("method", RESUMED)
def test_windows_and_long_pasts_go_on(method):
    func, stepper = Net(), "auto" if METHODS[method].implicit else "single"
    for history, count in ((nf.Window(15), 20), (nf.Window(3), 2), ("full", 64), ("fft", 63), ("exponentials", 32)):
        if method == "flmm-trapezoid" and history == "exponentials":
            continue  # its weights alternate: no sum of exponentials
        options = {"method": method, "history": history, "stepper": stepper}
        with torch.no_grad():
            whole = nf.solve(func, Z0, (count + 20) / 40, 0.6, step=0.025, **options).ys[-1]
            first = nf.solve(func, Z0, count / 40, 0.6, step=0.025, resume=True, **options)
            second = nf.solve(func, Z0, (count + 20) / 40, 0.6, past=first.state, **options)
        torch.testing.assert_close(second.ys[-1], whole, rtol=1e-7, atol=1e-8)
        assert (first.state.steps, second.state.steps) == (count, count + 20)


@pytest.mark.parametrize("history", ["full", "exponentials", nf.Window(15)])
def test_truncated_gradients(history):
    func, found = Net(), []
    begun = nf.solve(func, Z0, 0.5, 0.6, step=0.01, history=history, resume=True)
    for adjoint in ("exact", nf.Exact(), "direct"):
        func.zero_grad()
        ys = nf.solve(func, Z0, 1.2, 0.6, history=history, past=begun.state, adjoint=adjoint).ys
        ys.square().sum().backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in func.parameters()]))
    assert not begun.state.slopes.requires_grad
    torch.testing.assert_close(found[0], found[2], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found[1], found[2], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"t": 0.4}, "not after"),
        ({"t": torch.tensor([0.0, 1.0])}, "stopped at"),
        ({"step": 0.1}, "step differs"),
        ({"t": torch.tensor([0.5, 1.0]), "step": 0.1}, "step differs"),
        ({"t": torch.tensor([0.5, 0.51, 1.0])}, "uniform grid"),
        ({"steps": 3}, "keeps its step"),
        ({"grid": [0.5, 0.7, 1.0]}, "steps of one length"),
        ({"rtol": 1e-3}, "choose the steps"),
        ({"method": "abm"}, "method differs"),
        ({"order": 0.5}, "order differs"),
        ({"order": torch.full((3,), 0.6)}, "order differs"),
        ({"order": nf.Tempered(0.6, 0.1)}, "order differs"),
        ({"horizon": 2.0}, "horizon differs"),
        ({"velocity": Z0}, "velocity differs"),
        ({"history": nf.Window(3)}, "history differs"),
        ({"z0": Z0.t()}, "z0 differs"),
        ({"z0": Z0.float()}, "z0 differs"),
        ({"adjoint": "paper"}, "adjoint='exact'"),
    ],
    ids=str,
)
def test_what_does_not_go_on_is_refused(given, match):
    state = nf.solve(Net(), Z0, 0.5, 0.6, step=0.05, resume=True).state
    func = Net(dtype=given.get("z0", Z0).dtype)
    with pytest.raises(nf.InputError, match=match):
        nf.solve(func, *[given.pop(k, d) for k, d in (("z0", Z0), ("t", 1.0), ("order", 0.6))], past=state, **given)


@pytest.mark.parametrize(("start", "step"), [(0.0, 1e-9), (1e-7, 1e-12), (1e6, 1e-2), (0.0, 1e6)])
def test_a_solve_goes_on_where_it_stopped_at_any_scale_of_time(start, step):
    def decay(t, z):
        return -z / step**0.6

    times = start + step * torch.arange(21, dtype=torch.float64)
    whole = nf.fdeint(decay, Z0, times, 0.6, steps=20)
    begun = nf.solve(decay, Z0, times[:11], 0.6, steps=10, resume=True)
    torch.testing.assert_close(nf.fdeint(decay, None, times[10:], 0.6, past=begun.state), whole[10:])
    for off in (times[8:], times[12:], times[10:] + step / 100):
        with pytest.raises(nf.InputError, match=r"t begins at .* stopped at"):
            nf.fdeint(decay, None, off, 0.6, past=begun.state)


def test_another_order_of_time_is_refused_and_so_is_no_state():
    def order(rate):
        return nf.VariableOrder(lambda t: 0.5 + rate * t)

    begun = nf.solve(Net(), Z0, 0.5, order(0.3), step=0.1, resume=True)
    with pytest.raises(nf.InputError, match="order differs"):
        nf.solve(Net(), Z0, 1.0, order(0.2), past=begun.state)
    with pytest.raises(nf.InputTypeError, match=r"the \.state of a solution"):
        nf.solve(Net(), Z0, 1.0, order(0.3), past=begun)
    with pytest.raises(nf.InputTypeError, match="past="):
        nf.solve(Net(), Z0, 1.0, order(0.3), resume=begun.state)
    for more in ({"event": lambda t, z: z.sum()}, {"jumps": ([0.7], Z0[None])}, {"lags": 0.1}):
        with pytest.raises(nf.InputError, match="past="):
            nf.solve(Net(), Z0, 1.0, order(0.3), past=begun.state, **more)
    with pytest.raises(nf.InputError, match="estimate_error"):
        nf.solve(Net(), Z0, 1.0, order(0.3), past=begun.state, estimate_error=True)


def test_auto_says_what_it_chose_and_why(monkeypatch):
    stats = nf.solve(Net(), Z0, 1.0, 0.6, steps=10).stats
    assert isinstance(stats.history, nf.Full)
    assert stats.storage == nf.Device()
    assert "exact sums of a small past, 60 numbers" in stats.why
    assert "within half of the free" in nf.solve(Net(), Z0, 1.0, 0.6, steps=4100).stats.why
    size, cpu = Size(20_000, 1 << 20, 1, True, False), torch.device("cpu")
    for free, history, storage in (
        (1 << 40, nf.FFT, nf.Device),
        (30 << 30, nf.Exponentials, nf.Checkpoint),
    ):
        monkeypatch.setattr("neuralfde.door.cost._host_free", lambda free=free: free)
        past, kept, why = choose(None, None, size, cpu)
        assert isinstance(past, history)
        assert isinstance(kept, storage)
        assert "GiB" in why
    past, kept, _ = choose(None, nf.Checkpoint(), size, cpu)
    assert isinstance(past, nf.Exponentials)


def test_rows_stay_on_the_device_unless_asked_and_the_reason_says_what_else_there_is(monkeypatch):
    assert nf.fdeint.__kwdefaults__["storage"] == "device"
    z0 = torch.ones(10_000, requires_grad=True)
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
