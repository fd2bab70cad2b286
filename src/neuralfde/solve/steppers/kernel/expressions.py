"""Nodes of a program as expressions of Triton, and the lines of a kernel made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ....base.policy import KERNEL_HELD, KERNEL_TILE_SAMPLES
from .program import Matrix, Node, Program

#: Pointwise operations as Triton writes them.
_FORMS = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "({} / {})", "neg": "(-{})",
    "abs": "tl.abs({})", "exp": "tl.exp({})", "log": "tl.log({})", "sin": "tl.sin({})", "cos": "tl.cos({})",
    "sqrt": "tl.sqrt({})", "erf": "tl.erf({})", "sigmoid": "tl.sigmoid({})", "tanh": "tanh({})",
    "log1p": "log1p({})", "expm1": "expm1({})", "pow": "power({}, {})", "sign": "sign({})",
    "maximum": "tl.maximum({}, {})", "minimum": "tl.minimum({}, {})", "where": "tl.where({}, {}, {})",
    "gt": "({} > {})", "ge": "({} >= {})", "lt": "({} < {})", "le": "({} <= {})", "eq": "({} == {})",
    "ne": "({} != {})",
}  # fmt: skip

#: Operations whose results are no numbers.
_COMPARED = {"gt", "ge", "lt", "le", "eq", "ne"}
_ARGS = """table, near, wg, wk, wi, wj, modes, loss, times, local, shared, own, places, count, samples, step_s,
    step_f, row, width, BM: tl.constexpr, FEATURES: tl.constexpr, DT: tl.constexpr, PR: tl.constexpr, J: tl.constexpr,
    WEIGH: tl.constexpr"""
#: Numbers that differ from block to block: no kernel is compiled for their values.
_LOOSE = ["begin", "low", "high", "near", "wg", "wk", "wi", "wj", "times", "local", "count", "samples"]


def width(size: int) -> int:
    """The power of two that holds so many features; more than the samples of a tile, or each warp would do a product
    as a whole instead of its share."""
    return 1 if size == 1 else max(2 * KERNEL_TILE_SAMPLES[1], 1 << (size - 1).bit_length())


@dataclass
class Writer:
    """Lines of a kernel: what does not change with the step goes before the loop."""

    program: Program
    head: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    holds: bool = False

    def write(self, wanted: Iterable[int], given: set[int]) -> None:
        """All nodes that these need, but for the given ones, which are written already."""
        needed, pending = set(), list(wanted)
        while pending:
            i = pending.pop()
            if i not in needed and i not in given:
                needed.add(i)
                pending.extend(self.program.nodes[i].args)
        # matrices stay in registers or shared memory for all steps where all of them fit
        products = [node for node in map(self.program.nodes.__getitem__, needed) if isinstance(node.data, Matrix)]
        sizes = [width(self.program.nodes[node.args[0]].size) * width(node.size) for node in products]
        self.holds = sum(sizes) <= KERNEL_HELD
        moving = set(given)
        for i in sorted(needed):
            node = self.program.nodes[i]
            if moving.intersection(node.args):
                moving.add(i)
            (self.body if i in moving else self.head).append(f"n{i} = {self.form(node)}")

    def form(self, node: Node) -> str:
        """The expression of a node."""
        args = [f"n{i}" for i in node.args]
        if node.op == "number":
            return f"tl.full((1, 1), {_literal(node.data)}, DT)"
        if node.op == "constant":
            return self._constant(node)
        if node.op in _FORMS:
            return _FORMS[node.op].format(*args)
        size = self.program.nodes[node.args[0]].size
        if node.op == "total":
            return f"tl.sum({_masked(args[0], size, *node.data)}, 1)[:, None]"
        if node.op == "spread":
            f, (first, count) = f"f{width(node.size)}", node.data
            return f"tl.where(({f} >= {first}) & ({f} < {first + count}), {args[0]}, 0.0)"
        if node.op == "move":
            return _moved(args[0], size, node.size, *node.data)
        return self._product(args[0], size, node)

    def _constant(self, node: Node) -> str:
        where, start, _ = node.data
        f = f"f{width(node.size)}"
        if where == "shared":
            return f"tl.load(shared + {start} + {f}, {f} < {node.size}, 0.0)"
        return f"tl.load(own + ({start} + {f}) * samples + s, ok & ({f} < {node.size}), 0.0)"

    def _product(self, x: str, size: int, node: Node) -> str:
        """Features times a matrix, or times its transpose: ``inner`` and ``outer`` are (first, count)."""
        m: Matrix = node.data
        inner, outer = (m.first, m.rows), (0, m.columns)
        start, stride = m.offset + (m.row - m.first) * m.width + m.column, m.width
        if node.op == "linear-transposed":
            inner, outer, start, stride = outer, inner, m.turned + m.column * m.height + m.row - m.first, m.height
        i, j = width(size), width(node.size)
        row, column, x = f"r{i}" if j > 1 else f"f{i}", f"f{j}", _masked(x, size, *inner)
        inside = f"{_inside(row, *inner)} & {_inside(column, *outer)}"
        weights = f"tl.load(shared + {start} + {row} * {stride} + {column}, {inside}, 0.0)"
        if i == 1:
            return f"({x} * {weights})"
        if j == 1:
            return f"tl.sum({x} * {weights}, 1)[:, None]"
        if self.holds:
            self.head.append(f"w{len(self.head)} = {weights}")
            weights = f"w{len(self.head) - 1}"
        return f"product(tl.broadcast_to({x}, (BM, {i})), {weights}, PR)"


def _literal(value: float) -> str:
    return repr(value) if value - value == 0 else f"float('{value}')"


def _inside(f: str, first: int, count: int) -> str:
    return f"(({f} >= {first}) & ({f} < {first + count}))"


def _masked(x: str, size: int, first: int, count: int) -> str:
    """These features, zero elsewhere; what lies beyond the last feature is anything."""
    if first == 0 and count == width(size):
        return x
    return f"tl.where({_inside(f'f{width(size)}', first, count)}, {x}, 0.0)"


def _moved(x: str, size: int, wide: int, first: int, count: int, to: int) -> str:
    i, j = width(size), width(wide)
    if i == j and first == to:
        return _masked(x, size, first, count) if count < i else x
    places = f"((r{i} - {first}) == (f{j} - {to})) & {_inside(f'f{j}', to, count)}"
    given = f"tl.broadcast_to({_masked(x, size, first, count)}, (BM, {i}))"
    return f"tl.dot({given}, ({places}).to(DT), input_precision='ieee')"  # exact: one number and zeros


def walk(head: str, setup: list[str], given: dict[str, str], body: list[str], after: list[str]) -> str:
    """A kernel that walks through the steps of a block; what is ``given`` (places and masks) is read a step ahead."""
    ahead = [f"next_{name} = tl.load({place.format(k='coming')}, 0.0)" for name, place in given.items()]
    taken = [f"{name} = next_{name}" for name in given]
    taken += ["coming = tl.minimum(k + 1, count - 1)", *ahead]
    steps = ["for k in range(begin, count):", *[f"    {line}" for line in (*taken, *body)]]
    return function(head, [*setup, "coming = tl.minimum(begin, count - 1)", *ahead, *steps, *after])


def function(head: str, lines: list[str]) -> str:
    """A kernel: its name and first arguments, and its lines."""
    body = "\n".join(f"    {line}" for line in lines)
    return f"@triton.jit(do_not_specialize={_LOOSE})\ndef {head}, {_ARGS}):\n{body}\n"


def replayable(program: Program, wanted: set[int], inputs: set[int], own: int) -> set[int]:
    """The nodes of the step itself, the first ``own`` ones, that these nodes of its pull-back are made of; none
    where there are no matrices: single numbers are computed sooner than read."""
    nodes, found, pending, seen = program.nodes, set[int](), list(wanted), set[int]()
    if not any(node.op == "linear" for node in nodes):
        return found
    moving = set(inputs)
    for i, node in enumerate(nodes):
        if moving.intersection(node.args):
            moving.add(i)
    while pending:
        i = pending.pop()
        if i in seen:
            continue
        seen.add(i)
        if i < own and i in moving - inputs and nodes[i].op not in _COMPARED:
            found.add(i)
        else:
            pending.extend(nodes[i].args)
    return found
