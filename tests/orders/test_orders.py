import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfde import (
    FFT,
    CustomKernel,
    DistributedOrder,
    InputError,
    InputTypeError,
    MultiTerm,
    Tempered,
    VariableOrder,
    Window,
    fdeint,
    solve,
)
from neuralfde.base.structure import grouped, structure_of
from neuralfde.special import mittag_leffler

from .cases import METHODS

T64 = torch.float64
ONE = torch.ones(1, dtype=T64)


def decay(t, z):
    return -z


def state(*shape):
    return torch.rand(*shape, dtype=T64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", METHODS)
def test_channels_are_what_each_order_gives_alone(method):
    orders = torch.tensor([0.2, 0.5, 0.8, 1.0], dtype=T64)
    z0 = state(3, 4)
    together = fdeint(decay, z0, 1.0, orders, steps=20, method=method)
    for k, b in enumerate(orders.tolist()):
        alone = fdeint(decay, z0[:, k], 1.0, b, steps=20, method=method)
        torch.testing.assert_close(together[:, k], alone, rtol=1e-10, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    picks=st.lists(st.booleans(), min_size=4, max_size=4),
    drop=st.integers(0, 3),
)
def test_any_broadcast_of_orders_is_laid_out_right(shape, picks, drop):
    inner = [s if pick else 1 for s, pick in zip(shape, picks, strict=False)][min(drop, len(shape)) :]
    order = 0.3 + 0.6 * state(*inner) if inner else torch.tensor(0.4, dtype=T64)
    z0 = state(*shape)
    structure = grouped(structure_of(z0), {"order": order})
    assert torch.equal(structure.unpack(structure.pack(z0)), z0)
    full = structure.spread("order", order)[:, None].expand(structure.row_shape)
    assert torch.equal(structure.unpack(full.contiguous()), order.expand(shape))
    one = structure.unpack(structure.pack(z0)[None])
    assert torch.equal(one[0], z0)


def test_orders_of_a_structured_state():
    z0 = {"a": state(2, 3), "b": (state(4),)}
    orders = {"a": torch.tensor([0.3, 0.6, 0.9], dtype=T64), "b": (0.5,)}

    def func(t, z):
        return {"a": -z["a"], "b": (-2 * z["b"][0],)}

    together = fdeint(func, z0, 1.0, orders, steps=10, method="abm")
    a = fdeint(decay, z0["a"], 1.0, orders["a"], steps=10, method="abm")
    b = fdeint(lambda t, z: -2 * z, z0["b"][0], 1.0, 0.5, steps=10, method="abm")
    torch.testing.assert_close(together["a"], a)
    torch.testing.assert_close(together["b"][0], b)


@pytest.mark.parametrize("history", ["full", FFT(block=4, growth=2), Window(7)])
def test_groups_with_every_history(history):
    orders = torch.tensor([0.3, 0.8], dtype=T64, requires_grad=True)
    z0 = state(2)
    out = fdeint(decay, z0, 1.0, orders, steps=40, method="abm", history=history)
    (grad,) = torch.autograd.grad(out.sum(), orders)
    for k in range(2):
        b = orders.detach()[k].clone().requires_grad_()
        alone = fdeint(decay, z0[k : k + 1], 1.0, b, steps=40, method="abm", history=history)
        torch.testing.assert_close(out[k : k + 1], alone)
        torch.testing.assert_close(grad[k], torch.autograd.grad(alone.sum(), b)[0])


@pytest.mark.parametrize("method", METHODS)
def test_horizon_is_another_end_time(method):
    horizon = torch.tensor([[0.5], [2.0]], dtype=T64)

    def func(t, z):
        return torch.cos(t) - z

    z0 = state(2, 3)
    together = fdeint(func, z0, 1.0, 0.6, steps=16, method=method, horizon=horizon)
    for k, end in enumerate((0.5, 2.0)):
        alone = fdeint(func, z0[k], end, 0.6, steps=16, method=method)
        torch.testing.assert_close(together[k], alone, rtol=1e-9, atol=1e-10)


OPERATORS = {
    "caputo": (0.6, "abm"),
    "to 2": (1.4, "trapezoid"),
    "multi-term": (MultiTerm([0.9, 0.4], [1.0, 0.5]), "gl"),
    "multi-term explicit": (MultiTerm([0.9, 0.4, 0.0], [1.0, 0.5, 0.2]), "gl-explicit"),
    "nodes": (DistributedOrder([0.2, 0.5, 0.8], [0.4, 0.3, 0.3]), "gl"),
    "density": (DistributedOrder(lambda b: 6 * b * (1 - b)), "gl"),
    "tempered": (Tempered(0.6, 0.8), "l1"),
    "variable": (VariableOrder(lambda t: 0.5 + 0.3 * t), "abm"),
    "kernel": (CustomKernel([0.0] + [0.3 / k for k in range(1, 21)]), "gl"),
}


def solved(name, z0, func=decay):
    order, method = OPERATORS[name]
    velocity = {"velocity": torch.utils._pytree.tree_map(lambda z: 0.5 * z, z0)} if name == "to 2" else {}
    return fdeint(func, z0, 1.0, order, steps=20, method=method, **velocity)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_in_float32_in_batches_and_in_structures(name):
    z0 = state(4, 3)
    together = solved(name, z0)
    single = solved(name, z0.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), together, rtol=1e-5, atol=1e-6)
    for k in range(4):
        torch.testing.assert_close(solved(name, z0[k]), together[k], rtol=1e-9, atol=1e-10)
    parts = solved(name, (z0[:1], {"rest": z0[1:]}), lambda t, z: (-z[0], {"rest": -z[1]["rest"]}))
    torch.testing.assert_close(parts[0], together[:1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(parts[1]["rest"], together[1:], rtol=1e-9, atol=1e-10)


def test_a_density_alone_is_enough():
    z0 = state(3)

    def density(b):
        return 6 * b * (1 - b)

    named = fdeint(decay, z0, 1.0, DistributedOrder(16, density=density), steps=20, method="gl")
    torch.testing.assert_close(fdeint(decay, z0, 1.0, DistributedOrder(density), steps=20, method="gl"), named)


@pytest.mark.parametrize("order", [MultiTerm([0.9, 0.4], [1.0, 0.5]), DistributedOrder(lambda b: b)])
@pytest.mark.parametrize("options", [{"method": "abm"}, {"method": "l1"}, {"method": "gl", "grading": 2.0}])
def test_several_orders_say_which_method_and_why(order, options):
    with pytest.raises(InputError, match=r"one power of the lag.*method='gl' or 'gl-explicit'"):
        fdeint(decay, state(3), 1.0, order, steps=20, **options)


def test_one_term_is_the_plain_scheme():
    z0 = state(3)
    for order in (MultiTerm([0.6], [1.0]), DistributedOrder([0.6], [1.0])):
        for method in ("gl", "gl-explicit"):
            plain = fdeint(decay, z0, 1.0, 0.6, steps=20, method=method)
            torch.testing.assert_close(fdeint(decay, z0, 1.0, order, steps=20, method=method), plain)


def test_equal_terms_add_up():
    z0 = state(3)
    two = fdeint(decay, z0, 1.0, MultiTerm([0.6, 0.6], [0.25, 0.75]), steps=20, method="gl")
    torch.testing.assert_close(two, fdeint(decay, z0, 1.0, 0.6, steps=20, method="gl"))


def test_a_term_of_order_zero_is_a_part_of_the_right_hand_side():
    z0 = state(3)
    zero = fdeint(lambda t, z: 0 * z + t, z0, 1.0, MultiTerm([0.6, 0.0], [1.0, 0.5]), steps=20, method="gl")
    plain = fdeint(lambda t, z: t - 0.5 * z, z0, 1.0, 0.6, steps=20, method="gl")
    torch.testing.assert_close(zero, plain)


@pytest.mark.parametrize("method", METHODS)
def test_no_tempering_and_a_constant_order_function_are_plain(method):
    z0 = state(3)
    t = torch.tensor([0.0, 0.3, 0.77, 1.0], dtype=T64)
    plain = fdeint(decay, z0, t, 0.6, steps=10, method=method)
    torch.testing.assert_close(fdeint(decay, z0, t, Tempered(0.6, 0.0), steps=10, method=method), plain)
    t = t[[0, 1, 3]]
    constant = VariableOrder(lambda t: torch.full_like(t, 0.6))
    torch.testing.assert_close(fdeint(decay, z0, t, constant, steps=10, method=method), plain[[0, 1, 3]])


def test_tempering_is_a_substitution():
    """With u = e^{λt} z the tempered equation is a plain one."""
    rate, t = 0.7, torch.linspace(0, 1, 11, dtype=T64)
    z = fdeint(decay, ONE, t, Tempered(0.6, rate), steps=10, method="trapezoid")
    u = fdeint(decay, ONE, t, 0.6, steps=10, method="trapezoid")
    torch.testing.assert_close(z, torch.exp(-rate * t)[:, None] * u, rtol=1e-9, atol=1e-10)


def test_own_weights():
    from neuralfde.weights.uniform import rectangle

    plain = fdeint(decay, ONE, 1.0, 0.6, steps=20)
    weights = rectangle(torch.tensor([0.6], dtype=T64), 0.05, 20)[:, 0]
    torch.testing.assert_close(fdeint(decay, ONE, 1.0, CustomKernel(weights), steps=20), plain)
    listed = fdeint(decay, ONE, 1.0, CustomKernel(weights.tolist()), steps=20)  # Python numbers keep all their digits
    torch.testing.assert_close(listed, plain, rtol=1e-15, atol=0)
    torch.testing.assert_close(fdeint(decay, ONE, 1.0, CustomKernel(rectangle, order=0.6), steps=20), plain)


def test_a_function_of_own_weights_that_takes_other_arguments_is_told():
    with pytest.raises(InputTypeError, match=r"weights\(order, h, n\)"):
        CustomKernel(lambda n: torch.ones(n + 1))


@pytest.mark.parametrize("order", [1.2, 1.5, 1.8, 2.0])
@pytest.mark.parametrize("method", ["abm", "trapezoid"])
def test_orders_up_to_two(order, method):
    """D^β z = -z with z(0) = 1, z'(0) = 1/2: E_β(-t^β) + t/2 E_{β,2}(-t^β)."""
    t = torch.tensor([0.0, 1.0, 1.97, 2.0], dtype=T64)
    ys = fdeint(decay, ONE, t, order, steps=100, method=method, velocity=0.5 * ONE)
    x = -(t**order)
    exact = mittag_leffler(x, order) + 0.5 * t * mittag_leffler(x, order, 2.0)
    assert float((ys[:, 0] - exact).abs().max()) < 3e-4


def test_float32_states_use_weights_rounded_once():
    from neuralfde.door.names import METHODS as SCHEMES

    z0 = torch.ones(3, dtype=torch.float32)
    for method in METHODS:
        single = fdeint(decay, z0, 1.0, 0.6, steps=20, method=method)
        double = fdeint(decay, z0.double(), 1.0, 0.6, steps=20, method=method)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double, rtol=2e-5, atol=2e-6)
        assert SCHEMES[method].kernel(torch.tensor([0.6], dtype=T64), 0.05, 20).weights.dtype == T64


def test_graded_times():
    found = solve(decay, ONE, torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=T64), 0.5, steps=4, grading=2.0, method="abm")
    assert found.ts.tolist() == pytest.approx([0.0, 0.25, 0.5, 1.0])
    every = solve(decay, ONE, 1.0, 0.5, steps=64, grading=3.0, method="trapezoid")
    assert float(every.ys) == pytest.approx(float(mittag_leffler(-ONE, 0.5)), abs=2e-5)


@pytest.mark.parametrize(
    ("order", "options", "match"),
    [
        (torch.tensor([0.5, 0.6]), {}, "does not broadcast"),
        (2.5, {}, "outside"),
        (0.0, {}, "outside"),
        (math.nan, {}, "outside"),
        (1.5, {}, "velocity="),
        (1.5, {"method": "l1", "velocity": torch.ones(3, dtype=T64)}, "method='predictor'"),
        (0.5, {"velocity": torch.ones(3, dtype=T64)}, "Drop velocity="),
        (MultiTerm([0.5], [1.0]), {}, "method='gl'"),
        (MultiTerm([0.0], [1.0]), {"method": "gl"}, "above 0"),
        (Tempered(0.5, -1.0), {}, "rate"),
        (VariableOrder(lambda t: t), {"history": "fft"}, "history='full'"),
        (VariableOrder(lambda t: t[:2]), {}, "one order for each"),
        (CustomKernel([1.0, 2.0]), {"method": "gl"}, "need at least"),
        (CustomKernel([1.0] * 20), {}, "implicit"),
        (CustomKernel([0.0] * 20), {"method": "abm"}, "one row of weights"),
        (0.5, {"horizon": -1.0}, "positive"),
        (0.5, {"grading": 0.5}, "at least 1"),
        (0.5, {"grading": 2.0, "history": Window(4)}, "history='full'"),
        (0.5, {"grading": 2.0, "method": "gl"}, "uniform grids only"),
        (Tempered(0.5, 1.0), {"adjoint": "paper"}, "adjoint='exact'"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(order, options, match):
    with pytest.raises(InputError, match=match):
        fdeint(decay, torch.ones(3, dtype=T64), 1.0, order, steps=10, **options)


def test_wrong_kinds_are_refused():
    with pytest.raises(InputTypeError, match="must be a number"):
        fdeint(decay, ONE, 1.0, "half", steps=10)
    with pytest.raises(InputTypeError, match="same structure"):
        fdeint(decay, ONE, 1.0, (0.5, 0.6), steps=10)
    with pytest.raises(InputTypeError, match="structure, shapes"):
        fdeint(decay, ONE, 1.0, 1.5, steps=10, velocity=torch.ones(2, dtype=T64))
    with pytest.raises(InputError, match="exactly one"):
        DistributedOrder(4)
    with pytest.raises(InputError, match="each term"):
        MultiTerm([0.5], [1.0, 2.0])
    with pytest.raises(InputError, match="steps="):
        fdeint(decay, ONE, 1.0, 0.5, step=0.1, grading=2.0)
