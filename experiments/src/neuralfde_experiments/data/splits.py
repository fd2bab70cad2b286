"""Random train, validation and test nodes as GRAND draws them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neuralfde.errors import InputError


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint masks that together cover all nodes."""

    train: Tensor
    val: Tensor
    test: Tensor


def grand_split(
    y: Tensor, seed: int, *, development: int = 1500, per_class: int = 20, development_seed: int | None = None
) -> Split:
    """Draw exactly the split that GRAND's ``set_train_val_test_split`` draws.

    ``development`` nodes are chosen at random; of these, ``per_class`` of each class train and the others validate; all
    other nodes test. Both draws use a new ``RandomState(seed)`` of numpy, whose stream never changes. So one seed means
    one split, and for the same labels it is GRAND's.

    Args:
        y: the class of each node.
        seed: that of the split.
        development: nodes to train and validate on; 1500, or 5000 for CoauthorCS.
        per_class: training nodes of each class.
        development_seed: fixes the development set over several seeds, so that only the training nodes within it
            change and the test nodes stay the same (Klicpera et al., "Diffusion improves graph learning", from whom
            GRAND has its code); default: ``seed``, as GRAND.

    Shapes:
        y ``(N,)`` int64, each mask ``(N,)`` bool.
    """
    nodes, labels = len(y), y.cpu().numpy()
    if not 0 < development < nodes:
        raise InputError(f"development={development} must lie between 1 and {nodes - 1}: the other nodes test.")
    first = np.random.RandomState(seed if development_seed is None else development_seed)
    chosen = first.choice(nodes, development, replace=False)
    draw = np.random.RandomState(seed)
    train: list[int] = []
    for c in range(int(labels.max()) + 1):
        members = chosen[labels[chosen] == c]
        if len(members) < per_class:
            raise InputError(
                f"Class {c} has {len(members)} of the {development} development nodes at seed={seed}, fewer than "
                f"per_class={per_class}. Use another seed, more development nodes or fewer per class."
            )
        train.extend(draw.choice(members, per_class, replace=False))
    train_mask, val_mask = torch.zeros(nodes, dtype=torch.bool), torch.zeros(nodes, dtype=torch.bool)
    train_mask[torch.as_tensor(np.array(train))] = True
    val_mask[torch.as_tensor(chosen)] = True
    val_mask &= ~train_mask
    return Split(train_mask, val_mask, ~(train_mask | val_mask))
