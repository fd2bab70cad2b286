"""The backward pass of a block with ``func`` evaluated for many steps in one call.

In the backward pass the states of a block are known, and only ``μ_n = ḡ_n + Jᵀ v̄_n`` has to wait for the step after
it. So ``func`` is traced once into a graph of operations, together with its product ``Jᵀ v̄``. What the product needs
from the forward part is computed for many steps at once, the product is computed step by step, and the gradients of
the parameters again at once: from the operations in which they occur, ``y = op(x, θ)``, and the gradients ``ȳ``, which
the products return as well. For a large ``func`` that leaves much of a GPU idle, this gives fewer and larger kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...base.policy import SPLIT_NUMBERS
from ...base.torch_private import operations_of, uncompiled, vjp
from ...errors import UnsupportedError
from ...schemes.one_stage import put
from .base import Pull, same
from .work import Work


class Split:
    """``func`` in parts; ``rhs(t, z, *given)`` calls it with these tensors in place of those that it depends on.

    If ``func`` was ``compiled``, its parts are compiled instead.

    Raises:
        UnsupportedError: if the parts do not have the gradients of ``func``, for example with a custom backward pass.
    """

    def __init__(
        self, rhs: Callable[..., Tensor], t: Tensor, z: Tensor, given: Sequence[Tensor], compiled: bool = False
    ) -> None:
        z, leaves = z.detach().clone(), [x.detach().requires_grad_(x.requires_grad) for x in given]
        with torch.no_grad():
            once = operations_of(torch.func.functionalize(rhs), t, z, *leaves)
        run = _Watched(once, _meeting(once.graph, [x.requires_grad for x in given]))
        joint = operations_of(run.with_gradients, t, z.requires_grad_(), torch.ones_like(z), *leaves)
        self.kept = run.kept
        forward, self.product = _parts(joint, run.kept)
        self.stacked: Callable[..., Any] = torch.vmap(forward, in_dims=(0, 0, *(None,) * len(leaves)))
        self._prove(rhs, t, z, leaves)
        if compiled:
            self.stacked, self.product = (torch.compile(part, dynamic=False) for part in (self.stacked, self.product))

    def evaluate(
        self, times: Tensor, states: Tensor, given: Sequence[Tensor]
    ) -> tuple[Tensor, list[GradientEdge | None], list[Tensor]]:
        """The slopes of all steps, where the graphs from their ``y`` to ``given`` begin, and what the products need."""
        with torch.enable_grad():
            slopes, *found = self.stacked(times, states, *given)
        edges = [get_gradient_edge(y) if y.requires_grad else None for y in found[: self.kept]]
        return slopes.detach(), edges, [x.detach() for x in found[self.kept :]]

    def gather(
        self, ys: Sequence[GradientEdge | None], bars: Sequence[Sequence[Tensor]], wanted: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of ``wanted``, from the gradients ``bars`` of the ``y`` of each step."""
        pairs = [(y, torch.stack(own)) for y, own in zip(ys, zip(*bars, strict=True), strict=True) if y is not None]
        if not pairs:
            return (None,) * len(wanted)
        edges, grads = zip(*pairs, strict=True)
        return vjp(edges, grads, tuple(wanted))

    def _prove(self, rhs: Callable[..., Tensor], t: Tensor, z: Tensor, given: Sequence[Tensor]) -> None:
        """Compare one step with autograd: its slope, and all gradients."""
        wanted = [x for x in given if x.requires_grad]
        bar = torch.sin(torch.arange(1, z.numel() + 1, device=z.device)).view(z.shape).to(z)
        with torch.enable_grad(), uncompiled():
            v = rhs(t, z, *given)
        expected = vjp((v,), (bar,), (z, *wanted))
        slopes, ys, rest = self.evaluate(t[None], z.detach()[None], given)
        grad, *bars = self.product(bar, *(x[0] for x in rest))
        found = grad, *self.gather(ys, [bars], wanted)
        for a, b, like in zip((slopes[0], *found), (v.detach(), *expected), (z, z, *wanted), strict=True):
            if not same(*(torch.zeros_like(like) if x is None else x for x in (a, b))):
                raise UnsupportedError("the gradients of func are not those of its operations")


def pull_back_split(
    split: Split,
    leaves: tuple[Sequence[Tensor], Sequence[Tensor]],
    rows: tuple[Tensor, Tensor],
    work: Work,
    pull: Pull,
    slopes: Tensor | None,
) -> None:
    """As :func:`.single.pull_step`, for explicit steps with one sum.

    ``leaves`` are the tensors that ``func`` depends on and those of them that get a gradient; ``rows`` are the times
    and states of the steps.
    """
    given, wanted = leaves
    times, states = rows
    most = max(1, SPLIT_NUMBERS // states[0].numel())
    for a in range(0, len(states), most):
        b = min(a + most, len(states))
        v, ys, rest = split.evaluate(times[a:b], states[a:b], given)
        bars = []
        for k in range(a, b):
            work.add(k)
            slot, outside = work.slots[k][0], pull.grads[k]
            with torch.no_grad():
                grad, *own = split.product(work.x[k][0], *(x[k - a] for x in rest))
            put(slot, grad, None if outside is None else outside.view(slot.shape))
            bars.append(own)
        del rest  # free it before the gradients are gathered
        pull.totals.add(split.gather(ys, bars, wanted))
        if slopes is not None:
            slopes[a:b].view(v.shape).copy_(v)


class _Watched(fx.Interpreter):
    """Runs a graph and keeps the results ``y`` of certain nodes, if they are tensors that require grad."""

    def __init__(self, module: fx.GraphModule, nodes: set[fx.Node]) -> None:
        super().__init__(module)
        self.nodes, self.found, self.kept = nodes, list[Tensor](), 0

    def run_node(self, n: fx.Node) -> Any:
        """See :class:`torch.fx.Interpreter`."""
        out = super().run_node(n)
        if n in self.nodes and isinstance(out, Tensor) and out.requires_grad:
            self.found.append(out)
        return out

    def with_gradients(self, t: Tensor, z: Tensor, bar: Tensor, *given: Tensor) -> list[Tensor]:
        """The slope, those ``y`` that have a gradient, the gradient of ``z``, and the gradients of the ``y``."""
        with torch.enable_grad():
            v = self.run(t, z, *given)
            if not v.requires_grad:
                raise UnsupportedError("func does not depend on anything that gets a gradient")
            grad, *bars = torch.autograd.grad(v, [z, *self.found], bar, allow_unused=True)
        pairs = [(y, b) for y, b in zip(self.found, bars, strict=True) if b is not None]
        self.kept = len(pairs)
        return [v, *(y for y, _ in pairs), torch.zeros_like(z) if grad is None else grad, *(b for _, b in pairs)]


def _after(graph: fx.Graph, first: Sequence[fx.Node]) -> set[fx.Node]:
    """These nodes and all that depend on them."""
    found = set(first)
    for node in graph.nodes:
        if found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _meeting(graph: fx.Graph, wanted: Sequence[bool]) -> set[fx.Node]:
    """The nodes that combine time or state with something that depends on tensors with gradients, but on neither."""
    time, state, *given = graph.find_nodes(op="placeholder")
    moving = _after(graph, [time, state])
    still = _after(graph, [x for x, own in zip(given, wanted, strict=True) if own]) - moving
    met = {node for node in moving if still.intersection(node.all_input_nodes) and node.op == "call_function"}
    return met | {node for node in moving if node.target is operator.getitem and node.args[0] in met}


def _parts(joint: fx.GraphModule, kept: int) -> tuple[fx.GraphModule, Callable[..., Any]]:
    """The forward part, whose autograd graphs are single operations, and the product; ``kept`` counts the ``y``."""
    graph = joint.graph
    time, state, bar, *given = graph.find_nodes(op="placeholder")
    backward, moving = _after(graph, [bar]), _after(graph, [time, state])
    outputs: list[fx.Node] = list(graph.output_node().args[0])  # type: ignore[arg-type]
    ahead, back = outputs[: 1 + kept], outputs[1 + kept :]
    used = [n for node in graph.nodes if node in backward and node.op != "output" for n in node.all_input_nodes]
    needs = list(dict.fromkeys(n for n in (*used, *back) if n not in backward))
    forward = _extract(joint, [time, state, *given], [*ahead, *needs], moving)
    return forward, _extract(joint, [bar, *needs], back, set())


def _extract(joint: fx.GraphModule, inputs: list[fx.Node], outputs: list[fx.Node], cut: set[fx.Node]) -> fx.GraphModule:
    """The part of a graph from ``inputs`` to ``outputs``; the results of nodes in ``cut`` are detached before use."""
    graph, made, seen = fx.Graph(), dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()
    for node in inputs:
        made[node] = seen[node] = graph.placeholder(node.name)
    needed, pending = set[fx.Node](), list(outputs)
    while pending:
        node = pending.pop()
        if node not in needed and node not in made:
            needed.add(node)
            pending += node.all_input_nodes
    for node in joint.graph.nodes:
        if node in needed:
            made[node] = seen[node] = graph.node_copy(node, seen.__getitem__)
            several = any(user.target is operator.getitem for user in node.users)
            if node in cut and not several:
                seen[node] = graph.call_function(torch.ops.aten.detach.default, (made[node],))
    graph.output(tuple(made[node] for node in outputs))
    return fx.GraphModule(joint, graph)
