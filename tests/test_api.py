"""The public contract: what goes in, what comes out, what is differentiated."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import neuralfde
from neuralfde import ABM, FDEBlock, FDECell, Full, InputTypeError, Predictor, Window, fdeint, solve
from tests.stubs import F64, Net, flat, relative

E_HALF = 0.427583576156  # E_{1/2}(-1)


def relax(t, z):
    return -z


def test_a_number_gives_the_terminal_state_and_times_give_the_trajectory():
    z0 = torch.ones(4, 2, dtype=F64)
    end = fdeint(relax, z0, 1.0, 0.5, steps=64, method="abm")
    times = torch.linspace(0, 1, 5, dtype=F64)
    ys = fdeint(relax, z0, times, 0.5, step=1 / 64, method="abm")
    assert end.shape == z0.shape
    assert ys.shape == (5, 4, 2)
    assert torch.equal(ys[0], z0)
    assert torch.equal(ys[-1], end)
    assert abs(float(end[0, 0]) - E_HALF) < 1e-4


def test_the_start_time_only_shifts_autonomous_problems_and_reaches_func():
    seen = []

    def f(t, z):
        seen.append(float(t))
        return -z

    z0 = torch.ones(1, dtype=F64)
    a = fdeint(f, z0, torch.tensor([2.0, 3.0]), 0.5, steps=8)
    assert seen[0] == 2.0
    assert max(seen) == 3.0 - 1 / 8
    assert torch.allclose(a[-1], fdeint(relax, z0, 1.0, 0.5, steps=8))


def test_t_arrives_as_a_0d_tensor_of_the_states_dtype():
    def f(t, z):
        assert t.shape == ()
        assert t.dtype == z.dtype
        return t * z

    for dtype in (torch.float32, F64):
        assert fdeint(f, torch.ones(3, dtype=dtype), 1.0, 0.5, steps=4).dtype == dtype


@pytest.mark.parametrize("method", list(neuralfde.door.names.METHODS))
def test_output_between_nodes_converges_to_the_solution(method):
    # D^β z = Γ(1+β) has z = t^β; D^β z = -z has E_β
    times = torch.tensor([0.0, 0.123, 0.5001, 0.777, 1.0], dtype=F64)
    errors = []
    for steps in (50, 200):
        ys = fdeint(relax, torch.ones((), dtype=F64), times, 0.5, steps=steps, method=method)
        fine = fdeint(relax, torch.ones((), dtype=F64), times, 0.5, steps=3200, method="abm")
        errors.append(float((ys - fine).abs().max()))
    assert errors[1] < errors[0] / 2.2
    assert errors[1] < 2e-2


def test_output_between_nodes_is_the_schemes_own():
    z0, beta = torch.zeros((), dtype=F64), 0.6
    f = lambda t, z: torch.full_like(z, math.gamma(1 + beta))
    times = torch.tensor([0.0, 0.0371, 0.42, 1.0], dtype=F64)
    for method in ("predictor", "predictor-implicit", "abm", "trapezoid"):
        ys = fdeint(f, z0, times, beta, steps=7, method=method)
        assert torch.allclose(ys, times**beta, atol=1e-14), method  # constant slopes are integrated exactly


@pytest.mark.parametrize("rows", [False, True], ids=["times", "times of samples"])
@pytest.mark.parametrize("steps", [30, 31, 100])
@pytest.mark.parametrize("order", [0.3, 0.6, 0.9, 1.0])
def test_output_between_nodes_of_a_stiff_equation_is_as_near_as_its_nodes(order, steps, rows):
    """Where the start is rough, slopes are off by the rate times what a stage damps; output integrates them."""

    def pulled(t, z):
        return -1e4 * (z - torch.cos(t))

    times, z0 = torch.linspace(0, 3, 38, dtype=F64), torch.tensor([[0.5], [1.2]], dtype=F64)
    asked = torch.stack([times, times.clamp(max=2.0)]) if rows else times
    ys = fdeint(pulled, z0, asked, order, steps=steps, method="trapezoid")
    nodes = fdeint(pulled, z0, torch.linspace(0, 3, steps + 1, dtype=F64), order, steps=steps, method="trapezoid")
    grid, asked = torch.linspace(0, 3, steps + 1, dtype=F64)[:, None], asked.mT if rows else times[:, None]
    worst = float((nodes[..., 0] - grid.cos()).abs().max())
    assert float((ys[..., 0] - asked.cos()).abs().max()) < 3 * worst


@pytest.mark.parametrize("order", [0.4, 0.8, 1.0])
def test_output_between_nodes_of_a_smooth_solution_is_of_order_two(order, monkeypatch):
    """What holds it where an equation is stiff is out of reach, at turning points and points of inflection too."""
    powers = {2: 2.0, 3: -5.0, 4: 3.0}  # it turns twice

    def exact(t):
        return sum(c * t**k for k, c in powers.items())

    def func(t, z):
        gains = {k: math.gamma(k + 1) / math.gamma(k + 1 - order) for k in powers}
        return exact(t) - z + sum(c * gains[k] * t ** (k - order) for k, c in powers.items())

    times = torch.linspace(0, 1, 98, dtype=F64)

    def states(steps):
        return fdeint(func, torch.zeros((), dtype=F64), times, order, steps=steps, method="trapezoid")

    found = [states(steps) for steps in (20, 80)]
    errors = [float((x - exact(times)).abs().max()) for x in found]
    assert errors[1] < errors[0] / 11
    monkeypatch.setattr(neuralfde.Trapezoid, "dense_is_limited", False)
    assert torch.equal(found[1], states(80))


@pytest.mark.parametrize("method", list(neuralfde.door.names.METHODS))
def test_output_between_nodes_meets_the_states_at_the_nodes(method):
    times = torch.tensor([0.0, 0.5 - 1e-5, 0.5, 0.5 + 1e-5, 1.0], dtype=F64)
    ys = fdeint(lambda t, z: torch.cos(3 * z) - z, torch.ones((), dtype=F64), times, 0.8, steps=8, method=method)
    assert float((ys[1:4] - ys[2]).abs().max()) < 1e-4


def test_the_adams_pair_at_order_1_is_the_classical_one_in_its_summed_form():
    f, h, steps = (lambda t, z: torch.cos(3 * z) - t), 0.125, 8
    slopes, z = [], torch.ones((), dtype=F64)
    for n in range(1, steps + 1):
        slopes.append(f((n - 1) * h, z))
        predicted = 1 + h * sum(slopes)
        z = 1 + h * (sum(slopes) - slopes[0] / 2 + f(n * h, predicted) / 2)
    got = fdeint(f, torch.ones((), dtype=F64), 1.0, 1.0, steps=steps, method="abm")
    assert torch.allclose(got, z, rtol=1e-14, atol=0)


def test_nested_structures_come_back_as_they_went_in():
    z0 = {"a": torch.ones(2), "b": (torch.zeros(3, 1), [torch.ones(())])}
    f = lambda t, z: {"a": -z["a"], "b": (z["b"][0] + 1, [-z["b"][1][0]])}
    out = fdeint(f, z0, 1.0, 0.5, steps=5)
    assert out["a"].shape == (2,)
    assert out["b"][0].shape == (3, 1)
    assert isinstance(out["b"][1], list)
    ys = fdeint(f, z0, torch.tensor([0.0, 0.5, 1.0]), 0.5, steps=4)
    assert ys["b"][0].shape == (3, 3, 1)
    assert ys["b"][1][0].shape == (3,)


@pytest.mark.parametrize("method", list(neuralfde.door.names.METHODS))
def test_func_always_sees_the_shape_of_the_state(method):
    def f(t, z):
        assert z.shape == (2, 3)
        return -z

    z0 = torch.ones(2, 3, dtype=F64, requires_grad=True)
    for solver in ("newton", "fixed-point") if neuralfde.door.names.METHODS[method].implicit else (None,):
        fdeint(f, z0, 1.0, 0.5, steps=12, method=method, solver=solver).sum().backward()


def test_a_tuple_of_one_tensor_stays_a_tuple():
    (y,) = fdeint(lambda t, z: (-z[0],), (torch.ones(2),), 1.0, 0.5, steps=3)
    assert y.shape == (2,)


def test_params_reach_closures_and_frozen_parameters_stay_without_gradient():
    w = torch.tensor(-1.0, dtype=F64, requires_grad=True)
    y = fdeint(lambda t, z: w * z, torch.ones(2, dtype=F64), 1.0, 0.5, steps=10, params=[w])
    assert torch.autograd.grad(y.sum(), w)[0] != 0
    net = Net()
    net.a.weight.requires_grad_(False)
    fdeint(net, torch.ones(3, dtype=F64), 1.0, 0.5, steps=5).sum().backward()
    assert net.a.weight.grad is None
    assert net.b.weight.grad is not None


def test_a_non_leaf_parameter_gets_its_gradient():
    raw = torch.tensor(0.3, dtype=F64, requires_grad=True)
    w = -raw.exp()
    y = fdeint(lambda t, z: w * z, torch.ones((), dtype=F64), 1.0, 0.5, steps=10, params=[w])
    (got,) = torch.autograd.grad(y, raw)
    z = fdeint(lambda t, z, k: -k.exp() * z, torch.ones((), dtype=F64), 1.0, 0.5, steps=10, args=(raw,))
    assert torch.allclose(got, torch.autograd.grad(z, raw)[0])


def test_args_may_be_structures_and_non_tensors():
    a, b = torch.tensor(-1.0, requires_grad=True), torch.tensor(0.1)
    f = lambda t, z, pair, name: pair["a"] * z + pair["b"] if name == "x" else z
    y = fdeint(f, torch.ones(2), 1.0, 0.5, steps=5, args=({"a": a, "b": b}, "x"))
    assert torch.autograd.grad(y.sum(), a)[0] != 0


def test_no_grad_calls_build_no_graph():
    net = Net()
    z0 = torch.ones(3, dtype=F64)
    with torch.no_grad():
        y = fdeint(net, z0, 1.0, 0.5, steps=5)
    assert not y.requires_grad
    with torch.inference_mode():
        assert torch.equal(fdeint(net, z0, 1.0, 0.5, steps=5), y)


@pytest.mark.parametrize("given", [{}, {"method": "trapezoid"}, {"adjoint": "direct"}, {"rtol": 1e-3}], ids=str)
def test_states_from_inference_mode_begin_a_training(given):
    """As features of a frozen network, as an observed window, or as a solve that is continued."""
    net, given = Net(), given if "rtol" in given else {"steps": 6, **given}

    def gradient(z0, **more):
        return torch.autograd.grad(fdeint(net, z0, 1.0, 0.5, **given, **more).sum(), [*net.parameters()])

    def window(z0):
        return {"past": ([-1.0, -0.5, 0.0], torch.stack([0 * z0, z0 / 2, z0]))}

    plain = torch.linspace(0.5, 1, 3, dtype=F64)
    with torch.inference_mode():
        made = plain.clone()
        past = window(made)
    for found, expected in (
        (gradient(made), gradient(plain)),
        (gradient(None, **past), gradient(None, **window(plain))),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if "rtol" not in given:
        with torch.inference_mode():
            begun = neuralfde.solve(net, plain, 1.0, 0.5, resume=True, **given)
        on = fdeint(net, None, 2.0, 0.5, past=begun.state, **{k: x for k, x in given.items() if k != "steps"})
        assert all(x.isfinite().all() for x in torch.autograd.grad(on.sum(), [*net.parameters()]))


def test_a_constant_field_has_a_gradient_for_z0_alone():
    z0 = torch.ones(2, requires_grad=True)
    y = fdeint(lambda t, z: torch.ones(2), z0, 1.0, 0.5, steps=5)
    assert torch.equal(torch.autograd.grad(y.sum(), z0)[0], torch.ones(2))


@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
def test_dropout_uses_one_mask_per_step_in_both_passes(method):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 6, dtype=F64)
            self.drop = nn.Dropout(0.5)

        def forward(self, t, z):
            return torch.tanh(self.drop(self.lin(z)))

    torch.manual_seed(0)
    net = Noisy()
    grads = []
    for adjoint in ("exact", "direct"):
        torch.manual_seed(7)
        z0 = torch.ones(2, 6, dtype=F64, requires_grad=True)
        y = fdeint(net, z0, 1.0, 0.6, steps=12, method=method, adjoint=adjoint, history=Full(4))
        grads.append(flat(torch.autograd.grad(y.pow(2).sum(), [z0, *net.parameters()])))
    assert relative(*grads) < 1e-10
    torch.manual_seed(7)
    first = fdeint(net, z0, 1.0, 0.6, steps=12)
    second = fdeint(net, z0, 1.0, 0.6, steps=12)
    assert not torch.equal(first, second)  # the caller's generator moved on


def test_a_deterministic_func_leaves_the_generator_alone():
    state = torch.get_rng_state()
    fdeint(relax, torch.ones(2), 1.0, 0.5, steps=5)
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_runs_func_in_low_precision_and_the_history_in_full():
    net = Net(dtype=torch.float32)
    z0 = torch.randn(4, 3, requires_grad=True)
    seen = []
    net.b.register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fdeint(net, z0, 1.0, 0.5, steps=20)
    assert y.dtype == torch.float32
    assert set(seen) == {torch.bfloat16}
    g = torch.autograd.grad(y.sum(), [z0, *net.parameters()])
    assert set(seen) == {torch.bfloat16}  # also when the backward pass evaluates again
    want = torch.autograd.grad(fdeint(net, z0, 1.0, 0.5, steps=20).sum(), [z0, *net.parameters()])
    assert relative(flat(g), flat(want)) < 0.05


@pytest.mark.parametrize("history", ["full", "exponentials", Window(9)], ids=str)
def test_what_is_resumed_or_jumps_under_autocast_goes_on_in_full(history):
    z0, layer = torch.rand(4, 3), torch.nn.Linear(3, 3)
    first = solve(lambda t, z: -z, z0, 1.0, 0.6, steps=80, resume=True, history=history)
    want = fdeint(lambda t, z: -z, None, 2.0, 0.6, past=first.state, history=history)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = fdeint(lambda t, z: -z, None, 2.0, 0.6, past=first.state, history=history)
        for value in (layer(z0)[None], layer):  # of lower precision, as z0 may be
            jumped = fdeint(lambda t, z: -z, z0, 1.0, 0.6, steps=5, jumps=([0.3], value))
            assert jumped.dtype == torch.float32
    assert relative(found, want) < 1e-6


@pytest.mark.parametrize("order", [0.7, 1.5])
def test_a_state_from_a_layer_under_autocast_goes_on_in_full(order):
    torch.manual_seed(0)
    before, z0 = torch.nn.Linear(3, 3), torch.randn(4, 3)
    block = FDEBlock(Net(dtype=torch.float32), order, t=1.0, step=0.1, velocity=None if order < 1 else z0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert before(z0).dtype == torch.bfloat16
        velocity = None if order < 1 else before(z0)
        y = block(before(z0), velocity=velocity)
        found = solve(block.func, before(z0), 1.0, 0.7, steps=5)
        cell = FDECell(lambda t, z: before(z), step=0.1, steps=3)
        assert cell(cell.begin(before(z0)))[0].dtype == torch.float32
    assert y.dtype == found.ys.dtype == torch.float32
    y.sum().backward()
    assert before.weight.grad.dtype == torch.float32
    want = block(before(z0), velocity=None if order < 1 else before(z0))
    assert relative(y, want) < 0.02
    with pytest.raises(InputTypeError, match="autocast"):
        block(before(z0).bfloat16())


def test_solve_says_what_it_cost():
    s = solve(Net(), torch.ones(3, dtype=F64), torch.linspace(0, 1, 3), 0.5, steps=10, method=ABM())
    assert s.ts.tolist() == [0.0, 0.5, 1.0]
    assert s.ys.shape == (3, 3)
    assert s.stats.steps == 10
    assert s.stats.evaluations >= 20
    assert s.stats.history_bytes == 11 * 3 * 8 * (1 + 2)  # slopes, and the two sums of each row: they are few
    assert isinstance(s.stats.history, Full)
    terminal = solve(relax, torch.ones(3), 1.0, 0.5, steps=10)
    assert terminal.ys.shape == (1, 3)
    assert terminal.ts.tolist() == [1.0]


def test_names_and_objects_are_interchangeable():
    z0 = torch.ones(2, dtype=F64)
    for name, thing in (("method", Predictor()), ("history", Full()), ("adjoint", neuralfde.Exact())):
        texts = {"method": "predictor", "history": "full", "adjoint": "exact"}
        a = fdeint(relax, z0, 1.0, 0.5, steps=9, **{name: thing})
        assert torch.equal(a, fdeint(relax, z0, 1.0, 0.5, steps=9, **{name: texts[name]}))


def test_callback_counts_both_passes():
    calls = []
    z0 = torch.ones(2, requires_grad=True)
    y = fdeint(relax, z0, 1.0, 0.5, steps=5, callback=lambda n, total: calls.append((n, total)))
    y.sum().backward()
    assert calls == [(n, 5) for n in range(6)] * 2


def test_window_memory_does_not_grow_with_the_horizon():
    sizes = []
    for steps in (500, 2000):
        with torch.no_grad():
            sizes.append(solve(relax, torch.ones(8), 1.0, 0.5, steps=steps, history=Window(20)).stats.history_bytes)
    assert sizes[0] == sizes[1]


def test_block_learns_its_order_and_survives_copies():
    torch.manual_seed(0)
    block = FDEBlock(Net(dtype=torch.float32), order=0.5, learn_order=True, t=1.0, step=0.1)
    z = torch.randn(5, 3)
    block(z).pow(2).sum().backward()
    assert block.raw_order.grad is not None
    assert float(block.raw_order.grad) != 0
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert torch.equal(other(z), block(z))
    fresh = FDEBlock(Net(dtype=torch.float32), order=0.9, learn_order=True, t=1.0, step=0.1)
    fresh.load_state_dict(block.state_dict())
    assert torch.equal(fresh(z), block(z))
    assert "order=0.5" in repr(block)
    with torch.no_grad():
        block.raw_order.fill_(60.0)
    assert float(block.order.detach()) == 1.0
    block(z)


def test_block_passes_arguments_and_times_on():
    block = FDEBlock(Net(), order=1.0, t=torch.tensor([0.0, 0.5, 1.0]), steps=10, method="abm")
    u = torch.ones(3, dtype=F64, requires_grad=True)
    y = block(torch.zeros(2, 3, dtype=F64), u)
    assert y.shape == (3, 2, 3)
    assert torch.autograd.grad(y.sum(), u)[0].abs().sum() > 0
    assert block.state_dict()["t"].shape == (3,)


def test_a_state_from_inference_mode_is_one_like_any_other():
    """As in a loop over all steps, where a constant of inference mode is of use too."""
    with torch.inference_mode():
        z0 = {"a": torch.rand(3), "b": torch.rand(2)}
    rate = torch.tensor(0.5, requires_grad=True)
    solved = fdeint(lambda t, z, k: {n: -k * x for n, x in z.items()}, z0, 1.0, 0.5, steps=8, args=(rate,))
    solved["a"].sum().backward()
    plain = fdeint(lambda t, z: -0.5 * z, z0["a"].clone(), 1.0, 0.5, steps=8)
    assert rate.grad
    torch.testing.assert_close(solved["a"].detach(), plain)
    torch.testing.assert_close(fdeint(lambda t, z: -0.5 * z, z0["a"], 1.0, 0.5, steps=8), plain)
