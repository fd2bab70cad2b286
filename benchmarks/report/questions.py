"""What is measured: for each result file the question, the command that answers it, and the section that tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """One question; ``page`` is below ``docs/``."""

    asks: str
    command: str
    page: str


GPU, TAKE = "python benchmarks/images_gpu.py --data DIR --out OUT", ", then `python benchmarks/render.py --take OUT`"

#: by the name of the file in ``results/``
QUESTIONS = {
    "core": Question(
        "How exact are gradients, and what do time and memory of a solve come to?",
        "`python benchmarks/core.py`",
        "performance.md#the-core",
    ),
    "peers": Question(
        "What does a training step take, beside torchfde and torchdiffeq?",
        "`python benchmarks/peers.py`",
        "performance.md#compared-with-torchfde-and-torchdiffeq",
    ),
    "peers-gpu": Question(
        "What does it take on a GPU, beside torchfde and torchdiffeq, and where does the time go?",
        f"`python benchmarks/peers_gpu.py --torchfde CLONE --out OUT`{TAKE}",
        "performance.md#torchfde-and-torchdiffeq-on-a-gpu",
    ),
    "work-precision": Question(
        "How long does an error take to reach, beside pycaputo and FDEint?",
        "`python benchmarks/work_precision.py`",
        "performance.md#work-against-precision",
    ),
    "adaptive": Question(
        "Do steps to a tolerance meet it, at what cost, and what do they save on data over decades?",
        "`python benchmarks/adaptive.py`, `adaptive_work.py`, `adaptive_data.py --data DIR`",
        "performance.md#steps-to-a-tolerance",
    ),
    "accuracy": Question(
        "Do schemes, weights, error estimates and gradients have the accuracy that theory gives them?",
        "`make bench-accuracy`",
        "performance.md#orders-of-convergence",
    ),
    "small-states": Question(
        "What does it save to take all steps of a small state together?",
        "`python benchmarks/small_states.py`",
        "performance.md#small-states",
    ),
    "irregular": Question(
        "What do times between the grid points cost, for a batch or for each of its series?",
        "`python benchmarks/irregular.py`",
        "performance.md#times-between-grid-points",
    ),
    "practice": Question(
        "What do a small fit and an epoch over ragged series take, and how long is a model of series?",
        "`python benchmarks/practice.py`",
        "performance.md#everyday-work",
    ),
    "composing": Question(
        "What do forward mode, second derivatives, vmap and complex states cost beside a plain solve?",
        "`python benchmarks/composing.py`",
        "composing.md#what-it-costs",
    ),
    "stiff": Question(
        "What do implicit steps of a stiff problem cost, beside a loop with one factorisation?",
        "`python benchmarks/stiff.py`",
        "performance.md#stiff-problems",
    ),
    "pde": Question(
        "What do fields found from data, large linear problems and reactions on a plane take?",
        f"`python benchmarks/calibration.py`, `linear_exact.py`, `allen_cahn.py --out OUT`{TAKE}",
        "pde.md#what-it-takes",
    ),
    "horizons": Question(
        "What do time, memory and gradient error grow to over long horizons?",
        f"`python benchmarks/horizons.py --out OUT`{TAKE}",
        "performance.md#long-horizons",
    ),
    "discovery": Question(
        "How well are parameters, orders and intervals found from data?",
        "`python benchmarks/discovery.py --muscle FILE`",
        "performance.md#finding-equations-from-data",
    ),
    "bias": Question(
        "How far off is the gradient of the paper's adjoint?",
        "`python docs/figures/bias.py`",
        "math/bias.md#how-far-off",
    ),
    "cell": Question(
        "What does one streamed step of an exported cell take?",
        "`python benchmarks/cell.py`",
        "deploy.md#what-a-step-takes",
    ),
    "faults": Question(
        "What becomes of a run that is killed, whose files are damaged, or whose folder fails?",
        "`python benchmarks/faults.py`",
        "cli.md#what-a-run-survives",
    ),
    "engine": Question(
        "What does a reader open who follows a solve?",
        "`python benchmarks/modules.py`",
        "performance.md#what-a-reader-opens",
    ),
    "campaign": Question(
        "Does any random case come out wrong in silence?",
        "`python -m campaign --cases 20000 --record`, then `python benchmarks/render.py`",
        "promises.md#what-the-campaign-found",
    ),
    "scaling": Question(
        "What do several processes gain?", "`python benchmarks/scaling.py`", "scaling.md#what-to-expect"
    ),
    "graphs-cost": Question(
        "What do time and memory on large graphs come to, beside the paper's?",
        f"`python benchmarks/graphs_gpu.py --out OUT`{TAKE}",
        "reproduce.md#cost-on-large-graphs",
    ),
    "graphs-accuracy": Question(
        "How accurate is node classification on the seven small graphs, beside the paper's?",
        f"`python benchmarks/graphs_search.py --data DIR --out OUT/search.json`{TAKE}",
        "reproduce.md#accuracy-on-graphs",
    ),
    "graphs-filter": Question(
        "What does a training make of the filter of F-GRAND-l, and what helps?",
        f"`python benchmarks/graph_filter.py --data DIR --out OUT`{TAKE}",
        "reproduce.md#what-the-plain-loss-lacks",
    ),
    "forecasting": Question(
        "Does a learned order help to forecast, beside order 1, an LSTM and a naive forecast?",
        f"`python benchmarks/forecasting.py --data DIR --out OUT`{TAKE}",
        "memory.md#forecasting",
    ),
    "graphs-order": Question(
        "Does the order matter on a graph: order 1, order 0.5 or learned?",
        f"`python benchmarks/graphs_search.py --data DIR --out OUT/search.json --cases airport:order,…`{TAKE}",
        "reproduce.md#where-the-order-matters",
    ),
    "kernel": Question(
        "What does a whole block of steps in one kernel save?",
        f"`python benchmarks/kernel.py --out OUT`{TAKE}",
        "performance.md#blocks-of-steps-in-one-kernel",
    ),
    "graphs-kernels": Question(
        "What do the kernels for graphs save against the sparse library?",
        f"`python benchmarks/graph_kernels.py --out OUT`{TAKE}",
        "performance.md#kernels-for-graphs",
    ),
    "images-accuracy": Question(
        "How accurate is the image model on MNIST, Fashion-MNIST and the digits, beside the paper's?",
        f"`{GPU} --parts validate,train`{TAKE}",
        "reproduce.md#accuracy-on-images",
    ),
    "images-cost": Question(
        "What do time and memory of the image model come to over the horizon, beside the paper's?",
        f"`{GPU} --parts cost,direct,probe,smoke`{TAKE}",
        "reproduce.md#cost-over-the-horizon",
    ),
    "image-stages": Question(
        "What do exact gradients buy in three fractional stages, beside direct ones and the paper's?",
        f"`python benchmarks/image_stages.py --data DIR --out OUT`{TAKE}; `neuralfde run image-stages --out OUT`",
        "reproduce.md#what-exact-gradients-buy",
    ),
    "images-gradients": Question(
        "What do exact gradients change in a training?",
        f"`{GPU} --parts adjoints`{TAKE}",
        "reproduce.md#what-exact-gradients-buy",
    ),
}
