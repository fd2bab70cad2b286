"""GPU kernels of graph diffusion; importing this needs Triton, and :mod:`.fused` calls them.

One program has one row of the compressed sparse rows and takes its edges ``EDGES`` at a time, in their order: what it
gathers stays in registers, and every sum has a fixed order. ``WIDTH``, ``HEADS`` and ``DIM`` are powers of two that
hold the actual numbers. Rows of more than ``most`` edges are left to a second launch, which has a list of them.
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def _place(rowptr, rows, most, LISTED: tl.constexpr):
    """This program's row, whether it is this launch's, its first edge and the one after its last."""
    row = tl.program_id(0).to(tl.int64)
    if LISTED:
        row = tl.load(rows + row).to(tl.int64)
    first, last = tl.load(rowptr + row), tl.load(rowptr + row + 1)
    mine = last - first <= most
    return row, mine, first, tl.where(mine, last, first)


@triton.jit
def _neighbours(x, col, e, real, width, f, inside):
    """Rows of ``x`` at the far ends of edges ``e``, (EDGES, WIDTH)."""
    j = tl.load(col + e, real, 0).to(tl.int64)
    return tl.load(x + j[:, None] * width + f[None, :], real[:, None] & inside[None, :], 0.0)


@triton.jit
def diffuse(
    rowptr, col, perm, rows, most, weight, z, rate, source, strength, out, each, width,
    LISTED: tl.constexpr, SOURCE: tl.constexpr, EDGES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``out_i = s (Σ_e w_e z_j - z_i) + b source_i``; ``each`` rows belong to one rate."""
    row, mine, first, last = _place(rowptr, rows, most, LISTED)
    f = tl.arange(0, WIDTH)
    own, inside = row * width + f, f < tl.where(mine, width, 0)
    total = tl.zeros([WIDTH], z.dtype.element_ty)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        w = tl.load(weight + e, e < last, 0.0)
        total += tl.sum(w[:, None] * _neighbours(z, col, e, e < last, width, f, inside), 0)
    total = tl.load(rate + row // each) * (total - tl.load(z + own, inside, 0.0))
    if SOURCE:
        total += tl.load(strength + row // each) * tl.load(source + own, inside, 0.0)
    tl.store(out + own, total, inside)


@triton.jit
def diffuse_back(
    rowptr, col, perm, rows, most, weight, z, grad, rate, grad_weight, grad_z, dots, each, width,
    LISTED: tl.constexpr, FOR_WEIGHT: tl.constexpr, EDGES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """By source: ``d_j = Σ_e w_e f̄_i - f̄_j``, ``z̄_j = s d_j``, ``<d_j, z_j>`` and ``w̄_e = s <f̄_i, z_j>``."""
    row, mine, first, last = _place(rowptr, rows, most, LISTED)
    f = tl.arange(0, WIDTH)
    own, inside = row * width + f, f < tl.where(mine, width, 0)
    state, s = tl.load(z + own, inside, 0.0), tl.load(rate + row // each)
    total = tl.zeros([WIDTH], z.dtype.element_ty)
    for start in range(first, last, EDGES):
        p = start + tl.arange(0, EDGES)
        real = p < last
        e = tl.load(perm + p, real, 0)
        w = tl.load(weight + e, real, 0.0)
        theirs = _neighbours(grad, col, p, real, width, f, inside)
        total += tl.sum(w[:, None] * theirs, 0)
        if FOR_WEIGHT:
            tl.store(grad_weight + e, s * tl.sum(theirs * state[None, :], 1), real)
    total -= tl.load(grad + own, inside, 0.0)
    tl.store(dots + row, tl.sum(total * state, 0), mine)
    tl.store(grad_z + own, s * total, inside)


@triton.jit
def _heads(heads, dim, HEADS: tl.constexpr, DIM: tl.constexpr):
    """Where the numbers of a node are, (HEADS, DIM), and which of them there are."""
    h, d = tl.arange(0, HEADS), tl.arange(0, DIM)
    return h[:, None] * dim + d[None, :], (h < heads)[:, None] & (d < dim)[None, :]


@triton.jit
def _edge_heads(e, real, heads, HEADS: tl.constexpr):
    """Where the numbers of edges ``e`` are, (EDGES, HEADS), and which of them there are."""
    h = tl.arange(0, HEADS)
    return e.to(tl.int64)[:, None] * heads + h[None, :], real[:, None] & (h < heads)[None, :]


@triton.jit
def _head_rows(x, col, e, real, size, at, there):
    """Rows of ``x`` at the far ends of edges ``e``, (EDGES, HEADS, DIM)."""
    j = tl.load(col + e, real, 0).to(tl.int64)
    return tl.load(x + (j * size)[:, None, None] + at[None, :, :], real[:, None, None] & there[None, :, :], 0.0)


@triton.jit
def softmax(
    rowptr, col, perm, rows, most, q, k, each_head, mean, heads, dim,
    LISTED: tl.constexpr, SCALE: tl.constexpr, EDGES: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Softmax of ``SCALE <q_i, k_j>`` over each target's edges for every head, (E, heads), and its mean over heads.

    Scores are written first and then read: computed twice, in another order, huge ones would not be the same.
    """
    row, mine, first, last = _place(rowptr, rows, most, LISTED)
    at, there = _heads(heads, dim, HEADS, DIM)
    query = SCALE * tl.load(q + row * heads * dim + at, there & (at < tl.where(mine, heads * dim, 0)), 0.0)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        keys = _head_rows(k, col, e, e < last, heads * dim, at, there)
        place, known = _edge_heads(e, e < last, heads, HEADS)
        tl.store(each_head + place, tl.sum(keys * query[None, :, :], 2), known)
    tl.debug_barrier()  # other threads read these scores next
    top = tl.full([HEADS], float("-inf"), q.dtype.element_ty)
    total = tl.zeros([HEADS], q.dtype.element_ty)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        place, known = _edge_heads(e, e < last, heads, HEADS)
        score = tl.where((e < last)[:, None], tl.load(each_head + place, known, 0.0), float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(score - higher[None, :]), 0)
        top = higher
    tl.debug_barrier()  # all have read them before they are written over
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        place, known = _edge_heads(e, e < last, heads, HEADS)
        share = tl.exp(tl.load(each_head + place, known, float("-inf")) - top[None, :]) / total[None, :]
        tl.store(each_head + place, share, known)
        tl.store(mean + e, tl.sum(share, 1) / heads, e < last)


@triton.jit
def softmax_back(
    rowptr, col, perm, rows, most, each_head, grad, k, score_grad, grad_q, heads, dim,
    LISTED: tl.constexpr, SCALE: tl.constexpr, EDGES: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """By target: ``s̄ = SCALE a (ā - Σ a ā)`` for every head, (E, heads), and ``q̄_i = Σ_e s̄_e k_j``."""
    row, mine, first, last = _place(rowptr, rows, most, LISTED)
    at, there = _heads(heads, dim, HEADS, DIM)
    mean = tl.zeros([HEADS], k.dtype.element_ty)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        place, known = _edge_heads(e, e < last, heads, HEADS)
        mean += tl.sum(tl.load(each_head + place, known, 0.0) * tl.load(grad + e, e < last, 0.0)[:, None], 0)
    total = tl.zeros([HEADS, DIM], k.dtype.element_ty)
    for start in range(first, last, EDGES):
        e = start + tl.arange(0, EDGES)
        place, known = _edge_heads(e, e < last, heads, HEADS)
        slope = tl.load(grad + e, e < last, 0.0)[:, None] - mean[None, :]
        slope *= SCALE * tl.load(each_head + place, known, 0.0)
        tl.store(score_grad + place, slope, known)
        keys = _head_rows(k, col, e, e < last, heads * dim, at, there)
        total += tl.sum(slope[:, :, None] * keys, 0)
    tl.store(grad_q + row * heads * dim + at, total, there & (at < tl.where(mine, heads * dim, 0)))


@triton.jit
def softmax_keys(
    rowptr, col, perm, rows, most, score_grad, q, grad_k, heads, dim,
    LISTED: tl.constexpr, EDGES: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """By source: ``k̄_j = Σ_e s̄_e q_i``."""
    row, mine, first, last = _place(rowptr, rows, most, LISTED)
    at, there = _heads(heads, dim, HEADS, DIM)
    total = tl.zeros([HEADS, DIM], q.dtype.element_ty)
    for start in range(first, last, EDGES):
        p = start + tl.arange(0, EDGES)
        place, known = _edge_heads(tl.load(perm + p, p < last, 0), p < last, heads, HEADS)
        slope = tl.load(score_grad + place, known, 0.0)
        total += tl.sum(slope[:, :, None] * _head_rows(q, col, p, p < last, heads * dim, at, there), 0)
    tl.store(grad_k + row * heads * dim + at, total, there & (at < tl.where(mine, heads * dim, 0)))
