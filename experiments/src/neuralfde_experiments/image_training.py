"""The training loop of the image experiments; interrupted at a checkpoint, it continues bit for bit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralfde import FDEBlock
from neuralfde.cli.experiment import Report, Row
from neuralfde.errors import InputError, NonFiniteError
from neuralfde.models.image import ConvFDE

from .data.images import ImageData
from .image_examples import Examples
from .image_schedules import current, learning_rate, stages
from .processes import Processes
from .replay import Replay

if TYPE_CHECKING:
    from .images import Config

#: The number of images evaluated at once; the test parts of MNIST and Fashion-MNIST are multiples of it.
JUDGED_AT_ONCE = 500
#: Seconds between two lines of progress.
SAID_EVERY = 0.5


def build(config: Config, data: ImageData) -> ConvFDE:
    """The model of a configuration, on the CPU."""
    return ConvFDE(
        (1, *data.train_images.shape[1:]),
        depth=config.depth,
        downsamplings=None if config.downsamplings < 0 else config.downsamplings,
        history=config.history,
        **common(config, data),
    )


def common(config: Any, data: ImageData) -> dict[str, Any]:
    """The arguments of every image model: those that the configuration has, and the number of classes."""
    same = ("width", "order", "learn_order", "t", "step", "channels_last", "method", "adjoint", "storage")
    return {"classes": len(data.classes)} | {name: getattr(config, name) for name in same}


class Trainer:
    """One model in training.

    Args:
        config: the settings, complete (:func:`neuralfde_experiments.images.fill`).
        data: the images.
        seed: that of everything random.
        processes: this process among all.

    Attributes:
        build: makes the model of a configuration.
        judged_at_once: the number of images evaluated at once.
        judged_by: the stepper used in evaluation.
    """

    build: Callable[[Any, ImageData], nn.Module] = staticmethod(build)
    judged_at_once = JUDGED_AT_ONCE
    judged_by = "auto"

    def __init__(self, config: Config, data: ImageData, seed: int, processes: Processes) -> None:
        if config.minutes and processes.count > 1:
            raise InputError("minutes= ends a run by its own clock, and several processes have several: use epochs=.")
        torch.manual_seed(seed)
        self.config, self.processes = config, processes
        self.solver_steps = stages("coarse", config.coarse, config.step)
        self.examples = Examples(config, data, seed, processes)
        self.model = self.build(config, data).to(processes.device)
        self.blocks = [m for m in self.model.modules() if isinstance(m, FDEBlock)]
        if config.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for block in self.blocks if config.compile else ():
            block.func.compile(dynamic=False)  # type: ignore[attr-defined]
        self.wrapped = processes.wrap(self.model)
        self.weights: list[Tensor] = list(self.model.parameters())
        self.mean = [p.detach().clone() for p in self.weights]
        plain = [p for p in self.weights if p.ndim < 2]
        decayed = [p for p in self.weights if p.ndim >= 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        place = processes.device
        self.cuda = place.type == "cuda"
        # rates as tensors, so that a captured step reads their current values
        self.rate = torch.tensor(config.lr, device=place)
        self.blend = torch.zeros((), device=place)
        lr = self.rate if self.cuda else config.lr
        self.optimiser = torch.optim.AdamW(groups, lr=lr, fused=self.cuda, capturable=self.cuda)
        self.step, self.seconds, self.began = 0, 0.0, time.perf_counter()
        self.sums = torch.zeros(3, device=place)  # loss, correct, seen, of this epoch
        self.curve: list[Row] = []
        self.best: dict[str, Any] = {"loss": float("inf"), "accuracy": None, "epoch": 0, "weights": []}
        alone = self.cuda and processes.count == 1
        self.stream = torch.cuda.Stream(place) if alone else None
        self.replay: Replay | None = None

    @property
    def captures(self) -> bool:
        """Whether whole steps are replayed; a learned order has its weights computed on the host."""
        c = self.config
        return c.capture and self.stream is not None and not c.learn_order

    @property
    def total(self) -> int:
        """Steps of the whole training, unless time runs out."""
        return self.config.epochs * self.examples.steps

    @property
    def lost(self) -> bool:
        """Whether to stop, since the loss is not finite; here that is an error, but a subclass may allow it."""
        return False

    @property
    def share(self) -> float:
        """The share of the training that is done, by steps or by the clock, whichever is larger."""
        limit = 60 * self.config.minutes
        return max(self.step / self.total, (time.perf_counter() - self.began) / limit if limit else 0.0)

    def fit(self, report: Report, key: str) -> list[Row]:
        """Train to the end, from a checkpoint if there is one; returns the loss and accuracy of every epoch."""
        for _ in self.steps(report, key):
            pass
        return self.curve

    def steps(self, report: Report, key: str) -> Iterator[None]:
        """The same, a step at a time."""
        with self._on_stream():
            state = report.restored(key)
            if state is not None:
                self.restore(state)
        log = _Logs(self.config.tensorboard if self.processes.rank == 0 else "", key)
        said, self.began = _Said(report, key, self.total), time.perf_counter() - self.seconds
        done = self.lost or (self.step > 0 and self.share >= 1)
        while not done:
            with self._on_stream():
                self.train_step()
                done = self.share >= 1
                ended = done or self.step % self.examples.steps == 0
                said.look(self.step, self.sums, ended)
                if ended or self.step % self.config.checkpoint_every == 0:
                    self.seconds = self._clock() - self.began
                if ended:
                    self.end_epoch(log)
                    done = done or self.lost
                if ended or self.step % self.config.checkpoint_every == 0:
                    report.checkpoint(key, self.snapshot())
            yield
        log.close()

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Run on a stream of this training, where it can be captured, and beside which others can run."""
        if self.stream is None:
            yield
            return
        before = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(before)
        with torch.cuda.stream(self.stream):
            yield

    def _clock(self) -> float:
        if self.cuda:
            torch.cuda.current_stream(self.processes.device).synchronize()
        return time.perf_counter()

    def train_step(self) -> None:
        """One step of the optimiser."""
        c, share = self.config, self.share
        rate = learning_rate(c.schedule, c.lr, c.warmup, share, c.floor)
        self.rate.fill_(rate)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate if self.cuda else rate
        # at the beginning the mean forgets faster, so that the first weights do not dominate
        self.blend.fill_(1 - min(c.ema, (self.step + 1) / (self.step + 11)))
        self._choose_solver(current(self.solver_steps, share))
        (self.replay or self.update)(*self.examples.batch(self.step, share))
        self.step += 1

    def _choose_solver(self, step: float) -> None:
        """Use this step size of the solver; another one needs another captured graph."""
        changed = step != self.blocks[0].options["step"]
        chosen: dict[str, Any] = {"step": step}
        if self.replay is not None and self.replay.failed:
            chosen["stepper"] = "auto"
        if self.captures and (self.replay is None or changed):
            self.replay = None  # frees its memory first
            self.replay = Replay(self.update)
            chosen["stepper"] = "single"  # the whole training step is one graph, in place of one per block
        for block in self.blocks:
            block.options |= chosen
            if self.captures and block.options.get("history") == "auto":
                block.options["history"] = "full"

    def update(self, images: Tensor, labels: Tensor) -> None:
        """Gradients, optimiser, mean weights and sums of a batch, without reading any value from the device."""
        c = self.config
        self.optimiser.zero_grad(set_to_none=True)
        with self._precision():
            logits = self.wrapped(images).float()
            loss = F.cross_entropy(logits, labels, label_smoothing=c.smoothing)
            if c.agreement:
                loss = loss + c.agreement * disagreement(logits, c.views)
        loss.backward()
        if c.clip > 0:
            nn.utils.clip_grad_norm_(self.weights, c.clip)
        self.optimiser.step()
        with torch.no_grad():
            if c.ema > 0:
                ahead = torch._foreach_sub(self.weights, self.mean)
                torch._foreach_mul_(ahead, self.blend)
                torch._foreach_add_(self.mean, ahead)
            correct = (logits.argmax(-1) == labels).sum()
            self.sums += torch.stack([loss.detach() * len(labels), correct, torch.full_like(loss, len(labels))])

    def _precision(self) -> torch.autocast:
        if self.config.precision not in ("float32", "bfloat16"):
            raise InputError(f"precision={self.config.precision!r} is neither float32 nor bfloat16.")
        on = self.config.precision == "bfloat16"
        return torch.autocast(self.processes.device.type, dtype=torch.bfloat16, enabled=on)

    def end_epoch(self, log: _Logs) -> None:
        """Evaluate the model on the held-out images; keep it if its loss there (finer than accuracy) is the lowest."""
        loss, correct, seen = self.processes.total(self.sums).tolist()
        self.sums.zero_()
        if not math.isfinite(loss):
            raise NonFiniteError(f"the training loss became {loss} before step {self.step}; lower lr or the precision.")
        row: Row = {
            "epoch": -(-self.step // self.examples.steps),
            "loss": loss / seen,
            "accuracy": 100 * correct / seen,
        }
        judged = self.config.ema > 0
        weights = self.mean if judged else [p.detach() for p in self.weights]
        if len(self.examples.held[1]):
            row["held_out_accuracy"], row["held_out_loss"] = self.judge(self.examples.held, weights)
        row |= {**self.more(row["epoch"], weights), "order": self.order, "seconds": round(self.seconds, 3)}
        loss = row.get("held_out_loss", -float(row["epoch"]))  # without held-out images the last epoch is kept
        if loss <= self.best["loss"]:
            self.best = {"loss": loss, "accuracy": row.get("held_out_accuracy"), "epoch": row["epoch"]}
            self.best["weights"] = [w.clone() for w in weights]
        self.curve.append(row)
        log.write(row)

    def more(self, epoch: int, weights: list[Tensor]) -> Row:
        """Further results of an epoch, for the weights that are evaluated."""
        return {}

    @property
    def order(self) -> float:
        """The current order of the equation."""
        return float(torch.as_tensor(self.blocks[0].order).detach())

    @torch.no_grad()
    def judge(self, part: tuple[Tensor, Tensor], weights: list[Tensor]) -> tuple[float, float]:
        """Accuracy in per cent and loss of the model with these weights; on the fine grid, in training precision."""
        before = [p.detach().clone() for p in self.weights]
        trained = [dict(block.options) for block in self.blocks]
        for block in self.blocks:
            block.options |= {"step": self.config.step, "stepper": self.judged_by}
        torch._foreach_copy_(self.weights, weights)
        sums = torch.zeros(2, dtype=torch.float64, device=self.processes.device)
        # other batch sizes than in training: not worth compiling
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else contextlib.nullcontext()
        with self._precision(), eager:
            for images, labels in self.examples.parts(part, self.judged_at_once):
                logits = self.model(images).float()
                sums[0] += (logits.argmax(-1) == labels).sum()
                sums[1] += F.cross_entropy(logits, labels, reduction="sum")
        torch._foreach_copy_(self.weights, before)
        for block, options in zip(self.blocks, trained, strict=True):
            block.options |= options
        correct, loss = (self.processes.total(sums) / len(part[1])).tolist()
        return 100 * correct, loss

    def result(self) -> Row:
        """The test accuracy of the kept model, and what the run cost."""
        with self._on_stream():
            tested, _ = self.judge(self.examples.test, self.best["weights"])
        torch._foreach_copy_([p.data for p in self.weights], self.best["weights"])
        if self.config.save and self.processes.rank == 0:
            Path(self.config.save).parent.mkdir(parents=True, exist_ok=True)
            torch.save(self.model.state_dict(), self.config.save)
        return {
            "test_accuracy": tested,
            "test_error": 100 - tested,
            "held_out_accuracy": self.best["accuracy"],
            "best_epoch": self.best["epoch"],
            "order": self.order,
            "parameters": sum(p.numel() for p in self.weights),
            "epochs": round(self.step / self.examples.steps, 2),
            "captured": self.replay is not None and self.replay.graph is not None,
            "seconds": round(self.seconds, 3),
            "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if self.cuda else None,
        }

    def snapshot(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on; the report copies it."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "sums": self.processes.total(self.sums.clone()),
            "weights": [p.detach() for p in self.weights],
            "mean": self.mean,
            "optimiser": self.optimiser.state_dict(),
            "curve": self.curve,
            "best": self.best,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.processes.device) if self.cuda else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        place = self.processes.device
        self.step, self.seconds = state["step"], state["seconds"]
        self.sums.copy_(state["sums"] * (self.processes.rank == 0))  # these are the sums over all processes
        self.curve, self.best = list(state["curve"]), dict(state["best"])
        self.best["weights"] = [w.to(place) for w in self.best["weights"]]
        torch._foreach_copy_([p.data for p in self.weights], [w.to(place) for w in state["weights"]])
        torch._foreach_copy_(self.mean, [w.to(place) for w in state["mean"]])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"].cpu())
        if self.cuda and state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), place)


def disagreement(logits: Tensor, views: int) -> Tensor:
    """How far the predictions for the views of an image are from their mean, as Kullback–Leibler divergences.

    Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", 2020.
    """
    each = logits.log_softmax(-1).unflatten(0, (views, -1))
    mean = each.logsumexp(0) - math.log(views)
    return (each.exp() * (each - mean)).sum(-1).mean()


class _Said:
    """Reports loss and accuracy now and then, without making the host wait for the device."""

    def __init__(self, report: Report, key: str, total: int) -> None:
        self.report, self.key, self.total = report, key, total
        self.at = time.perf_counter()
        self.step, self.sums = 0, torch.empty(0)
        self.there: torch.cuda.Event | None = None

    def look(self, step: int, sums: Tensor, now: bool) -> None:
        """Report what was fetched last, if it has arrived, and fetch the next."""
        if now or (self.step and (self.there is None or self.there.query())):
            self.tell(*((step, sums) if now else (self.step, self.sums)))
            self.step = 0
        if not self.step and time.perf_counter() - self.at > SAID_EVERY:
            self.at, self.step = time.perf_counter(), step
            self.sums = torch.empty(3, pin_memory=sums.is_cuda).copy_(sums, non_blocking=True)
            self.there = torch.cuda.current_stream(sums.device).record_event() if sums.is_cuda else None

    def tell(self, step: int, sums: Tensor) -> None:
        """One line of progress."""
        loss, correct, seen = sums.tolist()
        self.report.progress(self.key, step, self.total, loss / seen, f"accuracy {100 * correct / seen:.2f} %")


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
