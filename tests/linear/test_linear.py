"""``linear=``: values and gradients of every kind of linear part are those of the textbook loop."""

import sys

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde import linear
from neuralfde.linear import base, sparse, stages
from neuralfde.schemes import sparse_systems
from tests.reference import formula
from tests.stubs import F64, relative

# torch warns whoever makes a sparse tensor
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
N, BATCH, STEPS, ORDER = 6, 3, 12, 0.6


def numbers(*shape, seed=0):
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) + 0.5


def edges():
    """A line of points and two chords, both ways, and the diagonal."""
    pairs = torch.tensor([(i, i + 1) for i in range(N - 1)] + [(0, 3), (1, 5)]).T
    rows = torch.cat([pairs[0], pairs[1], torch.arange(N)])
    return rows, torch.cat([pairs[1], pairs[0], torch.arange(N)])


def graph(k):
    """Edge weights as the Laplacian of a graph."""
    rows, columns = edges()
    flow = torch.cat([k, k], -1)
    own = torch.zeros(*k.shape[:-1], N, dtype=F64).index_add(-1, rows[: flow.shape[-1]], flow)
    return rows, columns, torch.cat([flow, -own], -1)


def sparse_tensor(k, layout=torch.sparse_coo):
    rows, columns, values = graph(k)
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, (N, N)).to_sparse(layout=layout)


class Scaled(nn.Module):
    """An operator of somebody's own, with a parameter."""

    def __init__(self, k):
        super().__init__()
        self.k = nn.Parameter(k)

    def _matrix(self):
        return -self.k * torch.eye(N, dtype=F64) + 0.3 * torch.tril(torch.ones(N, N, dtype=F64), -1)

    def matvec(self, z):
        return z @ self._matrix().T

    def solve(self, w0, r):
        return torch.linalg.solve(torch.eye(N, dtype=F64) - w0 * self._matrix(), r.unsqueeze(-1)).squeeze(-1)

    def solve_transposed(self, w0, r):
        return torch.linalg.solve(torch.eye(N, dtype=F64) - w0 * self._matrix().T, r.unsqueeze(-1)).squeeze(-1)


#: from parameters to a linear part; its matrix is that of its matvec
KINDS = {
    "matrix": (numbers(N, N), lambda k: k - 4 * torch.eye(N, dtype=F64)),
    "batch": (numbers(BATCH, N, N), lambda k: k - 4 * torch.eye(N, dtype=F64)),
    "coo": (numbers(N + 1), sparse_tensor),
    "csr": (numbers(N + 1), lambda k: sparse_tensor(k, torch.sparse_csr)),
    "sparse": (numbers(N + 1), lambda k: linear.Sparse(*graph(k), N)),
    "sparse batch": (numbers(BATCH, N + 1), lambda k: linear.Sparse(*graph(k), N)),
    "bands": (numbers(N + 1), lambda k: linear.diffusion(k, 0.7)),
    "wide bands": (numbers(BATCH, N, 5), lambda k: linear.Bands(k * torch.tensor([1.0, -1, -3, 1, 1], dtype=F64))),
    "fft": (numbers(1), lambda k: linear.laplacian(N, 0.7, k)),
    "dct": (numbers(1), lambda k: linear.laplacian(N, 0.7, k, "no-flux")),
    "dst": (numbers(1), lambda k: linear.laplacian(N, 0.7, k, "zero")),
    "planes": (numbers(1), lambda k: linear.laplacian((BATCH, N), 0.7, k, "zero")),
    "function": (numbers(N + 1), lambda k: lambda: linear.diffusion(k, 0.7)),
}


def dense(part, like):
    """The matrix on the flattened state."""
    one = torch.eye(like.numel(), dtype=F64).view(-1, *like.shape)
    return part.matvec(one).flatten(1).mT


def textbook(f, matrix, z0, order, steps=STEPS, step=0.1):
    """IMEX by its formula: BDF2, half of the first slope more in the first step, f at the extrapolated state."""
    ws, ps = (
        x.lagged + x.extra for x in formula("imex").uniform(order.reshape(1, 1), torch.tensor(step, dtype=F64), steps)
    )
    z = [z0.flatten()]
    us = [matrix @ z[0] + f(z[0])]
    one = torch.eye(len(z[0]), dtype=F64)
    for n in range(1, steps + 1):
        past = torch.stack(us)
        c, p = (z[0] + torch.einsum("jx,jm->m", w[n, :n], past) for w in (ws, ps))
        z.append(torch.linalg.solve(one - ws[n, n] * matrix, c + ws[n, n] * f(p)))
        us.append((z[-1] - c) / ws[n, n])
    return z[-1].view(z0.shape)


def leaf(x):
    return x.detach().clone().requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind):
    k, made = KINDS[kind]
    k, z0, order, c = (
        leaf(k),
        leaf(numbers(BATCH, N, seed=1)),
        leaf(torch.tensor(ORDER, dtype=F64)),
        leaf(torch.tensor(0.8, dtype=F64)),
    )
    inputs = (k, z0, order, c)
    found = nf.fdeint(lambda t, z, c: c * torch.sin(z), z0, STEPS * 0.1, order, steps=STEPS, args=(c,), linear=made(k))
    part = linear.read_linear(made(k))
    want = textbook(lambda z: c * torch.sin(z), dense(part, z0), z0, order)
    assert relative(found.detach(), want.detach()) < 1e-12
    by = numbers(BATCH, N, seed=2)
    for got, exact in zip(*(torch.autograd.grad(y, inputs, by) for y in (found, want)), strict=True):
        assert relative(got, exact) < 1e-10


@pytest.mark.parametrize(("method", "kind"), [("l1", "matrix"), ("trapezoid", "dct"), ("abm", "coo")])
def test_other_methods_take_the_whole_right_hand_side(method, kind):
    part, z0 = KINDS[kind][1](KINDS[kind][0]), numbers(BATCH, N)
    k = dense(linear.read_linear(part), z0[0])
    joined = nf.fdeint(lambda t, z: torch.sin(z), z0, 1.0, ORDER, steps=20, method=method, linear=part)
    whole = nf.fdeint(lambda t, z: torch.sin(z) + z @ k.T, z0, 1.0, ORDER, steps=20, method=method)
    assert relative(joined, whole) < 1e-12


@pytest.mark.parametrize("kind", ["batch", "coo", "bands", "fft"])
def test_implicit_stages_without_a_func_are_solved_directly(kind):
    k, made = KINDS[kind]
    z0, b, by, found = numbers(BATCH, N), numbers(BATCH, N, seed=3), numbers(BATCH, N, seed=2), []
    for direct in (True, False):
        leaves = [leaf(x) for x in (k, b, torch.tensor(ORDER, dtype=F64))]
        options = {"linear": made(leaves[0]), "steps": 15, "method": "l1"} | ({} if direct else {"solver": "newton"})
        ends = nf.solve(leaves[1], z0, 1.0, leaves[2], **options)
        found.append((ends.ys[-1].detach(), *torch.autograd.grad(ends.ys[-1], leaves, by)))
        if direct:
            assert (ends.stats.factorisations, ends.stats.linear_solves) == (1, 15)
    for got, want in zip(*found, strict=True):
        assert relative(got, want) < 1e-11


def test_newtons_method_uses_the_factors_of_a_large_linear_part(monkeypatch):
    monkeypatch.setattr(stages, "DENSE_NUMBERS", 16)
    n, i = 300, torch.arange(300)
    values = leaf(torch.cat([torch.full((n,), -2e3, dtype=F64), 1e3 * numbers(2 * n)]))
    part = linear.Sparse(i.repeat(3), torch.cat([i, (i + 1) % n, (i + 17) % n]), values, n)
    found = nf.solve(lambda t, z: -(z**3), numbers(n), 1.0, ORDER, steps=4, method="trapezoid", linear=part)
    options = {"steps": 4, "method": "trapezoid", "solver": "dense"}
    direct = nf.fdeint(lambda t, z: -(z**3), numbers(n), 1.0, ORDER, linear=part.matrix.dense(), **options)
    assert relative(found.ys[-1].detach(), direct) < 1e-11
    assert found.stats.linear_solves < 40
    found.ys.sum().backward()
    assert bool(values.grad.isfinite().all())


@pytest.mark.parametrize("options", [{"steps": 20, "grading": 2.0}, {"rtol": 1e-3}, {"steps": 80, "horizon": 2.0}])
def test_meshes_tolerances_and_own_time(options):
    k, z0 = leaf(numbers(N + 1)), numbers(BATCH, N)
    values = []
    for adjoint in ("exact", "direct"):
        y = nf.fdeint(lambda t, z: -(z**3), z0, 1.0, ORDER, linear=linear.diffusion(k, 0.7), adjoint=adjoint, **options)
        values.append((y.detach(), *torch.autograd.grad(y.sum(), k)))
    for got, want in zip(*values, strict=True):
        assert relative(got, want) < 1e-12
    part = linear.diffusion(k.detach(), 0.7)
    fine = nf.fdeint(lambda t, z: -(z**3), z0, options.get("horizon", 1.0), ORDER, steps=400, linear=part)
    assert relative(values[0][0], fine) < 3e-3


@pytest.mark.parametrize("first", [1e-6, 1e-12])
def test_a_short_step_before_a_long_one_keeps_single_precision(first):
    """The slope is solved for: a difference of states over a tiny weight would be rounding."""

    def solve(dtype):
        grid = torch.cat([torch.tensor([0.0, first], dtype=F64), torch.linspace(0.1, 1, 10, dtype=F64)])
        z0, part = numbers(BATCH, N).to(dtype), -1.3 * torch.eye(N, dtype=dtype)
        return nf.fdeint(lambda t, z: torch.sin(z), z0, 1.0, 0.9, grid=grid, linear=part, method="imex")

    assert relative(solve(torch.float32).double(), solve(F64)) < 1e-6


def test_an_object_of_ones_own():
    part, z0 = Scaled(torch.tensor(2.0, dtype=F64)), numbers(BATCH, N)
    found = nf.fdeint(lambda t, z: torch.sin(z), z0, 1.2, ORDER, steps=STEPS, linear=part)
    (got,) = torch.autograd.grad(found.sum(), part.k)
    matrix = torch.block_diag(*[part._matrix()] * BATCH)
    want = textbook(torch.sin, matrix, z0, torch.tensor(ORDER, dtype=F64))
    assert relative(found.detach(), want.detach()) < 1e-12
    assert relative(got, torch.autograd.grad(want.sum(), part.k)[0]) < 1e-10


@pytest.mark.parametrize("kind", ["matrix", "bands", "dct"])
def test_second_derivatives_forward_mode_and_vmap(kind):
    k, made = KINDS[kind]
    z0 = 0.3 * numbers(BATCH, N, seed=1)  # so small that the steps are stable

    def value(k):
        return nf.fdeint(lambda t, z: -(z**3), z0, 0.5, ORDER, steps=5, linear=made(k)).square().sum()

    k, u = leaf(k), numbers(*k.shape, seed=4)
    (first,) = torch.autograd.grad(value(k), k, create_graph=True)
    (second,) = torch.autograd.grad((first * u).sum(), k)
    _, forward = torch.func.jvp(torch.func.grad(value), (k.detach(),), (u,))
    assert relative(second, forward) < 1e-10
    _, slope = torch.func.jvp(value, (k.detach(),), (u,))
    assert float(slope) == pytest.approx(float((first.detach() * u).sum()), rel=1e-10)
    many = torch.func.vmap(value)(torch.stack([k.detach(), k.detach() + 0.1]))
    assert float(many[0]) == pytest.approx(float(value(k.detach())), rel=1e-12)


def test_many_tridiagonal_matrices_by_cyclic_reduction():
    k, r, w0 = numbers(40, 101), numbers(40, 100, seed=3), torch.tensor(0.3, dtype=F64)
    part = linear.diffusion(k, 0.1)
    factor = part.factor(w0, r)
    assert "cyclic" in factor.why
    matrix = torch.eye(100, dtype=F64) - w0 * part.matrix
    assert relative(factor.solve(r), torch.linalg.solve(matrix, r)) < 1e-12
    assert relative(factor.solve(r, transposed=True), torch.linalg.solve(matrix.mT, r)) < 1e-12


def test_large_sparse_systems_with_and_without_scipy(monkeypatch):
    n = 300
    i = torch.arange(n)
    there = torch.cat([i, (i + 1) % n, (i - 1) % n, (i + 17) % n])
    values = torch.cat([torch.full((n,), -5.0), numbers(3 * n)])
    part, r, w0 = linear.Sparse(i.repeat(4), there, values.double(), n), numbers(2, n), torch.tensor(0.5, dtype=F64)
    matrix = torch.eye(n, dtype=F64) - w0 * part.matrix.dense()
    factors = [part.factor(w0, r)]
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)  # as if it were not installed
    monkeypatch.setattr(sparse, "DENSE_NUMBERS", 16)
    factors.append(part.factor(w0, r))
    assert ["LU" in factors[0].why, "GMRES" in factors[1].why] == [True, True]
    for factor in factors:
        assert relative(factor.solve(r), torch.linalg.solve(matrix, r.T).T) < 1e-11
        assert relative(factor.solve(r, transposed=True), torch.linalg.solve(matrix.T, r.T).T) < 1e-11
    monkeypatch.setattr(
        sparse_systems, "gmres", lambda apply, rest, *more: (torch.zeros_like(rest),)
    )  # as if it stood still
    with pytest.raises(nf.errors.ConvergenceError, match="cuDSS"):
        factors[1].solve(r)
    monkeypatch.setattr(torch.sparse, "spsolve", lambda m, b: torch.linalg.solve(m.to_dense(), b))  # as if built in
    assert relative(factors[1].solve(r), torch.linalg.solve(matrix, r.T).T) < 1e-11
    assert relative(factors[1].solve(r, transposed=True), torch.linalg.solve(matrix.T, r.T).T) < 1e-11


def test_one_factorisation_serves_both_passes():
    k = leaf(numbers(N + 1))
    found = nf.solve(lambda t, z: -z, numbers(BATCH, N), 1.0, ORDER, steps=30, linear=linear.diffusion(k, 0.7))
    assert (found.stats.factorisations, found.stats.linear_solves) == (1, 30)
    assert "linear= by" in found.stats.why


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (torch.eye(N, dtype=F64) * 1e6, "indefinite"),
        (linear.Spectral(torch.full((N,), 1e6, dtype=F64)), "indefinite"),
        (torch.eye(N + 1, dtype=F64), "do not fit"),
        (torch.eye(N, dtype=F64).expand(BATCH + 1, N, N), "do not fit"),
        (torch.eye(N), "float32"),
        (torch.ones(N, dtype=F64), "square"),
        ("diffusion", "has no matvec"),
    ],
)
def test_what_is_refused(part, says):
    with pytest.raises((nf.ConvergenceError, nf.InputError, nf.InputTypeError), match=says):
        nf.fdeint(lambda t, z: z, numbers(BATCH, N), 1.0, ORDER, steps=5, linear=part)


def test_a_singular_matrix_is_named():
    part = linear.Matrix(torch.eye(N, dtype=F64) / 0.5)
    part.top = lambda: 0.0
    with pytest.raises(nf.ConvergenceError, match="singular"):
        base.Systems(part).factor(torch.tensor(0.5, dtype=F64), numbers(N))


def on_a_ring(offsets, values, n=600):
    """A sparse matrix with these values, (..., offsets), beside each of ``n`` numbers on a ring."""
    at = torch.arange(n)
    there = torch.cat([(at + o) % n for o in offsets])
    return linear.Sparse(at.repeat(len(offsets)), there, values.repeat_interleave(n, -1), n)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize(
    ("offsets", "values", "grows"),
    [
        ([0], [30.0], True),
        ([0, 1, -1], [-2e6 + 20, 1e6, 1e6], True),  # one slow mode grows too fast for the step
        ([0, 1, -1], [2e3, -1e3, -1e3], True),
        ([0, 1, -1], [-2e3, -4.9e4, 5.1e4], False),
        ([-2, -1, 0, 1, 2], [-1e3, 4e3, -6e3, 4e3, -1e3], False),
    ],
)
def test_growth_of_a_large_sparse_matrix_is_noticed(offsets, values, grows, dtype):
    """Its eigenvalues are not known, and its discs reach to the right."""
    n, part = 600, on_a_ring(offsets, torch.tensor(values, dtype=dtype))
    options = {"steps": 10, "linear": part, "grading": 1.5}
    if grows:
        with pytest.raises(nf.ConvergenceError, match="indefinite"):
            nf.fdeint(lambda t, z: -z, torch.rand(n, dtype=dtype), 1.0, 0.7, **options)
    else:
        assert nf.fdeint(lambda t, z: -z, torch.rand(n, dtype=dtype), 1.0, 0.7, **options).abs().max() < 1


def test_a_bound_of_growth_is_not_taken_for_growth():
    """The fourth difference decays, although its discs reach far to the right."""
    bands = torch.tensor([-1.0, 4.0, -6.0, 4.0, -1.0], dtype=F64).expand(N, 5) * 1e6
    part = linear.Bands(bands)
    assert part.top() > 0
    end = nf.fdeint(lambda t, z: z, numbers(BATCH, N), 1.0, ORDER, steps=5, linear=part)
    assert float(end.abs().max()) < 1e-3


def test_single_precision_keeps_its_digits_over_many_steps():
    def run(dtype):
        z0 = torch.sin(torch.linspace(0, 3.14, 52, dtype=dtype)[1:-1])
        part = linear.diffusion(torch.full((51,), 0.01, dtype=dtype), 1 / 51)
        return nf.fdeint(None, z0, 1.0, 0.7, steps=300, method="l1", linear=part).double()

    assert relative(run(torch.float32), run(F64)) < 6e-7  # 1e-5 with slopes from differences of states


def fourth_differences(scale, dtype, method, grading=1.0):
    """Ten steps with fourth differences of 600 numbers, times ``scale``: one, or one for each sample."""
    scale, values = torch.as_tensor(scale, dtype=dtype), torch.tensor([-1.0, 4.0, -6.0, 4.0, -1.0], dtype=dtype)
    part = on_a_ring([-2, -1, 0, 1, 2], scale[..., None] * values)
    options = {"method": method, "steps": 10, "grading": grading, "linear": part}
    z0 = numbers(600).to(dtype).expand(*scale.shape, 600)
    return nf.fdeint(None, z0, 1.0, 0.7, **options).double()


@pytest.mark.parametrize(
    ("method", "grading"),
    [("imex", 1.0), ("imex", 1.5), ("trapezoid", 1.0), ("trapezoid", 1.5), ("bdf2", 1.0), ("l1", 1.0), ("l1", 1.5)],
)
def test_single_precision_of_a_stiff_part_is_rough_or_said_to_be_none(method, grading):
    few, all_digits = (fourth_differences(1e4, dtype, method, grading) for dtype in (torch.float32, F64))
    assert relative(few, all_digits) < 1e-2  # 1 and more where slopes were products with A
    with pytest.warns(UserWarning, match="too stiff for torch.float32.*Use float64"):
        fourth_differences(1e6, torch.float32, method, grading)


@pytest.mark.parametrize("method", ["imex", "trapezoid"])
def test_a_stiff_sample_keeps_its_digits_beside_one_that_is_not(method):
    both = fourth_differences([1e4, 0.1], torch.float32, method, 1.5)
    for own, scale in zip(both, (1e4, 0.1), strict=True):
        assert relative(own, fourth_differences(scale, F64, method, 1.5)) < 1e-2


@pytest.mark.parametrize("given", [True, False])
def test_a_stiff_func_is_rough_in_single_precision_and_no_other_in_the_backward_pass(given):
    n, k = 400, torch.full((401,), 1.0, requires_grad=True)
    z0, part = torch.sin(torch.linspace(0, 3.14, n + 2)[1:-1]), lambda: linear.diffusion(k, 1 / 401)
    func, more = (None, {"linear": part()}) if given else (lambda t, z: part().matvec(z), {"params": [k]})
    nf.fdeint(func, z0, 1.0, 0.7, steps=40, method="l1", **more).sum().backward()
    exact = torch.ones(401, dtype=F64, requires_grad=True)
    wide = {"steps": 40, "method": "l1", "linear": linear.diffusion(exact, 1 / 401)}
    nf.fdeint(None, z0.double(), 1.0, 0.7, **wide).sum().backward()
    assert relative(k.grad.sum().double(), exact.grad.sum()) < 1e-3


def test_imex_steps_on_the_mesh_of_a_tolerance():
    z0, f = numbers(N, seed=1), lambda t, z: torch.cos(z)
    k, made = KINDS["bands"]
    k = k.detach().clone().requires_grad_()
    exact = nf.fdeint(f, z0, 1.0, 0.7, linear=made(k.detach()), steps=2000)
    for rtol in (1e-2, 1e-4):
        found = nf.solve(f, z0, 1.0, 0.7, linear=made(k), rtol=rtol, method="imex")
        assert ((found.ys - exact).abs() / (rtol + rtol * exact.abs())).max() < 1
        assert found.stats.smallest_step < found.stats.largest_step / 10
    mesh = nf.fdeint(f, z0, 1.0, 0.7, linear=made(k), grid=found.grid)  # the same steps, given
    (by_mesh,), (by_tolerance,) = (torch.autograd.grad(y.sum(), k) for y in (mesh, found.ys))
    assert torch.equal(mesh, found.ys[-1])
    assert torch.equal(by_mesh, by_tolerance)


@pytest.mark.parametrize("order", [0.3, 0.45, 0.8])
def test_a_rough_start_keeps_order_two_with_grading(order):
    """And a reaction that is not linear; on steps of one length the order is 1 + 2β for β below a half."""
    part = linear.diffusion(torch.full((21,), 0.1, dtype=F64), 1 / 21)
    z0 = torch.sin(0.15 * torch.arange(1, 21, dtype=F64))

    def observed(grading):
        a, b, c = (
            nf.fdeint(lambda t, z: 3 * z * (1 - z) * (z - 0.2), z0, 1.0, order, steps=n, linear=part, grading=grading)
            for n in (64, 128, 256)
        )
        return float(((a - b).norm() / (b - c).norm()).log2())

    assert observed(2.0) > 1.9
    assert abs(observed(1.0) - min(2, 1 + 2 * order)) < 0.25  # from below, slowly
