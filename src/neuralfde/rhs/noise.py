"""Random numbers inside ``func``: the same for every evaluation of a step, in both passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from ..base.transfer import capturing


class Noise:
    """Random numbers of a step as a function of (seed, step); inactive until ``func`` is seen to draw any."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.active = False
        self.seed = 0
        self._after_first: list[Tensor] = []

    def peek(self) -> list[Tensor]:
        """The states of the generators that ``func`` can draw from."""
        states = [torch.get_rng_state()]
        if self.device.type == "cuda" and not capturing():
            states.append(torch.cuda.get_rng_state(self.device))
        return states

    def activate_if_drawn(self, before: list[Tensor]) -> None:
        """If the generators moved, fix a seed for this solve; it is drawn from the caller's own generator."""
        self._after_first = self.peek()
        if all(map(torch.equal, before, self._after_first)):
            return
        self.active = True
        self.seed = int(torch.randint(2**62, ()))

    def drawn_since_first(self) -> bool:
        """Whether an inactive generator has moved since the first evaluation."""
        return not self.active and not all(map(torch.equal, self._after_first, self.peek()))

    def seed_step(self, n: int) -> None:
        """Set the generators to the noise of step ``n``."""
        torch.manual_seed((self.seed + n) % 2**63)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[None]:
        """Leave the caller's generators as they were, however many steps are seeded inside."""
        if not self.active:
            yield
            return
        before = self.peek()
        try:
            yield
        finally:
            torch.set_rng_state(before[0])
            if len(before) > 1:
                torch.cuda.set_rng_state(before[1], self.device)
