"""GPU kernels; importing this needs Triton."""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def add_rows(row, weights, past, width, count, apart, stride, COLUMNS: tl.constexpr):
    """``row += Σ_i weights_i past_i`` for ``count`` rows of ``past``; each program handles a tile of columns.

    ``apart`` is the stride of the weights, ``stride`` that of the rows; the elements of a row are contiguous.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.load(row + column, mask=inside)
    for i in range(count):
        total += tl.load(weights + i * apart) * tl.load(past + i * stride + column, mask=inside)
    tl.store(row + column, total, mask=inside)
