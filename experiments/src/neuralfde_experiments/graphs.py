"""Node classification with F-GRAND on random splits: mean and deviation of the test accuracy (tab:noderesults).

The protocol is FROND's: its ten splits, every epoch evaluated, the first epoch with the best validation accuracy,
patience 100, and the standard deviation over the ten splits. Hyper-parameters are those of the paper's table
tab:s3hyperpara, FROND's with ``settings="frond"``, or ours with ``settings="tuned"``. The order is chosen by validation
or learned; ``tune`` searches all other hyper-parameters. Both use the validation accuracy on splits that are not
reported (for graphs that come with ten splits: on the validation nodes of some of them). Test accuracy decides nothing.

``torchrun`` distributes the splits.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

from neuralfde.cli.experiment import ADJOINTS, Options, Report, Row, device_option, numbers, option
from neuralfde.errors import InputError
from neuralfde.models.message_passing import SCORES

from .data.files import existing_root
from .graph_settings import TABLES, Settings, candidates, canonical, reported_seeds, settings_for
from .graph_training import OPTIMISERS, features_of, graph_of, side_by_side, train_splits
from .processes import Processes

PROCESSES = True
SUMMARY = "node classification with F-GRAND"
EXAMPLES = (
    "neuralfde run graphs --dataset cora --settings tuned",
    "neuralfde run graphs --dataset citeseer --settings frond --seeds 3",
    "neuralfde run graphs --dataset airport --learn-order",
    "neuralfde run graphs --dataset pubmed --learn-order",
    "neuralfde run graphs --dataset photo --tune 30",
)

#: tab:noderesults, adj-F-GRAND-l and adj-F-GRAND-nl: mean and deviation in per cent
PAPER_ACCURACY: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "cora": ((85.0, 1.0), (82.6, 1.3)),
    "citeseer": ((75.0, 1.3), (74.6, 1.9)),
    "pubmed": ((79.7, 1.6), (78.5, 1.5)),
    "coauthor-cs": ((93.1, 0.3), (92.8, 0.3)),
    "computers": ((86.9, 1.4), (87.5, 0.8)),
    "photo": ((93.3, 0.5), (92.5, 0.8)),
    "coauthor-physics": ((94.0, 0.5), (93.8, 0.6)),
    "ogbn-arxiv": ((72.5, 0.3), (72.6, 0.3)),
    "ogbn-products": ((78.36, 0.32), (78.33, 0.20)),
}

#: the same table, F-GRAND-l and F-GRAND-nl: the same model, differentiated directly
PAPER_DIRECT: dict[str, tuple[float, float]] = {
    "cora": (84.8, 83.2),
    "citeseer": (74.0, 74.7),
    "pubmed": (79.4, 79.2),
    "coauthor-cs": (93.0, 92.9),
    "computers": (84.4, 84.1),
    "photo": (92.8, 93.1),
    "coauthor-physics": (94.5, 93.9),
}

Job = tuple[str, Settings, int]


@dataclass(frozen=True)
class Config(Options):
    """What to train on, how often, and what to choose on validation; ``None`` takes the table's value."""

    dataset: str = option(
        "cora",
        "graph: cora, citeseer, pubmed, coauthor-cs, computers, photo, coauthor-physics, airport, …",
        reads=settings_for,
    )
    variant: str = option("l", "l: attention computed once; nl: at every evaluation", choices=("l", "nl"))
    adjoint: str = option("exact", "exact, direct or paper", choices=ADJOINTS)
    settings: str = option(
        "paper", "hyper-parameters: paper (tab:s3hyperpara), frond or tuned (ours)", choices=tuple(TABLES)
    )
    seeds: int = option(10, "number of random splits", least=1)
    first_seed: int = option(123, "seed of the first split; each adds one more than the last")
    order: float | None = option(
        None, "order of the derivative; default: chosen on validation from --orders", above=0, most=1
    )
    orders: str = option("0.6,0.8,1.0", "orders to choose from", reads=numbers(above=0, most=1))
    choose_on: int = option(2, "number of splits whose validation accuracy chooses", least=1)
    choose_from: int = option(100, "seed of the first of them; none of them is reported on")
    learn_order: bool = option(False, "train the order instead")
    tune: int = option(0, "random trials of the other hyper-parameters on validation")
    hidden: int | None = option(None, "width of the state", least=1)
    heads: int | None = option(None, "attention heads", least=1)
    attention: str | None = option(None, "scaled_dot, cosine, pearson or exp_kernel", choices=SCORES)
    normalise: str | None = option(None, "softmax or squareplus", choices=("softmax", "squareplus"))
    over: str | None = option(
        None, "whose attention adds up to 1: target, source or both", choices=("target", "source", "both")
    )
    start: str | None = option(None, "how attention starts: random or average", choices=("random", "average"))
    attention_decay: float | None = option(None, "weight decay of attention; default: as the other weights", most=1e6)
    source: bool | None = option(None, "the term b Z0")
    waves: float | None = option(
        None, "frequency of the random waves that numbers among the features become; 0: none", least=0, most=1e6
    )
    idf: bool | None = option(None, "weigh words that few nodes have more")
    components: int | None = option(None, "principal components in place of the features; 0: none", least=0, most=4096)
    steady: bool | None = option(None, "a rate of diffusion that is not learned")
    average: float | None = option(None, "decay of the mean of weights that is evaluated; 0: none", least=0, below=1)
    batch_norm: bool | None = option(None, "a batch norm behind the encoder")
    t: float | None = option(None, "integration time", above=0, most=1e6)
    step: float | None = option(None, "step size", least=1e-6)
    lr: float | None = option(None, "learning rate", above=0, most=100)
    weight_decay: float | None = option(None, "weight decay", most=1e6)
    input_dropout: float | None = option(None, "dropout of the features", below=1)
    node_dropout: float | None = option(None, "share of nodes that lose all their features", below=1)
    dropout: float | None = option(None, "dropout before the decoder", below=1)
    consistency: float | None = option(None, "weight of agreement between two draws of dropout; 0: none", most=1e6)
    optimiser: str | None = option(None, "adam, adamax, adamw or rmsprop", choices=tuple(OPTIMISERS))
    epochs: int | None = option(None, "most epochs", least=1)
    patience: int | None = option(None, "epochs without a better validation accuracy before stopping", least=1)
    evaluate_every: int = option(1, "epochs between evaluations", least=1)
    device: str = device_option()
    together: int = option(0, "splits trained side by side; default: as many as fit into memory")
    data: str | None = option(
        None, "data folder; default: the environment variable NEURALFDE_DATA", reads=existing_root
    )


def run(config: Config, report: Report | None = None) -> list[Row]:
    """Rows for every training, one for every choice made, and a summary with mean and deviation last."""
    _check(config)
    with Processes.from_environment(config.device) as processes:
        return _run(config, processes.quieten(Report() if report is None else report), processes)


def _run(config: Config, report: Report, processes: Processes) -> list[Row]:
    given = {k: v for k, v in asdict(config).items() if k in Settings.__dataclass_fields__}
    start = settings_for(config.dataset, config.settings, config.variant, **given)
    seeds = list(reported_seeds(canonical(config.dataset), config.seeds, config.first_seed))
    judges = list(range(config.choose_from, config.choose_from + config.choose_on))
    train = _trainer(config, report, processes)
    if config.tune:
        start = _tune(config, report, train, start, judges)
    if config.order is None and not config.learn_order:
        start = _choose_order(config, report, train, start, judges)
    rows = train([(_key(config, start.order, s), start, s) for s in seeds])
    report.case("summary", lambda: _summary(config, start, rows))
    return report.rows


def _check(config: Config) -> None:
    reported = reported_seeds(canonical(config.dataset), config.seeds, config.first_seed)
    if set(reported) & set(range(config.choose_from, config.choose_from + config.choose_on)):
        raise InputError(
            f"choose_from={config.choose_from}: splits that choose must not be among those reported, "
            f"{', '.join(map(str, reported))}. Use choose_from={max(reported) + 1}."
        )
    if config.learn_order and config.order == 1.0:
        raise InputError("learn_order=True cannot start from order=1. Start a little below it, for example order=0.9.")


def _key(config: Config, order: float, seed: int) -> str:
    return f"learned order, seed {seed}" if config.learn_order else f"order {order:g}, seed {seed}"


def _choose_order(config: Config, report: Report, train: _Train, start: Settings, seeds: list[int]) -> Settings:
    """The order with the best mean validation accuracy over ``seeds``; among equals the smallest."""
    orders = sorted(numbers()(config.orders))
    rows = train([(_key(config, o, s), replace(start, order=o), s) for o in orders for s in seeds])
    means = {o: _mean(rows[k * len(seeds) : (k + 1) * len(seeds)], "val") for k, o in enumerate(orders)}
    chosen = max(orders, key=lambda o: means[o])
    found = {f"val at {o:g}": round(m, 2) for o, m in means.items()}
    report.case("chosen order", lambda: {"dataset": config.dataset, "order": chosen, **found})
    return replace(start, order=chosen)


def _tune(config: Config, report: Report, train: _Train, start: Settings, seeds: list[int]) -> Settings:
    """The trial with the best mean validation accuracy; trial 0 is the start."""
    trials = candidates(start, config.tune, config.first_seed)
    rows = train([(f"trial {k}, seed {s}", trial, s) for k, trial in enumerate(trials) for s in seeds])
    means = [_mean(rows[k * len(seeds) : (k + 1) * len(seeds)], "val") for k in range(len(trials))]
    best = max(range(len(trials)), key=lambda k: means[k])
    row = {"dataset": config.dataset, "trial": best, "val": round(means[best], 2), **asdict(trials[best])}
    report.case("chosen settings", lambda: row)
    return trials[best]


def _summary(config: Config, s: Settings, rows: list[Row]) -> Row:
    paper = PAPER_ACCURACY.get(canonical(config.dataset), ((None, None),) * 2)[config.variant == "nl"]
    return {
        "dataset": config.dataset,
        "variant": config.variant,
        "adjoint": config.adjoint,
        "splits": len(rows),
        "order": round(_mean(rows, "order"), 4),
        "learned": config.learn_order,
        "val": round(_mean(rows, "val"), 2),
        "test": round(_mean(rows, "test"), 2),
        "deviation": round(statistics.pstdev(r["test"] for r in rows), 2),
        "paper": paper[0],
        "paper deviation": paper[1],
        "seconds": round(sum(r["seconds"] for r in rows), 1),
        "settings": asdict(s),
    }


def _mean(rows: list[Row], key: str) -> float:
    return statistics.fmean(r[key] for r in rows)


_Train = Callable[[list[Job]], list[Row]]


def _trainer(config: Config, report: Report, processes: Processes) -> _Train:
    """A function from jobs to rows; it trains nothing twice, and splits with the same settings together."""
    device = str(processes.device)
    dataset, done = canonical(config.dataset), dict[str, Row]()
    fixed = {k: getattr(config, k) for k in ("variant", "adjoint", "learn_order", "evaluate_every")}
    fixed |= {"device": device, "root": config.data}

    def together(settings: Settings) -> int:
        graph = graph_of(dataset, config.data, device, **features_of(settings))
        fits = side_by_side(graph, settings, config.variant, device)
        return min(config.together, fits) if config.together else fits

    def parts(settings: Settings, jobs: list[Job]) -> list[list[Job]]:
        """Groups of jobs to train together: as many as fit into the memory of a process, with some for each process."""
        fits = min(processes.deal([partial(together, settings)] * processes.count))
        size = min(fits, math.ceil(len(jobs) / processes.count))
        return [jobs[k : k + size] for k in range(0, len(jobs), size)]

    def train(jobs: list[Job]) -> list[Row]:
        for settings, group in itertools.groupby(jobs, key=lambda job: job[1]):
            missing = []
            for job in group:
                if job[0] not in done and report.known(job[0]) is not None:
                    done[job[0]] = report.case(job[0], dict)
                elif job[0] not in done:
                    missing.append(job)
            shares = parts(settings, missing) if missing else []
            tasks = [partial(train_splits, dataset, settings, [job[2] for job in part], **fixed) for part in shares]
            for part, rows in zip(shares, processes.deal(tasks), strict=True):
                for (key, _, _), row in zip(part, rows, strict=True):
                    done[key] = report.case(key, partial(dict, row))
                count = sum(key in done for key, _, _ in jobs)
                report.progress(dataset, count, len(jobs), text=f"validation {rows[-1]['val']} %")
        return [done[key] for key, _, _ in jobs]

    return train
