"""Where the time of one training step goes, for each stepper: ``func``, the history, and the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import neuralfde as nf
from neuralfde.cli.measuring import clock, least_seconds

Row = dict[str, Any]

#: names of the two launches of the stepper ``kernel``
LAUNCHES = ("forward", "backward")
SPLIT = "cuda-graph, split"
#: as they are called in the picture
STEPPERS = {"single": "single", "cuda-graph": "cuda-graph", SPLIT: nf.CudaGraph(split=True), "kernel": "kernel"}


def spent(work: Any, steps: int) -> Iterator[Row]:
    """A row for each stepper that takes the steps of this equation: milliseconds on the device and beside it.

    ``func`` alone is called, and called with its vector-Jacobian product, as often as a training step does it; what
    kernels take beyond that is the history's and the rest. Kernels that run at once count in proportion. The host has
    the time in which no kernel runs. In the stepper ``kernel`` the history is inside the two launches.
    """
    device, func, z0 = work.z0.device, work.func, work.z0
    t, bar = torch.zeros((), device=device), torch.randn_like(z0)

    def forward() -> None:
        with torch.no_grad():
            for _ in range(20):
                func(t, z0)

    def backward() -> None:
        for _ in range(20):
            torch.autograd.grad(func(t, z0), [z0, *func.parameters()], bar)

    once = {name: sum(busy(job, device)[0].values()) / 20 for name, job in (("f", forward), ("vjp", backward))}
    history = 0.0
    for name, stepper in STEPPERS.items():
        step = partial(train, work, steps, stepper)
        try:
            ran = step()
        except nf.errors.InputError as refusal:
            ran = str(refusal)
        if ran != name.partition(",")[0]:
            print(f"{work.name}, {name}: {ran}", flush=True)
            continue
        wall = least_seconds({"s": step}, 2, partial(clock, device))["s"]
        named, union = busy(step, device)
        total, own = sum(named.values()), [steps * once["f"], steps * once["vjp"]]
        if name == "kernel":
            own = [sum(s for n, s in named.items() if n.startswith(launch)) for launch in LAUNCHES]
        if name == SPLIT:  # fewer and larger kernels; the history's are those of the line before
            own[1] = max(total - own[0] - history, 0.0)
        history = max(total - sum(own), 0.0)
        yield {"work": work.name, "steps": steps, "stepper": name, **shares(own, history, union, wall)}


def shares(own: list[float], history: float, union: float, wall: float) -> Row:
    """Milliseconds of each part, from the seconds of all kernels; ``union`` is the time in which any of them ran."""
    scale = min(union, wall) / (sum(own) + history)
    found = {"forward": own[0] * scale, "backward": own[1] * scale, "history": history * scale}
    found |= {"host": max(wall - union, 0.0), "wall": wall}
    return {name: round(1e3 * s, 4) for name, s in found.items()}


def train(work: Any, steps: int, stepper: Any) -> str:
    """One training step; says which stepper took it."""
    options = {"method": "predictor", "history": "exponentials", "stepper": stepper}
    found = nf.solve(work.func, work.z0, steps * work.step, work.order, steps=steps, **options)
    torch.autograd.grad(found.ys.square().mean(), [work.z0, *work.func.parameters()])
    return found.stats.stepper


def busy(job: Callable[[], object], device: torch.device) -> tuple[dict[str, float], float]:
    """Seconds of the kernels of a job by their names, and those in which any ran; on a CPU it is all one."""
    if device.type != "cuda":
        job()
        wall = least_seconds({"s": job}, 3)["s"]
        return {"all": wall}, wall
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes a line at every start and stop
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        job()
        torch.cuda.synchronize(device)
    results = recorded.profiler.kineto_results if recorded.profiler is not None else None
    events = [e for e in results.events() if e.device_type().name == "CUDA"] if results is not None else []
    named: dict[str, float] = {}
    union, until = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        start, end = event.start_ns(), event.start_ns() + event.duration_ns()
        named[event.name()] = named.get(event.name(), 0.0) + 1e-9 * event.duration_ns()
        union, until = union + max(0, end - max(start, until)), max(until, end)
    return named, 1e-9 * union
