"""``linear=`` without func and steps: the Mittag-Leffler function of the operator, with gradients of everything."""

import math
import sys

import pytest
import torch

import neuralfde as nf
from neuralfde import linear
from neuralfde.special import mittag_leffler, mittag_leffler_matrix
from tests.stubs import F64, relative

from .test_linear import BATCH, KINDS, N, dense, leaf, numbers, on_a_ring

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
TIMES = torch.tensor([0.0, 0.01, 0.5, 1.0, 40.0], dtype=F64)


def textbook(matrix, z0, b, order):
    states = [z0]
    for t in TIMES[1:]:
        parts = [mittag_leffler_matrix(matrix * t**order, order, order * k + 1) for k in (0, 1)]
        states.append((parts[0] @ z0.flatten() + t**order * (parts[1] @ b.flatten())).view(z0.shape))
    return torch.stack(states)


@pytest.mark.parametrize("kind", ["coo", "bands", "fft", "dct", "planes"])
def test_values_and_gradients(kind):
    k, made = KINDS[kind]
    k, order = leaf(k), leaf(torch.tensor(0.7, dtype=F64))
    z0, b = leaf(numbers(BATCH, N, seed=1)), leaf(numbers(BATCH, N, seed=2))
    found = nf.fdeint(b, z0, TIMES, order, linear=made(k))
    want = textbook(dense(linear.read_linear(made(k)), z0), z0, b, order)
    assert relative(found.detach(), want.detach()) < 1e-11
    by = numbers(len(TIMES), BATCH, N, seed=3)
    for got, exact in zip(*(torch.autograd.grad(y, (k, z0, b, order), by) for y in (found, want)), strict=True):
        assert relative(got, exact) < 1e-9


def test_the_error_is_told():
    part, z0 = linear.laplacian(50, 0.01, boundary="zero", like=TIMES), numbers(50)
    told = nf.solve(None, z0, TIMES, 0.6, linear=part, estimate_error=True)
    values = torch.stack([mittag_leffler(part.eigenvalues * t**0.6, 0.6) for t in TIMES])
    want = torch.stack([part._by.times(v, z0) for v in values])
    assert float(told.error.max()) < 1e-9
    assert float((told.ys - want).abs().max()) <= float(told.error.max()) + 1e-13
    assert told.stats.steps == 0
    assert "no steps" in told.stats.why


def test_eigenvalues_off_the_negative_axis():
    turning = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)
    first = torch.tensor([1.0, 0.0], dtype=F64)
    turned = nf.fdeint(None, first, 3.0, 0.8, linear=turning)
    assert relative(turned, mittag_leffler_matrix(turning * 3**0.8, 0.8)[:, 0]) < 1e-12
    rates = torch.tensor([0.5, -3.0], dtype=F64)
    grown = nf.fdeint(None, torch.ones(2, dtype=F64), 2.0, 0.8, linear=torch.diag(rates))
    assert relative(grown, mittag_leffler(rates * 2**0.8, 0.8)) < 1e-11


def test_transforms():
    z0 = numbers(N)

    def value(k):
        return nf.fdeint(None, z0, 1.0, 0.7, linear=linear.diffusion(k, 0.7)).square().sum()

    k = numbers(2, N + 1)
    rows = torch.func.vmap(torch.func.grad(value))(k)
    for row, one in zip(rows, k, strict=True):
        one = leaf(one)
        assert relative(row, torch.autograd.grad(value(one), one)[0]) < 1e-10


def test_steps_come_to_the_same():
    """Of order 2 however stiff it is, with a start that is not smooth."""
    for rate in (1.0, 1e4):
        part, z0, b = torch.tensor([[-rate]], dtype=F64), torch.ones(1, dtype=F64), torch.full((1,), 2.0, dtype=F64)
        exact = nf.fdeint(b, z0, 1.0, 0.7, linear=part)
        off = [float((nf.fdeint(b, z0, 1.0, 0.7, steps=n, linear=part) - exact).abs()) for n in (50, 100)]
        assert 3.7 < off[0] / off[1] < 4.3


def test_what_is_refused():
    with pytest.raises(nf.InputError, match="where the eigenvalues of A are"):  # of a large dense matrix
        nf.fdeint(None, torch.ones(600, dtype=F64), 1.0, 0.7, linear=-torch.eye(600, dtype=F64))
    with pytest.raises(nf.InputError, match="func is missing"):
        nf.fdeint(None, torch.ones(2), 1.0, 0.7, steps=10)
    with pytest.raises(nf.InputError, match="constant source"):
        nf.fdeint(torch.ones(3), torch.ones(2), 1.0, 0.7, linear=-torch.eye(2))


@pytest.mark.parametrize("scipy", [True, False])
def test_large_sparse_matrices_by_polynomials(monkeypatch, scipy):
    """Products alone, and the numbers of the tridiagonal systems."""
    n, times = 600, torch.tensor([0.0, 0.3, 2.0], dtype=F64)
    if not scipy:
        monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    k, order = leaf(0.5 + torch.rand(n + 1, dtype=F64)), leaf(torch.tensor(0.7, dtype=F64))
    z0, b, at = leaf(numbers(n, seed=1)), leaf(numbers(n, seed=2)), torch.arange(n)

    def sparse():
        rows, columns = torch.cat([at, at[1:], at[:-1]]), torch.cat([at, at[:-1], at[1:]])
        return linear.Sparse(rows, columns, torch.cat([-k[1:] - k[:-1], k[1:-1], k[1:-1]]), n)

    told = nf.solve(b, z0, times, order, linear=sparse(), estimate_error=True)
    assert "Chebyshev" in told.stats.why
    assert not told.error.requires_grad
    assert told.error.max() < 1e-9
    want = nf.fdeint(b, z0, times, order, linear=linear.diffusion(k, 1.0))
    assert relative(told.ys.detach(), want.detach()) < 1e-11
    by = numbers(3, n, seed=3)
    for got, exact in zip(*(torch.autograd.grad(y, (k, z0, b, order), by) for y in (told.ys, want)), strict=True):
        assert relative(got, exact) < 1e-9


def ring_by_transform(values, z0, b, order, time):
    """The same with -1, 0 and 1 as offsets: the matrix is diagonal in a Fourier transform."""
    turn = torch.exp(2j * math.pi * torch.arange(600, dtype=F64) / 600)
    rates = (values[..., :1] / turn + values[..., 1:2] + values[..., 2:] * turn) * time**order
    e0, e1 = mittag_leffler(rates, order), mittag_leffler(rates, order, order + 1)
    return torch.fft.ifft(e0 * torch.fft.fft(z0) + time**order * e1 * torch.fft.fft(b)).real


@pytest.mark.parametrize(
    ("values", "order", "way"),
    [
        ([1.6, -2.1, 0.4], 0.8, "Arnoldi"),  # diffusion and transport
        ([1.0, 0.0, -1.0], 0.6, "Arnoldi"),  # transport alone: all eigenvalues are imaginary
        ([0.3, 0.1, 0.2], 0.8, "Arnoldi"),  # a state that grows
        ([0.1, 0.1, 0.1], 0.6, "Arnoldi"),
        ([[1.6, -2.1, 0.4], [0.3, -2.3, 0.1]], 0.8, "Arnoldi"),  # a matrix for each sample
        ([3e4, -4e4, 1e4], 0.7, "LU"),  # too stiff for a basis
    ],
)
def test_large_sparse_matrices_that_are_not_symmetric(values, order, way):
    leaves = [leaf(torch.tensor(x, dtype=F64)) for x in (values, order, 1.5)]
    z0, b = leaf(numbers(2, 600, seed=1)), leaf(numbers(2, 600, seed=2))
    values, order, horizon = leaves
    part, times = on_a_ring([-1, 0, 1], values), torch.tensor([0.0, 2.0, 8.0], dtype=F64)
    told = nf.solve(b, z0, times, order, linear=part, horizon=horizon, estimate_error=True)
    assert way in told.stats.why
    want = torch.stack([ring_by_transform(values, z0, b, order, horizon * t) for t in times[1:]])
    assert relative(told.ys[1:].detach(), want.detach()) < 1e-10
    assert told.error.max() < 1e-10 * want.detach().abs().max()
    by, inputs = numbers(2, 2, 600, seed=3), (*leaves, z0, b)
    for got, exact in zip(*(torch.autograd.grad(y, inputs, by) for y in (told.ys[1:], want)), strict=True):
        assert relative(got, exact) < 1e-8


def test_many_bands_without_steps_are_a_sparse_matrix():
    """Upwind differences of second order in a line, to which transport alone gives five diagonals."""
    bands = leaf(torch.tensor([-0.5, 2.0, -2.1, 0.6, 0.0], dtype=F64).expand(600, 5) * 0.3)
    z0, given = numbers(600), []
    for options in ({}, {"steps": 400}):
        y = nf.fdeint(None, z0, 1.0, 0.7, linear=linear.Bands(bands), **options)
        given.append((y.detach(), torch.autograd.grad(y.sum(), bands)[0]))
    for got, near in zip(*given, strict=True):
        assert relative(got, near) < 1e-5


def test_second_derivatives_of_a_basis_are_those_of_systems():
    values, z0 = leaf(torch.tensor([1.6, -2.1, 0.4], dtype=F64)), numbers(600)
    order, zero = torch.tensor(0.8, dtype=F64), torch.zeros(600, dtype=F64)
    seconds = []
    for y in (
        nf.fdeint(None, z0, 2.0, order, linear=on_a_ring([-1, 0, 1], values)),
        ring_by_transform(values, z0, zero, order, 2.0),
    ):
        (first,) = torch.autograd.grad(y.square().sum(), values, create_graph=True)
        seconds.append(torch.autograd.grad(first.sum(), values)[0])
    assert relative(*seconds) < 1e-9


def test_no_wrong_number_where_a_basis_does_not_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    z0, stiff = numbers(2100), on_a_ring([-1, 0, 1], torch.tensor([3e4, -4e4, 1e4], dtype=F64), 2100)
    with pytest.raises(nf.InputError, match="need scipy"):
        nf.fdeint(None, z0, 2.0, 0.8, linear=stiff)
    with pytest.raises(nf.InputError, match="turns and grows"):
        nf.fdeint(None, z0, 2.0, 1.0, linear=stiff)


def test_times_of_a_solution_without_steps_are_not_rounded():
    times = torch.tensor([0.0, 0.1, 0.7], dtype=F64)
    found = nf.solve(None, numbers(2), times, 0.7, linear=-torch.eye(2, dtype=F64))
    assert torch.equal(found.ts, times)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"t": torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.2, 0.7]])}, "t.unique"),
        ({"t": [torch.tensor([0.0, 0.5]), torch.tensor([0.0, 0.2, 0.7])]}, "t.unique"),
        ({"z0": torch.full((2, 2), math.nan, dtype=F64)}, "NaN"),
        ({"func": torch.full((2, 2), math.nan, dtype=F64)}, "NaN"),
        ({"linear": torch.full((2, 2), math.nan, dtype=F64)}, "linear= contains NaN"),
        ({"linear": torch.full((2, 2), math.inf, dtype=F64), "steps": 4}, "linear= contains NaN"),
        ({"horizon": math.inf}, "finite"),
        ({"args": (1,)}, "args="),
        ({"args": (1,), "steps": 4}, "args="),
        ({"grading": 2.0}, "grading"),
        ({"adjoint": "exat"}, "exact"),
        ({"z0": torch.ones(2, 2, dtype=torch.complex128)}, "real states"),
    ],
    ids=str,
)
def test_what_a_solution_without_steps_cannot_do_is_refused(change, says):
    given = {"func": None, "z0": torch.ones(2, 2, dtype=F64), "t": 1.0, "linear": -torch.eye(2, dtype=F64)} | change
    with pytest.raises((nf.InputError, nf.InputTypeError), match=says):
        nf.fdeint(given.pop("func"), given.pop("z0"), given.pop("t"), 0.7, **given)


def test_a_solution_without_steps_that_grows_beyond_all_numbers_is_not_returned():
    with pytest.raises(nf.NonFiniteError, match="without steps"):
        nf.fdeint(None, torch.ones(2, dtype=F64), 1e4, 0.7, linear=torch.eye(2, dtype=F64))
