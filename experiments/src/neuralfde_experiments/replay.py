"""A function of fixed tensors as one CUDA graph, which is faster than launching thousands of small kernels."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import torch
from torch import Tensor

log = logging.getLogger("neuralfde")


class Replay:
    """Calls ``call`` a few times, then captures it, then replays the capture.

    Every call does its work: none is for the warm-up only. ``call`` must write its results into tensors that persist,
    and may not read values from the device. If it cannot be captured, it is called as usual.

    Args:
        call: a function of tensors that returns nothing.
        warm_up: the number of calls before the capture.
    """

    def __init__(self, call: Callable[..., None], warm_up: int = 3) -> None:
        self.call, self.left = call, warm_up
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> None:
        """Call it with these inputs on the current stream, which must always be the same and not the default stream."""
        if self.inputs:
            torch._foreach_copy_(self.inputs, inputs)
        else:
            self.inputs = tuple(x.clone() for x in inputs)
        if self.left == 0:
            self._capture()
        self.left -= 1
        if self.graph is None:
            self.call(*self.inputs)
        else:
            self.graph.replay()

    def _capture(self) -> None:
        stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.call(*self.inputs)
            self.graph = graph
        except Exception as error:
            log.warning("training steps run one kernel at a time, since they could not be captured: %s", error)
            self.failed = True
            _reset(stream)
        finally:
            torch.cuda.set_stream(stream)


def _reset(stream: torch.cuda.Stream) -> None:
    """Run a successful capture: after one that failed, the random generator still waits for its end."""
    spare = torch.zeros(1, device=stream.device)
    torch.cuda.synchronize(stream.device)
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        spare.add_(1)
