"""Train F-GRAND on splits of one graph, several at once, and say how well it does; full batch.

With ``consistency=c`` two draws of dropout are asked to agree on all nodes (Feng et al., "Graph random neural networks
for semi-supervised learning on graphs", NeurIPS 2020): the loss has ``c ramp |p_k - q|²`` beside the cross entropies,
averaged over the draws, with ``p_k`` their classes' probabilities and ``q ∝ (p_1 + p_2)²``, which has no gradient.

With ``average=d`` the mean of the weights over epochs is evaluated in their place, on validation and test nodes alike
(Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992); what is trained stays the same.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.swa_utils import AveragedModel

from neuralfde.errors import InputError, nearest
from neuralfde.models.graph import FGrand

from .data.graphs import normalise_rows, principal, random_waves, rare_words, set_random_split
from .data.order_graphs import ORDER_GRAPHS
from .graph_ensemble import FGrandEnsemble
from .graph_settings import Settings, has_random_splits
from .graph_synthetic import named_graph
from .replay import Replay

if TYPE_CHECKING:
    from torch_geometric.data import Data

Masks = tuple[Tensor, Tensor, Tensor]
OPTIMISERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
SPARSE_BELOW = 0.1
"""Features with fewer non-zeros than this are kept sparse."""
OWN = ("order", "lr", "weight_decay", "attention_decay", "input_dropout", "node_dropout", "dropout", "consistency")
"""Settings in which splits trained side by side may differ."""
NONE = -100
"""The label where a split has fewer nodes than another beside it."""
RAMP = 50
"""Epochs until consistency has its full weight."""
RECENT = 4
"""Of so many parts of the epochs, the mean of the weights is over the last, until that is as long as its decay says."""
LONGEST_STEP = 1.0
"""Up to this step explicit steps of diffusion are stable: one model on a CPU is then solved by powers of attention."""
CHECK_EVERY = {"cpu": 2, "cuda": 10}
"""Evaluations between two looks at the validation accuracies; each look waits for the device."""


def build(data: Data, s: Settings, variant: str, adjoint: str, learn_order: bool = False, **options: Any) -> FGrand:
    """The model of these settings for a graph."""
    if not options.get("powers"):  # which has no steps, and so no adjoint of them
        options["adjoint"] = adjoint
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
        loops=s.loops,
        order=min(s.order, 0.99) if learn_order else s.order,
        learn_order=learn_order,
        t=s.t,
        step=s.step,
        input_dropout=s.input_dropout,
        node_dropout=s.node_dropout,
        dropout=s.dropout,
        source=s.source,
        batch_norm=s.batch_norm,
        **options,
    )


def optimiser_for(model: nn.Module, s: Settings) -> torch.optim.Optimizer:
    """The optimiser of these settings; an order that is learned does not decay, attention may decay on its own."""
    if s.optimiser not in OPTIMISERS:
        raise InputError(f"optimiser={s.optimiser!r} is unknown. {nearest(s.optimiser, OPTIMISERS)}")
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(decay_of(name, s), []).append(parameter)
    cuda = next(model.parameters()).is_cuda
    parts = [{"params": p, "weight_decay": d} for d, p in groups.items()]
    return OPTIMISERS[s.optimiser](parts, lr=s.lr, capturable=cuda)  # type: ignore[no-any-return]


def decay_of(name: str, s: Settings) -> float:
    """The weight decay of a parameter."""
    if name.endswith("raw_order"):
        return 0.0
    return s.attention_decay if "attention." in name and s.attention_decay is not None else s.weight_decay


def train_splits(
    dataset: str,
    s: Settings,
    seeds: Sequence[int],
    *,
    each: Sequence[Settings] | None = None,
    evaluate_every: int = 1,
    until: float = math.inf,
    **how: Any,
) -> list[dict[str, Any]]:
    """Train on the splits ``seeds`` at once, each from the initialisation of its seed.

    ``each`` gives every seed settings of its own, which differ from ``s`` in nothing but :data:`OWN`; ``until`` is the
    time (of :func:`time.time`) at which training ends, with what it has; ``how`` goes to :class:`Training`.

    The epoch is the first of the best validation accuracy; the test accuracy reported is that epoch's and decides
    nothing. Where the graph is judged by the area under the ROC curve, accuracy stands for that.
    """
    training = Training(dataset, s, seeds, [s] * len(seeds) if each is None else each, **how)
    with training.stream():
        return training.fit(evaluate_every, until)


class Training:
    """Models side by side, their optimiser and their splits; on a GPU whole epochs are replayed as CUDA graphs."""

    def __init__(
        self,
        dataset: str,
        s: Settings,
        seeds: Sequence[int],
        each: Sequence[Settings],
        variant: str = "l",
        adjoint: str = "exact",
        learn_order: bool = False,
        device: str = "cpu",
        root: str | None = None,
    ) -> None:
        self.dataset, self.s, self.seeds, self.variant = dataset, s, seeds, variant
        self.data = graph_of(dataset, root, device, **features_of(s))
        self.cuda = self.data.y.is_cuda
        # the weights of an order that is learned are computed on the host, which no graph can do
        self.captures = self.cuda and not learn_order
        # Finiteness shows in the validation loss; checking it in the solver would wait for the device at every call.
        options: dict[str, Any] = {"check_finite": False}
        if self.captures:
            options |= {"stepper": "single", "history": "full"}
        elif not self.cuda and (variant, adjoint, len(seeds)) == ("l", "exact", 1) and s.step <= LONGEST_STEP:
            options = {"powers": True}  # the same numbers in a fraction of the time, with a check that no digits cancel
        self.masks = _joined([split_of(self.data, seed) for seed in seeds], len(self.data.y))
        self.model = _model(self.data, each, seeds, variant, adjoint, learn_order, options).to(device)
        if s.steady:
            self.model.block.func.a.requires_grad_(False)  # type: ignore[attr-defined]
        self.optimiser: Any = optimiser_for(self.model, s)
        if len({(own.lr, own.weight_decay, own.attention_decay) for own in each}) > 1:
            from .graph_rates import OwnRates  # imports this module

            self.optimiser = OwnRates(self.model, each)
        self.mean = AveragedModel(self.model, avg_fn=mean_over_epochs(s.average)) if s.average else None
        self.agree = torch.tensor([own.consistency for own in each], device=self.data.y.device)
        self.draws = 2 if any(own.consistency for own in each) else 1
        self.ramp = torch.zeros((), device=self.data.y.device)
        self.mark = torch.zeros(len(seeds), 4, dtype=torch.float64, device=self.data.y.device)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """A stream that can be captured, where there are streams."""
        if not self.cuda:
            yield
            return
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own):
            yield
        torch.cuda.current_stream().wait_stream(own)

    def fit(self, evaluate_every: int, until: float) -> list[dict[str, Any]]:
        """Train to the end; one row for each split."""
        s, began, marks = self.s, time.perf_counter(), list[Tensor]()
        update, look = (Replay(c, 2) if self.captures else c for c in (self.update, self.look))
        for epoch in range(1, s.epochs + 1):
            self.ramp.fill_(min(1.0, epoch / RAMP))
            update()
            if self.mean is not None:
                self.mean.update_parameters(self.model)
            if epoch % evaluate_every and epoch < s.epochs:
                continue
            look()
            marks.append(self.mark.clone())
            if len(marks) % CHECK_EVERY.get(self.data.y.device.type, 10) == 0 and (
                time.time() > until or all(_stop(marks, s.patience // evaluate_every))
            ):
                break
        seconds = (time.perf_counter() - began) / len(self.seeds)
        stops = _stop(marks, s.patience // evaluate_every)
        found, rows = torch.stack(marks, 1).tolist(), []
        for member, stop, seed in zip(found, stops, self.seeds, strict=True):
            best = _best(member[: stop or len(member)])
            val, _, test, order = member[best]
            row = {"dataset": self.dataset, "variant": self.variant, "seed": seed, "order": round(order, 4)}
            row |= {"val": round(100 * val, 3), "test": round(100 * test, 3)}
            rows.append(row | {"epoch": min((best + 1) * evaluate_every, epoch), "seconds": round(seconds, 2)})
        return rows

    def update(self) -> None:
        """One step of the optimiser, without a look at any value."""
        self.model.train()
        self.optimiser.zero_grad()
        train, y = self.masks[0], self.data.y
        draws = [_each(self.model(self.data)) for _ in range(self.draws)]
        loss = sum(_cross_entropy(z, train, y) for z in draws) / self.draws
        if self.draws > 1:
            shares = [z.softmax(2) for z in draws]
            sharp = sum(shares).detach().square()  # type: ignore[union-attr]
            sharp = sharp / sharp.sum(2, keepdim=True)
            apart = sum((p - sharp).square().sum(2).mean(1) for p in shares) / self.draws
            loss = loss + self.ramp * self.agree * apart
        loss.sum().backward()  # type: ignore[union-attr]
        self.optimiser.step()

    def look(self) -> None:
        """Validation accuracy and loss, test accuracy and order of each member, without waiting for the device."""
        model: Any = self.model if self.mean is None else self.mean.module
        self.mark.copy_(evaluate(model, self.data, self.masks))


def mean_over_epochs(decay: float) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    """How an exponential mean takes in new weights; a shorter one early on, since the first weights are no good."""

    def take(mean: Tensor, new: Tensor, taken: Tensor | int) -> Tensor:
        share = (RECENT / (torch.as_tensor(taken) + RECENT)).clamp(min=1 - decay)
        return mean + share * (new - mean)

    return take


def _joined(masks: Sequence[Masks], nodes: int) -> Masks:
    """Nodes of each part and split, ``(S, ·)``, numbered through all the splits; -1 where a split has fewer."""
    parts = ([m[k] + nodes * i for i, m in enumerate(masks)] for k in range(3))
    train, val, test = (pad_sequence(part, batch_first=True, padding_value=-1) for part in parts)
    return train, val, test


def _part(logits: Tensor, nodes: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits ``(S, ·, classes)`` and labels ``(S, ·)`` of these nodes; :data:`NONE` where there is no node."""
    picked = logits.flatten(0, 1).index_select(0, nodes.clamp(min=0).view(-1)).view(*nodes.shape, -1)
    return picked, y[nodes % len(y)].masked_fill(nodes < 0, NONE)


def _cross_entropy(logits: Tensor, nodes: Tensor, y: Tensor) -> Tensor:
    """The mean over each split's nodes, ``(S,)``."""
    picked, labels = _part(logits, nodes, y)
    each = F.cross_entropy(picked.flatten(0, 1), labels.view(-1), reduction="none", ignore_index=NONE)
    return each.view_as(labels).sum(1) / (labels != NONE).sum(1)


def _model(
    data: Data,
    each: Sequence[Settings],
    seeds: Sequence[int],
    variant: str,
    adjoint: str,
    learn: bool,
    options: dict[str, Any],
) -> FGrand | FGrandEnsemble:
    """One model, or an ensemble of as many as there are seeds."""
    members = []
    for seed, s in zip(seeds, each, strict=True):
        torch.manual_seed(seed)
        members.append(build(data, s, variant, adjoint, learn, **options))
    return members[0] if len(members) == 1 else FGrandEnsemble(members)


def _each(logits: Tensor) -> Tensor:
    return logits if logits.dim() == 3 else logits[None]


@torch.no_grad()
def evaluate(model: FGrand | FGrandEnsemble, data: Data, masks: Masks) -> Tensor:
    """Validation accuracy and loss, test accuracy and order of each member, ``(S, 4)``, without waiting."""
    model.eval()
    logits, (_, val, test) = _each(model(data)), masks
    order = model.order.detach().to(data.y.device, torch.float64).reshape(-1)
    (picked, labels), (others, theirs) = _part(logits, val, data.y), _part(logits, test, data.y)
    measure = area_under_curve if data.name in ORDER_GRAPHS and ORDER_GRAPHS[data.name].auc else accuracy
    right, good = measure(picked, labels), measure(others, theirs)
    return torch.stack([right, _cross_entropy(logits, val, data.y).double(), good, order], 1)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share that is right, of logits ``(S, n, classes)`` and labels ``(S, n)``."""
    return (logits.argmax(2) == labels).double().sum(1) / (labels != NONE).sum(1)


def area_under_curve(logits: Tensor, labels: Tensor) -> Tensor:
    """The chance that of two nodes, one of each class, the one of class 1 has the higher score; ties count half."""
    scores = (logits[..., 1] - logits[..., 0]).masked_fill(labels == NONE, math.inf)
    ordered = scores.sort(1).values
    below, upto = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    one, ranks = (labels == 1).double(), (below + upto + 1).double() / 2
    ones, rest = one.sum(1), (labels == 0).double().sum(1)
    return ((ranks * one).sum(1) - ones * (ones + 1) / 2) / (ones * rest)


Mark = list[float]


def _best(marks: list[Mark]) -> int:
    return max(range(len(marks)), key=lambda k: marks[k][0])


def _stop(marks: list[Tensor], patience: int) -> list[int]:
    """For each member the number of evaluations after which it had not improved for ``patience`` of them, or 0."""
    stops = []
    for member in torch.stack(marks, 1).tolist():
        best, stop = 0, 0
        for k, (accuracy, loss, *_) in enumerate(member):
            best = k if accuracy > member[best][0] else best
            if k - best >= patience or not math.isfinite(loss):
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


@functools.lru_cache(maxsize=16)
def graph_of(
    dataset: str,
    root: str | None,
    device: str,
    rows: bool = False,
    waves: float = 0.0,
    idf: bool = False,
    components: int = 0,
) -> Data:
    """The graph on the device, kept for the next split; features that are mostly zeros are made sparse."""
    if rows or waves or idf or components:
        data = copy.copy(graph_of(dataset, root, device))
        x = rare_words(data.x.to_dense()) if idf else data.x.to_dense()
        x = normalise_rows(x) if rows else x
        x = principal(sparse_or_not(x), components) if components else x
        data.x = random_waves(x, waves) if waves else x
    else:
        data = named_graph(dataset, root).to(device)
    data.x = sparse_or_not(data.x)
    return data


def sparse_or_not(x: Tensor) -> Tensor:
    """Features that are mostly zeros as a sparse tensor."""
    return x.to_sparse() if torch.count_nonzero(x) < SPARSE_BELOW * x.numel() else x


def features_of(s: Settings) -> dict[str, Any]:
    """What :func:`graph_of` makes of the features with these settings."""
    return {name: getattr(s, name) for name in ("rows", "waves", "idf", "components")}


def split_of(data: Data, seed: int) -> Masks:
    """Indices of training, validation and test nodes of a split."""
    if has_random_splits(data.name):
        set_random_split(data, seed)
    device = data.y.device
    train, val, test = (mask.nonzero()[:, 0].to(device) for mask in (data.train_mask, data.val_mask, data.test_mask))
    return train, val, test
