"""CUDA graphs on the CPU: everything but the capture itself is the package's own; real ones are in test_on_gpu.py."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from neuralfde import solver
from neuralfde.solve import steppers
from neuralfde.solve.steppers import static
from neuralfde.solve.steppers.capture import CALLS


class FakeGraph:
    """Runs the captured call again: it reads and writes static memory, and nothing else."""

    def __init__(self, call):
        self.call = call

    def replay(self):
        self.call()


class FakeStream:
    """All in turn."""

    def wait_stream(self, other):
        pass


def pretend_a_gpu(patch: pytest.MonkeyPatch) -> list[int]:
    """States on the CPU are taken for states on a GPU; returns a list that grows with every capture."""
    captures: list[int] = []
    on_gpu = SimpleNamespace(device=torch.device("cuda"), is_cuda=True, numel=lambda: 1 << 30)  # too large for a kernel
    refusal, automatic, first = steppers.CudaGraph.refusal, steppers._automatic, solver.first_evaluation

    def capture(call, func, like, pool):
        captures.append(1)
        for _ in range(CALLS):
            call()
        return FakeGraph(call)

    patch.setattr(static, "SPLIT_PASSES", 1 << 30)  # there is nothing to measure
    patch.setattr(static, "capture", capture)
    patch.setattr(static, "capture_stream", lambda device, lane=0: FakeStream())
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    patch.setattr(steppers.CudaGraph, "refusal", lambda self, plan, like: refusal(self, plan, on_gpu))
    patch.setattr(steppers, "_automatic", lambda plan, run, like, backward: automatic(plan, run, on_gpu, backward))
    patch.setattr(
        solver, "first_evaluation", lambda field, row, known, *more: first(field, row, known, True, *more[1:])
    )
    return captures
