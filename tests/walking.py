"""A memory walked from the first block to the last, as the loop over time walks it."""

from __future__ import annotations

import torch
from torch import Tensor

from neuralfde.history import Block, Memory


def blocks(memory: Memory, steps: int) -> list[Block]:
    """The blocks of a pass over times 0 … steps."""
    size = memory.block
    return [Block(start, min(size, steps + 1 - start)) for start in range(0, steps + 1, size)]


def walk(memory: Memory, rows: Tensor, steps: int, slopes: Tensor | None = None, rooms: bool = False) -> Tensor:
    """All sums of every time, (times, outputs, groups, width): what is recalled, and the product inside the block.

    Args:
        memory: one pass; a backward one meets the last step first, and so do ``rows`` and ``slopes`` then.
        rows: what the steps give, (times, inputs, groups, width).
        steps: times are 0 … steps.
        slopes: those of a backward pass that weighs, (times, groups, width).
        rooms: say where the sums go, as a stepper with static memory does.
    """
    found = []
    for block in blocks(memory, steps):
        own, inner = rows[block.start : block.stop], memory.inner(block)
        sums = torch.einsum("grojc,jcgm->rogm", inner, own)
        out = torch.full_like(sums, torch.nan) if rooms else None
        recalled = memory.recall(block, out)
        if recalled is not None:
            assert recalled.shape == sums.shape
            assert out is None or recalled.data_ptr() == out.data_ptr()
            sums = sums + recalled
            recalled.fill_(torch.nan)  # the caller may overwrite it
        memory.record(block, own.clone(), None if slopes is None else slopes[block.start : block.stop])
        found.append(sums)
    return torch.cat(found)
