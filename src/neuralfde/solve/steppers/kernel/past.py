"""What earlier steps of a block contribute to a step, as lines of a kernel.

With exponentials (``R > 0``) the last steps are held in registers, ``h0_0_3`` three steps back, and move on by one in
every step; from the last place each goes on into fading sums, ``y0_0``. Otherwise what earlier steps contribute is read
back from where it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .expressions import width


@dataclass(frozen=True)
class Past:
    """The past of a step.

    Args:
        parts: sums of the scheme.
        sizes: features of the chunks of a state.
        groups: between what weights differ, "samples", "features" or "both", or "": ``g0`` says which chunk 0 has.
        near: exact lags beside exponentials; 0 where there are none.
    """

    parts: int
    sizes: Sequence[int]
    groups: str
    near: int

    def begun(self, inputs: int) -> list[str]:
        """Before the first step: nothing has happened; fading sums of so many inputs, and their weights."""
        line, lift, _ = self.axes
        lines = ["q = tl.arange(0, K)", f"losses = tl.load(loss + q, q < terms, 1.0){line}", f"q = q{line}"]
        for c, size in enumerate(self.sizes):
            for i in range(inputs):
                nothing = f"tl.zeros((BM, {width(size)}), DT){lift}"
                lines.append(f"y{i}_{c} = {nothing} * losses")
                lines += [f"h{i}_{c}_{m} = {nothing}" for m in self._lags]
            for i in range(self.parts):
                place, mask = f"modes + {i} * terms + q", "q < terms"
                if self.groups:
                    place, mask = f"modes + g{c}{lift} + ({i} * terms + q) * groups", f"({mask}) & e{c}{lift}"
                lines.append(f"c{i}_{c} = tl.load({place}, {mask}, 0.0) * (1.0 - losses)")
        if not self.groups:  # otherwise there are too many to be held
            lines += [f"u{i}_{m} = {self._weight(i, m, 0)}" for i in range(self.parts) for m in self._lags]
        return _under("if R > 0:", lines)

    @property
    def axes(self) -> tuple[str, str, int]:
        """How exponentials and features are brought to one shape, and the axis of the exponentials there: not the one
        along which Triton lays threads, the last, or the first where loads are scattered.
        """
        return ("[None, None, :]", "[:, :, None]", 2) if self.groups == "both" else ("[:, None, None]", "[None]", 0)

    @property
    def _lags(self) -> range:
        return range(1, self.near + 1)

    def _weight(self, i: int, m: int, c: int) -> str:
        place = f"table + {m} * wk + {i} * wi"
        return f"tl.load({place} + g{c} * wg, e{c}, 0.0)" if self.groups else f"tl.load({place})"

    def summed(self, backward: bool) -> list[str]:
        """What earlier steps contribute; forward, each of the sums is an output of the slopes; backward, each is an
        input of one sum."""
        inputs, source = (self.parts, "mu") if backward else (1, "slopes")
        stored = [
            "j = first + tl.arange(0, J)[:, None, None]",
            "there = j < k",
            f"place, weight = j * ({inputs} * row), k * wk + j * wj",
        ]
        held, (_, lift, axis) = [], self.axes
        for c in range(len(self.sizes)):
            for i in range(self.parts):
                target, own = (f"v_{c}", i) if backward else (f"x{i}_{c}", 0)
                if i < inputs:
                    stored.append(f"old = tl.load({source} + {i} * row + place + a{c}[None], there & m{c}[None], 0.0)")
                place = f"table + weight + {i} * wi" + (f" + g{c}[None] * wg" if self.groups else "")
                weights = f"tl.load({place}, {f'there & e{c}[None]' if self.groups else 'there'}, 0.0)"
                stored.append(f"{target} += tl.sum({weights} * old, 0)")
                held.append(f"total = tl.sum(y{own}_{c} * c{i}_{c}, {axis}){lift}")
                for m in reversed(self._lags):  # what was found last comes last: nothing else waits for it
                    weight = self._weight(i, m, c) + lift if self.groups else f"u{i}_{m}"
                    held.append(f"total += {weight} * h{own}_{c}_{m}")
                held.append(f"{target} += tl.sum(total, {axis})")
        loop = _under("for first in range(tl.maximum(k - near, 0), k, J):", stored)
        return [*_under("if R > 0:", held or ["pass"]), *_under("else:", loop)]

    def recorded(self, rows: list[tuple[int, int, str]]) -> list[str]:
        """New rows (input, chunk, name) are the latest; the oldest ones fade from now on."""
        lines, (_, lift, _) = [], self.axes
        for i, c, name in rows:
            if self.near:
                lines.append(f"y{i}_{c} += h{i}_{c}_{self.near} - y{i}_{c} * losses")
                lines += [f"h{i}_{c}_{m} = h{i}_{c}_{m - 1}" for m in reversed(self._lags[1:])]
                lines.append(f"h{i}_{c}_1 = {name}{lift}")
        barrier = "tl.debug_barrier()  # other threads of this program read what was written"
        return [*_under("if R > 0:", lines or ["pass"]), *_under("else:", [barrier])]


def _under(head: str, lines: Sequence[str]) -> list[str]:
    return [head, *[f"    {line}" for line in lines]]
