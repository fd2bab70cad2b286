"""Peak memory of a piece of work: what CUDA allocated, or how far the process grew."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """A context whose ``mib`` is, afterwards, the peak inside it.

    On CUDA all that tensors occupied (``torch.cuda.max_memory_allocated``); on a CPU the growth of the resident
    memory since entry, where the system tells (Linux), else None.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mib: float | None = None
        self._before: float | None = None

    def wait(self) -> None:
        """Until the device has done what it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            self.wait()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._before = _resident("VmRSS")
            try:
                _RESET.write_text("5")  # the kernel forgets the process's old peak
            except OSError:
                self._before = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda":
            self.mib = round(torch.cuda.max_memory_allocated(self.device) / 2**20, 1)
            return
        peak = _resident("VmHWM")
        if self._before is not None and peak is not None:
            self.mib = round(max(0.0, peak - self._before), 1)


def _resident(field: str) -> float | None:
    """A field of the process's status in MiB."""
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text())
    except OSError:
        return None
    return int(found.group(1)) / 1024 if found else None
