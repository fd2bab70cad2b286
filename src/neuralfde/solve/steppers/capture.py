"""Capturing a function as a CUDA graph: streams, warm-up, and separate leaves for each capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ...base.policy import WARM_UP
from ...base.structure import replace_tensors, tensors_in
from ...base.torch_private import version_of, with_parameters
from ...errors import UnsupportedError
from ...rhs.field import Field
from ...rhs.first import graph_nodes
from ..plan import Plan
from .single import Lane

#: How often a function is called in one capture.
CALLS = WARM_UP + 1
_STREAMS: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def capture_stream(device: torch.device, lane: int = 0) -> torch.cuda.Stream:
    """One stream per device for all captures, since matrix products hold a workspace for every stream they ran on.

    A capture with parts that run at the same time uses a second ``lane``.
    """
    if (device, lane) not in _STREAMS:
        _STREAMS[device, lane] = torch.cuda.Stream(device)
    return _STREAMS[device, lane]


def capture(call: Callable[[], Any], func: Any, like: Tensor, pool: Any) -> torch.cuda.CUDAGraph:
    """Warm up on a side stream, then capture there; the current stream is restored in any case."""
    stream, current = capture_stream(like.device), torch.cuda.current_stream(like.device)
    buffers = list(func.buffers()) if isinstance(func, nn.Module) else []
    kept = [(b, b.clone(), version_of(b)) for b in buffers]
    try:
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        current.wait_stream(stream)
        for b, before, version in kept:
            if version_of(b) != version:
                b.copy_(before)  # running statistics, which the warm-up must not change
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                call()
        except Exception:
            _reset(stream, like)
            raise
    finally:
        torch.cuda.set_stream(current)
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    """The time of a replay: the shorter of two."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    marks[-1].synchronize()
    return min(a.elapsed_time(b) for a, b in pairwise(marks))


def _reset(stream: torch.cuda.Stream, like: Tensor) -> None:
    """Run a successful capture: after one that failed, the random generator still waits for its end."""
    spare = torch.zeros_like(like)
    torch.cuda.synchronize(like.device)
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        spare.add_(1)


@dataclass
class Leaves:
    """Leaves that share the memory of parameters (by name) and of arguments; ``wanted`` are those that get a gradient.

    Autograd's node that accumulates the gradient of a leaf belongs to the stream on which the leaf was first used, as
    long as any graph holds it, and a capture on another stream may not use it. New leaves have no such node yet.
    """

    own: dict[str, Tensor]
    args: list[Tensor]
    wanted: list[Tensor]


def own_leaves(func: Any) -> tuple[dict[str, Tensor], dict[int, str]]:
    """Leaves that share the memory of a module's parameters, by name; and these names by the parameters' ids."""
    if not isinstance(func, nn.Module):
        return {}, {}
    named = dict(func.named_parameters())
    own = {name: p.detach().requires_grad_(p.requires_grad) for name, p in named.items()}
    return own, {id(p): name for name, p in named.items()}


def new_leaves(plan: Plan, args: list[Tensor]) -> tuple[Leaves, dict[int, str]]:
    """Leaves for one lane of a capture with these static arguments."""
    own, names = own_leaves(plan.field.func)
    mine = [a.detach().requires_grad_(a.requires_grad) for a in args]
    stands = dict(zip(map(id, tensors_in(plan.field.args)), mine, strict=True))
    stands |= {key: own[name] for key, name in names.items()}
    return Leaves(own, mine, [y for y in (stands[id(x)] for x in plan.leaves) if y.requires_grad]), names


def refuse_second_holders(plan: Plan, args: list[Tensor], field: Field, x: Tensor) -> None:
    """Raise if ``func`` would still use its parameters in place of the leaves of a capture."""
    made, names = new_leaves(plan, args)
    field = field.at(field.times, replace_tensors(field.args, made.args))
    with torch.enable_grad(), with_parameters(field.func, made.own, tie_weights=True):
        v = field(0, x.detach().requires_grad_())
    if any(leaf is not None and id(leaf) in names for _, leaf in graph_nodes([v], [])):
        raise UnsupportedError("func holds its parameters a second time, as recurrent layers do")


class StreamLane(Lane):
    """A lane on its own stream, so that evaluating ``func`` at a known state need not wait for the previous step.

    A small network leaves most of a GPU idle, so that the evaluation costs little next to that step's product.
    """

    def __init__(self, field: Field, leaves: Leaves, stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        self.stream, self.other = stream, other
        self.rhs = rhs = field.at(field.times, replace_tensors(field.args, leaves.args))

        def call(n: int, row: Tensor) -> Tensor:  # without a reference to the lane: the cycle would keep func alive
            with with_parameters(rhs.func, leaves.own, tie_weights=True):
                return rhs(n, row)

        super().__init__(call, leaves.wanted)
        self._around: Any = None

    def __enter__(self) -> None:
        self._around = torch.cuda.stream(self.stream)
        self._around.__enter__()

    def __exit__(self, *error: object) -> None:
        self._around.__exit__(*error)

    def join(self) -> None:
        """See :class:`Lane`."""
        self.stream.wait_stream(self.other)
