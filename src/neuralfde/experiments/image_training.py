"""The training loop of the image experiments; it can be interrupted at any checkpoint and goes on bit for bit."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralfde.data.images import ImageData
from neuralfde.errors import InputError
from neuralfde.models.image import ConvFDE

from .image_examples import Examples
from .image_schedules import learning_rate, solver_step
from .processes import Processes
from .runtime import Report, Row

if TYPE_CHECKING:
    from .images import Config


def build(config: Config, data: ImageData) -> ConvFDE:
    """The model of a configuration, on the CPU."""
    return ConvFDE(
        (1, *data.train_images.shape[1:]),
        classes=len(data.classes),
        width=config.width,
        depth=config.depth,
        downsamplings=None if config.downsamplings < 0 else config.downsamplings,
        order=config.order,
        learn_order=config.learn_order,
        t=config.t,
        step=config.step,
        channels_last=config.channels_last,
        method=config.method,
        adjoint=config.adjoint,
        history=config.history,
        storage=config.storage,
    )


class Trainer:
    """One model in training.

    Args:
        config: settings, all of them given (:func:`neuralfde.experiments.images.fill`).
        data: the images.
        seed: of everything random.
        processes: this process among all.
    """

    def __init__(self, config: Config, data: ImageData, seed: int, processes: Processes) -> None:
        torch.manual_seed(seed)
        self.config, self.processes = config, processes
        self.examples = Examples(config, data, seed, processes)
        self.model = build(config, data).to(processes.device)
        if config.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if config.compile:
            self.model.fde.func.compile(dynamic=False)  # type: ignore[attr-defined]
        self.wrapped = processes.wrap(self.model)
        self.weights: list[Tensor] = list(self.model.parameters())
        self.mean = [p.detach().clone() for p in self.weights]
        plain = [p for p in self.weights if p.ndim < 2]
        decayed = [p for p in self.weights if p.ndim >= 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=config.lr, fused=processes.device.type == "cuda")
        self.step, self.seconds = 0, 0.0
        self.sums = torch.zeros(3, device=processes.device)  # loss, correct, seen, of this epoch
        self.curve: list[Row] = []
        self.best: dict[str, Any] = {"loss": float("inf"), "accuracy": None, "epoch": 0, "weights": []}

    def fit(self, report: Report, key: str) -> list[Row]:
        """Train to the end, from a checkpoint if there is one; the loss and accuracy of every epoch."""
        state = report.restored(key)
        if state is not None:
            self.restore(state)
        log = _Logs(self.config.tensorboard if self.processes.rank == 0 else "", key)
        total = self.config.epochs * self.examples.steps
        began = time.perf_counter() - self.seconds
        while self.step < total:
            self.train_step(total)
            k = self.step % self.examples.steps
            if k == 0 or self.step % 20 == 0:
                loss, correct, seen = self.sums.tolist()
                report.progress(key, self.step, total, loss / seen, f"accuracy {100 * correct / seen:.2f} %")
            if k == 0:
                self.seconds = self._clock() - began
                self.end_epoch(log)
            if k == 0 or self.step % self.config.checkpoint_every == 0:
                self.seconds = self._clock() - began
                report.checkpoint(key, self.snapshot())
        log.close()
        return self.curve

    def _clock(self) -> float:
        if self.processes.device.type == "cuda":
            torch.cuda.synchronize(self.processes.device)
        return time.perf_counter()

    def train_step(self, total: int) -> None:
        """One step of the optimiser."""
        c = self.config
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(c.schedule, c.lr, c.warmup, self.step / total)
        self.model.fde.options["step"] = solver_step(c.coarse, c.step, self.step // self.examples.steps)
        images, labels = self.examples.batch(self.step)
        self.optimiser.zero_grad(set_to_none=True)
        with self._precision():
            logits = self.wrapped(images).float()
            loss = F.cross_entropy(logits, labels, label_smoothing=c.smoothing)
        loss.backward()
        if c.clip > 0:
            nn.utils.clip_grad_norm_(self.weights, c.clip)
        self.optimiser.step()
        self.step += 1
        with torch.no_grad():
            if c.ema > 0:  # the mean of few weights is not held back by the first ones
                torch._foreach_lerp_(self.mean, self.weights, 1 - min(c.ema, self.step / (self.step + 10)))
            correct = (logits.argmax(-1) == labels).sum()
            self.sums += torch.stack([loss.detach() * len(labels), correct, torch.full_like(loss, len(labels))])

    def _precision(self) -> torch.autocast:
        if self.config.precision not in ("float32", "bfloat16"):
            raise InputError(f"precision={self.config.precision!r} is neither float32 nor bfloat16.")
        on = self.config.precision == "bfloat16"
        return torch.autocast(self.processes.device.type, dtype=torch.bfloat16, enabled=on)

    def end_epoch(self, log: _Logs) -> None:
        """Judge the model on the held-out images and keep it if its loss there (finer than accuracy) is the lowest."""
        loss, correct, seen = self.processes.total(self.sums).tolist()
        self.sums.zero_()
        row: Row = {"epoch": self.step // self.examples.steps, "loss": loss / seen, "accuracy": 100 * correct / seen}
        judged = self.config.ema > 0
        weights = self.mean if judged else [p.detach() for p in self.weights]
        if len(self.examples.held[1]):
            row["held_out_accuracy"], row["held_out_loss"] = self.judge(self.examples.held, weights)
        row |= {"order": float(torch.as_tensor(self.model.fde.order).detach()), "seconds": round(self.seconds, 3)}
        loss = row.get("held_out_loss", -float(row["epoch"]))  # without held-out images the last epoch is kept
        if loss <= self.best["loss"]:
            self.best = {"loss": loss, "accuracy": row.get("held_out_accuracy"), "epoch": row["epoch"]}
            self.best["weights"] = [w.clone() for w in weights]
        self.curve.append(row)
        log.write(row)

    @torch.no_grad()
    def judge(self, part: tuple[Tensor, Tensor], weights: list[Tensor]) -> tuple[float, float]:
        """Accuracy in per cent and loss of the model with these weights; on the fine grid, in training precision."""
        before = [p.detach().clone() for p in self.weights]
        self.model.fde.options["step"] = self.config.step
        torch._foreach_copy_(self.weights, weights)
        sums = torch.zeros(2, dtype=torch.float64, device=self.processes.device)
        with self._precision():
            for images, labels in self.examples.parts(part, max(128, self.config.batch_size)):
                logits = self.model(images).float()
                sums[0] += (logits.argmax(-1) == labels).sum()
                sums[1] += F.cross_entropy(logits, labels, reduction="sum")
        torch._foreach_copy_(self.weights, before)
        correct, loss = (self.processes.total(sums) / len(part[1])).tolist()
        return 100 * correct, loss

    def result(self) -> Row:
        """The test accuracy of the kept model, and what the run cost."""
        tested, _ = self.judge(self.examples.test, self.best["weights"])
        cuda = self.processes.device.type == "cuda"
        torch._foreach_copy_([p.data for p in self.weights], self.best["weights"])
        if self.config.save and self.processes.rank == 0:
            Path(self.config.save).parent.mkdir(parents=True, exist_ok=True)
            torch.save(self.model.state_dict(), self.config.save)
        return {
            "test_accuracy": tested,
            "test_error": 100 - tested,
            "held_out_accuracy": self.best["accuracy"],
            "best_epoch": self.best["epoch"],
            "order": float(torch.as_tensor(self.model.fde.order).detach()),
            "parameters": sum(p.numel() for p in self.weights),
            "epochs": self.config.epochs,
            "seconds": round(self.seconds, 3),
            "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if cuda else None,
        }

    def snapshot(self) -> dict[str, Any]:
        """All that the rest of the run depends on, copied."""
        cuda = self.processes.device.type == "cuda"
        kept = {
            "step": self.step,
            "seconds": self.seconds,
            "sums": self.processes.total(self.sums.clone()),
            "weights": [p.detach() for p in self.weights],
            "mean": self.mean,
            "optimiser": self.optimiser.state_dict(),
            "curve": self.curve,
            "best": self.best,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.processes.device) if cuda else None,
        }
        return copy.deepcopy(kept)

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        place = self.processes.device
        self.step, self.seconds = state["step"], state["seconds"]
        self.sums = state["sums"].to(place) * (self.processes.rank == 0)  # it holds those of all processes
        self.curve, self.best = list(state["curve"]), dict(state["best"])
        self.best["weights"] = [w.to(place) for w in self.best["weights"]]
        torch._foreach_copy_([p.data for p in self.weights], [w.to(place) for w in state["weights"]])
        torch._foreach_copy_(self.mean, [w.to(place) for w in state["mean"]])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"].cpu())
        if place.type == "cuda" and state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), place)


class _Logs:
    """TensorBoard logs, if a folder is given."""

    def __init__(self, folder: str, key: str) -> None:
        self.writer: Any = None
        if folder:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise InputError("TensorBoard logs need the package: pip install tensorboard.") from error
            self.writer = SummaryWriter(str(Path(folder) / key))

    def write(self, row: Row) -> None:
        """One point for every number of an epoch."""
        for name, value in row.items() if self.writer is not None else ():
            if name != "epoch":
                self.writer.add_scalar(name, value, row["epoch"])

    def close(self) -> None:
        """Write what is left."""
        if self.writer is not None:
            self.writer.close()
