"""Stage solvers on a plane: values and gradients of each are those of autograd, and sparse Jacobians are found."""

import sys

import pytest
import torch

import neuralfde as nf
from neuralfde import Banded, Dense, Given, InputError, Krylov, Newton, Sparse, Spectral, linear
from neuralfde.errors import ConvergenceError
from neuralfde.schemes import Jacobian
from neuralfde.schemes import sparse as module
from neuralfde.schemes.sparse import _probed
from neuralfde.weights import uniform
from tests.stubs import F64, relative

LINES, POINTS, STEPS = 5, 4, 6


def plane(t, z, k):
    """Diffusion whose rate depends on the state, zero beyond the edges, and a source; a rate for each sample."""
    p = torch.nn.functional.pad(z, (1, 1, 1, 1))
    beside = p[..., 2:, 1:-1] + p[..., :-2, 1:-1] + p[..., 1:-1, 2:] + p[..., 1:-1, :-2]
    return k[:, None, None] * (1 + z * z) * (beside - 4 * z) + torch.cos(t) * z


def start(dtype=F64, lines=LINES, points=POINTS):
    x, y = (torch.linspace(0.1, 3, n, dtype=dtype) for n in (lines, points))
    z0 = torch.stack([torch.sin(x)[:, None] * torch.sin(y), 0.5 * torch.cos(x)[:, None] * torch.sin(y)])
    return z0.requires_grad_(), torch.tensor([20.0, 45.0], dtype=dtype, requires_grad=True)


def textbook(z0, k, order):
    """``l1`` with dense matrices; the last step of Newton's method is differentiated."""
    w = uniform.l1(order.reshape(1), 0.1, STEPS)[:, 0]
    z, vs, one = z0, [], torch.eye(z0.numel(), dtype=F64)
    for n in range(1, STEPS + 1):
        c = z0 + sum((w[n - j] * v for j, v in enumerate(vs, 1)), torch.zeros_like(z0))
        t = torch.tensor(0.1 * n, dtype=F64)
        at = z.detach()
        for _ in range(12):
            matrix = torch.func.jacrev(plane, 1)(t, at, k.detach()).view(len(one), -1)
            z = at + torch.linalg.solve(
                one - w[0].detach() * matrix, (c + w[0] * plane(t, at, k) - at).flatten()
            ).view_as(z0)
            at = z.detach()
        vs.append((z - c) / w[0])
    return z


def spectral(w0, r):
    part = linear.laplacian((LINES, POINTS), 1.0, 40.0, "zero", like=r)
    return part.factor(w0.flatten()[0], r).solve(r)


NUMBERS = torch.arange(LINES * POINTS)
PLACES = (NUMBERS[:, None] - NUMBERS).abs()
STENCIL = (PLACES <= 1) | (PLACES == POINTS)
SOLVERS = {
    "dense": Dense(),
    "banded": Banded(),
    "sparse": Sparse(),
    "sparse, given": Sparse(STENCIL),
    "transform": Given(spectral, spectral),
    "spectral, nearly": Spectral("dst", axes=2, nearly=True),
    "krylov, spectral": Krylov(preconditioner=Spectral("dst", axes=2, nearly=True)),
    "krylov": Krylov(),
    "krylov, transform": Krylov(preconditioner=Given(spectral, spectral)),
    "krylov, sparse": Krylov(preconditioner=Sparse(STENCIL.double().to_sparse())),
}


def gradients(y, leaves):
    by = torch.cos(torch.arange(y.numel(), dtype=F64)).view_as(y).to(y.dtype)
    return y.detach(), *torch.autograd.grad(y, leaves, by)


@pytest.mark.parametrize("name", SOLVERS)
def test_values_and_gradients_are_those_of_autograd(name):
    (z0, k), order = start(), torch.tensor(0.7, dtype=F64, requires_grad=True)
    solver = Newton(linear=SOLVERS[name], max_iter=200)
    found = nf.solve(plane, z0, 0.6, order, steps=STEPS, method="l1", solver=solver, args=(k,), stepper="single")
    leaves = (z0, k, order)
    for got, want in zip(gradients(found.ys[-1], leaves), gradients(textbook(*leaves), leaves), strict=True):
        assert relative(got, want) < 1e-11
    if "sparse" in name and "krylov" not in name:
        assert "a sparse LU of 20 elements, 2 samples" in found.stats.why
        assert 0 < found.stats.factorisations < STEPS


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_wide_plane_is_found_to_be_sparse(dtype):
    """Without an option, with samples of their own rates; the plain iteration that is tried first runs to infinity."""
    z0, k = start(dtype, 66, 66)
    found = nf.solve(plane, z0, 0.6, 0.7, steps=4, method="trapezoid", args=(k,))
    assert "a sparse LU of 4356 elements, 2 samples" in found.stats.why
    pattern = torch.eye(66, dtype=F64), (torch.ones(66, 66, dtype=F64).triu(-1).tril(1))
    given = Newton(linear=Sparse((torch.kron(*pattern) + torch.kron(*pattern[::-1])).to_sparse()))
    other = nf.solve(plane, z0, 0.6, 0.7, steps=4, method="trapezoid", args=(k,), solver=given)
    for got, want in zip(*(gradients(x.ys[-1], (z0,)) for x in (found, other)), strict=True):
        assert relative(got, want) < (1e-11 if dtype == F64 else 1e-4)


@pytest.mark.parametrize("dense", [True, False])
def test_without_scipy(monkeypatch, dense):
    (z0, k), options = start(), {"steps": STEPS, "method": "l1"}
    want = nf.fdeint(plane, z0, 0.6, 0.7, args=(k,), **options)
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    monkeypatch.setattr(module, "DENSE_MEMORY", 1 << 24 if dense else 0)
    found = nf.solve(plane, z0, 0.6, 0.7, args=(k,), solver="sparse", stepper="single", **options)
    assert ("dense" if dense else "GMRES") in found.stats.why
    for got, exact in zip(gradients(found.ys[-1], (z0, k)), gradients(want, (z0, k)), strict=True):
        assert relative(got, exact) < 1e-11


@pytest.mark.parametrize("seed", range(4))
def test_every_number_of_a_sparse_jacobian_is_found(seed):
    g = torch.Generator().manual_seed(seed)
    n, samples = [(1, 1), (37, 3), (200, 2), (130, 1)][seed]
    matrix = torch.randn(samples, n, n, dtype=F64, generator=g) * (torch.rand(n, n, generator=g) < 2 / n)
    jacobian = Jacobian(lambda z: torch.einsum("sij,sj->si", matrix, z), torch.randn(samples, n, dtype=F64))
    assert jacobian.traced
    found = _probed(jacobian, samples, n, 256)
    want = {(int(i), int(j)) for i, j in (matrix != 0).any(0).nonzero()}
    assert {(int(i), int(j)) for i, j in zip(found.rows, found.columns, strict=True)} == want
    pairs = torch.stack([found.colours[found.rows], found.columns], 1)
    assert len(pairs.unique(dim=0)) == len(pairs)  # no two rows of a colour meet in a column


def test_what_is_not_sparse_is_refused():
    mixed = torch.randn(64, 64, dtype=F64, generator=torch.Generator().manual_seed(0))
    func, z0 = lambda t, z: torch.tanh(z) @ mixed, torch.ones(64, dtype=F64)
    options = {"steps": 2, "method": "l1", "stepper": "single"}
    for part in (Sparse(), Sparse(torch.eye(64))):
        with pytest.raises(ConvergenceError, match=r"not the structure that Sparse.*auto"):
            nf.fdeint(func, z0, 1.0, 0.7, solver=Newton(linear=part), **options)
    with pytest.raises(InputError, match="do not divide"):
        nf.fdeint(func, z0, 1.0, 0.7, solver=Newton(linear=Sparse(torch.eye(5))), **options)
    with pytest.raises(InputError, match="square matrix"):
        Sparse(torch.ones(3))


@pytest.mark.parametrize("kind", ["fft", "dct", "dst"])
def test_a_jacobian_that_is_diagonal_in_a_transform(kind):
    """One product finds its eigenvalues, of each sample its own; transport makes those of a ring complex."""
    k = torch.tensor([[[30.0]], [[5.0]]], dtype=F64, requires_grad=True)
    z0 = (1 + torch.rand(2, 6, 7, dtype=F64, generator=torch.Generator().manual_seed(0))).requires_grad_()

    def func(t, z, k):
        part = linear.laplacian((6, 7), 0.7, k, {"fft": "periodic", "dct": "no-flux", "dst": "zero"}[kind])
        wind = 9 * (z.roll(1, -1) - z) if kind == "fft" else 0.0
        return part.matvec(z) - 2 * z + wind + torch.cos(t)

    options = {"steps": 6, "method": "trapezoid", "args": (k,), "stepper": "single"}
    found = nf.solve(func, z0, 1.0, 0.7, solver=Newton(linear=Spectral(kind, axes=2)), **options)
    assert "diagonal in a transform" in found.stats.why
    assert found.stats.factorisations == 1
    want = nf.fdeint(func, z0, 1.0, 0.7, solver="dense", **options)
    for got, exact in zip(gradients(found.ys[-1], (z0, k)), gradients(want, (z0, k)), strict=True):
        assert relative(got, exact) < 1e-11


def test_what_is_not_diagonal_in_a_transform_is_refused():
    solver = Newton(linear=Spectral("dct"))
    with pytest.raises(nf.ConvergenceError, match="has not the structure that Spectral"):
        nf.fdeint(lambda t, z: -(z**3), 1 + NUMBERS.double(), 1.0, 0.7, steps=3, method="l1", solver=solver)
    with pytest.raises(InputError, match="must be one of"):
        Spectral("wavelet")
