"""A case is one value for each setting: drawn from a whole number, judged, and made simpler one setting at a time."""

from __future__ import annotations

import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralfde import errors

Case = dict[str, Any]
#: Every error that a user may meet.
TYPED = tuple(x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception))
#: Words by which a text says what to do: an imperative, or what is allowed.
REMEDY = re.compile(
    r"\b(add|allowed|apply|are stored in|ask|at least|at most|between|call|change|check|choose|convert|delete|"
    r"did you mean|draw|drop|expected|export|for example|give|here it is|import|increase|inside|install|"
    r"is \w+ here|keep|known|lay|leave|less|make|mark|more|move|must|needs?|needed|neither|none of|of the form|"
    r"one of|only|pass|positive|raise|reduce|remove|rename|repeat|requires|return|run|say|set|shorten|shift|smaller|"
    r"solve|sort|start|takes|the rules are|train|try|use|whole number|within|without|write)\b",
    re.IGNORECASE,
)


class Failed(AssertionError):
    """What was found is not what it should be."""


@dataclass(frozen=True)
class Outcome:
    """``kind`` is "checked", "refused" or "failed"; ``said`` the text of the refusal or what is wrong.

    ``share`` is how much was used of what is allowed: of a tolerance, of seconds, of memory.
    """

    kind: str
    said: str = ""
    share: float = 0.0

    @property
    def sort(self) -> str:
        """What two failures of one cause share: the beginning of what is said, up to a colon."""
        return self.said.split(":")[0]


@dataclass(frozen=True)
class Part:
    """One part of the campaign.

    Args:
        name: as in ``--part``.
        settings: the values of each setting, the simplest one first; a value that stands twice is drawn twice as often.
        check: raises ``Failed`` where a case goes wrong, else says how much it used of what is allowed; errors of the
            library count as refusals.
        script: the case as a script that a person can paste.
        arrange: makes sense of a drawn case: what is refused anyway is drawn seldom.
        each: seed ``k`` is the ``k``-th value of every setting, and there are no more cases than values.
        limit: no case may take longer, in seconds.
        share: how many cases of it are run beside those of other parts, for as long as there is time.
    """

    name: str
    settings: dict[str, Sequence[Any]]
    check: Callable[[Case], float]
    script: Callable[[Case], str]
    arrange: Callable[[Case, random.Random], Case] = lambda case, rng: case
    each: bool = False
    limit: float = 120.0
    share: float = 1

    @property
    def count(self) -> int:
        """The number of cases of a part that has only so many."""
        return max(len(values) for values in self.settings.values())

    def draw(self, seed: int) -> Case:
        """The case of a seed."""
        if self.each:
            return {name: values[seed % len(values)] for name, values in self.settings.items()}
        rng = random.Random(f"{self.name}:{seed}")
        return self.arrange({name: rng.choice(values) for name, values in self.settings.items()}, rng)


def judged(part: Part, case: Case) -> Outcome:
    """What comes of a case."""
    try:
        with warnings.catch_warnings(), _limited(part.limit):
            warnings.simplefilter("ignore")
            share = part.check(case)
    except Failed as error:
        return Outcome("failed", str(error))
    except TYPED as error:
        if REMEDY.search(str(error)):
            return Outcome("refused", f"{type(error).__name__}: {error}")
        return Outcome("failed", f"no remedy in a {type(error).__name__}: {error}")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = (str(error).strip().splitlines() or [""])[0]
        return Outcome("failed", f"{type(error).__name__} in {Path(where.filename).name}, {where.name}: {text[:200]}")
    return Outcome("checked", share=share)


def shrunk(part: Part, case: Case, told: Callable[[str], None] = lambda text: None) -> Case:
    """A case that fails in the same way, as near to the simplest one as changes of one setting lead.

    The cases of a list are as simple as they are.
    """
    if part.each:
        return case
    sort, found = judged(part, case).sort, dict(case)
    while True:
        simpler = next((c for c in _simpler(part, found) if _fails_alike(part, c, sort)), None)
        if simpler is None:
            return found
        told(", ".join(f"{k}={v!r}" for k, v in simpler.items() if found[k] != v))
        found = simpler


def _simpler(part: Part, case: Case) -> Iterator[Case]:
    for name, values in part.settings.items():
        known = list(dict.fromkeys(values))
        for value in known[: known.index(case[name])] if case[name] in known else known:
            yield {**case, name: value}


def _fails_alike(part: Part, case: Case, sort: str) -> bool:
    outcome = judged(part, case)
    return outcome.kind == "failed" and outcome.sort == sort


#: A case that waits in place of working is ended as well, after so many times its limit.
PATIENCE = 20


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise where so much work was done, other programs' not counted; only the main thread can be woken."""

    def wake(number: int, frame: object) -> None:
        raise Failed(f"longer than {seconds:g} s")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE * seconds))
    try:
        before = [signal.signal(number, wake) for number, _, _ in timers]
    except ValueError:
        yield
        return
    for _, timer, length in timers:
        signal.setitimer(timer, length)
    try:
        yield
    finally:
        for (number, timer, _), old in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, old)
