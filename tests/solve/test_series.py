"""Output at any time: many times of a batch in one product, and a batch of series with times of their own."""

import pytest
import torch

import neuralfde as nf
from neuralfde.errors import InputError

F64 = torch.float64
NAN = float("nan")


def series(samples=3, times=5, end=2.0):
    """Times (batch, times) that begin at 0; the second series is shorter, and one meets a grid point and the end."""
    t = torch.rand(samples, times, dtype=F64, generator=torch.Generator().manual_seed(0)).sort().values * end
    t[:, 0] = 0.0
    t[0, -1], t[0, 2] = end, 0.5 * end
    t[0] = t[0].sort().values
    t[1, -2:] = NAN
    return t


def by_union(solve, t):
    """The same states from one row of all times."""
    union = t[~t.isnan()].unique()
    rows = solve(union)
    last = t.nan_to_num(-1).cummax(1).values
    return rows[torch.searchsorted(union, last.contiguous()).T, torch.arange(len(t))]


def gradients(y, inputs):
    weigh = torch.sin(torch.arange(y.numel(), dtype=F64)).view(y.shape)
    return torch.autograd.grad((y * weigh).sum(), inputs)


ORDERS = {"one": (), "of channels": (2,), "of samples": (3, 1)}
CASES = [
    *[("predictor", "one", {"steps": 40, "history": h}) for h in ("full", nf.Window(9), "exponentials")],
    *[("abm", shape, {"steps": 40}) for shape in ORDERS],
    *[("trapezoid", shape, {"steps": 40, "grading": 2.0}) for shape in ORDERS],
    ("predictor-implicit", "one", {"steps": 40, "adjoint": "direct"}),
    ("gl", "of samples", {"steps": 40}),
    ("abm", "one", {"steps": 600, "grading": 1.5, "history": "exponentials"}),
    ("trapezoid", "one", {"rtol": 1e-4}),
]


@pytest.mark.parametrize(("method", "shape", "options"), CASES)
def test_series_with_times_of_their_own_are_those_of_one_row_of_all_times(method, shape, options):
    torch.manual_seed(0)
    z0 = torch.randn(3, 2, dtype=F64, requires_grad=True)
    rate = torch.tensor(0.8, dtype=F64, requires_grad=True)
    order = torch.rand(ORDERS[shape], dtype=F64).mul(0.3).add(0.6).requires_grad_()
    t = series()

    def solve(times):
        return nf.fdeint(
            lambda s, z: torch.sin(s) - rate * z, z0, times, order, method=method, params=[rate], **options
        )

    own, one = solve(t), by_union(solve, t)
    assert own.shape == (5, 3, 2)
    near = 1e-8 if options.get("history") == "exponentials" else 1e-11  # output between nodes sums the past exactly
    torch.testing.assert_close(own, one, rtol=near, atol=near)
    for a, b in zip(gradients(own, (z0, rate, order)), gradients(one, (z0, rate, order)), strict=True):
        torch.testing.assert_close(a, b, rtol=100 * near, atol=near)


@pytest.mark.parametrize("method", ["predictor", "abm", "gl"])
@pytest.mark.parametrize("moved", ["both", "state"])
def test_derivatives_of_series_compose(method, moved):
    t, order = series(), torch.tensor(0.7, dtype=F64)
    z0 = torch.rand(3, 2, dtype=F64)

    def solve(z, e):
        return nf.fdeint(lambda s, x: torch.cos(s) - x**2, z, t, order + e, method=method, steps=12, stepper="single")

    zero, one = torch.zeros((), dtype=F64), torch.ones((), dtype=F64)
    by = one if moved == "both" else zero
    call = solve if moved == "both" else lambda z, e: solve(z, 0.0)
    _, tangent = torch.func.jvp(call, (z0, zero), (torch.ones_like(z0), by))
    later, before = (solve(z0 + e, by * e) for e in (1e-6, -1e-6))
    torch.testing.assert_close(tangent, (later - before) / 2e-6, rtol=1e-6, atol=1e-8)
    mapped = torch.func.vmap(lambda z: solve(z, 0.0))(torch.stack([z0, 2 * z0]))
    torch.testing.assert_close(mapped[1], solve(2 * z0, 0.0))


def test_times_of_each_series_in_every_layout():
    rows = [torch.tensor([0.0, 0.3, 1.0]).double(), torch.tensor([0.0, 0.7]).double()]
    padded = torch.nn.utils.rnn.pad_sequence(rows, True, torch.nan)
    start = torch.ones(2, 1, dtype=torch.float64)
    block = nf.FDEBlock(lambda t, z: -z, 0.6, steps=8)
    wanted = block(start, t=padded)
    for same in (rows, torch.nested.nested_tensor(rows, layout=torch.jagged)):
        assert torch.equal(block(start, t=same), wanted)
        assert torch.equal(nf.FDEBlock(lambda t, z: -z, 0.6, t=same, steps=8)(start), wanted)


def test_a_layer_takes_times_with_every_call():
    block = nf.FDEBlock(torch.nn.Linear(2, 2), learn_order=True, t=1.0, steps=10)
    block.func.forward = lambda s, z: -z
    t = series().float()
    torch.testing.assert_close(block(torch.ones(3, 2), t=t)[-1, 0], block(torch.ones(3, 2), t=t[0])[-1, 0])
    assert block(torch.ones(3, 2)).shape == (3, 2)
    found = nf.solve(lambda s, z: -z, torch.ones(3, 2), t, 0.5, steps=10)
    assert found.ts.shape == (5, 3)
    torch.testing.assert_close(found.ts[:, 0], t[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": torch.tensor([[0.0, 1.0], [0.5, 1.0]])}, "begin with the same initial time"),
        ({"t": torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 2.0]])}, "must not decrease"),
        ({"t": torch.tensor([[0.0, NAN, 0.5], [0.0, 1.0, 2.0]])}, "must not decrease"),
        ({"t": torch.zeros(2, 3)}, "ends at its initial time"),
        ({"t": torch.zeros(1, 2, 3)}, "shape"),
        ({"z0": torch.ones(3, 2)}, "2 samples"),
        ({"z0": (torch.ones(2), torch.ones(2))}, "one tensor"),
        ({"jumps": (torch.tensor([0.5]), torch.ones(1, 2, 2))}, "one row"),
        ({"order": nf.Tempered(0.5, 1.0)}, "one initial value"),
        ({"adjoint": "paper"}, "on the grid only"),
    ],
)
def test_what_series_cannot_be_is_refused(change, message):
    given = {"z0": torch.ones(2, 2), "t": torch.tensor([[0.0, 1.0], [0.0, 0.7]]), "order": 0.5, "steps": 10} | change
    with pytest.raises(InputError, match=message):
        nf.fdeint(lambda s, z: -z if isinstance(z, torch.Tensor) else tuple(-x for x in z), **given)


@pytest.mark.parametrize(
    "way", [{"steps": 10}, {"steps": 10, "grading": 2.0}, {"steps": 10, "history": "exponentials"}]
)
@pytest.mark.parametrize("method", ["predictor", "trapezoid"])
def test_times_in_float32_meet_the_grid_points_that_they_mean(way, method):
    """Just after a grid point a solution of small order is already far from there."""
    times = (torch.arange(11, dtype=F64) / 10) ** way.get("grading", 1.0)
    start = torch.ones(2, 1, dtype=F64)

    def solve(t):
        return nf.fdeint(lambda t, z: torch.cos(t) - z, start, t, 0.1, method=method, **way)

    found = solve(torch.stack([times, times]).float())
    torch.testing.assert_close(found, solve(times), rtol=1e-12, atol=1e-12)
