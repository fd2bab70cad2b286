"""A traced step on its device: its constants, and the launches of its kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....base.policy import KERNEL_MODES, KERNEL_PAIRED, KERNEL_PAIRS, KERNEL_REPLAYS, KERNEL_ROWS
from ....base.torch_private import copy_each, shared_memory_of, vjp
from ....history import Modes, Weighed
from ...plan import Plan
from ..base import Pull, Task, Totals
from .prepare import prepared
from .record import Refused


def why_not_here(like: Tensor) -> str | None:
    """Why no kernel can run for rows like this; None where one can."""
    try:
        from .functions import INTERPRETED
    except ImportError:
        return "Triton is not installed: pip install triton"
    if like.device.type != "cuda" and not INTERPRETED:
        return (
            f"the state is on {like.device}: kernels need a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1)"
        )
    return None


class Launcher:
    """The kernels of one solve, and what they read beside the rows."""

    def __init__(self, plan: Plan, like: Tensor) -> None:
        self.prepared, self.constants, self.tensors = prepared(plan, like)
        self.low, self.kernels, self.samples = (
            self.prepared.low,
            self.prepared.kernels,
            self.prepared.low.builder.samples,
        )
        self.features = self.prepared.places.shape[1]
        self.shared, self.own = (x.detach() for x in self.prepared.gathered(self.tensors, like))

    def begin(self, backward: bool) -> None:
        """A pass begins."""
        self.modes: Modes | None = None  # whose weights are known
        if backward:
            self.shared_grad, self.own_grad = torch.zeros_like(self.shared), torch.zeros_like(self.own)

    def common(self, task: Task, plan: Plan) -> tuple[Any, ...]:
        """What all kernels of a block take beside their rows."""
        local = task.local.clone()
        if task.origin is not None:
            local[task.origin] = 0.0  # its state is given: c + 0 · f
        low, high = min(task.steps[0], task.steps[-1]), max(task.steps[0], task.steps[-1]) + 1
        times = plan.field.times[low:high]
        times = (times if task.steps.step > 0 else times.flip(0)).to(task.sums)
        row, width = task.sums.shape[-2] * task.sums.shape[-1], task.sums.shape[-1]
        if task.inner is not self.modes:  # otherwise they are those of the block before
            self.modes, self.weights = task.inner if isinstance(task.inner, Modes) else None, _weights(task.inner)
        return (
            *self.weights, times, local, self.shared, self.own, self.prepared.places, task.block.count,
            self.samples, *self.prepared.strides, row, width,
        )  # fmt: skip

    def launch(
        self, name: str, task: Task, tensors: tuple[Any, ...], common: tuple[Any, ...], weigh: bool, dry: bool = False
    ) -> None:
        """Run a kernel over the steps of a block, or only compile it; raises where the device has no room for it."""
        modes = _room(len(task.inner.losses)) if isinstance(task.inner, Modes) else 0
        key = (name, modes, weigh)
        if dry and key in self.prepared.fitting:
            return
        options = {**self.prepared.fixed(task.sums, name, modes), "WEIGH": weigh}
        tiles = -(-self.samples // options["BM"])
        grid = (tiles, max(1, min(task.block.count, KERNEL_REPLAYS // tiles))) if name == "replay" else (tiles,)
        kernel = self.prepared.functions(modes)[name]
        with torch.cuda.device_of(task.sums):
            if key not in self.prepared.fitting and task.sums.is_cuda:
                _check_room(kernel.warmup(*tensors, *common, grid=grid, **options), task.sums.device)
            self.prepared.fitting.add(key)
            if not dry:
                kernel[grid](*tensors, *common, **options)

    def forward(self, task: Task, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, states and slopes of a block."""
        sums, common = task.sums.contiguous(), self.common(task, plan)
        slopes = torch.empty_like(sums[:, 0])
        states = sums[:, 0] if sums.shape[1] == 1 else torch.empty_like(slopes)
        if plan.train:  # a backward pass that finds no room would find it too late
            self.launch("backward", task, (sums,) * 7 + (0, 0, 0), common, weigh=plan.weigh, dry=True)
            if self.kernels.replays:
                self.launch("replay", task, (sums,) * 3 + (0,), common, weigh=plan.weigh, dry=True)
        self.launch("forward", task, (sums, states, slopes, 0), common, weigh=False)
        return sums, states, slopes

    def backward(self, task: Task, pull: Pull, plan: Plan) -> tuple[Tensor, Tensor | None]:
        """The rows μ of a block, and its slopes where they are wanted; gradients of constants add up here."""
        count, sums, common = task.block.count, task.sums.contiguous(), self.common(task, plan)
        rows = pull.read_block(task.steps)
        given = [k for k, grad in enumerate(pull.grads) if grad is not None]
        low, high = (given[0], given[-1] + 1) if given else (0, 0)  # where gradients come from outside
        kernels, begin = self.kernels, 0
        if 0 in task.idle:  # nobody uses its slope: what is left is the state, and of some schemes that is the sum
            begin = 1 if self.low.states == self.low.sums[0] else 0
            sums[0] = 0.0
        mu, slopes, weights = torch.empty_like(rows), sums, sums
        if pull.weigh:
            slopes = torch.empty_like(mu[:, 0])
            weights = torch.empty_like(slopes) if kernels.weighs else sums
        if begin:  # the kernel does not write there
            for x in (mu, slopes, weights):
                x[0].zero_()
        if len(given) < high - low:
            mu[low:high].zero_()
        lines = mu[:, 0].unbind(0) if len(given) > 8 else {k: mu[k, 0] for k in given}
        if given:
            copy_each([lines[k] for k in given], [pull.grads[k] for k in given])
        saved = sums.new_empty(count * self.samples, max(1, kernels.saved))
        totals = sums.new_empty(max(1, sum(map(len, self.prepared.totals))), self.samples)
        if kernels.replays:
            self.launch("replay", task, (rows, slopes, saved, begin), common, pull.weigh)
        self.launch(
            "backward", task, (sums, rows, mu, slopes, weights, saved, totals, low, high, begin), common, pull.weigh
        )
        self._gather(rows[begin:], saved[begin * self.samples :], totals)
        if pull.weigh and kernels.weighs:
            found = weights.sum(-1)
            if task.origin is not None:
                found[task.origin] = 0.0
            pull.totals.add_locals(task.steps, found)
        if isinstance(task.inner, Modes) and task.inner.weighed is not None:
            _pull_modes(task.inner, task.inner.weighed, mu, slopes)
        return mu, slopes if pull.weigh else None

    def _gather(self, rows: Tensor, saved: Tensor, totals: Tensor) -> None:
        """Add the gradients of a block to those of the constants."""
        shared, own = self.prepared.totals
        if len(shared):
            self.shared_grad.index_add_(0, shared, totals[: len(shared)].sum(1))
        if len(own):
            self.own_grad.index_add_(0, own, totals[len(shared) :])
        for x, g, m in self.kernels.products:  # as precise as the caller's own
            first = m.offset + m.row * m.width
            into = self.shared_grad[first : first + m.rows * m.width].view(m.rows, m.width)
            held, x = (saved, x) if x >= 0 else (rows.view(-1, self.features), x + self.features)
            taken, given = held[:, x + m.first : x + m.first + m.rows], saved[:, g : g + m.columns]
            into[:, m.column : m.column + m.columns].addmm_(taken.t(), given)

    def finish(self, totals: Totals) -> None:
        """From gradients of constants to those of the tensors that they were made of."""
        if not self.constants.leaves:
            return
        with torch.enable_grad():
            own = [x.detach().requires_grad_() for x in self.constants.leaves]
            values = self.constants.again(own)
            made = self.prepared.gathered([values.get(id(x), x) for x in self.tensors], self.shared)
        ends = [(x, g) for x, g in zip(made, (self.shared_grad, self.own_grad), strict=True) if x.requires_grad]
        if ends:
            totals.add(vjp(tuple(x for x, _ in ends), tuple(g for _, g in ends), tuple(own)))


def _weights(inner: Tensor | Modes) -> tuple[Any, ...]:
    """The weights inside a block, as a kernel takes them: a table, how far back it goes, its strides by group, step,
    sum and earlier step; then coefficients and losses of exponentials, filled up with some that are nothing."""
    if isinstance(inner, Modes):
        by_group, by_sum, by_lag = inner.lags.stride()
        spare = (0, _room(len(inner.losses)) - len(inner.losses))
        modes = pad(inner.coefficients.permute(1, 2, 0), (0, 0, *spare)).contiguous()  # groups are near
        losses = pad(inner.losses, spare, value=1.0)
        return inner.lags, inner.lags.shape[2] - 1, by_group, by_lag, by_sum, -by_lag, modes, losses
    _, count, outs, _, ins = inner.shape
    strides = (count * outs * count, outs * count, count, 1) if ins == 1 else (count * count * ins, count * ins, 1, ins)
    table = inner.contiguous()
    return table, count, *strides, table, table


def _pull_modes(modes: Modes, weighed: Weighed, mu: Tensor, slopes: Tensor) -> None:
    """Add the gradients of lags and coefficients from all pairs of a step of a block with an earlier one."""
    import triton.language as tl

    from . import functions

    count, sums, groups, width = mu.shape
    lags, terms, row = modes.lags.shape[-1] - 1, len(modes.losses), groups * width
    dtype = tl.float32 if mu.dtype == torch.float32 else tl.float64
    compiled = {"num_warps": 1, "enable_fp_fusion": True, **functions.unchecked()}
    options = {"DT": dtype, "R": lags, "BLOCK": KERNEL_PAIRS, **compiled}
    tiles = -(-row // KERNEL_PAIRS)
    pieces = max(1, min(count // lags, KERNEL_REPLAYS // (tiles * sums)))
    near, far = mu.new_empty(pieces, sums, lags, groups, width), mu.new_empty(sums, terms, groups, width)
    sizes, power = (count, sums, row, width), _power(terms)
    if tiles * sums < KERNEL_REPLAYS:
        power = min(power, KERNEL_PAIRED)
    with torch.cuda.device_of(mu):
        functions.near_pairs[(tiles, sums, pieces)](
            mu, slopes, weighed.previous, near, *sizes, P=_power(lags), **options
        )
        functions.far_pairs[(tiles, sums, -(-terms // power))](
            mu, slopes, weighed.previous, weighed.older, modes.losses, far, *sizes, terms,
            K=power, AHEAD=KERNEL_ROWS, **options,
        )  # fmt: skip
    weighed.lags.add_(near.sum((0, -1)).transpose(1, 2))
    weighed.coefficients.add_(far.sum(-1).transpose(1, 2))


def _power(count: int) -> int:
    """The power of two that holds so many numbers."""
    return 1 << (count - 1).bit_length()


def _room(terms: int) -> int:
    """Exponentials that a kernel is written for: with a learned order a few more or less are none of another kernel."""
    return -(-terms // KERNEL_MODES) * KERNEL_MODES


def _check_room(compiled: Any, device: torch.device) -> None:
    """Raise unless a multiprocessor has the shared memory that a compiled kernel takes."""
    needs, has = compiled.metadata.shared, shared_memory_of(device)
    if needs > has:
        raise Refused(f"its kernel takes {needs >> 10} KiB of shared memory, and the GPU has {has >> 10} KiB")
