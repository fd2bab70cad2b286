"""What a campaign found, as a result file that the documentation is rendered from."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .runner import Tally

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def record(tallies: dict[str, Tally], command: str) -> None:
    """Write ``benchmarks/results/campaign.json``; a part that was left out keeps what it had."""
    sys.path.insert(0, str(BENCHMARKS))
    from report.record import here, put

    for name, tally in tallies.items():
        row = {
            "cases": tally.cases,
            **{kind: tally.counts[kind] for kind in ("checked", "refused", "failed")},
            "seeds": [tally.first, tally.first + tally.cases - 1],
            "share": round(tally.share, 3),
            "seconds": round(tally.seconds, 1),
            "refusals": dict(tally.refusals.most_common()),
            "failures": {str(seed): re.sub(r"/tmp[^\s'\"]*", "…", said) for seed, said in tally.failures.items()},
        }
        put("campaign", name, [row], **here(), command=f"{command} --part {name} --cases {tally.cases}")
