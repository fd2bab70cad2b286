"""What earlier steps of a block contribute to a step, as lines of a kernel.

With exponentials the last steps are held in registers, ``h0_0_3`` three steps back, and move on by one in every step;
from the last place each goes on into fading sums, ``y0_0_5`` of exponential 5. What all but the latest step contribute
to the next one, ``rest0_0``, is summed while a step waits for its products. Otherwise what earlier steps contribute is
read back from where it was written.
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
        near: exact lags beside exponentials.
        modes: exponentials that a kernel has room for; 0 where there are none.
    """

    parts: int
    sizes: Sequence[int]
    groups: str
    near: int
    modes: int

    @property
    def lift(self) -> str:
        """One more axis for what is held: Triton then lays it out as it is read and written, not as products give it,
        which would hold most of it twice."""
        return "[None]" if self.modes else ""

    def begun(self, inputs: int) -> list[str]:
        """Before the first step: nothing has happened; fading sums of so many inputs, and their weights.

        Each begins with zeros of its own. If names share them, Triton 3.6 compiles loops that compute something else.
        """
        if not self.modes:
            return []
        lines = [f"d{q} = tl.load(loss + {q})" for q in range(self.modes)]
        for c, size in enumerate(self.sizes):
            nothing = f"tl.zeros((BM, {width(size)}), DT)[None]"
            for i in range(inputs):
                lines += [f"y{i}_{c}_{q} = {nothing}" for q in range(self.modes)]
                lines += [f"h{i}_{c}_{m} = {nothing}" for m in self._lags]
            lines += [f"rest{i}_{c} = {nothing}" for i in range(self.parts // inputs)]
            if c == self._weighing(c):
                lines += [self._coefficient(i, q, c) for i in range(self.parts) for q in range(self.modes)]
        if not self.groups:  # otherwise there are too many to be held
            lines += [f"u{i}_{m} = {self._weight(i, m, 0)}" for i in range(self.parts) for m in self._lags]
        return lines

    def given(self) -> list[str]:
        """Before the first step backward: a first row that is given counts."""
        line = "h{}_{}_1 = tl.load(mu + {} * row + a{}, m{} & (f1 * 0 + begin > 0), 0.0)[None]"
        return [line.format(i, c, i, c, c) for i in range(self.parts) for c in range(len(self.sizes))]

    @property
    def held(self) -> int:
        """Numbers of a sample's past in the forward pass: lags, fading sums, and coefficients where they differ."""
        return (self.near + self.modes * (2 if self.groups else 1)) * sum(map(width, self.sizes))

    @property
    def _lags(self) -> range:
        return range(1, self.near + 1)

    def _weighing(self, c: int) -> int:
        """The chunk whose weights this one has."""
        return c if self.groups in ("features", "both") else 0

    def _coefficient(self, i: int, q: int, c: int) -> str:
        place = f"{i * self.modes + q} * groups + g{c}[None], e{c}[None], 0.0" if self.groups else i * self.modes + q
        found = f"tl.load(modes + {place})"
        return f"c{i}_{c}_{q} = {found} * (1.0 - d{q})"

    def _weight(self, i: int, m: int, c: int) -> str:
        place = f"table + {m} * wk + {i} * wi"
        return f"tl.load({place} + g{c} * wg, e{c}, 0.0)" if self.groups else f"tl.load({place})"

    def _terms(self, backward: bool) -> list[tuple[str, int, int, int]]:
        """The sums of a step: what each is added to, its chunk, and the numbers of its weights and of its rows.

        Forward, each of the sums is an output of the slopes; backward, each is an input of one sum.
        """
        pairs = [(i, c) for c in range(len(self.sizes)) for i in range(self.parts)]
        return [(f"v_{c}", c, i, i) if backward else (f"x{i}_{c}", c, i, 0) for i, c in pairs]

    def summed(self, backward: bool) -> list[str]:
        """What earlier steps contribute, added to the sums of a step."""
        if not self.modes:
            return self._stored(backward)
        lines = []
        for target, c, i, source in self._terms(backward):
            if not backward or i == 0:
                lines.append(f"past = rest{0 if backward else i}_{c}")
            lines.append(f"past = tl.fma({self._lagged(i, 1, c)}, h{source}_{c}_1, past)")
            if not backward or i + 1 == self.parts:
                lines += [f"{target} += past", f"{target} = tl.sum({target}, 0)"]
        return lines

    def advanced(self, backward: bool) -> list[str]:
        """Everything but the latest rows moves on, and is summed for the next step; the oldest ones fade from now on.

        Sums by ``fma``: LLVM makes vectors of products and sums on their own, which take more registers than there are
        (Triton 3.9: 32 registers and 2.5 KB of stack in the backward pass of 32-64-32, with ``fma`` 232 and none).
        """
        if not self.modes:
            return []
        lines = []
        for source, c in sorted({(source, c) for _, c, _, source in self._terms(backward)}):
            y, h = f"y{source}_{c}", f"h{source}_{c}"
            lines += [f"{y}_{q} += {h}_{self.near} - {y}_{q} * d{q}" for q in range(self.modes)]
            lines += [f"{h}_{m} = {h}_{m - 1}" for m in reversed(self._lags[1:])]
        for _, c, i, source in self._terms(backward):
            own, rest = self._weighing(c), f"rest{0 if backward else i}_{c}"
            first = f"{rest} + " if backward and i > 0 else ""
            lines.append(f"{rest} = {first}c{i}_{own}_0 * y{source}_{c}_0")
            lines += [f"{rest} = tl.fma(c{i}_{own}_{q}, y{source}_{c}_{q}, {rest})" for q in range(1, self.modes)]
            lines += [
                f"{rest} = tl.fma({self._lagged(i, m, c)}, h{source}_{c}_{m}, {rest})" for m in reversed(self._lags[1:])
            ]
        return lines

    def _lagged(self, i: int, m: int, c: int) -> str:
        """The weight of the row ``m`` steps back."""
        return f"{self._weight(i, m, self._weighing(c))}[None]" if self.groups else f"u{i}_{m}"

    def _stored(self, backward: bool) -> list[str]:
        inputs, source = (self.parts, "mu") if backward else (1, "slopes")
        lines = [
            "j = first + tl.arange(0, J)[:, None, None]",
            "there = j < k",
            f"place, weight = j * ({inputs} * row), k * wk + j * wj",
        ]
        for c in range(len(self.sizes)):
            for i in range(self.parts):
                target = f"v_{c}" if backward else f"x{i}_{c}"
                if i < inputs:
                    lines.append(f"old = tl.load({source} + {i} * row + place + a{c}[None], there & m{c}[None], 0.0)")
                place = f"table + weight + {i} * wi" + (f" + g{c}[None] * wg" if self.groups else "")
                weights = f"tl.load({place}, {f'there & e{c}[None]' if self.groups else 'there'}, 0.0)"
                lines.append(f"{target} += tl.sum({weights} * old, 0)")
        return ["for first in range(tl.maximum(k - near, 0), k, J):", *[f"    {line}" for line in lines]]

    def recorded(self, rows: list[tuple[int, int, str]]) -> list[str]:
        """New rows (input, chunk, name) are the latest."""
        if not self.modes:
            return ["tl.debug_barrier()  # other threads of this program read what was written"]
        return [f"h{i}_{c}_1 = {name}[None]" for i, c, name in rows]
