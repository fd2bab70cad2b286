"""A program as the source of two Triton kernels: the steps of a block forward, and the same steps backward.

A program of the grid has a tile of samples and walks through all steps of the block: what earlier steps of the block
contribute is read back from where it was written, the rest stays in registers. Names in the source: ``s`` samples,
``f16`` features (of a row of 16), ``a0`` where chunk 0 of a state is in a row, ``m0`` what of it there is, ``g0`` its
groups, ``k`` the step, ``j`` earlier ones, ``n7`` node 7, ``y0_0`` fading sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .expressions import Writer, width
from .lower import Lowered
from .program import Matrix, Program, Pulled, pull_back

_ARGS = """table, near, wg, wk, wi, wj, modes, decay, terms, times, local, shared, own, places, count, samples, step_s,
    step_f, row, width, BM: tl.constexpr, FEATURES: tl.constexpr, DT: tl.constexpr, PR: tl.constexpr, K: tl.constexpr,
    J: tl.constexpr, WEIGH: tl.constexpr"""
#: Numbers that differ from block to block: no kernel is compiled for their values.
_LOOSE = ["begin", "near", "wg", "wk", "wi", "wj", "terms", "count", "samples"]


@dataclass(frozen=True)
class Kernels:
    """The source of both kernels, and what the buffers beside it hold.

    Attributes:
        products: the matrices that get a gradient: the columns of what they took and of the gradient of what they gave.
        saved: how many columns there are.
        totals: constants that get a gradient: whether each sample has its own, where it begins, and how many numbers.
        weighs: whether the local weight gets a gradient.
    """

    source: str
    products: tuple[tuple[int, int, Matrix], ...]
    saved: int
    totals: tuple[tuple[str, int, int], ...]
    weighs: bool


@dataclass
class Emitter:
    """Writes the kernels of a step.

    Args:
        low: the step.
        tabled: the places of numbers in a row come from a table; otherwise they are linear in sample and feature.
        groups: numbers have weights of their own.
        weigh: the local weight gets a gradient.
    """

    low: Lowered
    tabled: bool
    groups: bool
    weigh: bool

    def __post_init__(self) -> None:
        nodes = self.program.nodes
        self.parts, self.sizes = len(self.low.sums), [nodes[i].size for i in self.low.sums[0]]
        self.sums = [(i, c, n) for i, line in enumerate(self.low.sums) for c, n in enumerate(line)]
        self.time = [i for i, node in enumerate(nodes) if node.op == "time"]
        self.inputs = {n for *_, n in self.sums} | set(self.low.weights) | set(self.time)
        self.trained = [i for i, node in enumerate(nodes) if node.op == "constant" and node.data[2]]

    @property
    def program(self) -> Program:
        """The nodes of the step, and later those of its pull-back."""
        return self.low.program

    @cached_property
    def ends(self) -> list[tuple[int, int, str]]:
        """States and slopes, the nodes of their gradients, and where these come from."""
        found = []
        for c, size in enumerate(self.sizes):
            outside = f"tl.load(mu + k * {self.parts} * row + a{c}, m{c}, 0.0)"
            found.append((self.low.states[c], self.program.add("state-grad", (), size, c), outside))
            found.append((self.low.slopes[c], self.program.add("slope-grad", (), size, c), f"v_{c}"))
        return found

    def kernels(self) -> Kernels:
        """Both of them."""
        ends = [(i, g) for i, g, _ in self.ends]
        wanted = {n for *_, n in self.sums}.union(self.trained, self.low.weights if self.weigh else ())
        pulled = pull_back(self.program, ends, wanted | ({-1} if self.low.builder.trained else set()))
        trained = [i for i in self.trained if i in pulled.inputs]
        nodes, columns = self.program.nodes, dict[int, int]()
        for x, g, _ in pulled.products:
            for i in (x, g):
                columns.setdefault(i, sum(nodes[j].size for j in columns))
        return Kernels(
            f"{self.forward()}\n\n{self.backward(pulled, trained, columns)}",
            tuple((columns[x], columns[g], m) for x, g, m in pulled.products),
            sum(nodes[i].size for i in columns),
            tuple((nodes[i].data[0], nodes[i].data[1], nodes[i].size) for i in trained),
            any(i in pulled.inputs for i in self.low.weights),
        )

    def prologue(self, inputs: int) -> list[str]:
        """Which samples a program has, where their numbers are in a row; fading sums of so many inputs."""
        lines = [
            "s = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)[:, None]",
            "ok = s < samples",
            "row = tl.full((), 1, tl.int64) * row",
        ]
        for p in sorted({1, *[width(node.size) for node in self.program.nodes]}):
            lines += [f"f{p} = tl.arange(0, {p})[None, :]", f"r{p} = tl.arange(0, {p})[:, None]"]
        fading = ["q = tl.arange(0, K)[:, None, None]", "decays = tl.load(decay + q, q < terms, 0.0)"]
        start = 0
        for c, size in enumerate(self.sizes):
            f = f"f{width(size)}"
            table, line = (
                f"tl.load(places + s * FEATURES + {f} + {start}, m{c}, 0)",
                f"s * step_s + ({f} + {start}) * step_f",
            )
            lines += [
                f"m{c} = ok & ({f} < {size})",
                f"a{c} = {table if self.tabled else line}",
                f"g{c} = a{c} // width",
            ]
            fading += [f"y{i}_{c} = tl.zeros((K, BM, {width(size)}), DT)" for i in range(inputs)]
            for i in range(self.parts):
                place, mask = f"modes + {i} * terms + q", "q < terms"
                if self.groups:
                    place, mask = f"{place} + g{c}[None] * ({self.parts} * terms)", f"({mask}) & m{c}[None]"
                fading.append(f"c{i}_{c} = tl.load({place}, {mask}, 0.0)")
            start += size
        return [*lines, "if K > 0:", *[f"    {line}" for line in fading]]

    def past(self, backward: bool) -> list[str]:
        """What earlier steps of the block contribute: the nearest a few at a time, those before them as fading sums.

        Forward, each of the sums is an output of the slopes; backward, each is an input of one sum.
        """
        inputs, source = (self.parts, "mu") if backward else (1, "slopes")
        near = [
            "j = first + tl.arange(0, J)[:, None, None]",
            "there = j < k",
            f"place, weight = j * ({inputs} * row), k * wk + j * wj",
        ]
        far = [f"gone, real = (k - near - 1) * ({inputs} * row), f1 + (k - near) > 0"]
        for c in range(len(self.sizes)):
            mask = f"there & m{c}[None]"
            for i in range(self.parts):
                target, y = (f"v_{c}", f"y{i}_{c}") if backward else (f"x{i}_{c}", f"y0_{c}")
                if i < inputs:
                    near.append(f"old = tl.load({source} + {i} * row + place + a{c}[None], {mask}, 0.0)")
                    oldest = f"tl.load({source} + {i} * row + gone + a{c}, m{c} & real, 0.0)"
                    far.append(f"{y} = ({y} + {oldest}[None]) * decays")
                own, seen = f"table + weight + {i} * wi", "there"
                if self.groups:
                    own, seen = f"{own} + g{c}[None] * wg", mask
                near.append(f"{target} += tl.sum(tl.load({own}, {seen}, 0.0) * old, 0)")
                far.append(f"{target} += tl.sum({y} * c{i}_{c}, 0)")
        loop = "for first in range(tl.maximum(k - near, 0), k, J):"
        return [loop, *[f"    {line}" for line in near], "if K > 0:", *[f"    {line}" for line in far]]

    def loads(self) -> list[str]:
        """The nodes of the time and of the local weights."""
        lines = [f"n{i} = tl.load(times + k + f1)" for i in self.time]
        for c, i in enumerate(self.low.weights):
            own = f"tl.load(local + k * (row // width) + g{c}, m{c}, 0.0)" if self.groups else "tl.load(local + k + f1)"
            lines.append(f"n{i} = {own}")
        return lines

    def forward(self) -> str:
        """From sums to rows, states and slopes."""
        writer = Writer(self.program)
        writer.write({*self.low.states, *self.low.slopes}, self.inputs)
        place = f"sums + (k * {self.parts} + {{}}) * row"
        body = [f"x{i}_{c} = tl.load({place.format(i)} + a{c}, m{c}, 0.0)" for i, c, _ in self.sums]
        body += self.past(backward=False)
        body += [f"n{n} = x{i}_{c}" for i, c, n in self.sums] + self.loads() + writer.body
        body += [f"tl.store({place.format(i)} + a{c}, x{i}_{c}, m{c})" for i, c, _ in self.sums]
        for c, (state, slope) in enumerate(zip(self.low.states, self.low.slopes, strict=True)):
            if self.parts > 1:
                body.append(f"tl.store(states + k * row + a{c}, n{state}, m{c})")
            body.append(f"tl.store(slopes + k * row + a{c}, n{slope}, m{c})")
        setup = self.prologue(1) + writer.head
        return _kernel("forward(sums, states, slopes, begin", setup, body, [])

    def backward(self, pulled: Pulled, trained: list[int], columns: dict[int, int]) -> str:
        """From gradients of slopes and states to the rows μ, and what gradients of constants are made of."""
        nodes, grads, writer = self.program.nodes, pulled.inputs, Writer(self.program)
        outside = {i for i in self.low.weights if i in grads}
        needed = {grads[i] for *_, i in self.sums if i in grads} | {grads[i] for i in (*trained, *outside)}
        writer.write(needed.union(columns, self.low.slopes), self.inputs | {g for _, g, _ in self.ends})
        body = [f"v_{c} = tl.load(sums + k * row + a{c}, m{c}, 0.0)" for c in range(len(self.sizes))]
        body += self.past(backward=True)
        place = f"{{}} + (k * {self.parts} + {{}}) * row + a{{}}"
        body += [f"n{n} = tl.load({place.format('rows', i, c)}, m{c}, 0.0)" for i, c, n in self.sums]
        body += [f"n{g} = {given}" for _, g, given in self.ends] + self.loads() + writer.body
        for i, c, n in self.sums:
            body.append(f"tl.store({place.format('mu', i, c)}, {f'n{grads[n]}' if n in grads else '0.0'}, m{c})")
        body.append("if WEIGH:")
        for c, (slope, weight) in enumerate(zip(self.low.slopes, self.low.weights, strict=True)):
            body.append(f"    tl.store(slopes + k * row + a{c}, n{slope}, m{c})")
            if weight in outside:
                body.append(f"    tl.store(weights + k * row + a{c}, n{grads[weight]}, m{c})")
        wide = sum(nodes[i].size for i in columns)
        for i, start in columns.items():
            f = f"f{width(nodes[i].size)}"
            body.append(
                f"tl.store(saved + (k * samples + s) * {wide} + {start} + {f}, n{i}, ok & ({f} < {nodes[i].size}))"
            )
        setup, after, start = self.prologue(self.parts) + writer.head, list[str](), 0
        for i in trained:
            size, f = nodes[i].size, f"f{width(nodes[i].size)}"
            setup.append(f"t{i} = tl.zeros((BM, {width(size)}), DT)")
            body.append(f"t{i} += n{grads[i]}")
            after.append(f"tl.store(totals + ({start} + {f}) * samples + s, t{i}, ok & ({f} < {size}))")
            start += size
        return _kernel("backward(sums, rows, mu, slopes, weights, saved, totals, begin", setup, body, after)


def _kernel(head: str, setup: list[str], body: list[str], after: list[str]) -> str:
    """A kernel that walks through the steps of a block."""
    barrier = "tl.debug_barrier()  # other threads of this program read what was written"
    steps = ["for k in range(begin, count):", *[f"    {line}" for line in (*body, barrier)]]
    lines = "\n".join(f"    {line}" for line in (*setup, *steps, *after))
    return f"@triton.jit(do_not_specialize={_LOOSE})\ndef {head}, {_ARGS}):\n{lines}\n"
