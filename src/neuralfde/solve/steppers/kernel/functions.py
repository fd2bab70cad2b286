"""Functions that Triton's language lacks, or has with less accuracy; importing this needs Triton."""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """The rational function of Cephes near zero, where ``1 - e^{-2|x|}`` would lose digits."""
    s = x * x
    p = ((-9.64399179425052238628e-1 * s - 9.92877231001918586564e1) * s - 1.61468768441708447952e3) * s
    q = ((s + 1.12811678491632931402e2) * s + 2.23548839060100448583e3) * s + 4.84406305325125486048e3
    e = tl.exp(-2.0 * tl.abs(x))
    near = s < 0.390625
    above, below = tl.where(near, x * p, tl.where(x < 0, e - 1.0, 1.0 - e)), tl.where(near, q, 1.0 + e)
    inverse = 1.0 / below  # a division may be two units wrong in the last place: what is left is divided again
    ratio = above * inverse
    ratio += (above - ratio * below) * inverse
    return tl.where(near, x + ratio, ratio)


#: Whether Triton interprets these functions, on a CPU.
INTERPRETED = not isinstance(tanh, triton.JITFunction)


def unchecked():
    """Options for reading a source: Triton checks every sum of integers, by many operations that it drops again unless
    it debugs (a fifth of the time in which it reads a kernel)."""
    return {} if INTERPRETED else {"sanitize_overflow": triton.knobs.runtime.debug}


@triton.jit
def rounded(x):
    """To the eleven digits of TF32, nearest."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def product(x, w, PR: tl.constexpr):
    """A matrix product. ``split`` is a sum of three in TF32, of rounded numbers and of what rounding leaves of them:
    as accurate as float32, on tensor cores."""
    if PR == "split":
        u, v = rounded(x), rounded(w)
        left = tl.dot(rounded(x - u), v, input_precision="tf32")
        right, large = tl.dot(u, rounded(w - v), input_precision="tf32"), tl.dot(u, v, input_precision="tf32")
        return tl.fma(left, 1.0, tl.fma(right, 1.0, large))  # three products at a time: a sum would chain them
    elif PR == "tf32":  # tensor cores would cut digits off
        return tl.dot(rounded(x), rounded(w), input_precision="tf32")
    else:
        return tl.dot(x, w, input_precision=PR)


@triton.jit
def log1p(x):
    """Rounding of ``1 + x`` cancels (Kahan)."""
    u = 1.0 + x
    d = u - 1.0
    return tl.where(d == 0.0, x, tl.log(u) * (x / tl.where(d == 0.0, 1.0, d)))


@triton.jit
def expm1(x):
    """Rounding of ``e^x`` cancels (Kahan); far below zero it is -1."""
    u = tl.exp(x)
    safe = tl.where((u == 1.0) | (u < 1e-3) | (u > 1e6), 2.0, u)
    return tl.where(u == 1.0, x, tl.where((u < 1e-3) | (u > 1e6), u - 1.0, (safe - 1.0) * (x / tl.log(safe))))


@triton.jit
def power(x, p):
    """``x^p``, by way of double precision; a negative ``x`` has powers that are whole numbers."""
    y, q = tl.abs(x).to(tl.float64), p.to(tl.float64)
    found = tl.where(q == 0.0, 1.0, tl.exp(q * tl.log(tl.where(y == 0.0, 1.0, y))))
    found = tl.where((y == 0.0) & (q > 0.0), 0.0, tl.where((y == 0.0) & (q < 0.0), float("inf"), found))
    odd = q - 2.0 * tl.floor(q * 0.5)  # 0 or 1 for whole numbers
    signed = tl.where(odd == 1.0, -found, tl.where(odd == 0.0, found, float("nan")))
    return tl.where(x < 0.0, signed, found).to(x.dtype)


@triton.jit
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0)).to(x.dtype)


@triton.jit
def near_pairs(
    mu, slopes, previous, out, count, sums, row, width, DT: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Products of slopes with the rows up to ``R`` steps before, by number, lag, sum and piece of the steps: (pieces,
    sums, R, row). ``P`` is the power of two that holds ``R``; ``previous`` are the ``R`` rows before these steps."""
    at, part, piece = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None], tl.program_id(1), tl.program_id(2)
    lag, row = 1 + tl.arange(0, P)[:, None], tl.full((), 1, tl.int64) * row
    there, size = (at < row) & (lag <= R), tl.cdiv(count, tl.num_programs(2))
    old = previous + ((at // width * sums + part) * R + R - lag) * width + at % width
    total = tl.zeros((P, BLOCK), DT)
    for k in range(0, tl.where(piece == 0, tl.minimum(R, count), 0)):
        before = tl.load(old + k * width, there & (lag > k), 0.0)
        total += tl.load(slopes + k * row + at, at < row, 0.0) * before
    for k in range(piece * size, tl.minimum(count, (piece + 1) * size)):
        before = tl.load(mu + ((k - lag) * sums + part) * row + at, there & (lag <= k), 0.0)
        total += tl.load(slopes + k * row + at, at < row, 0.0) * before
    tl.store(out + ((piece * sums + part) * R + lag - 1) * row + at, total, there)


@triton.jit
def far_pairs(
    mu, slopes, previous, older, loss, out, count, sums, row, width, terms, DT: tl.constexpr, R: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Products of slopes with the fading sums of all rows more than ``R`` steps before, which begin with ``older``:
    (sums, terms, row), ``K`` of the terms a program. What comes is read ``AHEAD`` steps at a time."""
    at, part = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None], tl.program_id(1)
    q = tl.program_id(2) * K + tl.arange(0, K)[:, None]
    ok, row, losses = at < row, tl.full((), 1, tl.int64) * row, tl.load(loss + q, q < terms, 1.0)
    line = at // width * sums + part
    y = tl.load(older + (line * terms + q) * width + at % width, ok & (q < terms), 0.0)
    total = y * tl.load(slopes + at, ok, 0.0)
    for k in range(1, tl.minimum(R + 1, count)):
        y += tl.load(previous + (line * R + k - 1) * width + at % width, ok, 0.0)
        y -= y * losses
        total += y * tl.load(slopes + k * row + at, ok, 0.0)
    for first in range(R + 1, count, AHEAD):
        for ahead in tl.static_range(AHEAD):
            step = first + ahead
            there = ok & (at * 0 + step < count)
            y += tl.load(mu + ((step - R - 1) * sums + part) * row + at, there, 0.0)
            y -= y * losses
            total += y * tl.load(slopes + step * row + at, there, 0.0)
    tl.store(out + (part * terms + q) * row + at, total, ok & (q < terms))
