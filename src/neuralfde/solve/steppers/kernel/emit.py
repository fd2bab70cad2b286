"""A program as the source of Triton kernels: the steps of a block forward, and the same steps backward.

A program of the grid has a tile of samples and walks through all steps of the block; what comes from outside is read
one step ahead. In the backward pass, products with matrices that need only the rows of the forward pass do not wait for
each other: ``replay`` computes them first, for all steps at once, and keeps what the pull-back needs of them.

Names in the source: ``s`` the samples, ``f16`` the features of a row of 16, ``a0`` the places of chunk 0 of a state in
its row, ``m0`` the mask of those that exist, ``g0`` their groups, ``b`` where a sample begins in what is kept, ``k``
the step, ``n7`` node 7, ``next_x0_0`` what the next step reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from .expressions import Writer, function, replayable, walk, width
from .lower import Lowered
from .past import Past
from .program import Matrix, pull_back


@dataclass(frozen=True)
class Kernels:
    """The source of the kernels, and what the buffers beside it hold.

    Attributes:
        source: from how many exponentials there is room for.
        products: the matrices that get a gradient: the columns of what they took and of the gradient of what they gave;
            of features of the rows themselves, which are not kept twice, their number less all features.
        saved: how many columns there are.
        totals: constants that get a gradient: whether each sample has its own, where it begins, and how many numbers.
        weighs: whether the local weight gets a gradient.
        replays: whether there is a kernel ``replay``, to be run before ``backward``.
        held: numbers of a sample's past that the forward pass holds, from how many exponentials there is room for.
    """

    source: Callable[[int], str]
    products: tuple[tuple[int, int, Matrix], ...]
    saved: int
    totals: tuple[tuple[str, int, int], ...]
    weighs: bool
    replays: bool
    held: Callable[[int], int]


@dataclass
class Emitter:
    """Writes the kernels of a step.

    Args:
        low: the step.
        tabled: the places of numbers in a row come from a table; otherwise they are linear in sample and feature.
        groups: what has weights of its own, "samples", "features" or "both"; "" where all share them.
        weigh: the local weight gets a gradient.
        near: exact lags beside exponentials; 0 where there are none.
        plain: rows are samples one after the other, each with its features.
    """

    low: Lowered
    tabled: bool
    groups: str
    weigh: bool
    near: int
    plain: bool

    def __post_init__(self) -> None:
        self.program = self.low.program  # later also with the nodes of the pull-back
        nodes = self.program.nodes
        self.parts, self.sizes = len(self.low.sums), [nodes[i].size for i in self.low.sums[0]]
        self.sums = [(i, c, n) for i, line in enumerate(self.low.sums) for c, n in enumerate(line)]
        self.time = [i for i, node in enumerate(nodes) if node.op == "time"]
        self.inputs = {n for *_, n in self.sums} | set(self.low.weights) | set(self.time)
        self.trained = [i for i, node in enumerate(nodes) if node.op == "constant" and node.data[2]]

    @cached_property
    def ends(self) -> list[tuple[int, int, str]]:
        """States and slopes, the nodes of their gradients, and where these come from."""
        found = []
        for c, size in enumerate(self.sizes):
            found.append((self.low.states[c], self.program.add("state-grad", (), size, c), f"outside_{c}"))
            found.append((self.low.slopes[c], self.program.add("slope-grad", (), size, c), f"v_{c}"))
        return found

    def kernels(self) -> Kernels:
        """All of them."""
        own, ends = len(self.program.nodes), [(i, g) for i, g, _ in self.ends]
        wanted = {n for *_, n in self.sums}.union(self.trained, self.low.weights if self.weigh else ())
        pulled = pull_back(self.program, ends, wanted | ({-1} if self.low.builder.trained else set()))
        nodes, grads = self.program.nodes, pulled.inputs
        trained = sorted([i for i in self.trained if i in grads], key=lambda i: nodes[i].data[0] == "own")
        needed = {grads[i] for i in (*wanted, *trained) if i in grads}
        taken = needed.union(*[(x, g) for x, g, _ in pulled.products])
        replayed = replayable(self.program, taken, self.inputs, own)
        columns, plain = dict[int, int](), self.sums if self.plain and self.parts == 1 else []
        inside = {n: -sum(self.sizes[c:]) for _, c, n in plain}
        for i in (*[i for x, g, _ in pulled.products for i in (x, g)], *sorted(replayed)):
            if i not in inside:
                columns.setdefault(i, sum(nodes[j].size for j in columns))
        self.wide = sum(nodes[i].size for i in columns)
        early = {i: start for i, start in columns.items() if i in replayed or (replayed and i < own)}
        late = {i: start for i, start in columns.items() if i not in early}
        past = partial(Past, self.parts, self.sizes, self.groups, self.near)

        def source(modes: int) -> str:
            held = past(modes)
            found = [self.forward(held), self.backward(held, grads, needed, trained, early, late)]
            return "\n\n".join([*found, *([self.replay(early)] if replayed else [])])

        return Kernels(
            source,
            tuple(((columns | inside)[x], columns[g], m) for x, g, m in pulled.products),
            self.wide,
            tuple((nodes[i].data[0], nodes[i].data[1], nodes[i].size) for i in trained),
            any(i in grads for i in self.low.weights),
            bool(replayed),
            lambda modes: past(modes).held,
        )

    def prologue(self) -> list[str]:
        """Which samples a program has, and where their numbers are in a row."""
        lines = [
            "s = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)[:, None]",
            "ok = s < samples",
            "row = tl.full((), 1, tl.int64) * row",
            f"b, line = s * {self.wide}, tl.full((), {self.wide}, tl.int64) * samples",
        ]
        for p in sorted({1, *[width(node.size) for node in self.program.nodes]}):
            lines += [f"f{p} = tl.arange(0, {p})[None, :]", f"r{p} = tl.arange(0, {p})[:, None]"]
        start = 0
        for c, size in enumerate(self.sizes):
            f = f"f{width(size)}"
            m, line = f"ok & ({f} < {size})", f"({f} + {start})"
            lines += [f"m{c} = {m}", f"a{c} = {self.place('s', line, m)}"]
            if self.groups == "samples":
                lines.append(f"e{c}, g{c} = ok, s")
            elif self.groups == "features":
                lines.append(f"e{c}, g{c} = {f} < {size}, {self.place('0', line, f'{f} < {size}')} // width")
            elif self.groups:
                lines.append(f"e{c}, g{c} = m{c}, a{c} // width")
            start += size
        return [*lines, "groups = row // width"] if self.groups else lines

    def place(self, sample: str, feature: str, there: str) -> str:
        """Where a feature of a sample is in a row."""
        table = f"tl.load(places + {sample} * FEATURES + {feature}, {there}, 0)"
        return table if self.tabled else f"({sample} * step_s + {feature} * step_f)"

    def loads(self) -> list[str]:
        """The nodes of the time and of the local weights."""
        lines = [f"n{i} = tl.load(times + k + f1)" for i in self.time]
        for c, i in enumerate(self.low.weights):
            place = f"local + k * groups + g{c}, e{c}, 0.0" if self.groups else "local + k + f1"
            lines.append(f"n{i} = tl.load({place})")
        return lines

    def saved(self, columns: dict[int, int]) -> dict[int, str]:
        """Where these nodes are kept, and which numbers of them there are."""
        found = {}
        for i, start in columns.items():
            f = f"f{width(size := self.program.nodes[i].size)}"
            found[i] = f"saved + {{k}} * line + (b + {start} + {f}), {{}}ok & ({f} < {size})"
        return found

    def forward(self, past: Past) -> str:
        """From sums to rows, states and slopes."""
        writer = Writer(self.program)
        writer.write({*self.low.states, *self.low.slopes}, self.inputs)
        place = f"sums + ({{}} * {self.parts} + {{}}) * row"
        lift = past.lift
        given = {f"x{i}_{c}": f"{place.format('{k}', i)} + a{c}{lift}, m{c}{lift}" for i, c, _ in self.sums}
        body = past.summed(backward=False) + past.advanced(backward=False)
        body += [f"n{n} = x{i}_{c}" for i, c, n in self.sums] + self.loads() + writer.body
        body += [f"tl.store({place.format('k', i)} + a{c}, x{i}_{c}, m{c})" for i, c, _ in self.sums]
        for c, (state, slope) in enumerate(zip(self.low.states, self.low.slopes, strict=True)):
            if self.parts > 1:
                body.append(f"tl.store(states + k * row + a{c}, n{state}, m{c})")
            body.append(f"tl.store(slopes + k * row + a{c}{lift}, n{slope}{lift}, m{c}{lift})")
        body += past.recorded([(0, c, f"n{slope}") for c, slope in enumerate(self.low.slopes)])
        return walk(
            "forward(sums, states, slopes, begin", self.prologue() + past.begun(1) + writer.head, given, body, []
        )

    def slopes(self) -> list[str]:
        """The slopes, where they are wanted once more."""
        stores = [f"    tl.store(slopes + k * row + a{c}, n{i}, m{c})" for c, i in enumerate(self.low.slopes)]
        return ["if WEIGH:", *stores]

    def replay(self, early: dict[int, int]) -> str:
        """From rows to what the pull-back takes; a program has some of the steps, in any order."""
        writer = Writer(self.program)
        writer.write({*early, *self.low.slopes}, self.inputs)
        row = f"rows + (k * {self.parts} + {{}}) * row + a{{}}, m{{}}, 0.0"
        body = [f"n{n} = tl.load({row.format(i, c, c)})" for i, c, n in self.sums] + self.loads() + writer.body
        body += [f"tl.store({where.format(f'n{i}, ', k='k')})" for i, where in self.saved(early).items()]
        steps = "for k in range(begin + tl.program_id(1), count, tl.num_programs(1)):"
        lines = [*self.prologue(), *writer.head, steps, *[f"    {line}" for line in (*body, *self.slopes())]]
        return function("replay(rows, slopes, saved, begin", lines)

    def backward(
        self,
        past: Past,
        grads: dict[int, int],
        needed: set[int],
        trained: list[int],
        early: dict[int, int],
        late: dict[int, int],
    ) -> str:
        """From gradients of slopes and states to the rows μ, and what gradients of constants are made of."""
        nodes, writer = self.program.nodes, Writer(self.program)
        writer.write(
            needed.union(late, () if early else self.low.slopes), self.inputs.union(early, [g for _, g, _ in self.ends])
        )
        place, given, lift = f"({{}} * {self.parts} + {{}}) * row + a{{}}", dict[str, str](), past.lift
        for c in range(len(self.sizes)):
            given[f"v_{c}"] = f"sums + {{k}} * row + a{c}{lift}, m{c}{lift}"
            given[f"outside_{c}"] = (
                f"mu + {place.format('{k}', 0, c)}, m{c} & (f1 + {{k}} >= low) & (f1 + {{k}} < high)"
            )
        given |= {f"n{n}": f"rows + {place.format('{k}', i, c)}, m{c}" for i, c, n in self.sums}
        given |= {f"n{i}": where.format("", k="{k}") for i, where in self.saved(early).items() if i not in self.inputs}
        body = past.summed(backward=True) + past.advanced(backward=True)
        body += [f"n{g} = {given_by}" for _, g, given_by in self.ends] + self.loads() + writer.body
        found = [(i, c, f"n{grads[n]}" if n in grads else f"tl.zeros_like(n{n})") for i, c, n in self.sums]
        for i, c, name in found:
            body.append(f"tl.store(mu + {place.format('k', i, c)}{lift}, {name}{lift}, m{c}{lift})")
        body += [] if early else self.slopes()
        for c, i in enumerate(self.low.weights):
            if i in grads:
                body.append(f"tl.store(weights + k * row + a{c}, n{grads[i]}, m{c})")
        body += [f"tl.store({where.format(f'n{i}, ', k='k')})" for i, where in self.saved(late).items()]
        setup, after, start = self.prologue() + past.begun(self.parts) + writer.head, list[str](), 0
        for i in trained:
            size, f = nodes[i].size, f"f{width(nodes[i].size)}"
            setup.append(f"t{i} = tl.zeros((BM, {width(size)}), DT)")
            body.append(f"t{i} += n{grads[i]}")
            after.append(f"tl.store(totals + ({start} + {f}) * samples + s, t{i}, ok & ({f} < {size}))")
            start += size
        setup += past.given() if past.modes else []
        body += past.recorded(found)
        return walk(
            "backward(sums, rows, mu, slopes, weights, saved, totals, low, high, begin", setup, given, body, after
        )
