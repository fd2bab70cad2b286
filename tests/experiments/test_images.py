import copy
import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from benchmarks.image_turns import side_by_side
from neuralfde import InputError, NonFiniteError
from neuralfde.cli.experiment import FolderReport, Report
from neuralfde_experiments import image_adjoints, image_cost, images
from neuralfde_experiments.data.augment import augment, random_crop, random_elastic
from neuralfde_experiments.data.images import load_images
from neuralfde_experiments.image_examples import Examples
from neuralfde_experiments.image_schedules import learning_rate
from neuralfde_experiments.image_training import Trainer, disagreement
from neuralfde_experiments.processes import Processes

TINY = images.Config(
    epochs=2, limit=160, batch_size=32, width=8, t=0.5, step=0.25, checkpoint_every=3, holdout=0.1, device="cpu"
)


class Recorder(Report):
    def __init__(self, start=None):
        super().__init__()
        self.start, self.states, self.lines = start, [], []

    def restored(self, key):
        return self.start

    def checkpoint(self, key, state):
        self.states.append(copy.deepcopy(state))

    def progress(self, task, done, total, loss=None, text=""):
        self.lines.append((done, total, loss, text))


def without_time(row):
    row = {k: v for k, v in row.items() if k != "seconds"}
    return row | {"curve": [{k: v for k, v in c.items() if k != "seconds"} for c in row["curve"]]}


def test_digits_are_learned_a_little_in_seconds():
    config = dataclasses.replace(TINY, epochs=4, limit=400, width=16, augment="none")
    report = Recorder()
    (row,) = images.run(config, report)
    assert row["test_accuracy"] > 40
    assert row["test_error"] == 100 - row["test_accuracy"]
    assert row["curve"][-1]["loss"] < row["curve"][0]["loss"]
    assert "accuracy" in report.lines[-1][3]


def test_same_seed_same_run_and_resume_is_bit_for_bit():
    whole = Recorder()
    (row,) = images.run(dataclasses.replace(TINY, learn_order=True), whole)
    middle = next(s for s in whole.states if s["step"] == 3)  # inside the first epoch
    again = Recorder(middle)
    (resumed,) = images.run(dataclasses.replace(TINY, learn_order=True), again)
    assert without_time(resumed) == without_time(row)
    for a, b in zip(whole.states[-1]["weights"], again.states[-1]["weights"], strict=True):
        assert torch.equal(a, b)
    assert row["order"] != 0.5


def test_checkpoints_survive_a_file(tmp_path):
    report = FolderReport(tmp_path, "images", TINY, every=0.0)
    (row,) = images.run(TINY, report)
    (tmp_path / "results.json").unlink()
    back = FolderReport(tmp_path, "images", TINY, resume=True)
    (resumed,) = images.run(TINY, back)
    assert without_time(resumed) == without_time(row)


def test_the_best_model_by_held_out_images_is_kept_and_epochs_are_logged(tmp_path, monkeypatch):
    seen = []

    def writer(folder):
        log = lambda name, value, epoch: seen.append((folder, name, value, epoch))
        return SimpleNamespace(add_scalar=log, close=lambda: seen.append("closed"))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    config = dataclasses.replace(TINY, save=str(tmp_path / "deep" / "best.pt"), tensorboard="logs")
    (row,) = images.run(config)
    folder = str(Path("logs", "seed-0"))
    assert [s for s in seen if s[1] == "loss"] == [(folder, "loss", c["loss"], c["epoch"]) for c in row["curve"]]
    assert seen[-1] == "closed"
    best = min(row["curve"], key=lambda c: c["held_out_loss"])
    assert (row["best_epoch"], row["held_out_accuracy"]) == (best["epoch"], best["held_out_accuracy"])
    assert "head.4.weight" in torch.load(config.save, weights_only=True)


def test_processes_split_the_batch_of_one():
    data, config = load_images("digits"), images.fill(TINY)
    one = Examples(config, data, 3, Processes(torch.device("cpu")))
    two = [Examples(config, data, 3, Processes(torch.device("cpu"), rank, 2)) for rank in range(2)]
    x, y = one.batch(7)
    for rank, part in enumerate(two):
        xs, ys = part.batch(7)
        assert torch.equal(xs, x[rank::2])
        assert torch.equal(ys, y[rank::2])
    assert len(one.held[1]) == 16
    assert len(one.train[1]) == 144


def test_processes_share_the_gpus_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for local, expected in enumerate(("cuda:0", "cuda:1", "cuda:0")):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        assert Processes.from_environment("cuda").device == torch.device(expected)


def test_coarse_steps_come_first():
    config = images.fill(dataclasses.replace(TINY, coarse="0.5:0.5", holdout=0.0))
    trainer = Trainer(config, load_images("digits"), 0, Processes(torch.device("cpu")))
    seen = []
    trainer.model.fde.register_forward_pre_hook(lambda m, _: seen.append(m.options["step"]))
    trainer.fit(Report(), "x")
    assert seen == [0.5] * 5 + [0.25] * 5
    assert trainer.best["epoch"] == 2


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "linear", "constant"])
def test_learning_rates_rise_and_fall(schedule):
    rates = [learning_rate(schedule, 1.0, 0.25, k / 100) for k in range(100)]
    assert max(rates) == pytest.approx(1.0)
    assert rates[0] < 0.05
    assert rates[-1] == (1.0 if schedule == "constant" else pytest.approx(0.0, abs=2e-2))
    floored = [learning_rate(schedule, 1.0, 0.25, k / 100, floor=0.1) for k in range(101)]
    assert floored[:25] == rates[:25]
    assert floored[-1] == (1.0 if schedule == "constant" else pytest.approx(0.1))


def test_augmentation_keeps_shape_and_repeats():
    x = torch.rand(5, 1, 8, 8)
    draw = lambda seed: augment(x, "crop+flip+affine+bend+elastic+erase", 2, torch.Generator().manual_seed(seed))
    assert draw(0).shape == x.shape
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    assert torch.equal(random_crop(x, 0, torch.Generator()), x)
    with pytest.raises(InputError, match="unknown augmentation"):
        augment(x, "croop", 2, torch.Generator())


def test_elastic_moves_pixels_as_far_as_it_says():
    rows = torch.linspace(0, 1, 28)  # as bright as the place where a pixel comes from
    places = torch.stack(torch.meshgrid(rows, rows, indexing="ij"))[:, None].expand(2, 400, 28, 28)
    draw = lambda seed, **by: [
        27 * random_elastic(x[:, None], torch.Generator().manual_seed(seed), **{**still, **by})[:, 0, 7:21, 7:21]
        for x in places
    ]
    still = {"degrees": 0.0, "scale": 0.0, "shear": 0.0, "bend": 0.0}
    for place, moved in zip(places, draw(0), strict=True):
        assert torch.allclose(moved, 27 * place[:, 7:21, 7:21], atol=1e-3)
    bent = [m - 27 * p[:, 7:21, 7:21] for m, p in zip(draw(1, bend=1.0), places, strict=True)]
    assert 0.3 < bent[0].std() < 0.7  # of one pixel at the knots, times shares between 0 and 1
    assert 0.3 < bent[1].std() < 0.7
    assert (bent[0] * bent[1]).mean().abs() < 0.05
    assert bent[0].diff(dim=-1).std() < 0.25 * bent[0].std() * 2  # smooth
    turned = draw(2, degrees=20.0)
    slope = (turned[0][:, :, -1] - turned[0][:, :, 0]).mean(1) / 13
    assert 0.25 < slope.abs().max() < 0.35  # sin 20° is 0.34
    assert slope.abs().median() < 0.12  # half of the images are turned by little


def test_recipes_of_a_set_give_way_to_what_is_asked():
    filled = images.fill(images.Config(dataset="mnist", ema=0.0, lr=1e-3))
    usual = images.PRESETS["mnist"]
    assert (filled.ema, filled.lr, filled.coarse, filled.schedule) == (0.0, 1e-3, usual["coarse"], usual["schedule"])
    assert images.fill(images.Config(dataset="mnist", coarse="")).coarse == ""
    assert images.fill(images.Config(dataset="mnist", t=5.0)).coarse == ""
    assert images.fill(images.Config(dataset="mnist", t=5.0, coarse="0.5:0.5")).coarse == "0.5:0.5"


def test_unknown_choices_are_refused():
    for wrong in ({"dataset": "mnits"}, {"schedule": "step"}, {"precision": "fp8"}, {"device": "tpu"}):
        with pytest.raises(InputError):
            images.run(dataclasses.replace(TINY, **wrong))


@pytest.mark.gpu
def test_mixed_precision_trains():
    config = dataclasses.replace(TINY, epochs=1, precision="bfloat16", channels_last=True, compile=True, device="cuda")
    (row,) = images.run(config)
    assert row["curve"][0]["loss"] < 4


def test_cost_table(tmp_path):
    config = image_cost.Config(
        horizons="1,2", variants="direct,paper,exact", step=0.5, batch_size=2, width=8, repeats=1
    )
    report = FolderReport(tmp_path, "image-cost", config)
    rows = image_cost.run(config, report)
    assert [(r["variant"], r["T"]) for r in rows] == [(v, t) for t in (1, 2) for v in ("direct", "paper", "exact")]
    assert all(r["train_seconds"] > 0 for r in rows)
    text = (tmp_path / "image-cost-mnist.md").read_text()
    assert "paper's table, adjoint" in text
    assert (tmp_path / "image-cost-mnist.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 6


def test_a_row_that_fails_says_why():
    config = image_cost.Config(horizons="1,2", variants="exact", step=0.3, batch_size=2, width=8, repeats=1)
    rows = image_cost.run(config)
    assert all("does not divide" in r["error"] for r in rows)


def test_adjoints_are_compared_from_the_same_start(tmp_path):
    config = image_adjoints.Config(**{**dataclasses.asdict(TINY), "variants": ""})
    report = FolderReport(tmp_path, "image-adjoints", config)
    rows = image_adjoints.run(config, report)
    assert [r["variant"] for r in rows] == list(image_adjoints.VARIANTS)
    assert rows[0]["order"] == rows[1]["order"] == 0.5 != rows[2]["order"]
    assert (tmp_path / "image-adjoints-digits.png").exists()


def test_runs_side_by_side_are_the_runs_alone():
    data, config = load_images("digits"), images.fill(TINY)
    alone, beside = (
        {f"seed-{s}": Trainer(config, data, s, Processes(torch.device("cpu"))) for s in range(2)} for _ in range(2)
    )
    reports = {key: Recorder() for key in alone}
    curves = [trainer.fit(Report(), key) for key, trainer in alone.items()]
    assert sorted(side_by_side(beside, reports)) == sorted(reports)
    for curve, trainer in zip(curves, beside.values(), strict=True):
        assert [c["held_out_loss"] for c in trainer.curve] == [c["held_out_loss"] for c in curve]
    assert [r.states[-1]["step"] for r in reports.values()] == [8, 8]


def test_time_that_runs_out_ends_the_training_with_a_rate_of_zero(monkeypatch):
    config = images.fill(dataclasses.replace(TINY, epochs=1000, minutes=1.0, coarse="0.5:0.5"))
    trainer = Trainer(config, load_images("digits"), 0, Processes(torch.device("cpu")))
    seconds = iter(range(0, 10_000, 1))  # every look at the clock takes a second
    monkeypatch.setattr("neuralfde_experiments.image_training.time.perf_counter", lambda: float(next(seconds)))
    curve = trainer.fit(Report(), "x")
    assert 5 < trainer.step < 60
    assert curve[-1]["epoch"] == -(-trainer.step // 4)
    assert trainer.rate < 0.02 * config.lr
    assert trainer.model.fde.options["step"] == config.step
    assert trainer.result()["captured"] is False


@pytest.mark.parametrize("coarse", ["0.5", "0.5:a", "1:0.5,0.5:0.4", "1:1.5"])
def test_coarse_steps_are_read(coarse):
    with pytest.raises(InputError, match="coarse="):
        dataclasses.replace(TINY, coarse=coarse)


def test_augmentation_in_stages():
    data = load_images("digits")
    config = images.fill(dataclasses.replace(TINY, augment="flip:0.25,affine+crop:0.5,none"))
    examples = Examples(config, data, 0, Processes(torch.device("cpu")))
    alone = {kinds: dataclasses.replace(config, augment=kinds) for kinds in ("flip", "affine+crop", "none")}
    drawn = {k: Examples(c, data, 0, Processes(torch.device("cpu"))).batch(5)[0] for k, c in alone.items()}
    for share, kinds in ((0.0, "flip"), (0.25, "affine+crop"), (0.49, "affine+crop"), (0.5, "none"), (1.0, "none")):
        assert torch.equal(examples.batch(5, share)[0], drawn[kinds])
    assert not torch.equal(drawn["flip"], drawn["none"])


def test_views_of_an_image():
    data = load_images("digits")
    one, two = (images.fill(dataclasses.replace(TINY, augment="affine", views=n)) for n in (1, 2))
    whole = Examples(two, data, 3, Processes(torch.device("cpu")))
    x, y = whole.batch(5)
    alone, labels = Examples(one, data, 3, Processes(torch.device("cpu"))).batch(5)
    count = len(labels)
    assert x.shape == (2 * count, *alone.shape[1:])
    assert torch.equal(y.view(2, -1), labels.expand(2, -1))
    assert not torch.equal(x[:count], x[count:])
    plain = Examples(dataclasses.replace(two, augment="none"), data, 3, Processes(torch.device("cpu"))).batch(5)[0]
    assert torch.equal(plain[:count], plain[count:])
    for rank in range(2):
        xs, ys = Examples(two, data, 3, Processes(torch.device("cpu"), rank, 2)).batch(5)
        assert torch.equal(xs, torch.cat([x[:count][rank::2], x[count:][rank::2]]))
        assert torch.equal(ys, torch.cat([labels[rank::2]] * 2))


def test_disagreement_is_the_divergence_from_the_mean():
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 10, dtype=torch.float64, generator=drawn)
    p = logits.softmax(-1).view(3, 2, 10)
    expected = sum(F.kl_div(p.mean(0).log(), q, reduction="batchmean") for q in p) / 3
    assert disagreement(logits, 3).item() == pytest.approx(expected.item(), rel=1e-12)
    assert disagreement(logits[:2].repeat(3, 1), 3).abs() < 1e-15


def test_agreement_trains_and_needs_views():
    (row,) = images.run(dataclasses.replace(TINY, views=2, agreement=1.0))
    (plain,) = images.run(dataclasses.replace(TINY, views=2))
    assert row["curve"][0]["loss"] > plain["curve"][0]["loss"]
    for wrong in ({"agreement": 1.0}, {"views": 1, "agreement": 1.0}):
        with pytest.raises(InputError, match="--views 2"):
            images.run(dataclasses.replace(TINY, **wrong))


def test_one_view_of_a_set_that_has_two_agrees_with_itself():
    both = images.fill(images.Config(dataset="mnist"))
    one = images.fill(images.Config(dataset="mnist", views=1))
    assert (both.views, one.views) == (2, 1)
    assert both.agreement > 0 == one.agreement


def test_of_several_trainings_each_is_saved(tmp_path):
    images.run(dataclasses.replace(TINY, repeats=2, seed=4, save=str(tmp_path / "model.pt")))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model-seed-4.pt", "model-seed-5.pt"]
    names = [f"model-{name}-seed-0.pt" for name in ("exact", "paper")]
    compared = {**dataclasses.asdict(TINY), "save": str(tmp_path / "model.pt"), "variants": "exact; paper"}
    image_adjoints.run(image_adjoints.Config(**compared))
    assert {*names} < {p.name for p in tmp_path.iterdir()}


@pytest.mark.parametrize(("augment", "what"), [("crop:0.5,twist", "no 'twist'"), ("crop,none", "augment=")])
def test_augmentation_is_refused_before_the_training(augment, what):
    with pytest.raises(InputError, match=what):
        dataclasses.replace(TINY, augment=augment)


def test_a_loss_that_is_not_finite_is_an_error():
    trainer = Trainer(images.fill(TINY), load_images("digits"), 0, Processes(torch.device("cpu")))
    trainer.sums.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        trainer.fit(Report(), "x")


@pytest.mark.gpu
def test_captured_steps_train_as_plain_ones_do():
    curves = []
    for capture in (False, True):
        config = dataclasses.replace(TINY, epochs=3, coarse="0.5:0.5", capture=capture, device="cuda")
        (row,) = images.run(config)
        assert row["captured"] is capture
        curves.append([c["held_out_loss"] for c in row["curve"]])
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
