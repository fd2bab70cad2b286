"""``func`` and the scheme around it, watched for one step and read as a program for one sample."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ....base.policy import KERNEL_FEATURES, KERNEL_NUMBERS, KERNEL_TILE, KERNEL_TILES
from ....base.structure import Structure
from ....base.torch_private import pytree, uncompiled
from ...plan import Plan
from .lower import Lowered, lowered
from .operations import COVERED
from .record import Constants, Recorder, Refused, Unfit, described


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


class Step(NamedTuple):
    """One step, watched: the record, the tensors that it was given (sums, local weight, time) and its results."""

    record: Recorder
    given: tuple[list[Tensor], Tensor, Tensor]
    results: tuple[Tensor, Tensor]

    def described(self) -> tuple[Hashable, list[Tensor]]:
        """See :func:`described`."""
        sums, local, time = self.given
        return described(self.record.live, (*sums, local, time), self.results)


def recorded(plan: Plan, like: Tensor) -> Step:
    """One step from rows like this."""
    shape = plan.field.shape
    sums = [like.detach().clone().view(shape) for _ in range(plan.scheme.sums)]
    local, time = torch.zeros_like(sums[0]), plan.field.times[:1].clone()
    field = plan.field.at(time, plan.field.args)
    with torch.no_grad(), uncompiled(), Recorder([*sums, local, time], COVERED) as record:
        state, slope = plan.scheme.evaluate(partial(field, 0), sums, local)
    assert slope is not None
    return Step(record, (sums, local, time), (state, slope))


def traced(step: Step, constants: Constants, structure: Structure) -> tuple[Lowered, tuple[Tensor, Tensor]]:
    """The program of a step, and the sample and feature of each element of a row; or the reason why there is none."""
    reason = Refused(f"no axis divides the state into samples of up to {KERNEL_FEATURES} numbers")
    for k, where in enumerate(layouts(structure)):
        for chunk, limit in ((1, KERNEL_NUMBERS), (KERNEL_TILE, KERNEL_TILES)):
            if chunk > 1 and int(where[1].max()) == 0:
                continue
            try:
                return lowered(step.record.live, constants, step.given, step.results, where, chunk, limit), where
            except Unfit as unfit:  # said is what the usual idea of a sample met, with features along the last axis
                reason = unfit if k <= 1 else reason
    raise reason
