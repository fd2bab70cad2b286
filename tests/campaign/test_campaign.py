"""A part of the campaign for every day, and that it notices, replays and shrinks what goes wrong."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
import torch

from campaign import __main__ as command
from campaign import problem_text, problems
from campaign.case import REMEDY, Case, Failed, Part, judged, shrunk
from campaign.compare import Result, demand_equal
from campaign.parts import PARTS
from campaign.parts.inputs import CALLS, COMMANDS
from campaign.runner import Tally, campaign, pattern, run_cases
from neuralfde.weights import uniform

#: Cases of every day, by their seeds. All together take less than a minute on one core.
DAILY = {
    "reference": range(160),
    "courses": range(20),
    "fits": range(0, 15, 5),
    "commands": range(5),
    "steppers": range(60),
    "programs": range(60),
    "laws": range(80),
    "transforms": range(32),
    "inputs": range(0, len(CALLS)),
    "special": range(60),
    "concurrency": range(0, 40, 9),
    "leak": range(1),
}
#: One command line in so many: those that are refused late take a second each.
COMMANDS_APART = 6


@pytest.mark.parametrize("name", DAILY)
def test_no_case_goes_wrong(name: str) -> None:
    found = run_cases(name, DAILY[name])
    assert found.cases == len(DAILY[name])
    replay = {f"python -m campaign --shrink {name}:{seed}": said for seed, said in found.failures.items()}
    assert not replay, json.dumps(replay, indent=1)


@pytest.mark.parametrize("seed", range(len(CALLS), len(CALLS) + len(COMMANDS), COMMANDS_APART))
def test_no_command_goes_wrong(seed: int) -> None:
    found = run_cases("inputs", range(seed, seed + 1))
    assert not found.failures


def test_every_part_is_run_every_day() -> None:
    assert set(DAILY) == set(PARTS)
    assert len(set(CALLS)) + len(set(COMMANDS)) >= 300


def test_a_seed_is_a_case() -> None:
    for part in PARTS.values():
        assert part.draw(7) == part.draw(7)
    assert len({str(PARTS["reference"].draw(seed)) for seed in range(100)}) == 100


def test_what_is_printed_is_what_is_run() -> None:
    case = PARTS["reference"].draw(3)
    printed: dict[str, object] = {}
    exec(problem_text.script(case).rpartition("print(")[0], printed)
    assert torch.equal(printed["x0"], problem_text.namespace(case)["x0"])


def test_a_wrong_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = uniform.rectangle
    monkeypatch.setattr(uniform, "rectangle", lambda *given: right(*given) * (1 + 1e-9))
    simplest = {name: values[0] for name, values in problems.SETTINGS.items()}
    outcome = judged(PARTS["reference"], {**simplest, "beta": 0.6125})  # an order that no cache knows
    assert outcome.kind == "failed"
    assert outcome.sort == "differ"


def flawed(case: Case) -> float:
    """Wrong where the method is gl and there are many steps."""
    if case["method"] == "gl" and case["steps"] > 5:
        raise Failed(f"differ: by {case['steps']}")
    if case["method"] == "l1":
        raise Failed("raised: something else")
    return 0.5


MADE_UP = {"method": ("abm", "l1", "gl"), "steps": (4, 6, 9, 20), "dtype": ("float64", "float32")}


def test_a_case_is_shrunk_to_what_matters() -> None:
    part = Part("made up", MADE_UP, flawed, str)
    assert shrunk(part, {"method": "gl", "steps": 20, "dtype": "float32"}) == {
        "method": "gl",
        "steps": 6,
        "dtype": "float64",
    }


def test_errors_without_a_remedy_and_foreign_errors_fail() -> None:
    from neuralfde import InputError

    def says(error: Exception) -> str:
        def check(case: Case) -> float:
            raise error

        return judged(Part("made up", MADE_UP, check, str), {}).kind

    assert says(InputError("steps=0 must be at least 1.")) == "refused"
    assert says(InputError("steps=0.")) == "failed"
    assert says(ValueError("steps=0 must be at least 1.")) == "failed"
    assert not REMEDY.search("shape '[3]' is invalid for input of size 2")


def test_a_difference_is_judged_by_rule() -> None:
    one = Result(torch.ones(2), {"w": torch.ones(2)})
    assert demand_equal(one, one, 1e-12) == 0
    off = Result(torch.ones(2), {"w": torch.tensor([1.0, 1 + 1e-3])})
    with pytest.raises(Failed, match="gradient of w"):
        demand_equal(off, one, 1e-12)
    assert demand_equal(off, one, 1e-12, lambda: 1e10) < 1
    for bad in (Result(torch.ones(2), {"w": None}), Result(torch.ones(2), {"w": torch.tensor([1.0, torch.nan])})):
        with pytest.raises(Failed):
            demand_equal(bad, one, 1e-3)


def test_a_run_in_processes_counts_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Tally] = []
    found = campaign(["special"], 0, lambda tally: tally.cases >= 10, 1, lambda name, chunk: told.append(chunk))
    assert found["special"].cases == sum(chunk.cases for chunk in told) >= 10
    assert "special: " in command.line(found["special"])


def test_refusals_of_one_kind_are_counted_together() -> None:
    said = "InputError: order=1.2 is outside (0, 1], the orders of L1. Orders up to 2 need method='gl'."
    assert pattern(said) == pattern(said.replace("1.2", "1.31"))


def test_cases_are_arranged_to_be_solved_most_of_the_time() -> None:
    rng = random.Random(0)
    for _ in range(50):
        drawn = {name: rng.choice(values) for name, values in problems.SETTINGS.items()}
        case = problems.arrange(drawn, rng)
        assert case.keys() == drawn.keys()


def test_workers_of_a_killed_process_leave_with_it(tmp_path):
    code = (
        "import multiprocessing, os, time\n"
        "from neuralfde.cli.processes import leave_with_parent\n"
        "def work(pipe):\n    leave_with_parent()\n    pipe.send(os.getpid())\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    mine, its = context.Pipe()\n"
        "    context.Process(target=work, args=(its,)).start()\n"
        "    print(mine.recv(), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    script = tmp_path / "starts_a_worker.py"
    script.write_text(code)
    found = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=60)
    worker, deadline = int(found.stdout), time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(worker, 9)
    pytest.fail("the worker goes on without the process that started it")
