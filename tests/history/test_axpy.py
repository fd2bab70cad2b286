"""One row of sums on a GPU: the kernel and what it takes for granted."""

import pytest
import torch

from neuralfde.history.axpy import add_rows
from tests.interpreted import INTERPRETED, by_kernels, run_interpreted

DEVICE = "cpu" if INTERPRETED else "cuda"


@by_kernels
@pytest.mark.parametrize("width", [1, 5, 600])
def test_the_kernel_reads_weights_and_rows_as_they_lie(width):
    from neuralfde.history.kernels import add_rows as kernel

    table = torch.randn(4, 7, dtype=torch.float64, device=DEVICE)
    past = torch.randn(8, 2, width, dtype=torch.float64, device=DEVICE)[:4, 1]
    for weights in (table.mT[2:3], table.mT.contiguous()[2:3]):
        row = torch.ones(1, width, dtype=torch.float64, device=DEVICE)
        sizes = width, 4, weights.stride(1), past.stride(0)
        kernel[(-(-width // 128),)](row, weights, past, *sizes, COLUMNS=128)
        torch.testing.assert_close(row, 1 + weights @ past)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sums_are_those_of_a_product_however_numbers_lie():
    table, past = torch.randn(4, 7, device="cuda").double(), torch.randn(4, 600, device="cuda").double()
    for weights in (table.mT[2:3], table.mT.contiguous()[2:3]):
        for rows in (past, past.mT.contiguous().mT):
            row = torch.ones(1, 600, device="cuda").double()
            add_rows(row, weights, rows)
            torch.testing.assert_close(row, 1 + weights @ rows)


@pytest.mark.skipif(INTERPRETED, reason="would start itself")
def test_in_the_interpreter():
    run_interpreted(__file__)
