import pytest

from .cases import CASES, EXPLICIT
from .gradients import Case, differences, distance, gradients, projected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exact_is_direct_and_central_differences(case: Case) -> None:
    exact = gradients(case, "exact")
    direct = distance(exact, gradients(case, "direct"))
    assert max(direct.values()) <= (1e-12 if case.method in EXPLICIT else 1e-10), direct
    central = distance(projected(exact), differences(case))
    assert max(central.values()) <= 1e-8, central
