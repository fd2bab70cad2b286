"""Peak memory of a piece of work: what CUDA had allocated, or what tensors took on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_mib(work: Callable[[], None], device: torch.device) -> float:
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
