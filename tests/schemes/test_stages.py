"""Implicit stages: neither the scale of a problem nor the samples beside one change its answer, on any path."""

import itertools
import math
import re
from dataclasses import dataclass

import pytest
import torch

from neuralfde import (
    AccuracyWarning,
    Banded,
    ConvergenceError,
    Dense,
    FixedPoint,
    Given,
    Krylov,
    Newton,
    NonFiniteError,
    fdeint,
    solve,
)
from neuralfde.door.names import METHODS
from neuralfde.schemes import Jacobian, Linear
from neuralfde.schemes.krylov import Plain
from tests.matrix.cases import Case
from tests.matrix.compare import Field, arguments, by_reference, distances, finished, leaves_of
from tests.stubs import F64, robertson

F32 = torch.float32
IMPLICIT = [name for name, scheme in METHODS.items() if scheme.implicit]
STEPPERS = ("single", "picard", "auto")
SOLVERS = ("auto", "dense", "banded", "sparse", "krylov", FixedPoint(max_iter=2000))


def relaxation(t, z, k):
    """Linear, coupled along the last axis, stiff and not normal."""
    beside = torch.nn.functional.pad(z, (1, 1))
    return -k * (z + 0.3 * beside[..., 2:] - 0.2 * beside[..., :-2])


def apart(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def relaxed(scale, dtype, method, solver, stepper, rate):
    """z(T) / scale and the gradients of its sum by z0 and by the rate, which scale as the equation does."""
    z0 = scale * torch.tensor([[1.0, -0.5, 0.25, 2.0]], dtype=dtype)
    z0.requires_grad_()
    k = torch.tensor(rate, dtype=dtype, requires_grad=True)
    z = fdeint(relaxation, z0, 0.5, 0.7, steps=10, method=method, solver=solver, stepper=stepper, args=(k,))
    by_z0, by_rate = torch.autograd.grad(z.sum(), [z0, k])
    return torch.cat([z.detach()[0] / scale, by_z0[0], by_rate[None] * rate / scale]).double()


@pytest.mark.parametrize("method", IMPLICIT)
def test_linear_problems_do_not_see_their_scale(method):
    shift = IMPLICIT.index(method)  # over all methods each solver meets each stepper
    for k, solver in enumerate(SOLVERS):
        rate, stepper = 2.0 if isinstance(solver, FixedPoint) else 50.0, STEPPERS[(k + shift) % 3]
        for dtype, scales in (F32, (1e-30,)), (F64, (1e-200, 1e200)):
            expected = relaxed(1.0, dtype, method, solver, stepper, rate)
            for scale in scales:
                found = relaxed(scale, dtype, method, solver, stepper, rate)
                tol = 1e-5 if dtype == F32 else 1e-14
                assert (found - expected).abs().max() < tol, (solver, stepper, dtype, scale)


def bistable(t, z):
    """Three rest points for each sample; its numbers are coupled, samples are not."""
    return 20 * (z - z**3) + torch.sin(3 * t) * z.flip(-1)


@pytest.mark.parametrize(("method", "width"), list(zip(IMPLICIT, itertools.cycle((1, 3)), strict=False)))
def test_a_sample_does_not_see_the_samples_beside_it(method, width):
    """More numbers than any threshold, others of every size; alone, first and last in the batch, on every path."""
    own = torch.linspace(0.05, 0.1, width, dtype=F64)
    answers = {}
    for stepper, others in itertools.product(STEPPERS, (-0.02, 1e3)):
        batch = torch.full((2200 // width, width), others, dtype=F64)
        batch[0] = batch[-1] = own
        z = fdeint(bistable, batch, 0.15, 0.7, steps=3, method=method, stepper=stepper)
        alone = fdeint(bistable, own[None], 0.15, 0.7, steps=3, method=method, stepper=stepper)[0]
        answers |= {(stepper, "alone"): alone, (stepper, others, "first"): z[0], (stepper, others, "last"): z[-1]}
    for key, found in answers.items():
        assert apart(found, answers["single", "alone"]) < 1e-12, key


def test_a_step_that_is_unstable_names_one_that_is_not():
    rates = torch.tensor([1.0, 30.0, 4e3], dtype=F64)
    z0 = torch.ones(3, dtype=F64)
    with pytest.raises(NonFiniteError, match=r"\|J\| h\^β is .*'trapezoid'.* step=\S+ or less") as caught:
        fdeint(lambda t, z: -rates * z, z0, 20.0, 0.8, steps=2000)
    step = float(re.search(r"step=(\S+) or less", str(caught.value))[1])
    z = fdeint(lambda t, z: -rates * z, z0, 200 * step, 0.8, step=step)
    assert z.abs().max() < 1
    with pytest.raises(NonFiniteError, match="blows up"):
        fdeint(lambda t, z: 1e-3 * z**3, 10 * z0, 100.0, 0.8, steps=200)


def test_failures_name_the_part_that_failed():
    z0, one = torch.full((2,), 0.3, dtype=F64), torch.eye(2, dtype=F64)
    weight = float(METHODS["gl"].kernel(torch.tensor([0.7], dtype=F64), 0.1, 1).local[0])
    cases = {
        "nonlinear part failed": lambda t, z: (
            20 * torch.sign(z - 0.1) * (z - 0.1).abs().sqrt() - 40 * torch.sign(z - 0.2)
        ),
        "linear part failed.*singular": lambda t, z: z / weight + 1,
    }
    for message, func in cases.items():
        with pytest.raises(ConvergenceError, match=rf"step 1.*{message}"):
            fdeint(func, z0, 1.0, 0.7, steps=10, method="gl", stepper="single")
    wrong = Newton(linear=Krylov(size=1, restarts=1))
    turn = 1e4 * torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)
    with pytest.raises(ConvergenceError, match=r"linear part failed: GMRES"):
        fdeint(lambda t, z: turn @ z, z0, 1.0, 0.7, steps=10, method="gl", solver=wrong, stepper="single")
    with pytest.raises(ConvergenceError, match="not the structure"):
        fdeint(lambda t, z: -(one - 2) @ z, z0, 1.0, 0.7, steps=10, method="gl", solver="banded", stepper="single")


def diffusion(t, z, k):
    """Three diagonals along the last axis, nonlinear, a rate for each sample."""
    p = torch.nn.functional.pad(z, (1, 1))
    return k * (p[..., 2:] - 2 * z + p[..., :-2]) + torch.sin(z) * t


@pytest.mark.parametrize("shape", [torch.Size((700,)), torch.Size((2, 600))])
def test_wide_states_with_few_diagonals_are_solved_by_them(shape):
    generator = torch.Generator().manual_seed(3)
    z0 = torch.randn(shape, dtype=F64, generator=generator)
    rate = 100 + torch.arange(shape[:-1].numel() or 1, dtype=F64).reshape(*shape[:-1], 1)
    found = {}
    for solver in "auto", Newton(linear=Krylov(size=60, preconditioner=Banded())):
        k = rate.clone().requires_grad_()
        out = solve(diffusion, z0, 0.5, 0.7, steps=5, method="trapezoid", solver=solver, args=(k,))
        found[str(solver)] = out.ys.detach(), *torch.autograd.grad(out.ys.square().sum(), k)
        if solver == "auto":
            assert "banded, 3 diagonals" in out.stats.why
            assert 0 < out.stats.factorisations < out.stats.linear_solves
    for one, other in zip(*found.values(), strict=True):
        assert apart(one, other) < 1e-11


def test_one_jacobian_serves_steps_of_all_lengths():
    mesh = torch.cat([torch.zeros(1), torch.logspace(-4, 1, 60)]).double()
    z0, k = torch.ones(2, 3, dtype=F64), torch.tensor(30.0, dtype=F64, requires_grad=True)
    out = solve(relaxation, z0, 10.0, 0.7, grid=mesh, method="trapezoid", args=(k,), stepper="single")
    out.ys.sum().backward()
    assert out.stats.factorisations <= 2
    assert out.stats.linear_solves < 6 * 60


@dataclass(frozen=True)
class Plainly(Linear):
    """No structure is looked for."""

    def factor(self, jacobian, w0):
        return Plain(jacobian)


NEAR = Given(lambda w0, r: r / (1 + w0), lambda w0, r: r / (1 + w0))
LINEAR = [Dense(), Krylov(size=4), Krylov(preconditioner=Dense()), NEAR, Plainly()]


@pytest.mark.parametrize("linear", LINEAR, ids=["dense", "krylov", "preconditioned", "given", "plain"])
def test_gradients_of_every_linear_solver_are_those_of_the_textbook(linear):
    case = Case("l1", "single", "full", "device", "number", 6, 15, "nodes")
    field = Field(case.shape)
    leaves = leaves_of(case, field)
    positional, named = arguments(case, field, leaves)
    found = finished(fdeint(*positional, **{**named, "solver": Newton(linear=linear)}), leaves)
    assert max(distances(found, by_reference(case)).values()) < 1e-12


MIXED = torch.randn(600, 600, dtype=F64, generator=torch.Generator().manual_seed(0)) / 600**0.5


@pytest.mark.parametrize(("rate", "by"), [(1.0, "fixed-point"), (30.0, "krylov")])
def test_wide_states_without_a_structure_are_iterated_while_that_contracts(rate, by):
    z0, found = torch.linspace(-1, 1, 1200, dtype=F64).view(2, 600), []
    for solver in "auto", Newton(linear=Krylov(size=60)):
        k = MIXED.clone().requires_grad_()
        out = solve(lambda t, z, k: torch.tanh(z) @ k - rate * z, z0, 0.5, 0.7, steps=5, method="trapezoid",
                    solver=solver, args=(k,), stepper="single")  # fmt: skip
        found.append((out.ys.detach(), *torch.autograd.grad(out.ys.square().sum(), k)))
        assert by in out.stats.why or solver != "auto"
    assert max(map(apart, *found)) < 1e-12


@pytest.mark.parametrize("stepper", ["single", "picard"])
def test_stages_end_where_a_func_with_fewer_digits_than_its_state_stands_still(stepper):
    """Products in ten bits, as those of a GPU, and a stage that hardly contracts: updates never shrink to rounding."""
    z0, k = torch.linspace(-1, 1, 2400).view(4, 600), (3 * MIXED).float().requires_grad_()

    def func(t, z):
        x = torch.tanh(z)
        return (x + (x.half().float() - x).detach()) @ k - z  # rounded, with the derivative of what is not

    options = {"steps": 6, "method": "trapezoid", "params": [k]}
    out = solve(func, z0, 0.6, 0.5, stepper=stepper, **options)
    exact = fdeint(lambda t, z: torch.tanh(z) @ k.double() - z, z0.double(), 0.6, 0.5, **options)
    assert out.stats.evaluations < 150 * out.stats.steps
    assert apart(out.ys[-1].detach().double(), exact.detach()) < 1e-3
    by, right = (torch.autograd.grad(y.square().sum(), k)[0].double() for y in (out.ys[-1], exact))
    assert apart(by, right) < 1e-2


def one_way(t, z):
    """Row 0 follows row 2, rows 1 and 2 follow nobody."""
    return torch.stack([torch.cos(2 * t) - 3 * z[2].sum() - z[0], -z[1], torch.sin(z[2]) * torch.cos(t)])


def later(t, z):
    """Row 0 follows the square of row 1, which begins with zeros: at first no derivative shows it."""
    return torch.stack([-z[0] + 30 * z[1] * z[1].sum(), 4 * torch.cos(5 * t) - z[1] ** 3, -z[2]])


@pytest.mark.parametrize("linear", [Dense(), Krylov(), Plainly(), None])
@pytest.mark.parametrize(("func", "start"), [(one_way, 1.0), (later, 0.0)])
def test_rows_that_act_on_others_are_noticed_whenever_they_begin_to(func, start, linear):
    z0 = start * torch.tensor([[0.3, -0.8], [0.5, 0.2], [0.7, -0.4]], dtype=F64)
    options = {"steps": 40, "method": "gl", "stepper": "single"}
    solver = Newton() if linear is None else Newton(linear=linear)
    found = fdeint(func, z0, 1.0, 0.6, solver=solver, **options)
    right = fdeint(lambda t, z: func(t, z.view(3, 2)).flatten(), z0.flatten(), 1.0, 0.6, **options)
    assert (found.flatten() - right).abs().max() <= 1e-12 * right.abs().max()


@pytest.mark.parametrize("samples", [2, 3, 5, 8])
def test_every_row_that_acts_on_another_is_seen(samples):
    z = torch.ones(samples, 2, dtype=F64)
    assert not Jacobian(torch.sin, z).mixes(samples)
    for by, on in itertools.permutations(range(samples), 2):
        assert Jacobian(lambda z, by=by, on=on: torch.sin(z).index_add(0, torch.tensor([on]), z[[by]]), z).mixes(
            samples
        )


@pytest.mark.parametrize("stepper", STEPPERS)
@pytest.mark.parametrize("method", [name for name, scheme in METHODS.items() if not scheme.implicit])
def test_unstable_steps_whose_result_is_finite_are_told_of(method, stepper):
    z0 = torch.full((3, 2), 1e-6, dtype=F64)  # neither the scale nor the number of samples matters
    stepper = stepper if METHODS[method].stages else "single"

    def solved(rate, steps):
        return fdeint(lambda t, z: -rate * z, z0, 1.0, 0.6, steps=steps, method=method, stepper=stepper)

    with pytest.warns(AccuracyWarning, match="The step is unstable") as told:
        assert solved(50.0, 10).abs().max() > 1.0
    step = float(re.search(r"or step=([\d.e-]+) or less", str(told[0].message))[1])
    assert solved(50.0, math.ceil(1 / step)).abs().max() < 1e-6
    assert solved(-6.0, 500).abs().max() > 1e-3  # growth of the solution: nothing is said, and warnings are errors


def growing(rate):
    return lambda t, z: rate * z + 0.1 * torch.roll(z, 1, -1)


LARGE = {"single": [3], "samples": [2, 3], "wide": [2000]}


@pytest.mark.parametrize("state", LARGE)
@pytest.mark.parametrize("method", IMPLICIT)
def test_a_step_that_is_too_long_for_the_growth_of_func_is_told_of(method, state):
    """The stage has a solution, with the other sign: finite, far off, and not the one of the equation."""
    z0, solver = torch.ones(LARGE[state], dtype=F64), None if state == "wide" else ["krylov", "auto"][len(method) % 2]
    with pytest.warns(AccuracyWarning, match="no solution of the implicit stage continues the state") as told:
        out = solve(growing(30.0), z0, 0.5, 0.6, steps=5, method=method, solver=solver)
    assert "no solution continues the state" in out.stats.why
    share = float(re.search(r"at most ([\d.e-]+) times", str(told[0].message))[1])
    steps = int(5 * share ** (-1 / 0.6)) + 1  # as the warning says: then none is given, and warnings are errors
    fdeint(growing(30.0), z0, 0.5 / steps, 0.6, steps=1, method=method, solver=solver)


@pytest.mark.parametrize("rate", [30.0, 1e4])
@pytest.mark.parametrize("method", IMPLICIT)
def test_the_solution_on_the_other_side_does_not_continue_the_state(method, rate):
    """Slightly too long a step, from which the flow takes long to get away, and one with a solution close to 0."""
    with pytest.warns(AccuracyWarning, match="no solution of the implicit stage continues the state"):
        out = solve(lambda t, z: rate * z, torch.ones(1, dtype=F64), 1.0, 0.8, steps=10, method=method)
    assert "in 10 steps no solution continues the state" in out.stats.why


@pytest.mark.parametrize("start", [0.01, 0.5])
@pytest.mark.parametrize("method", IMPLICIT)
def test_long_steps_to_a_rest_point_are_not_told_of(method, start):
    z0 = torch.tensor([start, 2 * start], dtype=F64)
    states = fdeint(lambda t, z: 50 * (z - z**3), z0, 1.0, 0.6, steps=10, method=method)
    assert ((states.abs() - 1).abs() < 0.2).all()


def left_over(func, z0, steps, **options):
    """By how much the states miss ``z_n = z_0 + Σ_j w_{n-j} f(t_j, z_j)``, in the product rectangle rule."""
    times = torch.linspace(0.0, 1.0, steps + 1, dtype=F64)
    z = fdeint(func, z0, times, 0.7, steps=steps, method="predictor-implicit", **options)
    k = torch.arange(steps + 1.0, dtype=F64) ** 0.7 * steps**-0.7 / math.gamma(1.7)
    v = torch.stack([func(t, x) for t, x in zip(times[1:], z[1:], strict=True)])
    lag = torch.arange(steps)[:, None] - torch.arange(steps)
    return float((z[1:] - z0 - torch.where(lag >= 0, k.diff()[lag], 0.0) @ v).abs().max())


@pytest.mark.parametrize("solver", ["auto", "dense", "krylov", FixedPoint(max_iter=2000)])
@pytest.mark.parametrize("stepper", STEPPERS)
@pytest.mark.parametrize("root", [torch.sqrt, lambda z: z.abs().sqrt(), lambda z: z.sign() * z.abs() ** (1 / 3)])
@pytest.mark.parametrize("size", [1, 3])
def test_a_stage_leaves_a_point_where_func_has_no_derivative(size, root, stepper, solver):
    assert left_over(lambda t, z: 1 + root(z), torch.zeros(size, dtype=F64), 10, stepper=stepper, solver=solver) < 1e-13


@pytest.mark.parametrize("stepper", ["single", "auto"])
def test_a_stage_that_falls_far_is_solved_or_refused(stepper):
    """Differences over a first guess of -1e12 said nothing about the state 3, at which the iteration then stood."""
    z0 = torch.tensor([3.0], dtype=F64)
    with pytest.raises(ConvergenceError, match=r"max_iter"):
        left_over(lambda t, z: -torch.exp(10 * z), z0, 10, stepper=stepper)
    assert left_over(lambda t, z: -torch.exp(10 * z), z0, 10, stepper=stepper, solver=Newton(max_iter=100)) < 1e-13


def test_an_adjoint_goes_on_where_the_first_update_happens_to_be_exact():
    """The loss moves the first number alone, for which an older matrix is right; the others follow from it."""

    def func(t, z):
        x, y = z[:1], z[1:]
        return torch.cat([-0.6 * x - 0.1 * y.sum(), -0.6 * torch.sin(y) * x])

    def gradient(solver):
        z0 = torch.tensor([-0.0163, 0.7099, 0.6703], dtype=F64, requires_grad=True)
        times = 0.05 * torch.linspace(0, 1, 4, dtype=F64) ** 2
        x = fdeint(func, z0, times, 0.75, grid=times, method="predictor-implicit", stepper="single", solver=solver)
        weights = torch.tensor([-0.3202191871675131, 0.06037087529082941, -0.5019059048488899, 0.8399561757147394])
        return torch.autograd.grad((weights * x[:, 0]).sum(), z0)[0]

    assert (gradient("auto") - gradient("fixed-point")).abs().max() < 1e-15


def test_a_stage_that_autocast_leaves_too_few_digits_for_says_so():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ConvergenceError) as told:
        fdeint(lambda t, z: 5 * net(z), torch.ones(3, 2), 1.0, 0.6, steps=5, method="trapezoid")
    assert "Autocast evaluates func in torch.bfloat16" in " ".join(told.value.__notes__)


@pytest.mark.parametrize(
    "options", [{}, {"solver": "fixed-point"}, {"solver": "krylov"}, {"stepper": "single"}], ids=str
)
@pytest.mark.parametrize("method", ["trapezoid", "gl", "bdf2"])
def test_a_gradient_that_is_not_finite_passes_through(method, options):
    """As through explicit steps: torch.amp.GradScaler skips such a training step and goes on with a smaller scale."""
    rate = torch.tensor(1.0, dtype=F64, requires_grad=True)
    out = fdeint(
        lambda t, z, k: -k * z, torch.ones(3, dtype=F64), 1.0, 0.6, steps=6, method=method, args=(rate,), **options
    )
    for bad in (float("nan"), float("inf")):
        (found,) = torch.autograd.grad(out, rate, torch.full_like(out, bad), retain_graph=True)
        assert found.isnan()


@pytest.mark.parametrize("steps", [60, 100])
@pytest.mark.parametrize("end", [1.0, 100.0])
@pytest.mark.parametrize("order", [0.8, 0.9])
def test_a_small_element_keeps_to_its_root_when_many_steps_are_taken_at_once(order, end, steps):
    """Robertson's reaction: the second substance, 1e-5 of the first, has another root below 0."""
    z0 = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    inner = torch.logspace(-6, math.log10(end), steps, dtype=F64)
    grid = torch.cat([inner.new_zeros(1), inner])
    found, expected = (
        fdeint(robertson, z0, grid, order, grid=grid, method="trapezoid", stepper=s) for s in ("auto", "single")
    )
    assert float(found.min()) >= 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
