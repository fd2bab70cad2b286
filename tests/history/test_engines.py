"""Every engine against the dense matrix, forward and transposed, and the gradient of its weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfde.history import FFT, Full, Window
from tests.stubs import F64, relative

ENGINES = [
    Full(block=8),
    Full(block=64),
    FFT(block=4, growth=2),
    FFT(block=2, growth=4),
    Window(1),
    Window(7, block=4),
    Window(500),
]


def dense(weights: torch.Tensor, steps: int, window: int | None) -> torch.Tensor:
    """(sums, groups, row, column), strictly lower triangular."""
    lag = torch.arange(steps + 1)[:, None] - torch.arange(steps + 1)
    inside = (lag >= 1) & (lag <= (window or steps))
    return torch.where(inside[None, None], weights.permute(0, 2, 1)[..., lag.clamp(0)], 0.0)


def sweep(engine, rows, indices):
    out = {}
    for n in indices:
        past = engine.recall(n)
        out[n] = None if past is None else past.clone()
        engine.record(n, rows[:, n])
    return out


@pytest.mark.parametrize("history", ENGINES, ids=repr)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("steps", [1, 5, 37])
def test_forward_and_transposed_sweeps_equal_the_dense_matrix(history, groups, sums, steps):
    torch.manual_seed(0)
    weights = torch.rand(sums, steps + 1, groups, dtype=F64)
    rows = torch.randn(1, steps + 1, groups, 4, dtype=F64)
    big = dense(weights, steps, getattr(history, "length", None))
    got = sweep(history.forward(weights, steps, rows[0, 0]), rows, range(steps + 1))
    want = torch.einsum("kgnj,jgm->nkgm", big, rows[0])
    for n in range(steps + 1):
        assert relative(got[n] if got[n] is not None else torch.zeros_like(want[n]), want[n]) < 1e-13 or n == 0

    rows = torch.randn(sums, steps + 1, groups, 4, dtype=F64)
    engine = history.reverse(weights, steps, rows[0, 0], None, False)
    got = sweep(engine, rows, range(steps, -1, -1))
    want = torch.einsum("kgnj,kngm->jgm", big, rows)
    for n in range(steps):
        assert got[n] is not None
        assert relative(got[n][0], want[n]) < 1e-13


@pytest.mark.parametrize("history", ENGINES, ids=repr)
def test_weight_gradients_equal_the_dense_ones(history):
    torch.manual_seed(0)
    steps, groups, sums = 29, 2, 2
    weights = torch.rand(sums, steps + 1, groups, dtype=F64, requires_grad=True)
    slopes = torch.randn(steps + 1, groups, 3, dtype=F64)
    mu = torch.randn(sums, steps + 1, groups, 3, dtype=F64)
    value = torch.einsum("kgnj,jgm,kngm->", dense(weights, steps, getattr(history, "length", None)), slopes, mu)
    (want,) = torch.autograd.grad(value, weights)
    engine = history.reverse(weights.detach(), steps, slopes[0], None, True)
    for n in range(steps, -1, -1):
        engine.recall(n)
        engine.record(n, mu[:, n], slopes[n])
    assert relative(engine.weights_grad.permute(0, 2, 1), want) < 1e-13


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.sampled_from([1, 2, 5, 16]), st.integers(2, 5), st.integers(0, 10**6))
def test_transpose_is_a_law(steps, block, growth, seed):
    """⟨W v, μ⟩ = ⟨v, Wᵀ μ⟩ for any sizes."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(1, steps + 1, 1, dtype=F64, generator=g)
    v, mu = (torch.randn(1, steps + 1, 1, 2, dtype=F64, generator=g) for _ in range(2))
    for history in (Full(block=block), FFT(block=block, growth=growth), Window(1 + seed % steps, block=block)):
        forward = sweep(history.forward(weights, steps, v[0, 0]), v, range(steps + 1))
        back = sweep(history.reverse(weights, steps, v[0, 0], None, False), mu, range(steps, -1, -1))
        left = sum(float((forward[n][0] * mu[0, n]).sum()) for n in range(1, steps + 1) if forward[n] is not None)
        right = sum(float((back[n][0] * v[0, n]).sum()) for n in range(steps) if back[n] is not None)
        assert abs(left - right) < 1e-9 * (1 + abs(left))


def test_float32_fft_sums_are_accurate():
    torch.manual_seed(0)
    steps = 3000
    weights = (torch.arange(steps + 1, dtype=F64) + 1.0).pow(-0.5)[None, :, None]
    rows = torch.randn(1, steps + 1, 1, 2)
    sums = []
    for history in (Full(), FFT()):
        got = sweep(history.forward(weights.float(), steps, rows[0, 0]), rows, range(steps + 1))
        sums.append(torch.stack([got[n] for n in range(1, steps + 1)]))
    assert relative(sums[1], sums[0]) < 1e-5
