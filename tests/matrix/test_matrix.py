"""Every way to step against the textbook: values and exact gradients, in float64.

The cases come from the registries of the package, see ``cases.py``. With NEURALFDE_MATRIX=full a few thousand more are
drawn at random; NEURALFDE_MATRIX_SEED=… draws the same ones again.
"""

import re

import pytest
import torch

import neuralfde
from neuralfde import InputError
from neuralfde.door.names import METHODS, STEPPERS
from neuralfde.orders import Operator
from tests.reference import formula

from .cases import SEED, Case, chosen, design, may_refuse, refusals, sensible, ways
from .compare import by_package, by_reference, distances, solved
from .kinds import KINDS

#: Cases that miss the tolerance, and why: known, and not hidden.
KNOWN = dict.fromkeys(
    [
        "gl-explicit-picard-exponentials-auto-multi-term_to_2-6-65-end",
        "gl-explicit-single-fft-device-multi-term_to_2-65-65-end",
    ],
    "the gradient of these orders changes its sign near 60 steps, where the rounding of what it adds up shows: 1.0e-12 "
    "to 1.1e-12 by every stepper and history",
)


def parameters():
    for case in chosen():
        marks = [pytest.mark.xfail(reason=KNOWN[str(case)], strict=False)] if str(case) in KNOWN else []
        if case.device == "cuda":
            marks += [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
        yield pytest.param(case, id=str(case), marks=marks)


@pytest.mark.parametrize("case", list(parameters()))
def test_values_and_gradients_are_those_of_the_textbook(case: Case) -> None:
    try:
        found = by_package(case)
    except InputError as error:
        if may_refuse(case, str(error)):
            pytest.skip(str(error))
        raise
    apart = distances(found, by_reference(case))
    assert max(apart.values()) <= (1e-10 if case.implicit else 1e-12), (apart, f"seed {SEED}")


def small(order: str) -> list[Case]:
    """Every combination that may be refused, with as little work as shows it: the reasons join three of them at most.

    Weights are refused for a scheme and an order (and a fit for its history), memory for an order, a history and a
    storage.
    """
    found = []
    for way in ways():
        method, stepper, history, storage, kind = way
        if kind == order and stepper == "auto" and (storage == "device" or method in ("predictor", "gl")):
            found.append(Case(*way, 6, 2, "end"))
            if history == "exponentials" and storage == "device":
                found.append(Case(*way, 6, 40, "end"))
    return found


@torch.no_grad()
def refused(case: Case) -> str | None:
    try:
        solved(case)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("order", [kind.name for kind in KINDS])
def test_what_is_refused_is_what_has_to_be(order: str) -> None:
    for case in small(order):
        message, reasons = refused(case), refusals(case)
        assert (message is None) == (not reasons), (str(case), message, reasons)
        assert message is None or any(re.search(reason, message) for reason in reasons), (str(case), message, reasons)


@pytest.mark.parametrize("method", METHODS)
def test_every_scheme_has_a_formula_of_its_own(method: str) -> None:
    found = formula(method)  # says where to add it
    assert (found.stage == "implicit") == METHODS[method].implicit
    assert (found.stage in ("corrected", "extrapolated")) == (METHODS[method].sums == 2)


def test_every_operator_has_a_kind() -> None:
    public = {getattr(neuralfde, name) for name in neuralfde.__all__}
    known = {type(kind.order(kind.leaves((2, 3)), True)) for kind in KINDS}
    missing = {x for x in public if isinstance(x, type) and issubclass(x, Operator)} - known - {neuralfde.Caputo}
    assert not missing - {Operator}, f"add a kind of order for {missing} to tests/matrix/kinds.py"


def test_the_design_brings_every_scheme_and_stepper_to_everything_it_can_meet() -> None:
    # a stepper that refuses a scheme altogether meets nothing with it
    cases, tried = design(), {way[:2] for way in ways() if sensible(*way)}
    assert {(c.method, c.stepper) for c in cases} == tried
    for method, stepper in tried:
        own = [c for c in cases if (c.method, c.stepper) == (method, stepper)]
        for name in ("history", "storage", "size", "steps", "output"):
            assert {getattr(c, name) for c in own} == {getattr(c, name) for c in cases}, (method, stepper, name)
        allowed = {way[4] for way in ways() if way[:2] == (method, stepper) and not refusals(Case(*way, 6, 2, "end"))}
        assert {c.order for c in own} == allowed
    assert set(STEPPERS) == {c.stepper for c in cases}
