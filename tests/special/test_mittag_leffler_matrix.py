from __future__ import annotations

import mpmath as mp
import pytest
import torch

from neuralfde.errors import InputError, InputTypeError
from neuralfde.special import mittag_leffler, mittag_leffler_matrix

F64 = torch.float64


def matrix_series(matrix, alpha, beta):
    n = matrix.shape[0]
    radius = float(matrix.abs().sum(1).max()) ** (1 / alpha)
    with mp.workdps(int(60 + 2 * radius / 2.3)):
        a, power, total, k = mp.matrix(matrix.tolist()), mp.eye(n), mp.zeros(n), 0
        while True:
            term = power * mp.rgamma(mp.mpf(alpha) * k + mp.mpf(beta))
            total, power, k = total + term, power * a, k + 1
            if k > 10 and alpha * k > radius and mp.mnorm(term, 1) < mp.mpf(10) ** -40:
                return total


def relative_error(matrix, alpha, beta=1.0):
    exact = matrix_series(matrix, alpha, beta)
    difference = mp.matrix(mittag_leffler_matrix(matrix, alpha, beta).tolist()) - exact
    return mp.mnorm(difference, "f") / mp.mnorm(exact, "f")


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("eigenvalue", [-5.0, -1.0, 0.0, 2.0])
def test_jordan_blocks(alpha, eigenvalue):
    block = eigenvalue * torch.eye(4, dtype=F64) + torch.diag(torch.ones(3, dtype=F64), 1)
    assert relative_error(block, alpha) < 3e-13


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.6])
def test_general_matrices(alpha):
    matrix = torch.randn(5, 5, dtype=F64, generator=torch.Generator().manual_seed(2))
    assert relative_error(matrix, alpha, 1.3) < 1e-13
    repeated = torch.diag(torch.tensor([-9.0, -9.0, -3.0, 0.0, 1.0, 1.0 + 1e-9], dtype=F64))
    assert relative_error(repeated, alpha) < 1e-13


def test_the_oscillator():
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64)
    scalar = mittag_leffler(torch.tensor(1j, dtype=torch.complex128), 0.8)
    expected = torch.stack([scalar.real, scalar.imag, -scalar.imag, scalar.real]).reshape(2, 2)
    torch.testing.assert_close(mittag_leffler_matrix(rotation, 0.8), expected, rtol=1e-13, atol=1e-14)


def test_batch_dtype_and_gradients_also_at_repeated_eigenvalues():
    batch = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    got = mittag_leffler_matrix(batch, 0.6)
    assert got.shape == batch.shape
    assert got.dtype == torch.float32
    torch.testing.assert_close(got[1, 2], mittag_leffler_matrix(batch[1, 2], 0.6))
    parameters = tuple(torch.tensor(v, dtype=F64, requires_grad=True) for v in (0.7, 1.2))
    for matrix in (torch.eye(2, dtype=F64), torch.tensor([[-1.0, 1.0], [0.0, -1.0]], dtype=F64)):
        assert torch.autograd.gradcheck(mittag_leffler_matrix, (matrix.requires_grad_(), *parameters))


def test_errors():
    with pytest.raises(InputError, match="square"):
        mittag_leffler_matrix(torch.ones(2, 3), 0.5)
    with pytest.raises(InputTypeError, match="int64"):
        mittag_leffler_matrix(torch.ones(2, 2, dtype=torch.int64), 0.5)
    with pytest.raises(InputError, match="one number"):
        mittag_leffler_matrix(torch.eye(2), torch.tensor([0.5, 0.6]))
