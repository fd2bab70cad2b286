import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralfde.base.grid import request


@given(st.integers(1, 3000), st.floats(1e-3, 1e3), st.floats(-50, 50))
def test_a_step_that_divides_the_interval_is_accepted_whatever_the_rounding(steps, step, start):
    end = start + steps * step
    found = request(torch.tensor([start, end], dtype=torch.float64), step, None)
    assert found.grid.steps == steps
    assert abs(found.grid.end - end) <= 1e-9 * max(1, abs(end))
    assert found.nodes == (0, steps)


def test_float32_times_find_their_nodes():
    times = torch.arange(0, 21) * 0.1
    found = request(times, 0.1, None)
    assert found.nodes == tuple(range(21))
    assert found.between.numel() == 0


def test_times_between_nodes_are_kept_as_positions():
    found = request(torch.tensor([1.0, 1.25, 1.9, 2.0], dtype=torch.float64), None, 4)
    assert found.nodes == (0, 1, -1, 4)
    assert abs(float(found.between) - 3.6) < 1e-12
