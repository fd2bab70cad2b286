"""Steps taken together are the steps of the scheme, one after the other."""

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde import choices
from neuralfde.adjoints import sweeps
from tests.stubs import relative

F32, F64 = torch.float32, torch.float64
METHODS = [*[name for name, scheme in choices.METHODS.items() if not scheme.implicit], nf.ABM(corrections=3)]
IMPLICIT = [name for name, scheme in choices.METHODS.items() if scheme.implicit]


def oscillator(t, z):
    x, y = z.unbind(-1)
    return torch.stack([1 - 5 * x + x * x * y, 4 * x - x * x * y], -1) + 0.1 * torch.sin(3 * t)


@pytest.fixture
def swept(monkeypatch):
    """How many steps each series of sweeps has given."""
    seen, sweep = [], sweeps.Block.sweep

    def watched(self, a, b):
        seen.append(sweep(self, a, b))
        return seen[-1]

    monkeypatch.setattr(sweeps.Block, "sweep", watched)
    return seen


def one_by_one(monkeypatch, run):
    """What the general visits of every step give."""
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "suits", lambda *_: False)
        return run()


def start(dtype=F64, requires_grad=False):
    return torch.tensor([1.2, 2.7], dtype=dtype, requires_grad=requires_grad)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", METHODS + IMPLICIT)
def test_numbers_are_those_of_single_steps(monkeypatch, swept, method, dtype):
    times = torch.linspace(0, 2, 11, dtype=dtype)

    def run():
        return nf.fdeint(oscillator, start(dtype), times, 0.7, steps=190, method=method)

    found = run()
    assert sum(swept) == 190
    allowed = {F32: 5e-6, F64: 1e-11 if method in IMPLICIT else 1e-13}[dtype]  # stages are solved to 1e-11
    assert relative(found, one_by_one(monkeypatch, run)) < allowed


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", IMPLICIT)
def test_few_implicit_steps_are_found_by_newton(monkeypatch, swept, method, dtype):
    times = torch.tensor([0.0, 0.1, 1.9, 2.0], dtype=dtype)

    def run():
        return nf.fdeint(oscillator, start(dtype), times, 0.7, steps=20, method=method)

    found = run()
    assert sum(swept) == 20
    assert relative(found, one_by_one(monkeypatch, run)) < {F32: 5e-6, F64: 1e-11}[dtype]


def test_newton_takes_a_stiff_equation_at_once(monkeypatch, swept):
    def run():
        return nf.fdeint(lambda t, z: -400 * (z - torch.cos(t)), start(), 2.0, 0.9, steps=30, method="bdf2")

    found = run()
    assert swept == [30]
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-11


@pytest.mark.parametrize("func", [lambda t, z: torch.cos(t).expand(2), lambda t, z: torch.zeros_like(z)])
def test_newton_on_what_does_not_depend_on_the_state(monkeypatch, swept, func):
    def run():
        return nf.fdeint(func, start(), 2.0, 0.7, steps=20, method="bdf2")

    found = run()
    assert swept == [20]
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-13


def test_a_loose_tolerance_is_kept(monkeypatch):
    def run(tol=None):
        return nf.fdeint(oscillator, start(), 2.0, 0.7, steps=20, method="bdf2", solver=nf.NewtonKrylov(tol=tol))

    assert 1e-13 < relative(run(1e-5), one_by_one(monkeypatch, run)) < 1e-5


@pytest.mark.parametrize("history", ["full", "fft", nf.Window(40), nf.FFT(block=16)])
@pytest.mark.parametrize("method", ["predictor", "abm", "bdf2"])
def test_every_history_of_rows(monkeypatch, method, history):
    def run():
        return nf.fdeint(oscillator, start(), 2.0, 0.7, steps=300, method=method, history=history)

    assert relative(run(), one_by_one(monkeypatch, run)) < 1e-11


def test_a_graded_grid(monkeypatch, swept):
    def run():
        return nf.fdeint(oscillator, start(), 2.0, 0.7, steps=190, method="abm", grading=2.0)

    found = run()
    assert sum(swept) == 190
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-13


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "flmm-trapezoid"])
def test_times_between_steps_arguments_and_structures(monkeypatch, swept, method):
    times = torch.tensor([0.0, 0.103, 0.5, 1.333, 2.0], dtype=F64)

    def func(t, z, rate):
        return {"a": -rate * z["a"] + z["b"].sum(), "b": torch.cos(t) * z["b"] * z["a"]}

    def run():
        z0 = {"a": torch.ones((), dtype=F64), "b": torch.linspace(-1, 1, 3, dtype=F64)}
        return nf.fdeint(func, z0, times, 0.6, steps=120, method=method, args=(torch.tensor(0.7, dtype=F64),))

    found, known = run(), one_by_one(monkeypatch, run)
    assert sum(swept) == 120
    assert max(relative(found[k], known[k]) for k in known) < 1e-11


class Net(nn.Module):
    """A small network of time and state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(2, 16, dtype=F64), nn.Linear(16, 2, dtype=F64)

    def forward(self, t, z):
        return self.b(torch.tanh(self.a(z))) - 0.1 * t * z


@pytest.mark.parametrize("method", ["predictor", "abm", nf.ABM(corrections=2), "trapezoid"])
@pytest.mark.parametrize("options", [{}, {"history": nf.Window(90), "storage": "device"}, {"history": "fft"}])
def test_gradients_are_those_of_autograd(swept, method, options):
    func, times = Net(), torch.linspace(0, 1.27, 128)[[0, 30, 64, 127]]

    def gradients(adjoint):
        order, z0 = torch.tensor(0.8, dtype=F64, requires_grad=True), start(requires_grad=True)
        y = nf.fdeint(
            func,
            z0,
            times,
            order,
            steps=127,
            method=method,
            adjoint=adjoint,
            **options,
        )
        return torch.autograd.grad(y.square().sum(), [order, z0, *func.parameters()])

    exact = gradients("exact")
    assert sum(swept) == 127
    assert max(map(relative, exact, gradients("direct"))) < (1e-9 if method == "trapezoid" else 1e-11)


def test_a_stiff_equation_is_taken_in_shorter_sweeps_or_steps(monkeypatch, swept):
    def run():
        return nf.fdeint(lambda t, z: -400 * (z - torch.cos(t)), start(), 2.0, 0.9, steps=1600)

    found = run()
    assert swept == sorted(swept, reverse=True)
    assert 0 < sum(swept) < 1600
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-13


@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_an_explosion_is_told_at_the_step_where_it_happens(monkeypatch, method):
    def run():
        with pytest.raises(nf.NonFiniteError) as error:
            nf.fdeint(lambda t, z: z**3, start(), 2.0, 0.9, steps=400, method=method)
        return str(error.value)

    assert run() == one_by_one(monkeypatch, run)


def test_numbers_of_very_different_size_are_all_exact(monkeypatch):
    rates = torch.tensor([-1.0, -0.5], dtype=F64)

    def run():
        return nf.fdeint(lambda t, z: rates * z, torch.tensor([1e9, 1e-9], dtype=F64), 1.0, 0.6, steps=200)

    found, known = run(), one_by_one(monkeypatch, run)
    assert float(((found - known) / known).abs().max()) < 1e-13


def test_a_number_that_stays_zero(swept):
    y = nf.fdeint(lambda t, z: -z, torch.tensor([1.0, 0.0], dtype=F64), 1.0, 0.9, steps=120)
    assert sum(swept) == 120
    assert float(y[1]) == 0


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(lambda *_: None)


class Dropping(Net):
    def forward(self, t, z):
        return nn.functional.dropout(super().forward(t, z), 0.1)


def branching(t, z):
    return -z if float(z.detach().sum()) > 0 else z


def in_place(t, z):
    out = torch.zeros(2, dtype=z.dtype)
    out[0], out[1] = -z[1], z[0]
    return out


def otherwise(t, z):
    return -z * (1 + 0.1 * torch._C._functorch.is_batchedtensor(z))


@pytest.mark.parametrize("func", [Hooked(), Dropping(), branching, in_place, otherwise])
def test_what_cannot_be_vectorised_is_taken_step_by_step(monkeypatch, swept, func):
    def run():
        torch.manual_seed(3)
        return nf.fdeint(func, start(), 1.0, 0.7, steps=100, method="abm")

    found = run()
    assert len(swept) <= 1
    assert sum(swept) == 0
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-13


def test_a_first_state_of_zero_proves_nothing(monkeypatch, swept):
    def run():
        return nf.fdeint(lambda t, z: otherwise(t, z) + torch.sin(t), torch.zeros(2, dtype=F64), 1.0, 0.7, steps=100)

    found = run()
    assert swept == [0]
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-13


@pytest.mark.parametrize("wide", [torch.ones(100, dtype=F64), torch.ones(3, dtype=F64)])
def test_wide_states_and_few_steps_are_not_swept(monkeypatch, swept, wide):
    def run():
        return nf.fdeint(lambda t, z: -z, wide, 1.0, 0.7, steps=100 if len(wide) > 3 else 15, method="abm")

    found = run()
    assert not swept
    assert relative(found, one_by_one(monkeypatch, run)) < 1e-13


def test_callbacks_and_evaluations_are_counted():
    seen, calls = [], []

    def func(t, z):
        calls.append(1)
        return -z

    found = nf.solve(func, start(), 1.0, 0.7, steps=100, callback=lambda n, total: seen.append((n, total)))
    assert seen == [(n, 100) for n in range(101)]
    assert len(calls) < 50 < 100 < found.stats.evaluations


def test_a_func_is_shown_to_be_vectorised_once():
    calls = []

    def func(t, z):
        calls.append(torch._C._functorch.is_batchedtensor(z))
        return -z

    singly = []
    for _ in range(2):
        calls.clear()
        nf.fdeint(func, start(), 1.0, 0.7, steps=100)
        singly.append(calls.count(False))
    assert singly == [2, 1]  # at the door, and to compare


def test_a_resumed_solve_is_one_long_solve():
    whole = nf.fdeint(oscillator, start(), 2.0, 0.7, steps=200, method="abm")
    half = nf.solve(oscillator, start(), 1.0, 0.7, steps=100, method="abm", resume=True)
    rest = nf.solve(oscillator, start(), 2.0, 0.7, method="abm", resume=half.state)
    assert relative(rest.ys[-1], whole) < 1e-13
