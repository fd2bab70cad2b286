"""Train F-GRAND on splits of one graph, several at once, and say how well it does; full batch."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.graphs import load_graph, set_random_split
from ..errors import InputError, nearest
from ..models.graph import FGrand
from ..models.graph_ensemble import FGrandEnsemble
from .graph_settings import Settings, has_random_splits

if TYPE_CHECKING:
    from torch_geometric.data import Data

Masks = tuple[Tensor, Tensor, Tensor]
OPTIMISERS: dict[str, Any] = {"adam": torch.optim.Adam, "adamax": torch.optim.Adamax, "adamw": torch.optim.AdamW}
SPARSE_BELOW = 0.1
"""Features with fewer non-zeros than this are kept sparse."""
OWN = ("order", "lr", "weight_decay", "attention_decay", "input_dropout", "dropout")
"""Settings in which splits trained side by side may differ."""
CHECK_EVERY = {"cpu": 2, "cuda": 10}
"""Evaluations between two looks at the validation accuracies; each look waits for the device."""


def build(data: Data, s: Settings, variant: str, adjoint: str, learn_order: bool = False, **options: Any) -> FGrand:
    """The model of these settings for a graph."""
    return FGrand(
        data.x.shape[1],
        data.num_classes,
        hidden=s.hidden,
        variant=variant,
        heads=s.heads,
        attention=s.attention,
        attention_width=s.attention_width or None,
        normalise=s.normalise,
        over=s.over,
        start=s.start,
        order=min(s.order, 0.99) if learn_order else s.order,
        learn_order=learn_order,
        t=s.t,
        step=s.step,
        input_dropout=s.input_dropout,
        dropout=s.dropout,
        source=s.source,
        adjoint=adjoint,
        **options,
    )


def optimiser_for(model: nn.Module, s: Settings) -> torch.optim.Optimizer:
    """The optimiser of these settings; an order that is learned does not decay, attention may decay on its own."""
    if s.optimiser not in OPTIMISERS:
        raise InputError(f"optimiser={s.optimiser!r} is unknown. {nearest(s.optimiser, OPTIMISERS)}")
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(decay_of(name, s), []).append(parameter)
    return OPTIMISERS[s.optimiser]([{"params": p, "weight_decay": d} for d, p in groups.items()], lr=s.lr)


def decay_of(name: str, s: Settings) -> float:
    """The weight decay of a parameter."""
    if name.endswith("raw_order"):
        return 0.0
    return s.attention_decay if "attention." in name and s.attention_decay is not None else s.weight_decay


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


def train_splits(
    dataset: str,
    s: Settings,
    seeds: Sequence[int],
    *,
    each: Sequence[Settings] | None = None,
    variant: str = "l",
    adjoint: str = "exact",
    learn_order: bool = False,
    device: str = "cpu",
    root: str | None = None,
    evaluate_every: int = 2,
) -> list[dict[str, Any]]:
    """Train on the splits ``seeds`` at once, each from the initialisation of its seed.

    ``each`` gives every seed settings of its own, which differ from ``s`` in nothing but :data:`OWN`.

    The epoch is the one of the best validation accuracy, of equal ones that of the lowest validation loss; the test
    accuracy reported is that epoch's and decides nothing.
    """
    data = graph_of(dataset, root, device)
    masks = [split_of(data, seed) for seed in seeds]
    each = [s] * len(seeds) if each is None else each
    model = _model(data, each, seeds, variant, adjoint, learn_order).to(device)
    alike = len({(own.lr, own.weight_decay, own.attention_decay) for own in each}) == 1
    optimiser = optimiser_for(model, s) if alike else OwnRates(model, each)
    began = time.perf_counter()
    marks: list[Tensor] = []
    for epoch in range(1, s.epochs + 1):
        model.train()
        optimiser.zero_grad()
        logits = _each(model(data))
        sum(F.cross_entropy(z[m[0]], data.y[m[0]]) for z, m in zip(logits, masks, strict=True)).backward()  # type: ignore[union-attr]
        optimiser.step()
        if epoch % evaluate_every == 0 or epoch == s.epochs:
            marks.append(evaluate(model, data, masks))
            if len(marks) % CHECK_EVERY.get(data.y.device.type, 10) == 0 and all(
                _stop(marks, s.patience // evaluate_every)
            ):
                break
    seconds = (time.perf_counter() - began) / len(seeds)
    stops = _stop(marks, s.patience // evaluate_every)
    found = torch.stack(marks).cpu()
    rows = []
    for k, seed in enumerate(seeds):
        best = _best(found[: stops[k] or len(found), k])
        val, _, test, order = (float(v) for v in found[best, k])
        row = {"dataset": dataset, "variant": variant, "seed": seed, "order": round(order, 4)}
        row |= {"val": round(100 * val, 3), "test": round(100 * test, 3)}
        rows.append(row | {"epoch": min((best + 1) * evaluate_every, epoch), "seconds": round(seconds, 2)})
    return rows


def _model(
    data: Data, each: Sequence[Settings], seeds: Sequence[int], variant: str, adjoint: str, learn: bool
) -> FGrand | FGrandEnsemble:
    """One model, or an ensemble of as many as there are seeds."""
    members = []
    for seed, s in zip(seeds, each, strict=True):
        torch.manual_seed(seed)
        # Finiteness shows in the validation loss; checking it in the solver would wait for the device at every call.
        members.append(build(data, s, variant, adjoint, learn, check_finite=False))
    return members[0] if len(members) == 1 else FGrandEnsemble(members)


def _each(logits: Tensor) -> Tensor:
    return logits if logits.dim() == 3 else logits[None]


@torch.no_grad()
def evaluate(model: FGrand | FGrandEnsemble, data: Data, masks: Sequence[Masks]) -> Tensor:
    """Validation accuracy and loss, test accuracy and order of each member, ``(S, 4)``, without waiting."""
    model.eval()
    orders = model.order.detach().to(data.y.device).double().reshape(-1)
    rows = []
    for logits, (_, val, test), order in zip(_each(model(data)), masks, orders, strict=True):
        right = (logits.argmax(1) == data.y).double()
        loss = F.cross_entropy(logits[val], data.y[val]).double()
        rows.append(torch.stack([right[val].mean(), loss, right[test].mean(), order]))
    return torch.stack(rows)


def _best(marks: Tensor) -> int:
    return max(range(len(marks)), key=lambda k: (float(marks[k, 0]), -float(marks[k, 1])))


def _stop(marks: list[Tensor], patience: int) -> list[int]:
    """For each member the number of evaluations after which it had not improved for ``patience`` of them, or 0."""
    seen, stops = torch.stack(marks).cpu(), []
    for member in seen.unbind(1):
        best, stop = 0, 0
        for k in range(len(member)):
            best = k if member[k, 0] > member[best, 0] else best
            if k - best >= patience or not bool(torch.isfinite(member[k, 1])):
                stop = k + 1
                break
        stops.append(stop)
    return stops


def side_by_side(data: Data, s: Settings, variant: str, device: str) -> int:
    """How many models fit at once into a quarter of the free memory, by a rough count.

    One on the CPU, which is busy with one, and can then stop each as soon as its own accuracy no longer grows.
    """
    if not device.startswith("cuda"):
        return 1
    free = torch.cuda.mem_get_info()[0] / 4
    nodes, edges = int(data.num_nodes), int(data.num_edges) + int(data.num_nodes)
    state = 4 * nodes * s.hidden * (s.t / s.step + 16)
    per_edge = 4 * edges * (16 + 8 * s.heads * (variant == "nl") + 4 * s.heads)
    features = 8 * data.x._nnz() if data.x.is_sparse else 8 * data.x.numel()
    return max(1, int(free / (state + per_edge + 4 * features)))


@functools.lru_cache(maxsize=2)
def graph_of(dataset: str, root: str | None, device: str) -> Data:
    """The graph on the device, kept for the next split; features that are mostly zeros are made sparse."""
    data = load_graph(dataset, root)
    if torch.count_nonzero(data.x) < SPARSE_BELOW * data.x.numel():
        data.x = data.x.to_sparse()
    return data.to(device)


def split_of(data: Data, seed: int) -> Masks:
    """Indices of training, validation and test nodes of a split."""
    if has_random_splits(data.name):
        set_random_split(data, seed)
    device = data.y.device
    train, val, test = (mask.nonzero()[:, 0].to(device) for mask in (data.train_mask, data.val_mask, data.test_mask))
    return train, val, test
