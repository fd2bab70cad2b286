"""The kernels of a step, which equal steps of later solves find again."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ....base.caches import Cache
from ....base.policy import (
    KERNEL_ROWS,
    KERNEL_SAMPLES,
    KERNEL_TILE_HELD,
    KERNEL_TILE_SAMPLES,
    KERNEL_TILE_WARPS,
    KERNEL_WARPS,
)
from ....base.structure import tensors_in
from ....base.torch_private import multiprocessors_of
from ....history import Exponentials, reduced
from ...plan import Plan
from .elements import Pick, picked
from .emit import Emitter, Kernels
from .lower import Lowered
from .recipes import Recipe, key_of, taken_by, written
from .record import Constants, Refused
from .trace import Step, recorded, traced

_PREPARED: Cache[Prepared | str] = Cache("kernels of steps", 16)
_TRACED: Cache[Recipe | str | None] = Cache("steps that were traced", 16)


@dataclass(frozen=True)
class Prepared:
    """Kernels, and how a solve with other numbers launches them.

    Attributes:
        low: the program; without the tensors that it was traced with.
        shared, own: which constants all samples share, and which each has for itself.
        sources: the constants among the tensors of a record.
        variants: the functions of the kernels, by the exponentials that they have room for.
        fitting: the variants that were compiled and found to fit the device.
        places: where each feature of each sample is in a row, and the strides of that where they are all.
        totals: which constants get the gradients that add up in the kernel, shared and own.
    """

    low: Lowered
    kernels: Kernels
    shared: Pick | None
    own: Pick | None
    sources: list[int]
    places: Tensor
    strides: tuple[int, int]
    totals: tuple[Tensor, Tensor]
    variants: dict[int, dict[str, Any]] = field(default_factory=dict)
    fitting: set[Hashable] = field(default_factory=set)

    def functions(self, modes: int) -> dict[str, Any]:
        """The kernels with room for so many exponentials."""
        if modes not in self.variants:
            self.variants[modes] = _compiled(self.kernels.source(modes))
        return self.variants[modes]

    def fixed(self, like: Tensor, name: str, modes: int) -> dict[str, Any]:
        """What a kernel is compiled for. Products are those of float32: of few samples in any case, which tensor cores
        would not make sooner; of many, what is left of the backward pass step by step would spill registers then, and
        has a split."""
        import triton.language as tl

        from .functions import unchecked

        single, tiles, alone = like.dtype == torch.float32, self.low.builder.chunk > 1, self._alone(like)
        precise = "split" if name == "backward" else "ieee"
        return {
            "BM": KERNEL_TILE_SAMPLES[0 if alone and name != "replay" else 1] if tiles else KERNEL_SAMPLES,
            "J": KERNEL_ROWS,
            "FEATURES": self.places.shape[1],
            "DT": tl.float32 if single else tl.float64,
            "PR": ("tf32" if reduced(like) else precise) if single and not alone else "ieee",
            "num_warps": self._warps(name, modes, like) if tiles else KERNEL_WARPS,
            "num_stages": 1,
            "enable_fp_fusion": True,
            **unchecked(),
        }

    def _alone(self, like: Tensor) -> bool:
        """Whether every program has a multiprocessor of its own if it takes few samples."""
        return self.low.builder.samples <= KERNEL_TILE_SAMPLES[0] * multiprocessors_of(like.device)

    def _warps(self, name: str, modes: int, like: Tensor) -> int:
        """Few of few samples in single precision, and where programs have to share multiprocessors, and do if
        registers suffice."""
        many = KERNEL_TILE_SAMPLES[1]
        held = self.kernels.held(modes) * many * like.element_size()
        crowded = self.low.builder.samples > many * multiprocessors_of(like.device)
        shares = name == "forward" and crowded and modes > 0 and held <= KERNEL_TILE_HELD
        small = self._alone(like) and like.dtype == torch.float32
        return KERNEL_TILE_WARPS[0 if name == "replay" or shares or small else 1]

    def gathered(self, constants: list[Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
        """What all samples share, (numbers,), and what each has for itself, (numbers, samples); differentiable."""
        shared, own = (  # nobody reads what stands for none
            like.new_empty(1) if pick is None else pick.of(constants, like) for pick in (self.shared, self.own)
        )
        return shared, own


def prepared(plan: Plan, like: Tensor) -> tuple[Prepared, Constants, list[Tensor]]:
    """The kernels of this solve, what makes its constants, and their values now; raises where there are none."""
    key = key_of(plan, like)
    found = None if key is None else _TRACED.get((key, _near(plan)), lambda: _recipe(plan, like))
    if isinstance(found, str):
        raise Refused(found)
    if found is None:
        return _traced(plan, like)[:3]
    calls, constants = found.again(taken_by(plan))
    return found.prepared, Constants(calls, _trained(plan)), constants


def _recipe(plan: Plan, like: Tensor) -> Recipe | str | None:
    """See :func:`~.recipes.written`, or why there are no kernels."""
    try:
        found, constants, values, fixed = _traced(plan, like)
    except Refused as reason:
        return str(reason)
    return written(found, constants.calls, values, taken_by(plan), fixed)


def _trained(plan: Plan) -> list[Tensor]:
    return [x for x in plan.leaves if x.requires_grad]


def _traced(plan: Plan, like: Tensor) -> tuple[Prepared, Constants, list[Tensor], list[Tensor]]:
    """The same from a step that is watched, and the constants that are part of the program by their values."""
    step = recorded(plan, like)
    constants = Constants(step.record.constant, _trained(plan))
    does, seen = step.described()
    trained = tuple(id(x) in constants.trained for x in seen)
    structure = plan.field.structure
    key = (does, trained, structure.shapes, structure.spans, like.device, like.shape, plan.weigh, _near(plan))
    found = _PREPARED.get(key, lambda: _made(plan, like, step, constants, seen))
    if isinstance(found, str):
        raise Refused(found)
    made = {id(x) for call in step.record.live for x in tensors_in(call.out)}
    masks = {k for k in found.sources if seen[k].dtype == torch.bool}  # which kernels read as numbers
    whole = (k for k, x in enumerate(seen) if not x.is_floating_point() and id(x) not in made)
    return found, constants, [seen[k] for k in found.sources], [seen[k] for k in whole if k not in masks]


def _near(plan: Plan) -> int:
    """The exact lags beside exponentials."""
    return plan.history.block if isinstance(plan.history, Exponentials) else 0


def _groups(places: Tensor, like: Tensor, tiles: bool) -> str:
    """What of a row has weights of its own; samples or features alone do where numbers are single."""
    group = places // like.shape[1]
    if like.shape[0] == 1:
        return ""
    if not tiles and torch.equal(group, torch.arange(len(group))[:, None].expand_as(group)):
        return "samples"
    return "features" if not tiles and bool((group == group[:1]).all()) else "both"


def _made(plan: Plan, like: Tensor, step: Step, constants: Constants, seen: list[Tensor]) -> Prepared | str:
    try:
        low, (sample, feature) = traced(step, constants, plan.field.structure)
    except Refused as reason:
        return str(reason)
    samples, features = low.builder.samples, int(feature.max()) + 1
    places = torch.empty(samples, features, dtype=torch.int64)
    places[sample.reshape(-1), feature.reshape(-1)] = torch.arange(sample.numel())
    strides = int(places[-1, 0]) // max(1, samples - 1), int(places[0, -1]) // max(1, features - 1)
    lines = torch.arange(samples)[:, None] * strides[0] + torch.arange(features) * strides[1]
    tabled, groups = not torch.equal(places, lines), _groups(places, like, low.builder.chunk > 1)
    plain = not tabled and strides == (features, 1)
    program = replace(low, constants=[])  # what is kept holds no tensors of this solve
    kernels = Emitter(program, tabled, groups, plan.weigh, _near(plan), plain).kernels()
    numbers = {id(x): k for k, x in enumerate(seen)}
    shared, own = (
        picked(torch.cat(part), low.constants, like.device) if part else None
        for part in (low.builder.shared, [slots.t() for slots in low.builder.own])
    )
    for spent in (low.builder.orders, low.builder.known, low.builder.shared, low.builder.own):
        spent.clear()
    sources = [numbers[id(x)] for x in low.constants]
    totals = [
        torch.tensor([first + i for where, first, size in kernels.totals if where == name for i in range(size)]).long()
        for name in ("shared", "own")
    ]
    places, *totals = (x.to(like.device) for x in (places, *totals))
    return Prepared(program, kernels, shared, own, sources, places, strides, (totals[0], totals[1]))


def _compiled(source: str) -> dict[str, Any]:
    """The functions of a source; Triton reads it where Python keeps the lines of its files."""
    import triton
    import triton.language as tl

    from . import functions

    name = f"<neuralfde kernel {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    own = {f: getattr(functions, f) for f in ("tanh", "product", "log1p", "expm1", "power", "sign")}
    found: dict[str, Any] = {"triton": triton, "tl": tl, **own}
    exec(compile(source, name, "exec"), found)
    return found
