import copy
import dataclasses

import pytest
import torch

from neuralfde import InputError
from neuralfde.cli.experiment import FolderReport, Report
from neuralfde_experiments import image_stages, images
from neuralfde_experiments.data.images import load_images
from neuralfde_experiments.image_stages_model import StagedFDE, StageField
from neuralfde_experiments.image_stages_training import StageTrainer, gradients
from neuralfde_experiments.processes import Processes

TINY = image_stages.Config(
    epochs=2, limit=64, batch_size=32, width=4, step=0.25, pieces=4, cosine_every=1, augment="none", device="cpu"
)


def trainer(adjoint="exact", **changes):
    config = dataclasses.replace(images.fill(TINY, image_stages.PRESETS), adjoint=adjoint, **changes)
    return StageTrainer(config, load_images("digits"), 0, Processes(torch.device("cpu")))


def test_weights_belong_to_their_piece_of_time():
    field = StageField(2, 4, 10, 1.0)
    z, times = torch.randn(1, 2, 4, 4), torch.linspace(0, 1, 11)
    with torch.no_grad():
        field.bias[:] = -torch.arange(10.0)[:, None]  # tells the piece
        field.kernel.zero_()
        seen = [int(field(t, z).mean()) for t in times]
    assert seen == [*range(10), 9]
    last = StageField(2, 4, 10, 1.0, channels_last=True)
    last.load_state_dict(field.state_dict())
    assert torch.equal(last(times[3], z.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), field(times[3], z))


def test_exact_gradients_are_the_direct_ones_and_the_papers_point_elsewhere():
    torch.manual_seed(0)
    model = StagedFDE((1, 8, 8), 10, width=4, order=0.6, step=0.1).double()
    x, y = torch.randn(8, 1, 8, 8, dtype=torch.float64), torch.arange(8)
    exact, direct, paper = (gradients(model, x, y, name) for name in ("exact", "direct", "paper"))
    assert list(exact) == ["images", "stage 1", "stage 2", "stage 3"]
    for name, true in direct.items():
        assert (exact[name] - true).norm() < 1e-10 * true.norm()
        assert torch.cosine_similarity(paper[name], true, dim=0) < 0.9
    assert all(p.grad is None for p in model.parameters())


def test_all_adjoints_train_from_one_start_and_the_report_tells(tmp_path):
    report = FolderReport(tmp_path, "image-stages", TINY)
    rows = image_stages.run(TINY, report)
    assert [r["adjoint"] for r in rows] == ["exact", "direct", "paper"]
    exact, direct, paper = rows
    assert exact["curve"][0]["loss"] == pytest.approx(direct["curve"][0]["loss"], rel=1e-3)
    assert exact["step_mib"] < 0.6 * direct["step_mib"]
    assert min(exact["curve"][0]["cosines"].values()) > 0.999 > paper["curve"][0]["cosines"]["images"]
    assert exact["curve"][1]["loss"] < exact["curve"][0]["loss"]
    assert "/ direct" in (tmp_path / "image-stages-digits.md").read_text()
    assert (tmp_path / "image-stages-digits.png").stat().st_size > 10_000


class Kept(Report):
    def __init__(self, start=None):
        super().__init__()
        self.start, self.states = start, []

    def restored(self, key):
        return self.start

    def checkpoint(self, key, state):
        self.states.append(copy.deepcopy(state))


def test_a_training_goes_on_where_it_was():
    whole = Kept()
    curve = trainer().fit(whole, "x")
    resumed = trainer().fit(Kept(whole.states[0]), "x")
    timeless = [[{k: v for k, v in c.items() if k != "seconds"} for c in each] for each in (curve, resumed)]
    assert timeless[0] == timeless[1]
    assert [c["epoch"] for c in curve] == [1, 2]


def test_a_loss_that_is_not_finite_ends_the_training_and_is_told():
    lost = trainer("paper", cosine_every=0, epochs=3)
    steps = lost.steps(Report(), "x")
    for _ in range(2):
        next(steps)
    with torch.no_grad():
        lost.model.stem.weight.fill_(torch.nan)
    assert len(list(steps)) == 2
    row = image_stages.row_of(lost, 0)
    assert (row["finite"], row["epochs"], row["curve"][-1]["loss"]) == (False, 2.0, None)
    assert row["test_accuracy"] == row["curve"][0]["test_accuracy"]
    assert "1 not finite" in image_stages.markdown([row])


def test_images_too_small_for_the_stages_are_refused():
    with pytest.raises(InputError, match="use fewer"):
        trainer(downsamplings=3)
    with pytest.raises(InputError, match="--depth 3"):
        trainer(depth=3)
