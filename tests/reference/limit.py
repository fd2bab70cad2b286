"""How far output between nodes may leave the line through two of them: see the documentation of ``trapezoid``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: A cell so short beside the one that is looked at says nothing about the solution there.
SHORT = 1e-6
_SLACK = torch.finfo(torch.float64).eps ** 0.75


def limited(found: Tensor, states: Sequence[Tensor], times: Sequence[Tensor], low: int, part: Tensor | float) -> Tensor:
    """The state ``found`` at ``part`` of the cell behind node ``low``, where the nodes around bear it out."""
    if found.is_complex():
        real = [torch.view_as_real(x) for x in states]
        return torch.view_as_complex(limited(torch.view_as_real(found), real, times, low, part))
    length = times[low + 1] - times[low]

    def says(k: int) -> bool:
        return 0 <= k < len(times) - 1 and bool((times[k + 1] - times[k] > SHORT * length).all())

    def bend(k: int) -> Tensor:
        """Half of the second difference at the node behind cell ``k``, for cells of this length."""
        if not (says(k) and says(k + 1)):
            return torch.zeros_like(found)
        a, b, c = states[k : k + 3]
        before, after = times[k + 1] - times[k], times[k + 2] - times[k + 1]
        second = 2 * ((c - b) / after - (b - a) / before) / (before + after)
        return torch.minimum((length**2 * second).abs(), (c - b).abs() + (b - a).abs()) / 2

    left, right = states[low], states[low + 1]
    least = top = left + part * (right - left)
    if says(low - 1):
        most = torch.maximum(bend(low - 2), bend(low - 1))
    else:
        least, top, most = torch.minimum(left, right), torch.maximum(left, right), bend(low)
    most = most + _SLACK * torch.maximum(left.abs(), right.abs()).detach()
    return torch.maximum(torch.minimum(found, top + most), least - most)
