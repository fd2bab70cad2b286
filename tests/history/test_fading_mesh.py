"""Any mesh: exponentials in closed form against all weights, and the laws of grids."""

import pytest
import torch

import neuralfde as nf
from neuralfde.weights.fading import Rates, kernel
from neuralfde.weights.meshes import between
from tests.stubs import F64, Net, relative

MESH = torch.cat([torch.zeros(1, dtype=F64), torch.logspace(-4, 0.3, 24, dtype=F64)])
CELLS = [scheme for scheme in (*nf.door.names.METHODS.values(), nf.ABM(ahead=True)) if scheme.cells]


@pytest.mark.parametrize("tol", [1e-6, 1e-9, 1e-13])
def test_exponentials_in_closed_form_are_the_kernel(tol):
    order = torch.tensor([0.1, 0.3, 0.5, 0.8, 0.99, 1.0], dtype=F64)
    t = torch.logspace(-6, 3, 400, dtype=F64)[:, None]
    rates = Rates.for_lags(1e-6, 1e3, tol)
    found = torch.exp(-t * rates.values) @ rates.coefficients(order)
    assert (found / (t ** (order - 1) / torch.exp(torch.lgamma(order))) - 1).abs().max() < 1.5 * tol
    assert rates.values.shape[0] < 140


def gradients(method, order, t=None, **options):
    torch.manual_seed(0)
    func, z0, u = Net(), torch.randn(2, 3, dtype=F64, requires_grad=True), torch.ones(3, dtype=F64, requires_grad=True)
    order, horizon = (
        torch.tensor(order, dtype=F64, requires_grad=True),
        torch.tensor(1.3, dtype=F64, requires_grad=True),
    )
    t = torch.tensor([0.0, 0.5, float(MESH[-1])], dtype=F64) if t is None else t
    solver = nf.FixedPoint(tol=4e-16, max_iter=200) if method.implicit else None
    ys = nf.fdeint(func, z0, t, order, method=method, grid=MESH, horizon=horizon, args=(u,), solver=solver, **options)
    loss = (ys * torch.linspace(0.5, 1.5, ys.numel(), dtype=F64).view_as(ys)).sum()
    return [ys, *torch.autograd.grad(loss, [z0, order, horizon, u, *func.parameters()])]


@pytest.mark.parametrize("method", CELLS, ids=str)
@pytest.mark.parametrize("block", [2, 5])
def test_gradients_on_a_mesh_are_those_of_autograd(method, block):
    """With every storage, whatever the blocks; and the same as with all weights."""
    order, fading = 0.6 if block == 2 else [0.3, 0.7, 1.0], nf.Exponentials(tol=1e-14, block=block)
    whole = gradients(method, order, history="full", adjoint="direct")
    for options in (
        {"history": fading, "storage": "host"},
        {"history": fading, "storage": "checkpoint", "stepper": "single"},
    ):
        for mine, theirs in zip(gradients(method, order, **options), whole, strict=True):
            assert relative(mine, theirs) < 1e-12


def test_second_derivatives_and_vmap_of_the_order_on_a_mesh():
    """Derivatives take weights to be linear in their numbers, which those of a constant order are not."""

    def end(order, rate, history):
        func, z0 = (lambda t, z, k: torch.sin(t) - k * z * z), torch.ones(2, dtype=F64)
        options = {"args": (rate,), "grid": MESH, "method": nf.ABM(ahead=True), "history": history}
        return nf.fdeint(func, z0, float(MESH[-1]), order, **options).sum()

    order, rate, found = torch.tensor(0.6, dtype=F64), torch.tensor(1.2, dtype=F64), []
    for history in ("full", nf.Exponentials(tol=1e-13)):
        second = torch.func.hessian(end, argnums=(0, 1))(order, rate, history)
        each = torch.func.vmap(lambda x, h=history: end(x, rate, h))(torch.stack([order / 2, order]))
        found.append(torch.cat([*map(torch.stack, second), each, end(order, rate, history)[None]]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", CELLS, ids=str)
def test_output_between_points_goes_through_them(method):
    def solve(t, history):
        func, z0 = (lambda t, z: torch.cos(3 * t) - z), torch.ones(1, dtype=F64)
        return nf.fdeint(func, z0, t, 0.6, method=method, grid=MESH, history=history)[1:]

    for history in ("full", nf.Exponentials(tol=1e-12)):
        nodes = solve(MESH, history)
        for side in (-1, 1):
            near = MESH.clone()
            near[1:-1] += side * 2e-5 * (MESH[1:] - MESH[:-1])[: len(MESH) - 2]
            torch.testing.assert_close(solve(near, history), nodes, rtol=0, atol=5e-3 if side > 0 else 1e-4)
    near = MESH.clone()
    near[1:-1] += 5e-7 * (MESH[1:] - MESH[:-1])[:-1]  # no rounding: other states than those at the points
    assert (solve(near, "full") != solve(MESH, "full"))[:-1].all()
    middle = (MESH[1:] + MESH[:-1]) / 2
    asked = torch.cat([MESH[:1], middle, MESH[-1:]])
    torch.testing.assert_close(solve(asked, "full"), solve(asked, nf.Exponentials(tol=1e-12)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", ["linear", "left", "right"])
def test_output_between_points_of_a_long_mesh_has_the_weights_of_all_cells(cell):
    t = torch.cat([torch.zeros(1, dtype=F64), torch.logspace(-6, 2, 300, dtype=F64)])
    order, horizon = (torch.tensor(x, dtype=F64, requires_grad=True) for x in ([0.3, 1.0], [1.3, 2.0]))
    where = torch.cat([torch.tensor([0.0, 0.3, 1.2, 2.0, 300.0]), torch.linspace(100, 299.9, 20)]).double()[:, None]
    rates = Rates.for_lags(1e-8, 100.0, 1e-13)
    fast = kernel((cell,), order, t, horizon, rates).dense(where)
    slow = between(cell, order, t[:, None] * horizon)(where)
    weight = torch.linspace(0.5, 1.5, slow.numel(), dtype=F64).view_as(slow)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-15)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), [order, horizon]) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=0)


@pytest.mark.parametrize("method", ["predictor", "trapezoid", "abm", "gl"])
def test_a_uniform_grid_is_one_of_so_many_steps_and_every_history_has_output_between(method):
    def solve(**options):
        t = torch.tensor([0.0, 0.33, 0.71, 1.0], dtype=F64)
        return nf.fdeint(lambda t, z: torch.cos(t) - z, torch.ones(2, dtype=F64), t, 0.6, method=method, **options)

    whole = solve(steps=50)
    assert torch.equal(solve(grid=torch.linspace(0, 1, 51, dtype=F64)), whole)
    for history, tol in (("exponentials", 1e-7), (nf.Window(50), 1e-13), ("fft", 1e-12)):
        assert (solve(steps=50, history=history) - whole).abs().max() < tol
    short = solve(steps=50, history=nf.Window(10))
    assert (short - whole)[1:].abs().amin() > 1e-4
    torch.testing.assert_close(short[1], solve(steps=50, history=nf.Window(10, block=4))[1])


def test_a_logarithmic_mesh_over_decades_takes_few_steps_and_little_memory():
    t = torch.cat([torch.zeros(1, dtype=F64), torch.logspace(-9, 3, 600, dtype=F64)])
    found = nf.solve(lambda t, z: -z, torch.ones(1, dtype=F64), t, 0.5, grid=t, method="trapezoid")
    exact = torch.special.erfcx(t.sqrt())[:, None]
    assert (found.ys - exact).abs().max() < 3e-5
    assert isinstance(found.stats.history, nf.Exponentials)
    assert found.stats.history_bytes < 2000
    again = nf.solve(
        lambda t, z: -z, torch.ones(1, dtype=F64), t, 0.5, grid=found.grid, method="trapezoid", history="full"
    )
    assert (again.ys - found.ys).abs().max() < 1e-10
    options = {"method": "trapezoid", "history": found.stats.history}  # on another mesh, whose rates are others
    other = nf.fdeint(
        lambda t, z: -z, torch.ones(1, dtype=F64), t[300:] - t[300], 0.5, grid=t[300:] - t[300], **options
    )
    assert (other[-1] - found.ys[-1]).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grid": MESH, "steps": 10}, "leave step="),
        ({"grid": MESH * 2}, "ends at"),
        ({"grid": MESH + 1}, "begins at"),
        ({"grid": MESH.flip(0)}, "must increase"),
        ({"grid": 10}, "1-D tensor"),
        ({"grid": MESH, "history": "fft"}, "'full' or 'exponentials'"),
        ({"grid": MESH, "history": nf.Window(9)}, "depend on the lag alone"),
        ({"grid": MESH, "history": nf.Exponentials(terms=20)}, "number follows from tol"),
        ({"grid": MESH, "method": "gl"}, "uniform grids only"),
        ({"grid": MESH, "method": "l1", "history": "exponentials"}, "no integration rule"),
        ({"grid": MESH, "order": nf.Tempered(0.5, 0.1), "history": "exponentials"}, "Caputo's kernel"),
        ({"grid": MESH, "order": 1.5, "velocity": torch.ones(1), "history": "exponentials"}, "order above 1"),
        ({"grid": MESH, "adjoint": "paper"}, "uniform grid"),
    ],
    ids=str,
)
def test_what_no_mesh_has_is_refused(options, match):
    with pytest.raises((nf.InputError, nf.InputTypeError), match=match):
        nf.fdeint(lambda t, z: -z, torch.ones(1), float(MESH[-1]), options.pop("order", 0.5), **options)
