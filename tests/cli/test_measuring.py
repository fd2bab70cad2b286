"""Clock, peak memory and machine, as benchmarks and experiments use them."""

import sys
import time

import pytest
import torch

from neuralfde.cli.measuring import clock, least_seconds, machine, peak_mib, resident_mib

CPU = torch.device("cpu")


def test_the_clock_goes_forward():
    began = clock(CPU)
    time.sleep(0.01)
    assert 0.01 <= clock() - began < 1


def test_the_least_time_of_jobs_in_turns():
    done, ticks = [], iter([0, 3, 3, 4, 4, 6, 6, 12])  # a: 3, then 2; b: 1, then 6
    jobs = {"a": lambda: done.append("a"), "b": lambda: done.append("b")}
    assert least_seconds(jobs, 2, now=lambda: next(ticks)) == {"a": 2, "b": 1}
    assert done == ["a", "b", "a", "b"]


def test_the_peak_counts_what_is_alive_at_once():
    def work():
        for _ in range(3):
            torch.empty(2**18).fill_(1.0)  # one MiB each, one at a time

    assert peak_mib(work, CPU) == pytest.approx(1.0, abs=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_resident_memory():
    assert resident_mib("VmHWM") >= resident_mib("VmRSS") > 10


def test_the_machine_is_described():
    found = machine(CPU)
    assert found["device"] == f"{found['cpu']}, {found['cores']} cores"
    assert found["torch"] == torch.__version__
    assert {"python", "neuralfde", "date", "threads"} <= found.keys()
