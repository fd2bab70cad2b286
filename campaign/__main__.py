"""The command ``python -m campaign``; see the package."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import date

from . import __doc__ as about
from .case import judged, shrunk
from .parts import PARTS
from .runner import Tally, campaign


def main() -> int:
    """Exit code 0 where nothing failed, 1 where a case did."""
    given = _arguments()
    one = given.replay or given.shrink
    if one:
        return _one(*one.split(":"), shrink=bool(given.shrink))  # type: ignore[arg-type]
    seed = date.today().toordinal() * 100_000 if given.seed is None else given.seed
    names = given.part or list(PARTS)
    print(f"seed {seed}; parts: {', '.join(names)}; {given.processes} processes")
    began = time.monotonic()

    most = max(PARTS[name].share for name in names)

    def over(tally: Tally) -> bool:
        part = PARTS[tally.part]
        if given.cases is None:
            return time.monotonic() - began > 60 * given.minutes
        return not part.each and tally.cases >= given.cases * part.share / most

    tallies = campaign(names, seed, over, given.processes, _tell)
    for tally in tallies.values():
        print(line(tally))
    if given.record:
        from .record import record

        record(tallies, f"python -m campaign --seed {seed}")
    return int(any(tally.failures for tally in tallies.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m campaign", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to go on")
    parser.add_argument(
        "--cases", type=int, help="in place of --minutes: so many of the part with most, in proportion of the others"
    )
    parser.add_argument("--seed", type=int, help="of the first case; default: by the day")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given several times")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each core")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/campaign.json")
    parser.add_argument("--replay", metavar="PART:SEED", help="run one case again and show its script")
    parser.add_argument("--shrink", metavar="PART:SEED", help="simplify a failing case and show its script")
    return parser.parse_args()


def _tell(name: str, chunk: Tally) -> None:
    for seed, said in chunk.failures.items():
        print(f"FAILED {name}:{seed}  {said}\n       python -m campaign --shrink {name}:{seed}", flush=True)


def line(tally: Tally) -> str:
    """One line for a part."""
    last = tally.first + max(tally.cases - 1, 0)
    counts = ", ".join(f"{tally.counts[kind]} {kind}" for kind in ("checked", "refused", "failed"))
    seeds = f"seeds {tally.first} to {last}"
    used = f"at most {tally.share:.0%} of what is allowed"
    return f"{tally.part}: {tally.cases} cases, {seeds}: {counts}; {used}; {tally.seconds:.0f} s"


def _one(name: str, seed: str, shrink: bool) -> int:
    part = PARTS[name]
    case = part.draw(int(seed))
    outcome = judged(part, case)
    if shrink and outcome.kind == "failed":
        case = shrunk(part, case, lambda change: print(f"simpler: {change}", flush=True))
        outcome = judged(part, case)
    print(f"{name}:{seed} {outcome.kind} {outcome.said}\n\n{case}\n\n{part.script(case)}")
    return int(outcome.kind == "failed")


if __name__ == "__main__":
    sys.exit(main())
