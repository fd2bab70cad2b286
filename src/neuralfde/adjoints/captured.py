"""One step with static inputs, captured as CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from ..errors import UnsupportedError
from ..field import graph_nodes
from ..structure import replace_tensors, tensors_in
from .plan import Coefficients, Plan

_WARM_UP = 2


class Captured:
    """The graphs of a step: forward, and backward in the variants of its incoming gradients.

    Static: the row ``x``, the time, the local weight, the tensors among ``args`` and the incoming gradients. Gradients
    of parameters add up in static totals inside the graph. All graphs share one memory pool; they never run at once.
    """

    def __init__(self, plan: Plan, c: Coefficients, z0: Tensor) -> None:
        self.busy = False
        self.x = z0.new_zeros(plan.scheme.sums, *z0.shape)
        self.x.copy_(z0)
        self.grad_z, self.grad_v = torch.zeros_like(z0), torch.zeros_like(z0)
        self.clock = plan.field.times[-1].clone()
        self.local = c.local.detach().clone().requires_grad_(plan.weigh)
        self.args = [a.detach().clone().requires_grad_(a.requires_grad) for a in tensors_in(plan.field.args)]
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = capture_stream(z0.device)
        self.step: torch.cuda.CUDAGraph | None = None
        self.pulls: dict[bool, _Pull] = {}
        self.totals: list[Tensor | None] = []
        self.local_total: Tensor | None = None
        self.plan: Plan | None = plan
        self.per_step = 0

    def begin(self, plan: Plan, c: Coefficients) -> None:
        """Take in what is new in this solve."""
        self.plan = plan
        with torch.no_grad():
            self.local.copy_(c.local)
            for mine, given in zip(self.args, tensors_in(plan.field.args), strict=True):
                mine.copy_(given)

    def end(self) -> None:
        """Let the next solve have it; nothing of this one is held."""
        self.plan = None
        self.busy = False

    def capture_forward(self) -> None:
        """``(z, v)`` from the static row."""
        plan = self._plan()
        field = plan.field.with_clock(self.clock, replace_tensors(plan.field.args, self.args))

        def call() -> tuple[Tensor, Tensor | None]:
            before = field.evaluations
            with torch.no_grad():
                found = plan.scheme.evaluate(field, 1, self.x, self.local.detach(), True)
            self.per_step = field.evaluations - before
            return found

        self.step, (self.z, self.v) = self._capture(call)

    def plain(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """State and slope of step ``n``; they are overwritten by the next one."""
        plan = self._plan()
        if x is not self.x:
            self.x.copy_(x)
        self.clock.copy_(plan.field.times[n])
        plan.field.evaluations += self.per_step
        assert self.step is not None
        assert self.v is not None
        self.step.replay()
        return self.z, self.v

    def capture_backward(self) -> None:
        """The graphs a backward pass will need: with a gradient of the state itself only where outputs lie inside."""
        plan = self._plan()
        for has_z in (False, True):
            if has_z not in self.pulls and (not has_z or any(0 < n < plan.steps for n in plan.nodes)):
                self.pulls[has_z] = self._capture_pull(has_z)

    def clear(self) -> None:
        """Begin a backward pass: totals are zero."""
        for total in (*self.totals, self.local_total):
            if total is not None:
                total.zero_()

    def pull(self, n: int, x: Tensor, grad_z: Tensor | None, grad_v: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the history sums and the slope of step ``n``; those of parameters go to the totals."""
        plan = self._plan()
        self.x.copy_(x)
        self.clock.copy_(plan.field.times[n])
        if grad_z is not None:
            self.grad_z.copy_(grad_z)
        self.grad_v.copy_(grad_v)
        plan.field.evaluations += self.per_step
        found = self.pulls[grad_z is not None]
        found.graph.replay()
        return found.sums, found.slope

    def _capture_pull(self, has_z: bool) -> _Pull:
        plan, leaves = self._plan(), self._leaves()
        field = plan.field.with_clock(self.clock, replace_tensors(plan.field.args, leaves.args))

        def call() -> tuple[Tensor, Tensor]:
            x = self.x.detach().requires_grad_()
            with torch.enable_grad(), substituted(field.func, leaves.own):
                z, v = plan.scheme.evaluate(field, 1, x, self.local, True)
            assert v is not None
            grad_z = self.grad_z if has_z else None
            found = plan.scheme.pull(1, x, z, v, self.local, grad_z, self.grad_v, leaves.wanted)
            self._accumulate(found.tensors, found.local)
            return found.sums, v.detach()

        graph, (sums, slope) = self._capture(call)
        return _Pull(graph, sums, slope)

    def _leaves(self) -> Leaves:
        """Leaves of a capture's own; refuses a ``func`` that would go on using its parameters in their place."""
        plan = self._plan()
        made, names = self._new_leaves()
        field = plan.field.with_clock(self.clock, replace_tensors(plan.field.args, made.args))
        with torch.enable_grad(), substituted(field.func, made.own):
            v = field(1, self.x[0].detach().requires_grad_())
        if any(leaf is not None and id(leaf) in names for _, leaf in graph_nodes([v], [])):
            raise UnsupportedError("func holds its parameters a second time, as recurrent layers do")
        return self._new_leaves()[0]

    def _new_leaves(self) -> tuple[Leaves, dict[int, str]]:
        plan = self._plan()
        own, names = own_leaves(plan.field.func)
        args = [a.detach().requires_grad_(a.requires_grad) for a in self.args]
        stands = dict(zip(map(id, tensors_in(plan.field.args)), args, strict=True))
        stands |= {key: own[name] for key, name in names.items()}
        wanted = [y for y in (stands[id(x)] for x in plan.leaves) if y.requires_grad]
        if not self.totals:
            self.totals = [None] * len(wanted)
        return Leaves(own, args, wanted), names

    def _accumulate(self, tensors: tuple[Tensor | None, ...], local: Tensor | None) -> None:
        """Inside a captured graph every total exists already: the warm-up made it."""
        for k, g in enumerate(tensors):
            if g is not None and self.totals[k] is None:
                self.totals[k] = torch.zeros_like(g)
        pairs = [(t, g) for t, g in zip(self.totals, tensors, strict=True) if t is not None and g is not None]
        if pairs:
            torch._foreach_add_([t for t, _ in pairs], [g for _, g in pairs])
        if local is not None:
            if self.local_total is None:
                self.local_total = torch.zeros_like(local)
            self.local_total.add_(local)

    def taken(self) -> tuple[list[Tensor | None], Tensor | None]:
        """The totals of the backward pass, as tensors of the caller's own."""
        local = None if self.local_total is None else self.local_total.clone()
        return [None if t is None else t.clone() for t in self.totals], local

    def _capture(self, call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        """Warm up on a side stream, then capture there; the current stream is put back whatever happens."""
        func = self._plan().field.func
        buffers = list(func.buffers()) if isinstance(func, nn.Module) else []
        kept = [b.clone() for b in buffers]
        current = torch.cuda.current_stream(self.x.device)
        try:
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                for _ in range(_WARM_UP):
                    call()
            current.wait_stream(self.stream)
            for b, before in zip(buffers, kept, strict=True):
                b.copy_(before)  # running statistics: the warm-up was no step
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    found = call()
            except Exception:
                _reset(self.stream, self.x)
                raise
        finally:
            torch.cuda.set_stream(current)
        return graph, found

    def _plan(self) -> Plan:
        assert self.plan is not None
        return self.plan


_STREAMS: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def capture_stream(device: torch.device, lane: int = 0) -> torch.cuda.Stream:
    """One stream per device for all captures: matrix products hold a workspace for every stream they were run on.

    A capture whose parts run at once takes a second ``lane``.
    """
    if (device, lane) not in _STREAMS:
        _STREAMS[device, lane] = torch.cuda.Stream(device)
    return _STREAMS[device, lane]


def own_leaves(func: Any) -> tuple[dict[str, Tensor], dict[int, str]]:
    """Leaves that share the memory of a module's parameters, by name, and the names by the parameters' identity."""
    if not isinstance(func, nn.Module):
        return {}, {}
    named = dict(func.named_parameters())
    own = {name: p.detach().requires_grad_(p.requires_grad) for name, p in named.items()}
    return own, {id(p): name for name, p in named.items()}


def substituted(func: Any, own: dict[str, Tensor]) -> contextlib.AbstractContextManager[Any]:
    """``func`` with these leaves in place of its parameters."""
    return _reparametrize_module(func, own, tie_weights=True) if own else contextlib.nullcontext()


def _reset(stream: torch.cuda.Stream, like: Tensor) -> None:
    """After a capture that failed the random generator still waits for its end; one that succeeds brings that."""
    spare = torch.zeros_like(like)
    torch.cuda.synchronize(like.device)
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        spare.add_(1)


@dataclass
class Leaves:
    """Leaves that share the memory of parameters (by name) and arguments; ``wanted`` are those that get a gradient.

    The nodes that gather a leaf's gradient live on the stream of whoever used it first, as long as any graph holds
    them; a capture on another stream may not touch them. Leaves of its own have none yet.
    """

    own: dict[str, Tensor]
    args: list[Tensor]
    wanted: list[Tensor]


class _Pull:
    def __init__(self, graph: torch.cuda.CUDAGraph, sums: Tensor, slope: Tensor) -> None:
        self.graph, self.sums, self.slope = graph, sums, slope
