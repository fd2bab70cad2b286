"""What one sample does in a step, as a short list of operations on chunks of features, and its pull-back.

A node is a few features of every sample: an input, a constant, a pointwise function of other nodes, or one of the
linear maps ``linear`` (a product with a matrix of constants), ``move`` (features to other places), ``spread`` (one
feature to many places) and ``total`` (the sum of some features). The derivatives of all of them are such nodes again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Node(NamedTuple):
    """``size`` features of every sample: an operation, the nodes that it takes, and what else it has to know."""

    op: str
    args: tuple[int, ...]
    size: int
    data: Any = None


class Matrix(NamedTuple):
    """A part of a matrix of constants with ``width`` columns: ``rows`` from ``row`` on, ``columns`` from ``column`` on.

    Its rows meet the features of a node from ``first`` on. The matrix begins at ``offset`` among the constants, and its
    transpose, with ``height`` columns, at ``turned``: what is read across is slow on its way through shared memory.
    """

    offset: int
    width: int
    turned: int
    height: int
    row: int
    column: int
    columns: int
    first: int
    rows: int


@dataclass(frozen=True, eq=False)
class Sym:
    """A node in a formula."""

    program: Program
    index: int

    def __add__(self, other: Sym | float) -> Sym:
        return self.program.apply("add", self, other)

    def __sub__(self, other: Sym | float) -> Sym:
        return self.program.apply("sub", self, other)

    def __rsub__(self, other: float) -> Sym:
        return self.program.apply("sub", other, self)

    def __mul__(self, other: Sym | float) -> Sym:
        return self.program.apply("mul", self, other)

    def __truediv__(self, other: Sym | float) -> Sym:
        return self.program.apply("div", self, other)

    def __rtruediv__(self, other: float) -> Sym:
        return self.program.apply("div", other, self)

    def __neg__(self) -> Sym:
        return self.program.apply("neg", self)

    __radd__, __rmul__ = __add__, __mul__

    def __getattr__(self, op: str) -> Callable[..., Sym]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *others: self.program.apply(op, self, *others)


@dataclass
class Program:
    """Nodes in the order in which they are computed; equal ones are one."""

    nodes: list[Node] = field(default_factory=list)
    known: dict[Hashable, int] = field(default_factory=dict)

    def add(self, op: str, args: Sequence[int], size: int, data: Any = None) -> int:
        """The number of this node."""
        node = Node(op, tuple(args), size, data)
        if node not in self.known:
            self.known[node] = len(self.nodes)
            self.nodes.append(node)
        return self.known[node]

    def number(self, value: float) -> int:
        """A number as a node."""
        return self.add("number", (), 1, float(value))

    def sym(self, index: int) -> Sym:
        """A node for formulas."""
        return Sym(self, index)

    def apply(self, op: str, *args: Sym | float) -> Sym:
        """A pointwise function of nodes and numbers."""
        given = [a.index if isinstance(a, Sym) else self.number(a) for a in args]
        numbers = {i: self.nodes[i].data for i in given if self.nodes[i].op == "number"}
        same = _simplified(op, given, numbers)
        if same is not None:
            return self.sym(same)
        if op in _FOLDED and len(numbers) == len(set(given)):
            return self.sym(self.number(_FOLDED[op](*[numbers[i] for i in given])))
        return self.sym(self.add(op, given, max(self.nodes[i].size for i in given)))

    def total(self, index: int, first: int = 0, count: int | None = None) -> int:
        """The sum of features of a node."""
        size = self.nodes[index].size
        return index if size == 1 else self.add("total", (index,), 1, (first, size if count is None else count))

    def move(self, index: int, first: int, count: int, to: int, size: int) -> int:
        """A node of ``size`` features with ``count`` of another one from ``to`` on, zero elsewhere."""
        if self.nodes[index].size == 1:
            return self.add("spread", (index,), size, (to, count)) if size > 1 else index
        if size == 1:
            return self.total(index, first, count)
        whole = first == to == 0 and count == size == self.nodes[index].size
        return index if whole else self.add("move", (index,), size, (first, count, to))

    def linear(self, index: int, matrix: Matrix) -> int:
        """Features of a node times a matrix of constants."""
        return self.add("linear", (index,), matrix.columns, matrix)


_FOLDED: dict[str, Callable[..., float]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def _simplified(op: str, args: list[int], numbers: dict[int, float]) -> int | None:
    """The argument that this operation gives back as it is."""
    if op in ("add", "mul"):
        neutral = 0.0 if op == "add" else 1.0
        for own, other in (args, args[::-1]):
            if numbers.get(own) == neutral:
                return other
    return args[0] if op in ("sub", "div") and numbers.get(args[1]) == (0.0 if op == "sub" else 1.0) else None


def _halved(g: Sym, x: Sym, y: Sym) -> Sym:
    """The gradient of the larger of two numbers, shared where they are equal."""
    return x.eq(y).where(g * 0.5, x.gt(y).where(g, 0.0))


#: From the gradient ``g`` of a result ``o`` to those of its arguments; None where there is none.
PULLS: dict[str, Callable[..., tuple[Sym | None, ...]]] = {
    "add": lambda g, o, x, y: (g, g),
    "sub": lambda g, o, x, y: (g, -g),
    "mul": lambda g, o, x, y: (g * y, g * x),
    "div": lambda g, o, x, y: (g / y, -g * o / y),
    "neg": lambda g, o, x: (-g,),
    "abs": lambda g, o, x: (g * x.sign(),),
    "exp": lambda g, o, x: (g * o,),
    "expm1": lambda g, o, x: (g * (o + 1.0),),
    "log": lambda g, o, x: (g / x,),
    "log1p": lambda g, o, x: (g / (x + 1.0),),
    "sin": lambda g, o, x: (g * x.cos(),),
    "cos": lambda g, o, x: (-g * x.sin(),),
    "tanh": lambda g, o, x: (g * (1.0 - o * o),),
    "sigmoid": lambda g, o, x: (g * o * (1.0 - o),),
    "erf": lambda g, o, x: (g * (-(x * x)).exp() * (2.0 / math.sqrt(math.pi)),),
    "sqrt": lambda g, o, x: (g * 0.5 / o,),
    "maximum": lambda g, o, x, y: (_halved(g, x, y), _halved(g, y, x)),
    "minimum": lambda g, o, x, y: (_halved(g, y, x), _halved(g, x, y)),
    "where": lambda g, o, c, x, y: (None, c.where(g, 0.0), c.where(0.0, g)),
    "pow": lambda g, o, x, y: (
        g * y * x.pow(y - 1.0),
        x.gt(0.0).where(g * o * x.gt(0.0).where(x, 1.0).log(), 0.0),
    ),
}


@dataclass
class Pulled:
    """The pull-back of a program.

    Attributes:
        inputs: the gradient of each node that was asked for, where it has one.
        products: for each product with a matrix, the node that it took and the gradient of its result.
    """

    inputs: dict[int, int]
    products: list[tuple[int, int, Matrix]]


def pull_back(program: Program, ends: Sequence[tuple[int, int]], wanted: set[int]) -> Pulled:
    """Nodes for the gradients of the ``wanted`` ones, from nodes for those of results; ``linear`` also pulls matrices.

    ``wanted`` may hold the number -1, for the matrices.
    """
    count = len(program.nodes)
    alive = set(wanted)
    for i, node in enumerate(program.nodes):
        if alive.intersection(node.args) or (node.op == "linear" and -1 in wanted):
            alive.add(i)
    grads: dict[int, int] = {}
    products: list[tuple[int, int, Matrix]] = []

    def give(i: int, g: int) -> None:
        if i in alive:
            if program.nodes[i].size == 1:
                g = program.total(g)
            grads[i] = g if i not in grads else (program.sym(grads[i]) + program.sym(g)).index

    for i, g in ends:
        give(i, g)
    for i in reversed(range(count)):
        node = program.nodes[i]
        if i not in grads or not node.args:
            continue
        if node.op == "linear":
            if -1 in wanted:
                products.append((node.args[0], grads[i], node.data))
            if node.args[0] in alive:
                size = program.nodes[node.args[0]].size
                give(node.args[0], program.add("linear-transposed", (grads[i],), size, node.data))
        elif node.op in ("move", "spread", "total"):
            _pull_structure(program, node, grads[i], give)
        elif node.op in PULLS:
            found = PULLS[node.op](program.sym(grads[i]), program.sym(i), *map(program.sym, node.args))
            for j, own in zip(node.args, found, strict=True):
                if own is not None and j in alive:
                    give(j, own.index)
    return Pulled({i: g for i, g in grads.items() if i in wanted}, products)


def _pull_structure(program: Program, node: Node, g: int, give: Callable[[int, int], None]) -> None:
    """Features go back to where they came from."""
    (source,) = node.args
    size = program.nodes[source].size
    if node.op == "total":
        give(source, program.move(g, 0, node.data[1], node.data[0], size))
    elif node.op == "spread":
        give(source, program.total(g, *node.data))
    else:
        first, count, to = node.data
        give(source, program.move(g, to, count, first, size))
