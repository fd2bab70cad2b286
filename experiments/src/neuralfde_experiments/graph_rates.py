"""Rates of their own for models trained side by side, as a search over settings has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from .graph_settings import Settings
from .graph_training import decay_of, optimiser_for


class OwnRates:
    """Adam or Adamax for members side by side, each with its own learning rate and decay.

    Both move a weight by the learning rate times something that does not depend on it: steps of rate 1 are scaled. The
    decay joins the gradient, as in the optimiser itself.
    """

    def __init__(self, model: nn.Module, each: Sequence[Settings]) -> None:
        names, self.parameters = zip(*model.named_parameters(), strict=True)
        self.inner = optimiser_for(model, replace(each[0], lr=1.0, weight_decay=0.0, attention_decay=None))
        self.rates = [self._column(p, [s.lr for s in each]) for p in self.parameters]
        decays = [[decay_of(name, s) for s in each] for name in names]
        self.decays = [self._column(p, d) for p, d in zip(self.parameters, decays, strict=True)]

    @staticmethod
    def _column(parameter: Tensor, values: list[float]) -> Tensor:
        return torch.tensor(values, device=parameter.device).view(-1, *[1] * (parameter.dim() - 1))

    def zero_grad(self) -> None:
        """As the optimiser's."""
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        """As the optimiser's."""
        before = [p.clone() for p in self.parameters]
        for p, decay in zip(self.parameters, self.decays, strict=True):
            if p.grad is not None:
                p.grad.addcmul_(p, decay)
        self.inner.step()
        for p, old, rate in zip(self.parameters, before, self.rates, strict=True):
            p.copy_(torch.lerp(old, p, rate))
