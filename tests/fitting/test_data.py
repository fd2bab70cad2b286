"""Measurements as users have them: the same numbers in every layout are the same data."""

import itertools
import math

import numpy as np
import pytest
import torch

from neuralfde import InputError, InputTypeError
from neuralfde.fitting.data import read_data

DOUBLE = torch.float64


def same(a, b):
    assert torch.equal(a.times, b.times)
    assert torch.equal(a.values, b.values)
    assert torch.equal(a.scale, b.scale)


@pytest.mark.parametrize("shape", [(3,), (4,), *itertools.product((3, 4), (1, 3, 4)), (3, 3, 3), (4, 4, 2), (3, 2, 3)])
def test_nested_lists_are_arrays_whatever_their_shape(shape):
    """Square or not: rows are times, as the documentation says, with the noise in the same layout."""
    generator = torch.Generator().manual_seed(0)
    values, noise = torch.rand(2, *shape, generator=generator, dtype=DOUBLE) + 0.5
    times = [0.5 * k for k in range(shape[0])]
    whole = read_data(times, values, noise, None)
    cube = values if values.ndim == 3 else values.reshape(shape[0], 1, -1)
    assert torch.equal(whole.values, cube)
    assert torch.equal(whole.scale, 1 / noise.reshape(cube.shape))
    same(read_data(times, values.tolist(), noise.tolist(), None), whole)
    same(read_data(tuple(times), tuple(values.tolist()), noise.numpy(), None), whole)
    same(read_data([times], [values], [noise], None), whole)
    same(read_data([times], [values.tolist()], [noise], None), whole)


def test_several_trajectories_in_every_layout():
    times, values = torch.arange(3.0), torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]).double()
    cube = read_data(times, values.T[:, :, None], values.T[:, :, None], None)
    same(read_data(times, list(values), list(values), None), cube)
    same(read_data([times] * 3, list(values), values.tolist(), None), cube)
    same(read_data([times.tolist()] * 3, values.tolist(), list(values), None), cube)
    whole = [torch.nested.nested_tensor(list(x), layout=torch.jagged) for x in (times.expand(3, 3), values)]
    same(read_data(whole[0], whole[1], whole[1], None), cube)
    padded = torch.nn.functional.pad(values, (0, 1), value=math.nan)
    rows = torch.nn.functional.pad(times.expand(3, 3), (0, 1), value=math.nan)
    same(read_data(rows, padded, padded, None), cube)
    same(read_data(rows.numpy(), padded.numpy(), padded.numpy(), None), cube)
    with pytest.raises(InputError, match="need a list of times for each"):
        read_data(times, values[:2].tolist(), None, None)


def test_arrays_are_read_as_numpy_reads_them():
    """PyTorch alone ignores masks and rounds objects; it refuses views backwards, other byte orders and tables."""

    class Column:  # what pandas gives: numbers behind labels that are not 0, 1, 2
        ndim = 1

        def __init__(self, values):
            self.values = values

        def __getitem__(self, label):
            raise KeyError(label)

        def __len__(self):
            return len(self.values)

        def __array__(self, dtype=None, copy=None):
            return self.values

    times, values = np.arange(4.0), np.array([1.1, 2.2, 3.3, 4.4])
    whole = read_data(times, values, None, None)
    fixed = values.copy()
    fixed.flags.writeable = False
    for same_values in (
        values[::-1].copy()[::-1], values.astype(">f8"), values.astype(object), fixed, Column(values),
        values.astype(np.longdouble), np.ma.masked_array(values),
    ):  # fmt: skip
        same(read_data(times, same_values, None, None), whole)
        same(read_data(Column(times), [same_values], None, None), whole)
    holes = np.where(times == 2, np.nan, values)
    for masked in (np.ma.masked_equal(values, 3.3), np.array([1.1, 2.2, None, 4.4])):
        same(read_data(times, masked, None, None), read_data(times, holes, None, None))
    with pytest.raises(InputError, match="finite"):
        read_data(np.ma.masked_equal(np.arange(4), 2), values, None, None)
    with pytest.raises(InputTypeError, match="Count from the first"):
        read_data(np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]"), values, None, None)


def test_noise_for_each_variable_time_or_trajectory():
    times, values = torch.arange(4.0), torch.rand(4, 2, 3, dtype=DOUBLE)
    ones = torch.ones_like(values)
    variables, rows = torch.tensor([1.0, 2, 4]).double(), torch.rand(4, 3, dtype=DOUBLE) + 1
    for given, full in ((2.0, 2 * ones), (variables, variables * ones), (rows, rows[:, None] * ones)):
        same(read_data(times, values, given, None), read_data(times, values, full, None))
        same(read_data(times, values, None, given), read_data(times, values, None, full))
    both = [values[:, 0], values[:, 1]]
    same(
        read_data(times, both, [rows, 2 * rows], None), read_data(times, values, torch.stack([rows, 2 * rows], 1), None)
    )
    same(read_data(times, values[:, 0, 0], rows[:, 0], None), read_data(times, values[:, :1, :1], rows[:, :1], None))


def test_noise_is_asked_for_only_where_something_was_measured():
    noise = torch.tensor([1.0, math.nan, 2.0])
    assert read_data([0, 1, 2], [1.0, math.nan, 1.0], noise, None).scale.flatten().tolist() == [1, 0, 0.5]
    with pytest.raises(InputError, match="positive and finite"):
        read_data([0, 1, 2], [1.0, 1.0, 1.0], noise, None)
    with pytest.raises(InputError, match=r"shape \(2, 1, 1\).* observations of shape \(3,\)"):
        read_data([0, 1, 2], [1.0, 1.0, 1.0], [1.0, 1.0], None)
    with pytest.raises(InputError, match="1 entries for 2 trajectories"):
        read_data([0, 1, 2], [torch.ones(3)] * 2, [torch.ones(3)], None)


def test_complex_numbers_are_refused():
    with pytest.raises(InputTypeError, match="two variables"):
        read_data([0, 1], torch.ones(2, dtype=torch.complex64), None, None)


def test_even_times_in_float32_are_even():
    times = torch.linspace(0, 0.7, 22)
    gaps = read_data(times, torch.ones(22), None, None).times.diff()
    assert float((gaps / gaps[0] - 1).abs().max()) < 1e-12
    moved = times.clone()
    moved[3] += 1e-4
    assert torch.equal(read_data(moved, torch.ones(22), None, None).times, moved.double())
