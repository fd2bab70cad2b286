"""Steps taken together are the steps of the scheme, one after the other, and so is their backward pass."""

import logging

import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

import neuralfde as nf
from neuralfde.door.names import METHODS as NAMES
from neuralfde.solve.steppers import whole_blocks
from neuralfde.solve.steppers.picard import PicardSteps
from neuralfde.solve.steppers.whole_blocks import BlockBackward
from tests.stubs import F64, TreeNet, flat, relative
from tests.stubs import Net as TimeNet

F32 = torch.float32
METHODS = [*[name for name, scheme in NAMES.items() if not scheme.implicit and scheme.stages], nf.ABM(corrections=3)]
IMPLICIT = [name for name, scheme in NAMES.items() if scheme.implicit]


def oscillator(t, z):
    x, y = z.unbind(-1)
    return torch.stack([1 - 5 * x + x * x * y, 4 * x - x * x * y], -1) + 0.1 * torch.sin(3 * t)


@pytest.fixture
def together(monkeypatch):
    """How many steps each iteration has given."""
    seen, iterate = [], PicardSteps._iterate

    def watched(self, block, a, b):
        seen.append(iterate(self, block, a, b))
        return seen[-1]

    monkeypatch.setattr(PicardSteps, "_iterate", watched)
    return seen


@pytest.fixture
def pulled(monkeypatch):
    """How many steps each block that was solved backward had."""
    seen, solve, by_samples = [], BlockBackward.solve, whole_blocks.by_samples

    def watched(self, most):
        found = solve(self, most)
        seen.append(0 if found is None else self.count)
        return found

    def sampled(block, m):
        seen.append(block.count)
        return by_samples(block, m)

    monkeypatch.setattr(BlockBackward, "solve", watched)
    monkeypatch.setattr(whole_blocks, "by_samples", sampled)
    return seen


def start(dtype=F64, requires_grad=False):
    return torch.tensor([1.2, 2.7], dtype=dtype, requires_grad=requires_grad)


# ---- forward ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stepper", ["auto", "picard"])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", METHODS + IMPLICIT)
def test_numbers_are_those_of_single_steps(together, method, dtype, stepper):
    times = torch.linspace(0, 2, 11, dtype=dtype)

    def run(stepper):
        return nf.fdeint(oscillator, start(dtype), times, 0.7, steps=190, method=method, stepper=stepper)

    found = run(stepper)
    assert sum(together) == 190
    allowed = {F32: 5e-6, F64: 1e-11 if method in IMPLICIT else 1e-13}[dtype]  # stages are solved to 1e-11
    assert relative(found, run("single")) < allowed


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", IMPLICIT)
def test_few_implicit_steps_are_found_by_newton(together, method, dtype):
    times = torch.tensor([0.0, 0.1, 1.9, 2.0], dtype=dtype)

    def run(stepper):
        return nf.fdeint(oscillator, start(dtype), times, 0.7, steps=20, method=method, stepper=stepper)

    found = run("auto")
    assert sum(together) == 20
    assert relative(found, run("single")) < {F32: 5e-6, F64: 1e-11}[dtype]


def test_newton_takes_a_stiff_equation_at_once(together):
    def run(stepper):
        stiff = lambda t, z: -400 * (z - torch.cos(t))
        return nf.fdeint(stiff, start(), 2.0, 0.9, steps=30, method="bdf2", stepper=stepper)

    found = run("auto")
    assert together == [30]
    assert relative(found, run("single")) < 1e-11


@pytest.mark.parametrize("func", [lambda t, z: torch.cos(t).expand(2), lambda t, z: torch.zeros_like(z)])
def test_newton_on_what_does_not_depend_on_the_state(together, func):
    def run(stepper):
        return nf.fdeint(func, start(), 2.0, 0.7, steps=20, method="bdf2", stepper=stepper)

    found = run("auto")
    assert together == [20]
    assert relative(found, run("single")) < 1e-13


def test_a_loose_tolerance_is_kept():
    def run(stepper, tol=None):
        solver = nf.Newton(tol=tol)
        return nf.fdeint(oscillator, start(), 2.0, 0.7, steps=20, method="bdf2", solver=solver, stepper=stepper)

    assert 1e-13 < relative(run("auto", 1e-5), run("single")) < 1e-5


@pytest.mark.parametrize("history", ["full", "fft", nf.Window(40), nf.FFT(block=16), "exponentials"])
@pytest.mark.parametrize("method", ["predictor", "abm", "bdf2"])
def test_every_history(method, history):
    def run(stepper):
        return nf.solve(oscillator, start(), 2.0, 0.7, steps=300, method=method, history=history, stepper=stepper)

    asked, single = run("picard"), run("single")
    assert asked.stats.stepper == "picard"
    assert relative(asked.ys, single.ys) < 1e-11
    assert relative(run("auto").ys, single.ys) < 1e-11  # blocks of 16 steps are too short to pay


def test_a_graded_grid(together):
    def run(stepper):
        return nf.fdeint(oscillator, start(), 2.0, 0.7, steps=190, method="abm", grading=2.0, stepper=stepper)

    found = run("auto")
    assert sum(together) == 190
    assert relative(found, run("single")) < 1e-13


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "flmm-trapezoid"])
def test_orders_of_their_own(together, method):
    """Groups of numbers with an order each are iterated together."""

    def run(stepper):
        order = torch.tensor([0.6, 0.9], dtype=F64)
        return nf.fdeint(oscillator, start(), 2.0, order, steps=190, method=method, stepper=stepper)

    found = run("auto")
    assert sum(together) == 190
    assert relative(found, run("single")) < 1e-11


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid", "flmm-trapezoid"])
def test_times_between_steps_arguments_and_structures(together, method):
    times = torch.tensor([0.0, 0.103, 0.5, 1.333, 2.0], dtype=F64)

    def func(t, z, rate):
        return {"a": -rate * z["a"] + z["b"].sum(), "b": torch.cos(t) * z["b"] * z["a"]}

    def run(stepper):
        z0 = {"a": torch.ones((), dtype=F64), "b": torch.linspace(-1, 1, 3, dtype=F64)}
        rate = torch.tensor(0.7, dtype=F64)
        return nf.fdeint(func, z0, times, 0.6, steps=120, method=method, args=(rate,), stepper=stepper)

    found = run("auto")
    assert sum(together) == 120
    known = run("single")
    assert max(relative(found[k], known[k]) for k in known) < 1e-11


def test_a_stiff_equation_is_taken_in_shorter_iterations_or_steps(together):
    def run(stepper):
        stiff = lambda t, z: -400 * (z - torch.cos(t))
        return nf.fdeint(stiff, start(), 2.0, 0.9, steps=1600, stepper=stepper)

    found = run("auto")
    assert together == sorted(together, reverse=True)
    assert 0 < sum(together) < 1600
    assert relative(found, run("single")) < 1e-13


@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_an_explosion_is_told_at_the_step_where_it_happens(method):
    def run(stepper):
        with pytest.raises(nf.NonFiniteError) as error:
            nf.fdeint(lambda t, z: z**3, start(), 2.0, 0.9, steps=400, method=method, stepper=stepper)
        return str(error.value)

    assert run("auto") == run("picard") == run("single")


def test_numbers_of_very_different_size_are_all_exact():
    rates = torch.tensor([-1.0, -0.5], dtype=F64)

    def run(stepper):
        z0 = torch.tensor([1e9, 1e-9], dtype=F64)
        return nf.fdeint(lambda t, z: rates * z, z0, 1.0, 0.6, steps=200, stepper=stepper)

    found, known = run("auto"), run("single")
    assert float(((found - known) / known).abs().max()) < 1e-13


def test_a_number_that_stays_zero(together):
    y = nf.fdeint(lambda t, z: -z, torch.tensor([1.0, 0.0], dtype=F64), 1.0, 0.9, steps=120)
    assert sum(together) == 120
    assert float(y[1]) == 0


@pytest.mark.parametrize("wide", [torch.ones(100, dtype=F64), torch.ones(3, dtype=F64)])
def test_wide_states_and_few_steps_are_not_iterated(together, wide):
    def run(stepper):
        steps = 100 if len(wide) > 3 else 15
        return nf.fdeint(lambda t, z: -z, wide, 1.0, 0.7, steps=steps, method="abm", stepper=stepper)

    found = run("auto")
    assert not together
    assert relative(found, run("single")) < 1e-13


def test_a_wide_state_is_iterated_where_that_is_asked_for(together):
    def run(stepper):
        return nf.solve(lambda t, z: -z, torch.ones(200, dtype=F64), 1.0, 0.7, steps=127, stepper=stepper)

    assert run("auto").stats.stepper == "recorded"
    assert "a state of 200 elements" in run("auto").stats.why
    assert not together
    found = run("picard")
    assert found.stats.stepper == "picard"
    assert sum(together) == 127
    assert relative(found.ys, run("single").ys) < 1e-13


def test_callbacks_and_evaluations_are_counted():
    seen = []

    class Counted(nn.Module):
        calls = 0

        def forward(self, t, z):
            Counted.calls += 1  # a class's own: nothing of the module is changed
            return -z

    found = nf.solve(Counted(), start(), 1.0, 0.7, steps=100, callback=lambda n, total: seen.append((n, total)))
    assert seen == [(n, 100) for n in range(101)]
    assert found.stats.stepper == "picard"
    assert Counted.calls < 50 < 100 < found.stats.evaluations


class Seen:
    """Writes down where ``Watched`` cannot be seen to change it."""

    calls: tuple = ()


class Watched(nn.Module):
    """Whether it was vectorised, call by call."""

    def forward(self, t, z):
        Seen.calls = (*Seen.calls, is_batchedtensor(z))
        return -z


def test_a_func_is_shown_to_be_vectorised_once():
    func, singly = Watched(), []
    for _ in range(2):
        Seen.calls = ()
        nf.fdeint(func, start(), 1.0, 0.7, steps=100)
        singly.append(Seen.calls.count(False))
    assert singly == [2, 1]  # at the door, and to compare


def test_a_resumed_solve_is_one_long_solve():
    whole = nf.fdeint(oscillator, start(), 2.0, 0.7, steps=200, method="abm")
    half = nf.solve(oscillator, start(), 1.0, 0.7, steps=100, method="abm", resume=True)
    rest = nf.solve(oscillator, start(), 2.0, 0.7, method="abm", past=half.state)
    assert relative(rest.ys[-1], whole) < 1e-13


# ---- what cannot be vectorised ---------------------------------------------------------------------------------------


class Net(nn.Module):
    """A small network of time and state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(2, 16, dtype=F64), nn.Linear(16, 2, dtype=F64)

    def forward(self, t, z):
        return self.b(torch.tanh(self.a(z))) - 0.1 * t * z


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
    return -z * (1 + 0.1 * is_batchedtensor(z))


UNFIT = {
    "hooks": Hooked(),
    "random numbers": Dropping(),
    "vectorised over time: .*item": branching,
    "vectorised over time: .*in-?place|vmap": in_place,
    "other values": otherwise,
}


@pytest.mark.parametrize("reason", UNFIT)
@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_what_cannot_be_vectorised_is_taken_step_by_step(together, reason, method):
    def run(stepper):
        torch.manual_seed(3)
        return nf.solve(UNFIT[reason], start(), 1.0, 0.7, steps=100, method=method, stepper=stepper)

    found = run("auto")
    assert len(together) <= 1
    assert sum(together) == 0
    assert found.stats.stepper == "single"
    assert relative(found.ys, run("single").ys) < 1e-13
    with pytest.raises(nf.InputError, match=rf"(?is)stepper='picard' cannot take these steps: .*({reason})"):
        run("picard")


def test_a_first_state_of_zero_proves_nothing(together):
    def run(stepper):
        func = lambda t, z: otherwise(t, z) + torch.sin(t)
        return nf.fdeint(func, torch.zeros(2, dtype=F64), 1.0, 0.7, steps=100, stepper=stepper)

    found = run("auto")
    assert together == [0]
    assert relative(found, run("single")) < 1e-13


# ---- backward --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["predictor", "abm", nf.ABM(corrections=2), "trapezoid"])
@pytest.mark.parametrize("options", [{}, {"history": nf.Window(90), "storage": "device"}, {"history": "fft"}])
def test_gradients_are_those_of_autograd(together, pulled, method, options):
    func, times = Net(), torch.linspace(0, 1.27, 128)[[0, 30, 64, 127]]

    def gradients(adjoint):
        order, z0 = torch.tensor(0.8, dtype=F64, requires_grad=True), start(requires_grad=True)
        y = nf.fdeint(func, z0, times, order, steps=127, method=method, adjoint=adjoint, **options)
        return torch.autograd.grad(y.square().sum(), [order, z0, *func.parameters()])

    exact = gradients("exact")
    assert sum(together) == 127
    assert sum(pulled) == 128
    assert max(map(relative, exact, gradients("direct"))) < (1e-9 if method == "trapezoid" else 1e-11)


def gradients(func, stepper, z0=None, t=2.0, method="predictor", history="full", steps=150, order=0.6, **options):
    torch.manual_seed(1)
    z0 = torch.randn(2, 3, dtype=F64) if z0 is None else z0
    beta = torch.tensor(order, dtype=F64, requires_grad=True)
    u = torch.randn(3, dtype=F64, requires_grad=True)
    func.zero_grad()
    y = nf.fdeint(func, z0, t, beta, steps=steps, method=method, history=history, args=(u,), stepper=stepper, **options)
    sum(x.square().sum() for x in torch.utils._pytree.tree_leaves(y)).backward()
    return flat([beta.grad, u.grad, *[p.grad for p in func.parameters()]])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("history", ["full", nf.Full(block=16), nf.FFT(block=8, growth=2), "exponentials"])
@pytest.mark.parametrize("steps", [5, 64, 150])
def test_same_gradient(pulled, method, history, steps):
    func = TimeNet()
    found = gradients(func, "picard", method=method, history=history, steps=steps)
    assert sum(pulled) == steps + 1
    assert relative(found, gradients(func, "single", method=method, history=history, steps=steps)) < 1e-12


@pytest.mark.parametrize("method", IMPLICIT)
@pytest.mark.parametrize("history", ["full", nf.Window(40), nf.FFT(block=8, growth=2)])
@pytest.mark.parametrize("steps", [3, 150])
def test_same_gradient_of_implicit_schemes(pulled, method, history, steps):
    func, sharp = TimeNet(), nf.Newton(tol=1e-14)
    found = gradients(func, "picard", method=method, history=history, steps=steps, solver=sharp)
    assert sum(pulled) == steps + 1
    slow = gradients(func, "single", method=method, history=history, steps=steps, solver=sharp)
    assert relative(found, slow) < 1e-11


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
@pytest.mark.parametrize(
    "options",
    [
        {"grading": 2.0},
        {"history": nf.Window(30), "storage": "host"},
        {"history": nf.Window(30), "storage": "checkpoint"},
        {"history": "exponentials", "storage": "checkpoint"},
        {"order": [0.5, 0.7, 0.9]},
    ],
    ids=str,
)
def test_graded_grids_stored_rows_and_orders_of_their_own(method, options):
    options = {"history": "full", "method": method, "solver": None, **options}
    if method == "trapezoid":
        options["solver"] = nf.Newton(tol=1e-14)
    func = TimeNet()
    assert relative(gradients(func, "picard", **options), gradients(func, "single", **options)) < 1e-11


@pytest.mark.parametrize("method", ["predictor", "abm"])
@pytest.mark.parametrize("storage", ["device", "checkpoint"])
def test_steps_that_are_single_forward_are_taken_together_backward(together, pulled, method, storage):
    func, options = TimeNet(), {"method": method, "storage": storage, "history": nf.Window(90)}
    z0 = torch.randn(30, 3, dtype=F64, generator=torch.Generator().manual_seed(2))
    found = gradients(func, nf.Single(jacobians=True, iterated=True), z0, **options)
    assert not together
    assert sum(pulled) == 151
    assert relative(found, gradients(func, "single", z0, **options)) < 1e-12


def test_trajectories_and_nested_states():
    times = torch.linspace(0, 2, 11, dtype=F64)
    func = TimeNet()
    assert relative(gradients(func, "auto", t=times), gradients(func, "single", t=times)) < 1e-12
    tree, z0 = TreeNet(), {"x": torch.ones(2, 3, dtype=F64), "rest": (torch.ones(2, dtype=F64),)}
    assert relative(gradients(tree, "picard", z0=z0), gradients(tree, "single", z0=z0)) < 1e-12


class Counted(TimeNet):
    calls = 0

    def forward(self, t, z, u=None):
        Counted.calls += 1
        return super().forward(t, z, u)


def test_small_states_are_taken_in_blocks_by_default():
    func, calls = Counted(), []
    for stepper in ("auto", "single"):
        Counted.calls = 0
        gradients(func, stepper)
        calls.append(Counted.calls)
    assert calls[0] < 0.6 * calls[1]


class Branching(TimeNet):
    """Looks at the state, which no vectorised call can."""

    def forward(self, t, z, u=None):
        return super().forward(t, z, u) * (2.0 if z.detach().sum().item() > 0 else 1.0)


class Mixing(nn.Module):
    """Means something else when it is vectorised."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=F64))

    def forward(self, t, z, u=None):
        v = -z * self.weight * (1 + 0.1 * is_batchedtensor(z))
        return v if u is None else v + u


class Halving(TimeNet):
    """Has another gradient by a hook, which is not put under vmap."""

    def forward(self, t, z, u=None):
        return self.halved(super().forward(t, z, u))

    def halved(self, v):
        if v.requires_grad:
            v.register_hook(lambda grad: grad / 2)
        return v


@pytest.mark.parametrize("steps", [30, 150])  # too few for an iteration, and enough
@pytest.mark.parametrize("func", [Branching(), Mixing(), Halving()], ids=lambda f: type(f).__name__)
def test_gradients_step_by_step_where_func_cannot_be_vectorised(func, steps):
    slow = gradients(func, "single", steps=steps)
    assert relative(gradients(func, "auto", steps=steps), slow) < 1e-12


def test_falls_back_with_one_line(caplog):
    with caplog.at_level(logging.DEBUG, logger="neuralfde"):
        gradients(Branching(), "auto")
    assert sum("one by one" in r.message for r in caplog.records) == 1


def test_other_values_when_vectorised_are_noticed(caplog):
    with caplog.at_level(logging.DEBUG, logger="neuralfde"):
        y = nf.fdeint(Mixing(), torch.ones(2, 3, dtype=F64), 1.0, 0.5, steps=150)
        y.square().sum().backward()
    assert sum("other values" in r.message and "one by one" in r.message for r in caplog.records) == 1


def test_a_loss_that_does_not_settle_backward_is_pulled_step_by_step(pulled):
    """A stiff equation's adjoint is as stiff: single steps, the same gradient."""

    def gradient(stepper):
        rate = torch.tensor(400.0, dtype=F64, requires_grad=True)
        stiff = lambda t, z, k: -k * (z - torch.cos(t))
        y = nf.fdeint(stiff, start(), 2.0, 0.9, steps=1600, args=(rate,), stepper=stepper)
        return torch.autograd.grad(y.square().sum(), rate)[0]

    assert relative(gradient("auto"), gradient("single")) < 1e-11


# ---- a func that is rougher than its states, and one that is stiff at first ------------------------------------------


class Rounded(torch.autograd.Function):
    """Numbers with ten bits, as products on a GPU may have them, forward and backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        far = x * (1 + 2**13)
        return far - (far - x)

    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def backward(ctx, grad):
        return Rounded.apply(grad)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_steps_settle_as_far_as_a_rough_func_lets_them(together, pulled, seed):
    for found, smooth in zip(*rough_and_smooth("picard", seed, 60), strict=True):
        assert relative(found, smooth) < 5e-3
    assert together == [60, 60]
    assert 0 not in pulled


@pytest.mark.parametrize("seed", [0, 2])
def test_single_steps_of_a_rough_func_settle_too(seed):
    for found, smooth in zip(*rough_and_smooth("single", seed, 20), strict=True):
        assert relative(found, smooth) < 5e-3


def rough_and_smooth(stepper, seed, steps):
    """An implicit solve and its gradients by a network with ten bits, and with all of them."""
    torch.manual_seed(seed)
    net, z0 = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40)), torch.randn(40)

    def run(around):
        x = z0.clone().requires_grad_()
        y = nf.fdeint(lambda t, z: around(net(around(z))), x, 3.0, 0.7, steps=steps, method="trapezoid",
                      stepper=stepper, params=list(net.parameters()))  # fmt: skip
        return y.detach(), *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])

    return run(Rounded.apply), run(lambda x: x)


def test_steps_that_are_stiff_at_first_are_taken_together_later(together):
    def run(stepper):
        fading = lambda t, z: -80 * torch.exp(-20 * t) * z + torch.sin(t)
        z0 = torch.linspace(1, 2, 80, dtype=F64)
        return nf.fdeint(fading, z0, 2.0, 0.7, steps=200, method="trapezoid", stepper=stepper)

    found = run("auto")
    assert together[0] == 0
    assert sum(together) > 100
    assert relative(found, run("single")) < 1e-11


@pytest.mark.parametrize("stepper", ["picard", nf.Single(jacobians=True)])
@pytest.mark.parametrize("method", ["predictor", "abm", nf.ABM(corrections=2)])
def test_samples_of_few_numbers_are_pulled_back_by_their_jacobians(monkeypatch, method, stepper):
    seen, by_samples, order = [], whole_blocks.by_samples, torch.tensor(0.7, dtype=F64, requires_grad=True)
    monkeypatch.setattr(whole_blocks, "by_samples", lambda block, m: seen.append(m) or by_samples(block, m))
    count = 6 if stepper == "picard" else 60  # too many to be iterated
    z0 = (start() * torch.linspace(0.9, 1.1, count, dtype=F64)[:, None]).requires_grad_()
    rate = torch.tensor(1.1, dtype=F64, requires_grad=True)

    def run(stepper):
        times = torch.linspace(0, 2, 9, dtype=F64)
        y = nf.fdeint(lambda t, z, a: a * oscillator(t, z), z0, times, order, steps=80, args=(rate,), method=method,
                      stepper=stepper)  # fmt: skip
        return torch.autograd.grad(y.square().sum(), (z0, rate, order))

    found = run(stepper)
    assert set(seen) == {2}
    assert all(relative(a, b) < 1e-12 for a, b in zip(found, run("single"), strict=True))


@pytest.mark.parametrize("stepper", ["picard", nf.Single(jacobians=True)])
def test_samples_that_begin_to_see_each_other_are_noticed(stepper):
    """The second sample follows the square of the first, which is at rest in the last block."""
    count = 4 if stepper == "picard" else 40
    z0 = torch.stack([torch.linspace(1, 2, count, dtype=F64), torch.zeros(count, dtype=F64)]).T.clone().requires_grad_()

    def coupled(t, z):
        late = torch.relu(t - 1.0) ** 2
        return torch.stack([-z[:, 0], torch.cos(t) + late * 30 * z[:, 0].roll(1) ** 2], -1)

    def run(stepper):
        y = nf.fdeint(lambda t, z: coupled(2.0 - t, z), z0, 2.0, 0.7, steps=200, method="abm", stepper=stepper)
        return torch.autograd.grad(y.square().sum(), z0)[0]

    assert relative(run(stepper), run("single")) < 1e-12


def test_an_iteration_that_runs_away_is_told_as_what_it_is():
    draw = torch.Generator().manual_seed(42)
    z0 = 2 * torch.rand(2, 3, dtype=torch.float64, generator=draw) - 1
    w = 0.3 + 0.6 * torch.rand(3, dtype=torch.float64, generator=draw)
    order = 0.35 + 0.15 * torch.rand(3, dtype=torch.float64, generator=draw)
    with pytest.raises(nf.ConvergenceError, match="func grows too fast"):
        nf.fdeint(
            lambda t, z: 0.3 * w * z * (1 - z), z0, 1.0, order, steps=12, grading=1.4, method="l1", stepper="picard"
        )
