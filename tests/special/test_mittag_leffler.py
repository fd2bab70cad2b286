from __future__ import annotations

import importlib.util
import json
import math
import random
from pathlib import Path

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfde.errors import InputError, InputTypeError
from neuralfde.special import mittag_leffler, reciprocal_gamma

spec = importlib.util.spec_from_file_location("ml_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)

F64 = torch.float64
EPS = torch.finfo(F64).eps


def stored(kind):
    """The campaign of ``reference.py``: arguments, and what E and its derivatives are held to."""
    rows = json.loads(Path(__file__).with_name("mittag_leffler.json").read_text())
    return [(z, *rest) for z, *rest in rows if isinstance(z, list) == (kind == torch.complex128)]


@pytest.mark.parametrize("kind", [F64, torch.complex128], ids=["real", "complex"])
def test_values_and_derivatives_over_all_that_is_promised(kind):
    """660 random points, with the corners of every argument: 3e-12, or what the phase of an oscillation leaves.

    Near a zero an error is relative to the exponentials that cancel, and in a derivative to those of E as well.
    """
    rows = stored(kind)
    z = torch.tensor([complex(*r[0]) if kind.is_complex else r[0] for r in rows], dtype=kind, requires_grad=True)
    alpha, beta = (torch.tensor([r[i] for r in rows], dtype=F64, requires_grad=True) for i in (1, 2))
    value = mittag_leffler(z, alpha, beta)
    slopes = torch.autograd.grad(value.real.sum(), (z, alpha, beta))
    z, value = z.detach(), value.detach()
    for k, (_, a, b, size, *exact) in enumerate(rows):
        modulus = float(z[k].abs())
        radius = modulus ** (1 / a)
        near = 3e-12 + 4 * EPS * radius * (1 + abs(math.log(radius)) if radius > 1 else 0)
        at = (complex(z[k]), a, b)
        assert abs(complex(value[k]) - complex(*exact[0])) <= near * size, at
        steep = (1 + radius / a) / max(modulus, 0.5)
        for slope, (real, imag), scale in zip(slopes, exact[1:], (steep, 1.0, 1.0), strict=True):
            wanted = complex(real, -imag) if slope.is_complex() else real
            allowed = 30 * near * (abs(complex(real, imag)) + scale * size) + 1e-60
            assert abs(complex(slope[k]) - wanted) <= allowed, at
    assert len(rows) > 300


@pytest.mark.parametrize("alpha", [0.3, 0.9, 1.2, 1.6, 1.9, 2.0])
def test_huge_arguments_are_right_or_refused(alpha):
    """Where the phase of an oscillation is lost there is no number; where none is seen, the expansion holds."""
    rng, refused = random.Random(0), 0
    for _ in range(40):
        radius = 10 ** rng.uniform(4, 300 / alpha if alpha > 1 else 150)
        z = -(radius**alpha) if rng.random() < 0.5 else radius**alpha * complex(mp.expj(rng.uniform(2.8, 3.14)))
        given = torch.tensor(z, dtype=torch.complex128 if isinstance(z, complex) else F64)
        try:
            got = complex(mittag_leffler(given, alpha))
        except InputError:
            refused += 1
            continue
        with mp.workdps(60):
            point = mp.mpmathify(z)
            exact = reference.expansion(point, mp.mpf(alpha), mp.mpf(1), abs(point) ** (1 / mp.mpf(alpha)))
            assert abs(got - exact) <= 1e-6 * abs(exact) + 1e-305, (z, alpha)
    assert (refused > 20) == (alpha == 2.0)


def test_the_range_is_checked():
    with pytest.raises(InputError, match=r"beta must lie in \[-4, 16\].*1/Γ"):
        mittag_leffler(-1.0, 0.5, torch.tensor([1.0, 30.0]))
    for beta in (-4.001, 16.001, -1e9, math.inf, math.nan):
        with pytest.raises(InputError, match="beta must lie"):
            mittag_leffler(-1.0, 0.5, beta)
    with pytest.raises(InputError, match="phase"):
        mittag_leffler(torch.tensor(-1e33, dtype=F64), 2.0)
    for z in (math.inf, -math.inf):
        with pytest.raises(InputError, match="infinite"):
            mittag_leffler(z, 0.5)


@pytest.mark.parametrize("beta", [-3.6, -2.0, 3.7, 5.9])
def test_beta_far_from_one(beta):
    z = torch.tensor([-40.0, -5.0, -1.2, -0.6, 0.3, 0.7, 2.0], dtype=F64)
    for alpha in (0.3, 0.7, 1.0, 1.3):
        for zi, got in zip(z.tolist(), mittag_leffler(z, alpha, beta).tolist(), strict=True):
            exact = reference.mittag_leffler(zi, alpha, beta)
            assert abs(got - exact) <= 1e-12 * reference.size(zi, alpha, beta), (zi, alpha)


@pytest.mark.parametrize("beta", [12.0, 14.0, 15.999, 16.0])
@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 0.9, 1.3])
def test_poles_too_far_for_a_contour_around_them_and_large_beta(alpha, beta):
    for share in (0.38, 0.42, 0.46, 0.498, 0.51):  # of β is |z|^{1/α}
        z = (share * beta) ** alpha
        exact = reference.mittag_leffler(z, alpha, beta)
        got = float(mittag_leffler(torch.tensor(z, dtype=F64), alpha, beta))
        assert abs(got - exact) <= 3e-12 * abs(exact), (z, got, exact)


@pytest.mark.parametrize("eps", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
def test_relative_accuracy_where_the_algebraic_part_nearly_vanishes(eps):
    z = torch.tensor([-1.0, -4.0, -9.0, -16.0, -25.0, -33.0, -60.0, -1e3, -1e8], dtype=F64)
    for alpha in (1.0 - eps, 1.0 + eps):
        for zi, got in zip(z.tolist(), mittag_leffler(z, alpha).tolist(), strict=True):
            exact = reference.mittag_leffler(zi, alpha, 1.0)
            assert abs(got - exact) <= 1e-12 * abs(exact), (zi, alpha)


def test_closed_forms():
    x = torch.linspace(-5, 5, 41, dtype=F64)
    torch.testing.assert_close(mittag_leffler(x, 1.0), torch.exp(x), rtol=1e-14, atol=0)
    torch.testing.assert_close(mittag_leffler(-(x**2), 2.0), torch.cos(x), rtol=0, atol=1e-14)
    torch.testing.assert_close(mittag_leffler(x**2, 2.0), torch.cosh(x), rtol=1e-14, atol=0)
    torch.testing.assert_close(mittag_leffler(-x.abs(), 0.5), torch.special.erfcx(x.abs()), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("beta", "value", "slope_z", "slope_a"),
    [
        (0.3, 0.456594408330, 0.257722663434, -0.145254250880),
        (0.5, 0.427583576156, 0.273212014784, -0.144070581343),
        (0.7, 0.399611978116, 0.300561923413, -0.132926289765),
        (0.9, 0.376066021425, 0.342387553085, -0.0969861613397),
    ],
)
def test_relaxation_at_one(beta, value, slope_z, slope_a):
    z = torch.tensor(-1.0, dtype=F64, requires_grad=True)
    alpha = torch.tensor(beta, dtype=F64, requires_grad=True)
    e = mittag_leffler(z, alpha)
    gz, ga = torch.autograd.grad(e, (z, alpha))
    for got, exact in ((e, value), (gz, slope_z), (ga, slope_a)):
        assert got.item() == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("complex_z", [False, True], ids=["real", "complex"])
def test_gradcheck(complex_z):
    z = torch.tensor([-6.0, -1.0, -0.2, 0.0, 0.4, 2.0, -3.0], dtype=F64)
    if complex_z:
        z = z * torch.exp(torch.tensor(0.4j, dtype=torch.complex128))
    alpha = torch.tensor([0.5, 0.8, 0.3, 0.6, 1.5, 0.9, 1.7], dtype=F64)
    beta = torch.tensor([1.0, 0.8, 0.0, 1.2, 2.0, 0.5, 1.0], dtype=F64)
    inputs = tuple(t.requires_grad_() for t in (z, alpha, beta))
    assert torch.autograd.gradcheck(mittag_leffler, inputs)
    assert torch.autograd.gradgradcheck(mittag_leffler, inputs, atol=1e-4)


def test_dtype_shape_and_broadcasting():
    z = torch.linspace(-3, 1, 6, dtype=torch.float32).reshape(2, 3)
    assert mittag_leffler(z, 0.5).dtype == torch.float32
    assert mittag_leffler(z, torch.tensor([[0.5], [0.7]])).shape == (2, 3)
    assert mittag_leffler(z.to(torch.complex64), 0.5).dtype == torch.complex64
    assert mittag_leffler(-1.0, 0.5).item() == pytest.approx(0.427583576156, rel=1e-6)
    assert mittag_leffler(torch.zeros(0, 3), 0.5).shape == (0, 3)
    torch.testing.assert_close(mittag_leffler(z, 0.5), mittag_leffler(z.double(), 0.5).float(), rtol=0, atol=0)


def test_many_elements_match_few():
    z = torch.linspace(-30, 3, 9001, dtype=F64)
    together = mittag_leffler(z, 0.7)
    torch.testing.assert_close(together[::1000], mittag_leffler(z[::1000], 0.7), rtol=1e-12, atol=0)


def test_extremes():
    got = mittag_leffler(torch.tensor([math.nan, 1e6, -1e300, -1.0], dtype=F64), 0.5)
    assert got[0].isnan()
    assert got[1] == math.inf
    assert got[2].item() == pytest.approx(1e-300 / math.sqrt(math.pi), rel=1e-12)
    assert got[3].item() == pytest.approx(0.427583576156, rel=1e-11)


def test_reciprocal_gamma():
    x = torch.tensor([-5.0, -4.3, -1.0, -1e-9, 0.0, 1e-12, 0.3, 0.5, 1.0, 2.0, 7.7, 20.0], dtype=F64)
    for xi, got in zip(x.tolist(), reciprocal_gamma(x).tolist(), strict=True):
        exact = mp.rgamma(mp.mpf(xi))
        assert abs(got - exact) <= 1e-14 * abs(exact)
    assert torch.autograd.gradcheck(reciprocal_gamma, x.requires_grad_())


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 2.0), st.floats(0.2, 3.0), st.floats(-20.0, 3.0))
def test_recurrence_in_beta(alpha, beta, z):
    """E_{α,β}(z) = 1/Γ(β) + z E_{α,α+β}(z)."""
    z = torch.tensor(math.copysign(abs(z) ** alpha, z), dtype=F64)
    left = mittag_leffler(z, alpha, beta)
    right = reciprocal_gamma(torch.tensor(beta, dtype=F64)) + z * mittag_leffler(z, alpha, alpha + beta)
    assert abs(left - right) <= 1e-12 * (1 + abs(left))


@pytest.mark.parametrize("alpha", [0.0, -1.0, 0.004, 2.5, math.nan])
def test_alpha_out_of_range(alpha):
    with pytest.raises(InputError, match=r"alpha must lie in \[0.005, 2\]"):
        mittag_leffler(1.0, alpha)


def test_complex_parameters_are_refused():
    with pytest.raises(InputTypeError, match="beta is complex"):
        mittag_leffler(1.0, 0.5, torch.tensor(1.0 + 1j))
