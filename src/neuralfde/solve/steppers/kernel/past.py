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
        groups: numbers have weights of their own.
        near: exact lags beside exponentials; 0 where there are none.
    """

    parts: int
    sizes: Sequence[int]
    groups: bool
    near: int

    def begun(self, inputs: int) -> list[str]:
        """Before the first step: nothing has happened; fading sums of so many inputs, and their weights."""
        lines = ["q = tl.arange(0, K)[:, None, None]", "losses = tl.load(loss + q, q < terms, 1.0)"]
        for c, size in enumerate(self.sizes):
            for i in range(inputs):
                lines.append(f"y{i}_{c} = tl.zeros((K, BM, {width(size)}), DT)")
                lines += [f"h{i}_{c}_{m} = tl.zeros((1, BM, {width(size)}), DT)" for m in self._lags]
            for i in range(self.parts):
                place, mask = f"modes + {i} * terms + q", "q < terms"
                if self.groups:
                    place, mask = f"modes + g{c}[None] + ({i} * terms + q) * groups", f"({mask}) & m{c}[None]"
                lines.append(f"c{i}_{c} = tl.load({place}, {mask}, 0.0) * (1.0 - losses)")
        if not self.groups:  # otherwise there are too many to be held
            lines += [f"u{i}_{m} = {self._weight(i, m, 0)}" for i in range(self.parts) for m in self._lags]
        return _under("if R > 0:", lines)

    @property
    def _lags(self) -> range:
        return range(1, self.near + 1)

    def _weight(self, i: int, m: int, c: int) -> str:
        place = f"table + {m} * wk + {i} * wi"
        return f"tl.load({place} + g{c} * wg, m{c}, 0.0)" if self.groups else f"tl.load({place})"

    def summed(self, backward: bool) -> list[str]:
        """What earlier steps contribute; forward, each of the sums is an output of the slopes; backward, each is an
        input of one sum."""
        inputs, source = (self.parts, "mu") if backward else (1, "slopes")
        stored = [
            "j = first + tl.arange(0, J)[:, None, None]",
            "there = j < k",
            f"place, weight = j * ({inputs} * row), k * wk + j * wj",
        ]
        held = []
        for c in range(len(self.sizes)):
            for i in range(self.parts):
                target, own = (f"v_{c}", i) if backward else (f"x{i}_{c}", 0)
                if i < inputs:
                    stored.append(f"old = tl.load({source} + {i} * row + place + a{c}[None], there & m{c}[None], 0.0)")
                place = f"table + weight + {i} * wi" + (f" + g{c}[None] * wg" if self.groups else "")
                weights = f"tl.load({place}, {f'there & m{c}[None]' if self.groups else 'there'}, 0.0)"
                stored.append(f"{target} += tl.sum({weights} * old, 0)")
                held.append(f"total = tl.sum(y{own}_{c} * c{i}_{c}, 0)[None]")
                for m in reversed(self._lags):  # what was found last comes last: nothing else waits for it
                    weight = self._weight(i, m, c) + "[None]" if self.groups else f"u{i}_{m}"
                    held.append(f"total += {weight} * h{own}_{c}_{m}")
                held.append(f"{target} += tl.sum(total, 0)")
        loop = _under("for first in range(tl.maximum(k - near, 0), k, J):", stored)
        return [*_under("if R > 0:", held or ["pass"]), *_under("else:", loop)]

    def recorded(self, rows: list[tuple[int, int, str]]) -> list[str]:
        """New rows (input, chunk, name) are the latest; the oldest ones fade from now on."""
        lines = []
        for i, c, name in rows:
            if self.near:
                lines.append(f"y{i}_{c} += h{i}_{c}_{self.near} - y{i}_{c} * losses")
                lines += [f"h{i}_{c}_{m} = h{i}_{c}_{m - 1}" for m in reversed(self._lags[1:])]
                lines.append(f"h{i}_{c}_1 = {name}[None]")
        barrier = "tl.debug_barrier()  # other threads of this program read what was written"
        return [*_under("if R > 0:", lines or ["pass"]), *_under("else:", [barrier])]


def _under(head: str, lines: Sequence[str]) -> list[str]:
    return [head, *[f"    {line}" for line in lines]]
