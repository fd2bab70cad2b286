"""Random numbers inside ``func``: the same for every evaluation of a step, in both passes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from ..base.caches import capturing
from ..base.torch_private import value_of

#: The generators that ``func`` draws from belong to the process: one solve at a time may set them. A ``func`` may
#: contain a solve of its own.
GENERATORS = threading.RLock()


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
        self.seed = int(value_of(torch.randint(2**62, (1,))).flatten()[0])

    def drawn_since_first(self) -> bool:
        """Whether an inactive generator has moved since the first evaluation, and no other thread can have moved it."""
        if self.active or threading.active_count() > 1:
            return False
        return not all(map(torch.equal, self._after_first, self.peek()))

    @contextlib.contextmanager
    def of_step(self, n: int) -> Iterator[None]:
        """Within, the generators give the noise of step ``n``; then they are as they were."""
        with GENERATORS:
            before = self.peek()
            torch.manual_seed((self.seed + n) % 2**63)
            try:
                yield
            finally:
                torch.set_rng_state(before[0])
                if len(before) > 1:
                    torch.cuda.set_rng_state(before[1], self.device)
