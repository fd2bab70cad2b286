"""``func`` and the scheme around it as a program for one sample, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ....base.policy import KERNEL_FEATURES, KERNEL_NUMBERS, KERNEL_TILE, KERNEL_TILES
from ....base.structure import Structure
from ....base.torch_private import pytree, uncompiled
from ...plan import Plan
from .lower import Lowered, lowered
from .operations import COVERED
from .record import Constants, Recorder, Refused, Unfit


def layouts(structure: Structure) -> Iterator[tuple[Tensor, Tensor]]:
    """What may be a sample: for each element of a row its sample and its feature, the most samples first.

    The features of a sample are along no axis of a tensor, along its last or first ones, or along all.
    """
    deepest = max(len(shape) for shape in structure.shapes)
    for count in range(deepest + 1):
        for last in (True, False) if 0 < count < deepest else (True,):
            samples, features, start = [], [], 0
            for shape in structure.shapes:
                inside = max(0, len(shape) - count) if last else min(count, len(shape))
                head, tail = shape[:inside], shape[inside:]
                first, second = torch.arange(head.numel()), torch.arange(tail.numel())
                rows, columns = torch.meshgrid(first, second, indexing="ij")
                sample, feature = (rows, columns) if last else (columns, rows)
                samples.append(sample.reshape(shape))
                features.append(start + feature.reshape(shape))
                start = int(features[-1].max()) + 1
            if len({int(sample.max()) for sample in samples}) == 1 and start <= KERNEL_FEATURES:
                yield _packed(structure, samples).contiguous(), _packed(structure, features).contiguous()


def _packed(structure: Structure, parts: list[Tensor]) -> Tensor:
    return structure.pack(parts[0] if structure.bare else pytree.tree_unflatten(parts, structure.spec))


def recorded(plan: Plan, like: Tensor) -> tuple[Recorder, tuple[list[Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]:
    """One step, watched: the record, the tensors that it was given and its results."""
    shape = plan.field.shape
    sums = [like.detach().clone().view(shape) for _ in range(plan.scheme.sums)]
    local, time = torch.zeros_like(sums[0]), plan.field.times[:1].clone()
    field = plan.field.at(time, plan.field.args)
    with torch.no_grad(), uncompiled(), Recorder([*sums, local, time], COVERED) as record:
        state, slope = plan.scheme.evaluate(partial(field, 0), sums, local)
    assert slope is not None
    return record, (sums, local, time), (state, slope)


def traced(plan: Plan, like: Tensor) -> tuple[Lowered, Constants, tuple[Tensor, Tensor]]:
    """The program of a step, its constants, and the sample and feature of each element of a row."""
    record, given, results = recorded(plan, like)
    constants = Constants(record.constant, [x for x in plan.leaves if x.requires_grad])
    reason = Refused(f"no axis divides the state into samples of up to {KERNEL_FEATURES} numbers")
    for k, where in enumerate(layouts(plan.field.structure)):
        for chunk, limit in ((1, KERNEL_NUMBERS), (KERNEL_TILE, KERNEL_TILES)):
            if chunk > 1 and int(where[1].max()) == 0:
                continue
            try:
                return lowered(record.live, constants, given, results, where, chunk, limit), constants, where
            except Unfit as unfit:
                reason = (
                    unfit if k <= 1 else reason
                )  # what the usual idea of a sample met: features along the last axis
    raise reason
