"""Train a neural FDE with Lightning: checkpoints, early stopping and several devices come with its Trainer.

    python examples/lightning_module.py [--quick]

Needs Lightning: pip install "neuralfde[lightning]".
"""

from __future__ import annotations

import argparse
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from neuralfde import FDEBlock


class Slope(nn.Module):
    """The right-hand side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, width))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """f(t, z)."""
        return self.net(z)


class Classifier(L.LightningModule):
    """A classifier with a fractional equation as its middle layer, whose order is trained too."""

    def __init__(self, width: int = 8, lr: float = 0.02) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Linear(2, width),
            FDEBlock(Slope(width), order=0.7, learn_order=True, t=1.0, steps=10),
            nn.Linear(width, 2),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Lightning calls backward, which runs the adjoint of the block, as in plain PyTorch."""
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("order", self.model[1].order.float(), prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Accuracy on held-out points."""
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The order is a parameter like any other."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


def spirals(count: int, seed: int) -> TensorDataset:
    """Two interleaved spirals."""
    draw = torch.Generator().manual_seed(seed)
    turn, y = torch.rand(count, generator=draw), torch.arange(count) % 2
    angle, radius = 0.5 + 3.5 * turn + torch.pi * y, 0.3 + 1.2 * turn
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return TensorDataset(x + 0.02 * torch.randn(count, 2, generator=draw), y)


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    options = parser.parse_args()
    L.seed_everything(0, verbose=False)
    train = DataLoader(spirals(512, 0), batch_size=64, shuffle=True)
    held_out = DataLoader(spirals(256, 1), batch_size=256)
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="accuracy", mode="max")
        trainer = L.Trainer(
            max_epochs=30 if options.quick else 100,
            callbacks=[best, EarlyStopping("accuracy", mode="max", patience=15, stopping_threshold=0.995)],
            logger=False,
            log_every_n_steps=1,
            enable_progress_bar=not options.quick,
            enable_model_summary=not options.quick,
        )
        trainer.fit(Classifier(), train, held_out)
        model = Classifier.load_from_checkpoint(best.best_model_path)  # the learned order is in the checkpoint
        (found,) = trainer.validate(model, held_out, verbose=False)
    print(f"accuracy {found['accuracy']:.3f}  order {model.model[1].order.item():.3f}")
    return found["accuracy"]


if __name__ == "__main__":
    main()
