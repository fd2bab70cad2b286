"""A program as the source of two Triton kernels: the steps of a block forward, and the same steps backward.

A program of the grid has a tile of samples and walks through all steps of the block. With exponentials (``R > 0``) the
last steps are a ring in registers, ``h0_0``, from which each goes on into fading sums, ``y0_0``; otherwise what earlier
steps of the block contribute is read back from where it was written. What comes from outside is read one step ahead.
Names in the source: ``s`` samples, ``f16`` features (of a row of 16), ``a0`` where chunk 0 of a state is in a row,
``m0`` what of it there is, ``g0`` its groups, ``k`` the step, ``j`` earlier ones, ``p`` places of the ring, ``n7``
node 7, ``next_x0_0`` what the next step takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .expressions import Writer, width
from .lower import Lowered
from .program import Matrix, Program, Pulled, pull_back

_ARGS = """table, near, wg, wk, wi, wj, modes, decay, terms, times, local, shared, own, places, count, samples, step_s,
    step_f, row, width, BM: tl.constexpr, FEATURES: tl.constexpr, DT: tl.constexpr, PR: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, J: tl.constexpr, WEIGH: tl.constexpr"""
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
            found.append((self.low.states[c], self.program.add("state-grad", (), size, c), f"outside_{c}"))
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
        fading = [
            "q, p = tl.arange(0, K)[:, None, None], tl.arange(0, R)[:, None, None]",
            "decays = tl.load(decay + q, q < terms, 0.0)",
        ]
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
            for i in range(inputs):
                fading += [f"{x}{i}_{c} = tl.zeros(({n}, BM, {width(size)}), DT)" for x, n in (("y", "K"), ("h", "R"))]
            for i in range(self.parts):
                place, mask = f"modes + {i} * terms + q", "q < terms"
                if self.groups:
                    place, mask = f"modes + g{c}[None] + ({i} * terms + q) * groups", f"({mask}) & m{c}[None]"
                fading.append(f"c{i}_{c} = tl.load({place}, {mask}, 0.0)")
            start += size
        lines += ["groups = row // width"] if self.groups else []
        return [*lines, "if R > 0:", *[f"    {line}" for line in fading]]

    def past(self, backward: bool) -> list[str]:
        """What earlier steps of the block contribute: the last ones and, with exponentials, those before them.

        Forward, each of the sums is an output of the slopes; backward, each is an input of one sum.
        """
        inputs, source = (self.parts, "mu") if backward else (1, "slopes")
        stored = [
            "j = first + tl.arange(0, J)[:, None, None]",
            "there = j < k",
            f"place, weight = j * ({inputs} * row), k * wk + j * wj",
        ]
        held = ["there = p < near", "weight = (1 + (k - 1 - p + near) % near) * wk"]  # by the lag of a place
        for c in range(len(self.sizes)):
            for i in range(self.parts):
                target, own = (f"v_{c}", i) if backward else (f"x{i}_{c}", 0)
                if i < inputs:
                    stored.append(f"old = tl.load({source} + {i} * row + place + a{c}[None], there & m{c}[None], 0.0)")
                place = f"table + weight + {i} * wi" + (f" + g{c}[None] * wg" if self.groups else "")
                weights = f"tl.load({place}, {f'there & m{c}[None]' if self.groups else 'there'}, 0.0)"
                stored.append(f"{target} += tl.sum({weights} * old, 0)")
                held.append(f"{target} += tl.sum({weights} * h{own}_{c}, 0) + tl.sum(y{own}_{c} * c{i}_{c}, 0)")
        loop = "for first in range(tl.maximum(k - near, 0), k, J):"
        return [
            "if R > 0:",
            *[f"    {line}" for line in held],
            "else:",
            f"    {loop}",
            *[f"        {line}" for line in stored],
        ]

    def kept(self, rows: list[tuple[int, int, str]]) -> list[str]:
        """The new rows (input, chunk, name) take the places of the oldest in the ring, which fade from now on."""
        lines = ["here = p == k % near"]
        for i, c, name in rows:
            h, y = f"h{i}_{c}", f"y{i}_{c}"
            lines += [
                f"{y} = ({y} + tl.sum(tl.where(here, {h}, 0.0), 0)[None]) * decays",
                f"{h} = tl.where(here, {name}[None], {h})",
            ]
        barrier = "tl.debug_barrier()  # other threads of this program read what was written"
        return ["if R > 0:", *[f"    {line}" for line in lines], "else:", f"    {barrier}"]

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
        place = f"sums + ({{}} * {self.parts} + {{}}) * row"
        given = {f"x{i}_{c}": f"{place.format('{k}', i)} + a{c}, m{c}" for i, c, _ in self.sums}
        body = self.past(backward=False)
        body += [f"n{n} = x{i}_{c}" for i, c, n in self.sums] + self.loads() + writer.body
        body += [f"tl.store({place.format('k', i)} + a{c}, x{i}_{c}, m{c})" for i, c, _ in self.sums]
        for c, (state, slope) in enumerate(zip(self.low.states, self.low.slopes, strict=True)):
            if self.parts > 1:
                body.append(f"tl.store(states + k * row + a{c}, n{state}, m{c})")
            body.append(f"tl.store(slopes + k * row + a{c}, n{slope}, m{c})")
        body += self.kept([(0, c, f"n{slope}") for c, slope in enumerate(self.low.slopes)])
        return _kernel("forward(sums, states, slopes, begin", self.prologue(1) + writer.head, given, body, [])

    def backward(self, pulled: Pulled, trained: list[int], columns: dict[int, int]) -> str:
        """From gradients of slopes and states to the rows μ, and what gradients of constants are made of."""
        nodes, grads, writer = self.program.nodes, pulled.inputs, Writer(self.program)
        outside = {i for i in self.low.weights if i in grads}
        needed = {grads[i] for *_, i in self.sums if i in grads} | {grads[i] for i in (*trained, *outside)}
        writer.write(needed.union(columns, self.low.slopes), self.inputs | {g for _, g, _ in self.ends})
        place, given = f"({{}} * {self.parts} + {{}}) * row + a{{}}", dict[str, str]()
        for c in range(len(self.sizes)):
            given[f"v_{c}"] = f"sums + {{k}} * row + a{c}, m{c}"
            given[f"outside_{c}"] = f"mu + {place.format('{k}', 0, c)}, m{c}"
        given |= {f"n{n}": f"rows + {place.format('{k}', i, c)}, m{c}" for i, c, n in self.sums}
        body = self.past(backward=True)
        body += [f"n{g} = {given_by}" for _, g, given_by in self.ends] + self.loads() + writer.body
        found = [(i, c, f"n{grads[n]}" if n in grads else f"tl.zeros_like(n{n})") for i, c, n in self.sums]
        body += [f"tl.store(mu + {place.format('k', i, c)}, {name}, m{c})" for i, c, name in found]
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
        first = "tl.load(mu + {} * row + a{}, m{} & (f1 * 0 + begin > 0), 0.0)[None]"
        skipped = [f"    h{i}_{c} = tl.where(p == 0, {first.format(i, c, c)}, 0.0)" for i, c, _ in self.sums]
        setup += ["if R > 0:  # a first row that is given counts", *skipped]
        body += self.kept(found)
        return _kernel("backward(sums, rows, mu, slopes, weights, saved, totals, begin", setup, given, body, after)


def _kernel(head: str, setup: list[str], given: dict[str, str], body: list[str], after: list[str]) -> str:
    """A kernel that walks through the steps of a block; what is ``given`` (places and masks) is read a step ahead."""
    read = "next_{} = tl.load({} & (f1 * 0 + {} < count), 0.0)"
    ahead = [read.format(name, place.format(k="begin"), "begin") for name, place in given.items()]
    taken = [f"{name} = next_{name}" for name in given]
    taken += [read.format(name, place.format(k="(k + 1)"), "k + 1") for name, place in given.items()]
    steps = ["for k in range(begin, count):", *[f"    {line}" for line in (*taken, *body)]]
    lines = "\n".join(f"    {line}" for line in (*setup, *ahead, *steps, *after))
    return f"@triton.jit(do_not_specialize={_LOOSE})\ndef {head}, {_ARGS}):\n{lines}\n"
