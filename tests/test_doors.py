"""Every public door: a wrong value is an InputError, a wrong kind an InputTypeError, and both say what to do."""

import math
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn

from neuralfde import (
    ABM,
    FFT,
    Caputo,
    Checkpoint,
    CustomKernel,
    DistributedOrder,
    Exponentials,
    FDEBlock,
    FixedPoint,
    Full,
    Host,
    InputError,
    InputTypeError,
    MultiTerm,
    Newton,
    Single,
    Tempered,
    Trapezoid,
    VariableOrder,
    Window,
    fdeint,
    plan,
    solve,
    suggest_step,
)
from neuralfde.fitting import fit, load, save
from neuralfde.nn import SequenceModel
from neuralfde.schemes import Dense, Given, Krylov, OneStage
from neuralfde.special import (
    binomial_series,
    mittag_leffler,
    mittag_leffler_matrix,
    reciprocal_gamma,
    series_product,
)
from neuralfde.weights.kernel import Kernel
from neuralfde.weights.uniform import grunwald_letnikov
from tests.stubs import OPERATORS, Net

Z = torch.ones(2)
COMPLEX = torch.ones(2, dtype=torch.complex64)


def relax(t, z):
    return -z


def door(call=fdeint, func=relax, z0=Z, t=1.0, order=0.5, **options):
    if not options.keys() & {"step", "steps"}:
        options["steps"] = 4
    return call(func, z0, t, order, **options)


def block(func=relax, **options):
    return FDEBlock(func, **{"steps": 4, **options})


def stepped(t=1.0, tol=1e-2, **options):
    return suggest_step(relax, Z, t, 0.5, tol, **options)


ON_DISK = {"z0": torch.ones(2, requires_grad=True), "history": "exponentials"}
SOLUTION = solve(relax, Z, 1.0, 0.5, steps=4, resume=True)
STATE = SOLUTION.state
SUM = partial(door, method="gl")

#: what is called, with what, and what the refusal says
VALUES = [
    (door, {"z0": torch.ones(0)}, "Leave it out"),
    (door, {"z0": (Z, torch.ones(3, 0))}, "Leave it out"),
    (door, {"steps": 10**15}, "GiB.*Use fewer steps"),
    (door, {"step": 1e-15}, "GiB.*Use fewer steps"),
    (door, {"step": 5e-324}, "GiB.*Use fewer steps"),
    (door, {"steps": 10**15, "grading": 2.0}, "GiB.*Use fewer steps"),
    (door, {"grading": 0.5}, "grading=0.5 must be at least 1"),
    (door, {**ON_DISK, "storage": Host(path="/nonexistent/x")}, "a folder that exists"),
    (door, {**ON_DISK, "storage": Host(path=__file__)}, "a folder that exists"),
    (door, {"call": solve, "steps": 3, "estimate_error": True}, "steps=4"),
    (door, {"call": solve, "steps": 3, "estimate_error": "embedded"}, "steps=4"),
    *((partial(door, plan), {"order": order}, "outside") for order in (0.0, -0.5, math.nan, math.inf, 1.5, 2.5)),
    (partial(door, plan), {"order": Tempered(0.5, -1.0)}, "rate must be"),
    (partial(door, plan), {"order": Tempered(1.5, 1.0)}, "pass velocity="),
    (partial(door, plan), {"order": VariableOrder(lambda t: t + 5)}, "outside"),
    (partial(door, plan), {"order": MultiTerm([0.5], [1.0])}, "method='gl'"),
    (partial(door, plan), {"order": MultiTerm([2.5], [1.0]), "method": "gl"}, "outside"),
    (partial(door, plan), {"order": CustomKernel([1.0])}, "need at least 5"),
    (partial(door, plan), {"horizon": -1.0}, "must be positive"),
    (partial(door, plan), {"velocity": Z}, "Drop velocity="),
    (partial(door, plan), {"stepper": "singel"}, "Did you mean 'single'"),
    (block, {"order": torch.ones(0)}, "at least one"),
    (block, {"steps": 10**15}, "GiB.*Use fewer steps"),
    (stepped, {"tol": 0.0}, "tol=0.0 must be a positive"),
    (stepped, {"tol": math.nan}, "tol=nan must be a positive"),
    (stepped, {"max_steps": 16}, "at least 32"),
    (stepped, {"t": -1.0}, "must be positive"),
    (Window, {"length": 0}, "Window.length=0 must be a whole number of at least 1"),
    (Window, {"length": 3, "block": -1}, "Window.block=-1"),
    (Full, {"block": 0}, "Full.block=0 must be a whole number of at least 1"),
    (FFT, {"block": -1}, "FFT.block=-1"),
    (FFT, {"growth": 1}, "at least 2"),
    (Exponentials, {"tol": 1.0}, "between 0 and 1"),
    (Exponentials, {"tol": math.nan}, "between 0 and 1"),
    (Exponentials, {"block": 1}, "at least 2"),
    (Exponentials, {"terms": 65}, "between 2 and 64"),
    (Checkpoint, {"every": 0}, "at least 1"),
    (Checkpoint, {"budget": -1}, "at least 1"),
    (ABM, {"corrections": 0}, "method='predictor'"),
    (Trapezoid, {"implicit": False}, "use method='abm'"),
    (MultiTerm, {"orders": [0.5], "weights": [1.0, 2.0]}, "needs one of each"),
    (MultiTerm, {"orders": "ab", "weights": "cd"}, "must be a sequence of numbers"),
    (SUM, {"order": MultiTerm([0.5], [0.0])}, "Use weights of which at least one is not 0"),
    (DistributedOrder, {"nodes": 0, "density": torch.exp}, "of at least 1"),
    (DistributedOrder, {"nodes": [0.5], "weights": []}, "needs one of each"),
    (DistributedOrder, {"density": torch.exp, "interval": (1.0, 0.5)}, "must lie within"),
    (SUM, {"order": DistributedOrder(lambda b: b[:3])}, "one number for each"),
    *((kind, {"tol": tol}, "must be a positive") for kind in (Newton, FixedPoint) for tol in (0.0, -1.0, math.nan)),
    (Newton, {"max_iter": 0}, "Newton.max_iter=0 must be a whole number of at least 1"),
    (Dense, {"most": 0}, "Dense.most=0"),
    (Krylov, {"size": 0}, "Krylov.size=0"),
    (Krylov, {"restarts": -1}, "Krylov.restarts=-1"),
    (mittag_leffler, {"z": torch.ones(2, 3), "alpha": torch.ones(4)}, "do not broadcast"),
    (partial(door, solve), {"z0": torch.ones(3), "t": 2.0, "steps": None, "past": STATE}, "z0 differs"),
]
KINDS = [
    (door, {"params": 3}, "module.parameters"),
    (door, {"params": nn.Linear(2, 2)}, "module.parameters"),
    (door, {"callback": 3}, r"callback\(step, total\)"),
    (door, {"z0": Z.to_sparse()}, "z0.to_dense"),
    (door, {"z0": COMPLEX.to_sparse()}, "z0.to_dense"),
    (door, {"z0": (COMPLEX, 1.0)}, "as_tensor"),
    (door, {"z0": COMPLEX, "order": 1.5, "velocity": Z}, "velocity must have the structure"),
    (door, {"order": 1.5, "velocity": "x"}, "velocity must be a tensor"),
    (door, {"func": 3}, "must be callable as func"),
    (door, {"func": 3, "z0": COMPLEX}, "must be callable as func"),
    (door, {"steps": True}, "steps=True must be a whole number"),
    (door, {"grading": "2"}, "grading='2' must be a finite number"),
    (door, {"options": {}}, "Pass each option"),
    (door, {"order": Caputo("x")}, "use torch.tensor"),
    (door, {"order": CustomKernel(lambda order, h, n: None)}, "must be numbers"),
    (door, {"order": CustomKernel(lambda order, h, n: 1j * torch.ones(n + 1))}, "complex"),
    (door, {"order": VariableOrder(lambda t: None)}, "must be a real number"),
    (partial(door, plan), {"callback": "x"}, "must be callable"),
    (partial(door, plan), {"args": 3}, r"args=\(value,\)"),
    *((block, {"func": func}, "must be callable as func") for func in (3, None, "relax", Z)),
    *(
        (block, {"order": order}, "must be a real number or a tensor.*operator")
        for order in (None, "half", True, 1j, {}, (), {"a": 0.5}, [0.5, 0.6])
    ),
    (block, {"order": torch.tensor(1)}, "Use float32 or float64"),
    (block, {"callback": 3}, "must be callable"),
    (block, {"params": 3}, "module.parameters"),
    *((stepped, {"t": t}, "t must be") for t in (None, "1", True, 1j)),
    *((stepped, {"max_steps": bad}, "must be a whole number") for bad in ("x", None, 64.0)),
    (stepped, {"tol": "x"}, "must be a positive"),
    (stepped, {"steps": 4}, "leave step= and steps= out"),
    *((partial(x, torch.linspace(0, 1, 9), step=0.1), {"order": "x"}, "must be a real number") for x in OPERATORS),
    *((partial(x, torch.linspace(0, 1, 9), step=0.1), {"order": 1j}, "must be a real number") for x in OPERATORS),
    (partial(OPERATORS[0], torch.linspace(0, 1, 9), 0.5), {"step": True}, "step=True must be a positive"),
    (partial(OPERATORS[0], torch.ones(9).to_sparse(), 0.5), {"step": 0.1}, "to_dense"),
    *((kind, {name: "x"}, "must be a whole number") for kind, name in ((Full, "block"), (FFT, "growth"))),
    *((Checkpoint, {name: bad}, "whole number") for name in ("every", "budget") for bad in ("x", 1.5, math.nan)),
    (Window, {"length": 1.5}, "must be a whole number"),
    (Exponentials, {"tol": "x"}, "between 0 and 1"),
    (Exponentials, {"terms": 2.5}, "must be a whole number"),
    (ABM, {"corrections": True}, "must be a whole number"),
    (Host, {"path": 3}, "path of a folder"),
    (VariableOrder, {"fn": 3}, r"fn\(times\)"),
    *((CustomKernel, {"weights": bad}, "must be numbers") for bad in ("x", None, [1j], [None])),
    (DistributedOrder, {"nodes": "x", "density": torch.exp}, "number of Gauss-Legendre nodes"),
    (DistributedOrder, {"density": 3}, r"density\(orders\)"),
    (DistributedOrder, {"density": torch.exp, "interval": 3}, r"such as \(0, 1\)"),
    (DistributedOrder, {"density": torch.exp, "interval": ("a", 1)}, "finite number"),
    (SUM, {"order": MultiTerm([0.5], ["x"])}, "must be a real number"),
    (SUM, {"order": DistributedOrder(lambda b: None)}, "must be numbers"),
    *((kind, {"tol": "x"}, "must be a positive") for kind in (Newton, FixedPoint)),
    *((kind, {"max_iter": bad}, "must be a whole number") for kind in (Newton, FixedPoint) for bad in (1.5, "x", [])),
    (Newton, {"linear": Dense}, r"such as Dense\(\)"),
    (Krylov, {"preconditioner": "dense"}, r"such as Dense\(\)"),
    (Given, {"solve": 3, "solve_transposed": relax}, r"solve\(w0, r\)"),
    *((mittag_leffler, {"z": z, "alpha": 0.5}, "z must be numbers") for z in (None, "x", {})),
    *((mittag_leffler, {"z": -1.0, "alpha": a}, "alpha must be numbers") for a in (None, "x", 1j)),
    (mittag_leffler, {"z": -1.0, "alpha": 0.5, "beta": torch.tensor(1j)}, "beta is complex"),
    *((mittag_leffler_matrix, {"matrix": m, "alpha": 0.5}, "must be a tensor") for m in (3, None, "x")),
    (mittag_leffler_matrix, {"matrix": torch.eye(2), "alpha": "x"}, "alpha must be numbers"),
    *((reciprocal_gamma, {"x": x}, "Use") for x in ("x", None, torch.tensor(3), torch.tensor(1j))),
    (binomial_series, {"order": "x", "count": 3}, "order must be numbers"),
    (binomial_series, {"order": 0.5, "count": 2.5}, "must be a whole number"),
    (series_product, {"a": "x", "b": Z}, "must be a tensor"),
    *(
        (partial(door, solve), {k: x}, "the .state of a solution")
        for k in ("past", "resume")
        for x in (3, "x", SOLUTION)
    ),
]


@pytest.mark.parametrize(
    ("error", "call", "given", "words"),
    [(InputError, *case) for case in VALUES] + [(InputTypeError, *case) for case in KINDS],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else getattr(x, "__name__", ""),
)
def test_what_cannot_be_is_refused_at_the_door(error, call, given, words):
    with pytest.raises(error, match=words):
        call(**given)


def test_a_plan_refuses_the_lags_that_a_solve_refuses():
    assert plan(lambda t, z, lagged: -lagged, Z, 1.0, 0.5, steps=50, lags=0.1).steps == 50
    with pytest.raises(InputError, match="shorter than the longest step"):
        plan(lambda t, z, lagged: -lagged, Z, 1.0, 0.5, steps=50, lags=0.001)


def test_a_plan_asks_for_the_weights_of_no_step():
    short = plan(relax, Z, 1.0, VariableOrder(lambda t: 0.5 + 0 * t), steps=1 << 20)  # 2^40 weights
    assert short.steps == 1 << 20


def test_parameters_from_a_generator_are_there_at_every_call():
    net = Net()
    layer = FDEBlock(lambda t, z: net(t, z), steps=4, params=net.parameters())
    z0 = torch.ones(2, 3, dtype=torch.float64)
    first, second = (torch.autograd.grad(layer(z0).sum(), tuple(net.parameters())) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Made(OneStage):
    """A scheme from elsewhere, whose weights are made of those of Grünwald and Letnikov."""

    implicit = False

    def __init__(self, change):
        self.change = change

    def kernel(self, order, step, steps):
        return self.change(grunwald_letnikov(order, step, steps))

    def expected_order(self, order, smooth):
        return 1.0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda w: Kernel(w, w[0]), InputError, r"shape \(5, 1\); .* here \(1, 5, groups\)"),
        (lambda w: Kernel(w[None, :-1], w[0]), InputError, r"shape \(1, 4, 1\)"),
        (lambda w: Kernel(w.expand(2, -1, -1), w[0]), InputError, r"shape \(2, 5, 1\)"),
        (lambda w: w, InputTypeError, "must return a neuralfde.weights.kernel.Kernel, got Tensor"),
        (lambda w: Kernel(w[None].detach(), w[0].detach()), InputError, "but order requires one"),
    ],
)
def test_weights_of_a_scheme_from_elsewhere_that_cannot_be_used(change, error, words):
    order = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(error, match=rf"kernel\(\) of Made, with order Caputo, .*{words}"):
        fdeint(relax, Z, 1.0, order, steps=4, method=Made(change))
    right = fdeint(relax, Z, 1.0, order, steps=4, method=Made(lambda w: Kernel(w[None], w[0])))
    assert right.requires_grad
    with torch.no_grad():  # nothing asks for a gradient
        fdeint(relax, Z, 1.0, order, steps=4, method=Made(lambda w: Kernel(w[None].detach(), w[0].detach())))


@pytest.mark.parametrize("given", [{"method": ABM}, {"history": Full}, {"storage": Host}, {"stepper": Single}])
def test_a_class_in_the_place_of_an_object_is_told(given):
    ((kind, found),) = given.items()
    with pytest.raises(InputTypeError, match=rf"{kind} is the class {found.__name__} .* {found.__name__}\(\.\.\.\)"):
        fdeint(relax, Z, 1.0, 0.5, steps=4, **given)


def test_numbers_of_numpy_are_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    n, h, beta = numpy.int64(8), numpy.float32(0.125), numpy.float64(0.5)
    wanted = fdeint(relax, Z, 1.0, 0.5, steps=8)
    for given in ({"steps": n}, {"step": h}, {"steps": numpy.int32(8), "history": Window(numpy.int64(8))}):
        assert torch.equal(fdeint(relax, Z, numpy.float32(1), beta, **given), wanted)
    assert torch.equal(FDEBlock(relax, numpy.float32(0.5), steps=n)(Z), wanted)
    series = [(numpy.arange(4.0), numpy.ones(4))] * 2
    model = SequenceModel.of(series, latent=numpy.int64(4), order=numpy.float32(0.5), window=beta)
    model.save(tmp_path / "model.pt")  # a file of Python's numbers
    assert SequenceModel.load(tmp_path / "model.pt").config == model.config
    decay = lambda t, z, k: -k * z
    given = {"params": {"k": numpy.float32(0.5)}, "order": beta, "steps": n, "intervals": "bootstrap"}
    found = fit(decay, *series[0], resamples=numpy.int64(2), seed=numpy.int64(1), check_order=False, **given)
    save(found, tmp_path / "fit.pt")
    assert load(tmp_path / "fit.pt", decay).estimates == found.estimates
    for bad in (numpy.bool_(True), numpy.float64(8), numpy.array([8])):
        with pytest.raises(InputTypeError, match="must be a whole number"):
            fdeint(relax, Z, 1.0, 0.5, steps=bad)


def test_a_dictionary_of_another_kind_is_named():
    with pytest.raises(InputTypeError, match=r"\{'a': .*\} in place of OrderedDict\(\{'a'"):
        fdeint(lambda t, z: {"a": -z["a"]}, OrderedDict(a=Z), 1.0, 0.5, steps=8)


@pytest.mark.parametrize("method", ["bdf2", "flmm-trapezoid"])
def test_orders_whose_starting_weights_are_lost_in_rounding_are_refused(method):
    def solution(order):
        return fdeint(lambda t, z: torch.cos(5 * t) - z, torch.ones(1), 1.0, order, steps=20, method=method)

    solution(1e-3)
    for order in (9e-4, torch.tensor([1e-12])):
        with pytest.raises(InputError, match="the smallest order of Multistep"):
            solution(order)
