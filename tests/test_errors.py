"""Bad input gets a typed error at the door: what, why, what to do."""

from functools import partial

import pytest
import torch
from torch import nn

from neuralfde import (
    ABM,
    CapturedTensorError,
    Caputo,
    ChangedFunctionError,
    ConvergenceError,
    FDEBlock,
    FDECell,
    FixedPoint,
    InputError,
    InputTypeError,
    Newton,
    NonFiniteError,
    Trapezoid,
    Window,
    fdeint,
    solve,
)
from tests.stubs import F64, Net

Z = torch.ones(2)


def relax(t, z):
    return -z


def call(func=relax, z0=Z, t=1.0, order=0.5, **options):
    if "step" not in options and "steps" not in options:
        options["steps"] = 4
    return fdeint(func, z0, t, order, **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"order": 0.0}, InputError, ["order=0", "(0, 2]"]),
        ({"order": 1.2}, InputError, ["velocity"]),
        ({"order": 2.2}, InputError, ["2.2", "(0, 2]", "system"]),
        ({"order": float("nan")}, InputError, ["nan"]),
        ({"order": torch.tensor([0.5, 0.5, 0.5])}, InputError, ["shape", "(3,)"]),
        ({"order": torch.tensor(1)}, InputTypeError, ["int64"]),
        ({"order": "half"}, InputTypeError, ["str"]),
        ({"order": [0.5, 0.6]}, InputTypeError, ["torch.tensor"]),
        ({"order": torch.linspace(0, 1, 5)}, InputError, ["func, z0, t, order"]),
        ({"order": 5.0}, InputError, ["func, z0, t, order"]),
        ({"step": 0.3}, InputError, ["step=0.3", "0.333333", "0.25", "steps="]),
        ({"step": 3.0}, InputError, ["step=3", "1 steps", "2 steps"]),
        ({"step": -0.1}, InputError, ["positive"]),
        ({"step": 0.1, "steps": 10}, InputError, ["exactly one", "both"]),
        ({"steps": 0}, InputError, ["at least 1"]),
        ({"steps": 2.5}, InputTypeError, ["whole number"]),
        ({"t": 0.0}, InputError, ["positive", "start"]),
        ({"t": -1.0}, InputError, ["positive"]),
        ({"t": torch.tensor([1.0])}, InputError, ["two times"]),
        ({"t": torch.tensor([0.0, 2.0, 1.0])}, InputError, ["increase", "t[2]=1", "Sort"]),
        ({"t": torch.tensor([0.0, 1.0, 1.0])}, InputError, ["increase"]),
        ({"t": torch.tensor([0.0, float("nan")])}, InputError, ["finite"]),
        ({"t": torch.ones(2, 2, 2)}, InputError, ["1-D", "(2, 2, 2)"]),
        ({"t": [0.0, 1.0]}, InputTypeError, ["torch.as_tensor"]),
        ({"t": torch.ones(2, 3)}, InputError, ["initial time"]),
        ({"step": torch.tensor(0.1)}, InputTypeError, ["float(step)"]),
        ({"t": torch.tensor([0.0, 1.0], requires_grad=True)}, InputError, ["T^β", "detach"]),
        ({"z0": torch.ones(2, dtype=torch.int64)}, InputTypeError, ["int64", "float32"]),
        ({"z0": torch.ones(2, dtype=torch.bfloat16)}, InputTypeError, ["bfloat16", "autocast"]),
        ({"z0": (torch.ones(2), torch.ones(2, dtype=F64))}, InputTypeError, ["mixes"]),
        ({"z0": (torch.ones(2), torch.ones(2, device="meta"))}, InputTypeError, ["meta", "one device"]),
        ({"z0": 1.0}, InputTypeError, ["float", "torch.as_tensor"]),
        ({"z0": ()}, InputError, ["empty"]),
        ({"z0": torch.ones(0)}, InputError, ["no numbers"]),
        ({"z0": torch.tensor([1.0, float("inf")])}, InputError, ["z0", "step 0"]),
        ({"method": "predictr"}, InputError, ["'predictor'", "Did you mean"]),
        ({"method": 3}, InputTypeError, ["int", "'abm'"]),
        ({"method": "corrector"}, InputError, ["method='abm'", "compat.torchfde"]),
        ({"method": "gl-f"}, InputError, ["method='gl'", "compat.torchfde"]),
        ({"method": "glmulti"}, InputError, ["MultiTerm", "compat.torchfde"]),
        ({"method": "adaptive_heun"}, InputError, ["ordinary", "'abm'"]),
        ({"adjoint": "exct"}, InputError, ["'exact'"]),
        ({"history": "fulll"}, InputError, ["'full'"]),
        ({"history": "window"}, InputError, ["Window(64)"]),
        ({"storage": "devic"}, InputError, ["'device'"]),
        ({"solver": "newton"}, InputError, ["explicit", "trapezoid"]),
        ({"method": "gl", "solver": "newtn"}, InputError, ["'newton'"]),
        ({"func": 3}, InputTypeError, ["callable"]),
        ({"args": torch.ones(2)}, InputTypeError, ["args=(value,)"]),
        ({"args": (torch.ones(2, device="meta"),)}, InputTypeError, ["meta"]),
        ({"t": torch.ones((), device="meta")}, InputTypeError, ["t is on the device meta", "to_empty"]),
        ({"order": torch.ones((), device="meta")}, InputTypeError, ["order is on the device meta", "load_state_dict"]),
        ({"order": torch.tensor(0.0)}, InputError, ["order=0", "learning rate"]),
        ({"order": torch.tensor(float("nan"))}, InputError, ["order=nan", "not finite"]),
        ({"order": 3.0}, InputError, ["order=3", "a system of orders"]),
        ({"params": torch.ones(2)}, InputTypeError, ["params=[tensor]"]),
        ({"params": ["w"]}, InputTypeError, ["str"]),
        ({"func": lambda t, z: z[:1]}, InputError, ["(1,)", "(2,)"]),
        ({"func": lambda t, z: z.double()}, InputTypeError, ["float64", "float32", "autocast"]),
        ({"func": lambda t, z: (z, z)}, InputTypeError, ["structure", "tuple"]),
        ({"func": lambda t, z: z.to("meta")}, InputTypeError, ["meta"]),
        ({"func": lambda t, z: 1.0}, InputTypeError, ["tensors", "float"]),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_bad_input_is_refused_with_what_why_and_what_to_do(options, error, words):
    with pytest.raises(error) as caught:
        call(**options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("length", [0, -3])
def test_a_window_needs_a_length(length):
    with pytest.raises(InputError, match="window of no steps"):
        Window(length)
    with pytest.raises(InputTypeError):
        Window(1.5)


def test_combinations_that_make_no_sense():
    order = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(InputError, match="adjoint='exact'"):
        call(order=order, adjoint="paper")
    off_grid = torch.tensor([0.0, 0.3, 1.0])
    with pytest.raises(InputError, match="adjoint='exact'"):
        call(t=off_grid, adjoint="paper")
    with pytest.raises(InputError, match="abm"):
        Trapezoid(implicit=False)
    with pytest.raises(InputError, match="correction"):
        ABM(corrections=0)
    with pytest.raises(InputError, match="relative error of a state"):
        Newton(tol=-1.0)
    with pytest.raises(InputTypeError, match="'adjoint'"):
        solve(relax, Z, 1.0, 0.5, steps=4, adjont="exact")
    with pytest.raises(InputTypeError, match="'method'"):
        FDEBlock(Net(), methd="abm")
    with pytest.raises(InputError, match=r"0\.99"):
        FDEBlock(Net(), order=1.0, learn_order=True)
    with pytest.raises(InputError, match=r"outside \(0, 1\]"):
        FDEBlock(Net(), order=1.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"t": -1.0}, "must be positive"),
        ({"step": 0.3}, "step=0.25"),
        ({"t": [0.0, 1.0], "step": 0.1}, "as_tensor"),
        ({"steps": 4, "method": "dopri5"}, "'abm'"),
        ({"steps": 4, "history": "window"}, r"Window\(64\)"),
        ({"steps": 4, "storage": "disk"}, "'device'"),
        ({"steps": 4, "adjoint": True}, "'exact'"),
        ({"steps": 4, "learn_order": torch.linspace(0, 1, 5)}, r"\(z0\)"),
    ],
    ids=str,
)
def test_a_block_is_refused_when_it_is_made(options, words):
    with pytest.raises((InputError, InputTypeError), match=words):
        FDEBlock(Net(), order=0.5, **options)


@pytest.mark.parametrize("kind", [partial(FDEBlock, t=1.0, steps=4), partial(FDECell, step=0.25, steps=4)])
def test_an_order_that_requires_grad_is_not_made_a_constant_in_silence(kind):
    order = torch.nn.Parameter(torch.tensor(0.5))
    with pytest.raises(InputError, match="Pass learn_order=True"):
        kind(relax, order)
    assert kind(relax, order, learn_order=True).raw_order.requires_grad
    assert kind(relax, order.detach()).order == 0.5
    if kind.func is FDEBlock:
        with pytest.raises(InputError, match=r"order=Caputo\(parameter\)"):
            kind(relax, order)
        kind(relax, Caputo(order))(Z).sum().backward()
        assert order.grad


def test_a_func_that_fails_says_what_it_was_given():
    with pytest.raises(RuntimeError, match="dtype") as caught:
        call(Net(), torch.ones(2, 3))
    (note,) = caught.value.__notes__
    assert "z a tensor of shape (2, 3), torch.float32 on cpu" in note
    assert "Its parameters are torch.float64 on cpu" in note


def test_captured_tensors_that_would_get_no_gradient_are_an_error():
    w = torch.tensor(-1.0, requires_grad=True)
    for adjoint in ("exact", "direct", "paper"):
        for captured in (w, 2 * w):
            with pytest.raises(CapturedTensorError, match="args="):
                call(lambda t, z, c=captured: c * z, adjoint=adjoint)
    other = nn.Linear(2, 2)
    with pytest.raises(CapturedTensorError, match="params="):
        call(lambda t, z: other(z))
    with torch.no_grad():
        call(lambda t, z: w * z)
    call(lambda t, z: w.detach() * z)
    call(lambda t, z: other(z), params=other.parameters())


def test_a_tensor_computed_from_a_known_parameter_outside_func_is_found_too():
    w = torch.tensor(-1.0, requires_grad=True)
    outside = w.exp()
    with pytest.raises(CapturedTensorError, match="computed earlier"):
        call(lambda t, z: outside * z, params=[w])


@pytest.mark.parametrize("history", ["full", Window(5)])
def test_a_state_that_stops_being_finite_is_reported_with_its_step(history):
    def explode(t, z):
        return torch.where(t > 0.55, z / 0.0, z)

    for grad in (False, True):
        z0 = torch.ones(2, requires_grad=grad)
        with pytest.raises(NonFiniteError, match=r"step 6 of 10 \(t=0\.6\)"):
            fdeint(explode, z0, 1.0, 0.5, steps=10, history=history)
    assert not torch.isfinite(fdeint(explode, Z, 1.0, 0.5, steps=10, check_finite=False)).all()


@pytest.mark.parametrize("options", [{}, {"stepper": "single"}, {"method": "trapezoid"}], ids=str)
def test_what_made_a_func_not_finite_is_named(options):
    """After a training step with a loss that was NaN."""
    block = FDEBlock(Net(2).float(), 0.5, t=1.0, steps=4, **options)
    optimiser = torch.optim.SGD(block.parameters(), lr=0.1)
    (block(torch.ones(3, 2)).sum() * float("nan")).backward()
    optimiser.step()

    def failing(solve):
        with pytest.raises((NonFiniteError, ConvergenceError)) as caught:
            solve()
        return " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])

    assert "The parameter 'a.weight' of func is not finite" in failing(lambda: block(torch.ones(3, 2)))
    gap = (torch.tensor(float("nan")),)
    assert "args= contains NaN: check the data" in failing(lambda: call(lambda t, z, u: z * u, args=gap, **options))


def test_a_stage_that_does_not_converge_names_its_step_and_a_remedy():
    stiff = lambda t, z: -1e4 * z
    with pytest.raises(ConvergenceError, match=r"step 1.*smaller step.*Newton"):
        fdeint(stiff, Z, 1.0, 0.9, steps=5, method="gl", solver=FixedPoint(max_iter=20))
    y = fdeint(stiff, torch.ones(2, dtype=F64), 1.0, 0.9, steps=5, method="gl", solver="newton")
    assert y.abs().max() < 1e-3
    with pytest.raises(ConvergenceError, match=r"step 1"):
        fdeint(lambda t, z: z.pow(2) + 1e6, Z, 1.0, 0.9, steps=2, method="gl", solver=Newton(max_iter=2))


def test_noise_that_begins_late_cannot_be_repeated_and_is_refused():
    def late(t, z):
        return -z + (torch.rand(2) if t > 0 else 0.0)

    z0 = torch.ones(2, requires_grad=True)
    with pytest.raises((InputError, ChangedFunctionError), match="random numbers"):
        call(late, z0=z0).sum().backward()  # refused here where another thread may have drawn them


def test_a_func_that_changes_its_mind_is_caught_in_the_loop():
    with pytest.raises(InputError, match="shape"):
        call(lambda t, z: z if t < 0.5 else z[:1])


@pytest.mark.parametrize(
    ("name", "nearest"), [("euler", "predictor"), ("dopri5", "abm"), ("implicit_adams", "trapezoid"), ("RK45", "abm")]
)
def test_methods_of_ordinary_solvers_name_their_counterpart(name, nearest):
    with pytest.raises(InputError, match=f"nearest is method='{nearest}'"):
        fdeint(lambda t, z: -z, torch.ones(1), 1.0, 0.5, steps=4, method=name)


def test_a_func_that_fails_at_once_is_told_how_it_was_called():
    with pytest.raises(RuntimeError) as caught:
        fdeint(lambda t, z: z @ torch.ones(2, 2, dtype=torch.float64), torch.ones(3, 2), 1.0, 0.5, steps=4)
    for word in ("func(t, z)", "(3, 2)", "float32"):
        assert word in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("func", "options", "words"),
    [
        (nn.Linear(2, 2), {}, ["func(t, z)", "(input: ", "too many", "lambda t, z: net(z)"]),
        (lambda z: -z, {}, ["it takes (z)", "the time first"]),
        (lambda t, z, rate: -rate * z, {}, ["missing a required argument: 'rate'", "args="]),
        (lambda t, z: -z, {"args": (2.0,)}, ["func(t, z, …)", "too many"]),
        (lambda t, z: -z, {"lags": 0.5}, ["func(t, z, …)", "lags="]),
        (Net, {}, ["func is the class Net", "Net(...)"]),
        (Z, {}, ["func is a tensor", "func, z0, t, order"]),
        (lambda t, z: None, {}, ["NoneType", "return?"]),
        (lambda t, z: -1.0, {}, ["float", "torch.full_like"]),
        (lambda z, t: -z, {}, ["func(t, z) returned shape ()"]),
        (lambda t, z: -z, {"order": lambda t: 0.5}, ["VariableOrder(fn)"]),
        (lambda t, z: -z, {"order": Caputo}, ["order is the class Caputo"]),
        (lambda t, z: -z, {"z0": torch.ones(2, device="meta")}, ["device meta", "no values"]),
        (lambda t, z: -z, {"callback": lambda step: None}, ["callback(step, total)", "it takes (step)"]),
        (lambda t, z: -z, {"linear": lambda z: -z, "method": "imex"}, ["without arguments", "matvec"]),
        (lambda t, z: -z, {"method": "ABM"}, ["Did you mean 'abm'"]),
        (lambda t, z: -z, {"event": lambda z: z.sum()}, ["event(t, z)", "it takes (z)"]),
        (lambda t, z: -z, {"z0": None}, ["z0 is None", "resume=True"]),
        (lambda t, z: -z, {"check_finite": "no"}, ["check_finite must be True or False"]),
    ],
)
def test_mistakes_of_a_first_call_say_what_to_write(func, options, words):
    with pytest.raises((InputError, InputTypeError)) as caught:
        call(func, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_func_in_another_dtype_says_what_to_convert():
    with pytest.raises(RuntimeError) as caught:
        call(Net(), torch.ones(2, 3))
    assert "Convert the state or func" in caught.value.__notes__[0]
