"""Series with times and lengths of their own: how they are put side by side, and the model that learns them."""

import pytest
import torch
from torch.utils.data import DataLoader

from neuralfde.errors import InputError, InputTypeError
from neuralfde.nn import SequenceModel, Series, collate
from neuralfde.nn.series import resampled

NAN = float("nan")


def waves(count=12, inputs=False):
    """Decaying waves at times of their own, some values missing; with inputs, what drives them."""
    torch.manual_seed(0)
    found = []
    for _ in range(count):
        n = int(torch.randint(8, 20, ()))
        t = 5 + torch.rand(n, dtype=torch.float64).sort().values * 4
        x = torch.exp(-0.3 * (t - t[0])) * torch.cos(2 * (t - t[0]))
        x[3] = NAN
        found.append((t, x, torch.sin(t)) if inputs else (t, x))
    return found


def test_series_stand_side_by_side():
    batch = collate([([0.0, 1.0, 2.0], [1.0, NAN, 3.0]), ([5.0, 6.0], [[4.0], [5.0]])])
    assert batch.times.shape == (2, 3)
    assert batch.times.isnan().tolist() == [[False] * 3, [False, False, True]]
    assert batch.observed[..., 0].tolist() == [[True, False, True], [True, True, False]]
    assert batch.elapsed[1, :2].tolist() == [0.0, 1.0]
    assert collate(batch) is batch
    nested = [[torch.tensor([0.0, 1, 2]), torch.tensor([5.0, 6])], [torch.tensor([1, NAN, 3]), torch.tensor([4.0, 5])]]
    found = collate([torch.nested.nested_tensor(x, layout=torch.jagged) for x in nested])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found[:2], batch[:2], strict=True))


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([], InputTypeError, "list of pairs"),
        ([torch.ones(3)], InputTypeError, "times, values"),
        ([([0.0, 2.0, 1.0], [1.0, 2.0, 3.0])], InputError, "order"),
        ([([0.0, 1.0], [1.0, 2.0, 3.0])], InputError, "there are 2 times"),
        ([([0.0, 1.0], [1.0, 2.0]), ([0.0, 1.0], torch.ones(2, 2))], InputError, "different numbers of values"),
        ([([0.0, 1.0], [1.0, 2.0], [1.0, NAN])], InputError, "known at every time"),
        ([([0.0, 1.0], [1.0, float("inf")])], InputError, "missing values by NaN"),
    ],
)
def test_what_is_no_series_is_refused(items, error, message):
    with pytest.raises(error, match=message):
        collate(items)


def test_inputs_are_linear_between_their_times_and_constant_beyond():
    batch = collate([([0.0, 1.0, 3.0], [0.0] * 3, [0.0, 2.0, 6.0]), ([0.0, 2.0], [0.0] * 2, [1.0, 5.0])])
    found = resampled(batch.times, batch.inputs, torch.tensor([0.0, 0.5, 2.0, 4.0], dtype=torch.float64))
    assert found[..., 0].T.tolist() == [[0.0, 1.0, 4.0, 6.0], [1.0, 2.0, 5.0, 5.0]]


@pytest.mark.parametrize("options", [{}, {"order": [0.5, 0.6, 0.7, 0.8], "method": "abm"}], ids=["one", "each"])
def test_a_prediction_of_a_series_depends_on_that_series_alone(options):
    series = waves(inputs=True)
    model = SequenceModel.of(series, latent=4, window=2.0, **options).double()
    together = model(series)
    assert together.shape == (12, max(len(s[0]) for s in series), 1)
    for k in (0, 5):
        n = len(series[k][0])
        torch.testing.assert_close(model([series[k]])[0], together[k, :n], rtol=1e-10, atol=1e-10)


def test_it_learns_and_comes_back_from_a_file(tmp_path):
    series = waves()
    model = SequenceModel.of(series, latent=4, width=16, window=2.0, steps=32)
    loader = DataLoader(series, batch_size=6, shuffle=True, collate_fn=collate)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    before = float(model.loss(series).detach())
    for _ in range(20):
        for batch in loader:
            optimiser.zero_grad()
            model.loss(batch).backward()
            optimiser.step()
    assert float(model.loss(series).detach()) < 0.2 * before
    assert model.block.raw_order.grad is not None
    model.save(tmp_path / "model.pt")
    again = SequenceModel.load(tmp_path / "model.pt")
    later = torch.tensor([9.5, 10.0], dtype=torch.float64)
    torch.testing.assert_close(again.forecast(series, later), model.forecast(series, later))
    assert float(again.span) == float(model.span)
    model.double().save(tmp_path / "model.pt")
    exact = SequenceModel.load(tmp_path / "model.pt")
    assert torch.equal(exact.forecast(series, later), model.forecast(series, later))
    assert {p.dtype for p in exact.parameters()} == {torch.float64}
    assert all(p.requires_grad for p in exact.parameters())


def test_a_model_from_another_device_is_loaded_to_the_cpu(tmp_path, monkeypatch):
    SequenceModel.of(waves(3)).save(tmp_path / "model.pt")
    given, load = {}, torch.load
    monkeypatch.setattr(torch, "load", lambda path, **options: given.update(options) or load(path, **options))
    SequenceModel.load(tmp_path / "model.pt")
    assert given == {"map_location": "cpu", "weights_only": True}


def test_what_is_no_model_is_not_loaded(tmp_path):
    (tmp_path / "notes.pt").write_text("hello")
    torch.save({"state": {}}, tmp_path / "other.pt")
    for name in ("notes.pt", "other.pt"):
        with pytest.raises(InputError, match=name):
            SequenceModel.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        SequenceModel.load(tmp_path / "none.pt")
    model = SequenceModel.of(waves(3))
    kept = {"config": model.config, "state": model.state_dict()}
    for other in ({"config": kept["config"] | {"new": 1}}, {"config": kept["config"] | {"latent": 4}}, {"config": 3}):
        torch.save(kept | other, tmp_path / "later.pt")
        with pytest.raises(InputError, match="another model than SequenceModel of this version makes"):
            SequenceModel.load(tmp_path / "later.pt")


def test_a_forecast_is_the_prediction_at_times_without_values():
    series = waves(3, inputs=True)
    model = SequenceModel.of(series, latent=4)
    t, x, u = series[1]
    more = (torch.cat([t, t.new_tensor([9.5])]), torch.cat([x, x.new_tensor([NAN])]), torch.cat([u, u[-1:]]))
    torch.testing.assert_close(model([more])[0, -1:], model.forecast([series[1]], [9.5])[0])


def test_digits_behind_an_offset_are_not_lost_in_silence():
    """In float32, which a model has, 5 000 000 m and half a metre more are the same number."""
    place = [(t, 5e6 + x.nan_to_num(0)) for t, x in waves(3)]
    with pytest.raises(InputError, match=r"values\[:, 0\] vary by .* Subtract an offset"):
        SequenceModel.of(place)
    assert SequenceModel.of([(t, x - 5e6) for t, x in place]).values_scale > 0
    assert SequenceModel.of([(t, 5e6 + 0 * x) for t, x in place]).values_scale == 1
    torch.set_default_dtype(torch.float64)
    try:
        assert float(SequenceModel.of(place).values_scale) == pytest.approx(
            float(torch.cat([x for _, x in place]).std()), rel=0.1
        )
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_in_double_precision_sees_all_digits_of_a_list():
    series = [(t, 100 + 1e-3 * x) for t, x in waves(3)]
    model = SequenceModel.of(series).double()
    exactly = collate(series)._replace(
        values=torch.nn.utils.rnn.pad_sequence([x for _, x in series], True, NAN)[..., None]
    )
    assert exactly.values.dtype == torch.float64
    assert torch.equal(model(series), model(exactly))


def test_a_series_made_by_hand_is_looked_at():
    model = SequenceModel.of(waves(3))
    times, values = torch.tensor([[0.0, 1.0, 2.0]]), torch.ones(1, 3, 1)
    assert model(Series(times, values)).shape == (1, 3, 1)
    for bad in (
        Series(times[0], values),
        Series(times, values[0]),
        Series(times, values[:, :2]),
        Series([0.0], values),
    ):
        with pytest.raises(InputError, match=r"a Series has times \(batch, time\)"):
            model(bad)
    for late in ([2.0, 1.0, 0.0], [NAN, 0.0, 1.0], [0.0, NAN, 1.0], [0.0, 1.0, float("inf")]):
        with pytest.raises(InputError, match="NaN fills the ends"):
            SequenceModel.of(Series(torch.tensor([late]), values))


def test_orders_of_the_latent_state_are_counted():
    with pytest.raises(InputError, match=r"order has shape \(3,\) for latent=8: give one number, or 8"):
        SequenceModel(1, order=[0.5] * 3)
    assert SequenceModel(1, latent=3, order=[0.5] * 3).order.shape == (3,)


def test_what_a_model_was_not_made_for_is_refused():
    model = SequenceModel.of(waves(3))
    with pytest.raises(InputError, match="1 variables and 1 inputs"):
        model(waves(3, inputs=True))
    with pytest.raises(InputError, match="from the last one"):
        model.forecast(waves(3), [0.0])
    for times in ([], 10.0):
        with pytest.raises(InputError, match="at least one time"):
            model.forecast(waves(3), times)
    with pytest.raises(InputError, match="leave them out"):
        model.loss([([0.0, 1.0], [NAN, NAN])])
    with pytest.raises(InputError, match="after its first"):
        model(Series(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, 1)))
