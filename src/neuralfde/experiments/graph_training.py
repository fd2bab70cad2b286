"""Train F-GRAND on one split of one graph, and say how well it does; full batch."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.graphs import load_graph, set_random_split
from ..errors import InputError, nearest
from ..models.graph import FGrand
from .graph_settings import Settings, has_random_splits

if TYPE_CHECKING:
    from torch_geometric.data import Data

OPTIMISERS: dict[str, Any] = {"adam": torch.optim.Adam, "adamax": torch.optim.Adamax, "adamw": torch.optim.AdamW}
SPARSE_BELOW = 0.1
"""Features with fewer non-zeros than this are kept sparse."""
CHECK_EVERY = 10
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


def optimiser_for(model: FGrand, s: Settings) -> torch.optim.Optimizer:
    """The optimiser of these settings; an order that is learned does not decay."""
    if s.optimiser not in OPTIMISERS:
        raise InputError(f"optimiser={s.optimiser!r} is unknown. {nearest(s.optimiser, OPTIMISERS)}")
    free = [p for name, p in model.named_parameters() if name.endswith("raw_order")]
    held = [p for name, p in model.named_parameters() if not name.endswith("raw_order")]
    groups = [{"params": held, "weight_decay": s.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return OPTIMISERS[s.optimiser](groups[: 1 + bool(free)], lr=s.lr)


def train_split(
    dataset: str,
    s: Settings,
    seed: int,
    *,
    variant: str = "l",
    adjoint: str = "exact",
    learn_order: bool = False,
    device: str = "cpu",
    root: str | None = None,
    evaluate_every: int = 2,
) -> dict[str, Any]:
    """Train on the split ``seed``, from the initialisation ``seed``.

    The epoch is the one of the best validation accuracy, of equal ones that of the lowest validation loss; the test
    accuracy reported is that epoch's and decides nothing.
    """
    data = graph_of(dataset, root, device)
    masks = split_of(data, seed)
    torch.manual_seed(seed)
    # Finiteness is seen in the validation loss; checking it inside the solver would wait for the device at every call.
    model = build(data, s, variant, adjoint, learn_order, check_finite=False).to(device)
    optimiser = optimiser_for(model, s)
    began, y_train = time.perf_counter(), data.y[masks[0]]
    marks: list[Tensor] = []
    epoch = 0
    for epoch in range(1, s.epochs + 1):
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(model(data)[masks[0]], y_train).backward()
        optimiser.step()
        if epoch % evaluate_every == 0 or epoch == s.epochs:
            marks.append(evaluate(model, data, masks))
            if len(marks) % CHECK_EVERY == 0 and _stale(marks, s.patience // evaluate_every):
                break
    val, loss, test, order = torch.stack(marks).cpu().unbind(1)
    best = max(range(len(val)), key=lambda k: (float(val[k]), -float(loss[k])))
    return {
        "dataset": dataset,
        "variant": variant,
        "seed": seed,
        "order": round(float(order[best]), 4),
        "val": round(100 * float(val[best]), 3),
        "test": round(100 * float(test[best]), 3),
        "epoch": min((best + 1) * evaluate_every, epoch),
        "epochs": epoch,
        "seconds": round(time.perf_counter() - began, 2),
    }


@torch.no_grad()
def evaluate(model: FGrand, data: Data, masks: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Validation accuracy and loss, test accuracy and order, ``(4,)``, without waiting for the device."""
    model.eval()
    logits = model(data)
    right = (logits.argmax(1) == data.y).double()
    val, test = right[masks[1]].mean(), right[masks[2]].mean()
    loss = F.cross_entropy(logits[masks[1]], data.y[masks[1]]).double()
    return torch.stack([val, loss, test, model.order.detach().double()])


def _stale(marks: list[Tensor], patience: int) -> bool:
    """Whether the best validation accuracy is older than ``patience`` evaluations, or the loss is no number."""
    seen = torch.stack(marks).cpu()
    best = int(seen[:, 0].argmax())
    return len(marks) - 1 - best >= patience or not bool(torch.isfinite(seen[-1, 1]))


@functools.lru_cache(maxsize=2)
def graph_of(dataset: str, root: str | None, device: str) -> Data:
    """The graph on the device, kept for the next split; features that are mostly zeros are made sparse."""
    data = load_graph(dataset, root)
    if torch.count_nonzero(data.x) < SPARSE_BELOW * data.x.numel():
        data.x = data.x.to_sparse()
    return data.to(device)


def split_of(data: Data, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of training, validation and test nodes of a split."""
    if has_random_splits(data.name):
        set_random_split(data, seed)
    device = data.y.device
    train, val, test = (mask.nonzero()[:, 0].to(device) for mask in (data.train_mask, data.val_mask, data.test_mask))
    return train, val, test
