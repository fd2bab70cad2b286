"""What benchmarks and experiments measure with: a clock, peak memory, and the machine they ran on."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from .. import __version__

_STATUS = Path("/proc/self/status")


def clock(device: torch.device | None = None) -> float:
    """Seconds of a clock, read once a GPU has done all it was told; differences count."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def least_seconds(
    jobs: Mapping[str, Callable[[], object]], repeats: int, now: Callable[[], float] = clock
) -> dict[str, float]:
    """The least time of each job over repeats in turns, so that all see the same moods of a shared machine.

    Args:
        jobs: what is measured, by name.
        repeats: how often each is done.
        now: the clock; ``time.process_time`` counts the seconds of the processor.
    """
    least = dict.fromkeys(jobs, math.inf)
    for _ in range(repeats):
        for name, job in jobs.items():
            start = now()
            job()
            least[name] = min(least[name], now() - start)
    return least


def peak_mib(work: Callable[[], object], device: torch.device) -> float:
    """Run ``work`` once and return its peak in MiB.

    On CUDA all that tensors occupied (``torch.cuda.max_memory_allocated``); on a CPU the largest sum of what was
    allocated, and not yet freed, since the start, as the profiler records it.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes a line at every start and stop
    # older releases of torch warn unless events are to be accumulated; there is one cycle here either way
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        work()
    results = recorded.profiler.kineto_results if recorded.profiler is not None else None
    changes = [e for e in results.events() if e.name() == "[memory]"] if results is not None else []
    now = peak = 0
    for event in sorted(changes, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return round(peak / 2**20, 1)


def resident_mib(field: str = "VmHWM") -> float:
    """MiB of this process that were resident at most (VmHWM) or are now (VmRSS); Linux only, elsewhere 0.

    Unlike ``getrusage``, it does not begin with the peak of the process that started this one.
    """
    if not _STATUS.exists():
        return 0.0
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def machine(device: torch.device | None = None) -> dict[str, str | int]:
    """What figures were measured on: the device (default: the GPU, where there is one), processor, versions and day."""
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    cores, cpu = os.cpu_count() or 1, processor()
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"{cpu}, {cores} cores",
        "cpu": cpu,
        "cores": cores,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "neuralfde": __version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def processor() -> str:
    """The name of the processor, or at least its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
