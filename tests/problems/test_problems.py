import math

import pytest
import torch

from neuralfde import fdeint
from neuralfde.errors import InputError, InputTypeError
from neuralfde.problems import PROBLEMS, problem

SECOND_ORDER = {"oscillation": "trapezoid", "xue-bai-system": "trapezoid", "variable": "trapezoid"}


def solved(p, steps, **options):
    options = {"method": SECOND_ORDER.get(p.name, "bdf2"), **p.options, **options}
    return fdeint(p.func, p.z0, p.t, p.order, steps=steps, **options)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_solutions_converge_to_the_known_answer(name):
    p = problem(name)
    factor = 2 if p.options.get("method") == "gl" else 4  # of schemes of order 1 and 2
    coarse, fine = (solved(p, n) for n in (40, 80))
    if p.error(fine) > 1e-12:
        assert p.error(fine) < p.error(coarse) / (factor**0.6)
        # a wrong reference would be as far from the extrapolated value as from the others
        assert p.error((factor * fine - coarse) / (factor - 1)) < 0.65 * p.error(fine)


@pytest.mark.parametrize("name", sorted(name for name in PROBLEMS if problem(name).smooth))
def test_schemes_reach_their_full_order_where_the_solution_is_smooth(name):
    """Order 2 of the trapezoid, order 1 of the schemes that derivatives of several orders need."""
    p = problem(name)
    method = p.options.get("method", "trapezoid")
    errors = [p.error(solved(p, n, method=method)) for n in (160, 320)]
    assert errors[0] < 1e-12 or math.log2(errors[0] / errors[1]) > {"gl": 0.9, "trapezoid": 1.7}[method]


def test_names():
    with pytest.raises(InputTypeError, match=r"no argument beta=\. The order of the derivative is order here"):
        problem("relaxation", beta=0.5)
    with pytest.raises(InputError, match="Did you mean 'relaxation'"):
        problem("relaxaton")


def test_every_problem_names_its_source():
    for name, make in PROBLEMS.items():
        p = make()
        assert p.name == name
        assert any(c.isdigit() for c in p.source) or "constructed" in p.source
        assert (p.exact is None) != (p.reference is None)


DFF = {
    0.25: (2.50e-1, 1.81e-2, 3.61e-3, 1.45e-3, 6.58e-4, 2.97e-4),
    1.25: (5.53e-3, 1.59e-3, 4.33e-4, 1.14e-4, 2.97e-5, 7.66e-6),
}


@pytest.mark.parametrize("order", sorted(DFF))
def test_diethelm_ford_freed_table(order):
    p = problem("diethelm-ford-freed", order=order)
    for k, printed in enumerate(DFF[order]):
        z = fdeint(p.func, p.z0, 1.0, order, steps=10 * 2**k, method="abm", **p.options)
        digits = 2 - math.floor(math.log10(printed))
        assert round(p.error(z), digits) == pytest.approx(printed, rel=1e-9)


def test_known_values_of_relaxation():
    for order, value in ((0.3, 0.456594408330), (0.5, 0.427583576156), (0.7, 0.399611978116), (0.9, 0.376066021425)):
        assert float(problem("relaxation", order=order).solution()) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("name", ["relaxation", "sir"])
def test_a_solution_is_asked_for_at_one_time(name):
    p = problem(name)
    assert torch.equal(p.solution(torch.tensor(p.t)), p.solution())
    with pytest.raises(InputError, match="must be one time"):
        p.solution(torch.tensor([0.0, p.t]))


def test_epidemic_keeps_its_total():
    p = problem("sir")
    assert float(solved(p, 50).sum()) == pytest.approx(1, abs=1e-12)
    assert float(p.solution().sum()) == pytest.approx(1, abs=1e-12)
    assert p.z0.dtype == torch.float64
