"""The predicted memory and work of a solve, and what ``auto`` chooses accordingly."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from ..base.policy import EXPONENTIALS_GUESS, FFT_STEPS, MESH_STEPS
from ..errors import InputError
from ..history import FFT, Exponentials, Full, History, Window
from ..storage import Checkpoint, Device, Host, Sizes, Storage

_DEVICE, _HOST = Device(), Host()


@dataclass(frozen=True)
class Size:
    """The size of a problem: steps, bytes per row, history sums; whether it is trained, and whether in float64."""

    steps: int
    row_bytes: int
    sums: int
    train: bool
    double: bool


def decided(
    history: History | None,
    storage: Storage | None,
    size: Size,
    device: torch.device,
    direct: bool,
    toeplitz: bool,
    fades: bool,
) -> tuple[History, Storage, str]:
    """History and storage, chosen if they are None, and the reason; raises if they do not work together.

    Args:
        direct: graphs are kept in place of rows.
        toeplitz: weights depend on the lag alone.
        fades: if they do not, the distant past can be summed as exponentials; otherwise sums need all weights and rows.
    """
    left = history is None
    if direct:
        storage, size = storage or _DEVICE, replace(size, train=False)
    if not toeplitz and history is None:
        long = size.steps >= MESH_STEPS or (storage is not None and storage.recomputes)
        history = exponentials_for(size) if fades and long else Full()
    on_host = (_HOST, _DEVICE) if isinstance(history, Full) and history.host else (_HOST,)
    if isinstance(history, Full) and history.keeps_slopes and storage in on_host:
        history, storage = replace(history, host=True), _HOST
    history, storage, why = choose(history, storage, size, device)
    if left and not toeplitz:
        why = why.replace("history as given", f"{size.steps} steps whose weights depend on more than the lag")
    _refuse(history, storage, direct)
    return history, storage, why


def _refuse(past: History, kept: Storage, direct: bool) -> None:
    """Raise if a history and a storage do not work together, naming the alternative."""
    name = type(kept).__name__
    if direct and kept != _DEVICE:
        raise InputError(
            f"adjoint='direct' keeps the graph of every step on the device, storage={name} would store nothing. "
            "Use adjoint='exact', or storage='device'."
        )
    if kept.recomputes and not past.keeps_slopes and not past.snapshots:
        raise InputError(
            f"storage={name} computes rows again from kept states of the history; history={type(past).__name__} has "
            "no state that can be kept (snapshots = False). Use storage='device' or 'host', or history='exponentials'."
        )
    on_host = isinstance(past, Full) and past.host and kept == _HOST
    if past.keeps_slopes and kept != _DEVICE and not on_host:
        raise InputError(
            f"history={type(past).__name__} holds every row in the dtype of the state, since each sum needs them all, "
            f"and storage={kept} cannot change that. Use history='exponentials' (or a Window) with it, or "
            "storage='device'; history='full' works with storage='host' too."
        )


def choose(
    history: History | None, storage: Storage | None, size: Size, device: torch.device
) -> tuple[History, Storage, str]:
    """Choose what was left to ``auto`` (None): exact sums if they take at most half of the free memory."""
    free = free_bytes(device) if history is None or storage is None else 0
    exact: History = FFT() if size.steps >= FFT_STEPS else Full()
    if history is None and storage is not None and storage != _DEVICE:
        history, why = exponentials_for(size), f"storage={type(storage).__name__} needs a history of fixed size"
    elif history is None:
        need = device_bytes(exact, _DEVICE, size)
        fits = need <= free / 2
        history = exact if fits else exponentials_for(size)
        why = f"exact sums take {_mib(need)}, {'within' if fits else 'more than'} half of the free {_mib(free)}"
    else:
        why = "history as given"
    if storage is not None:
        crowded = size.train and device_bytes(history, storage, size) > free / 2 > 0
        why += "; storage as given" + (", where rows may not fit: try 'auto'" if crowded else "")
        return history, storage, why
    if history.keeps_slopes or not size.train:
        return history, _DEVICE, why + "; rows stay with the history"
    need = device_bytes(history, _DEVICE, size)
    if need <= free / 2:
        return history, _DEVICE, why + f"; all rows fit ({_mib(need)} of {_mib(free)})"
    storage = Host() if device.type == "cuda" and host_bytes(Host(), size) <= _host_free() / 2 else Checkpoint()
    return history, storage, why + f"; all rows would take {_mib(need)} of the free {_mib(free)}"


def less_memory(history: History, storage: Storage, size: Size, device: torch.device, direct: bool) -> str:
    """Advice for a user whose memory ran out: the first choice that fits into what is free now."""
    now, free = device_bytes(history, storage, size), free_bytes(device)
    held = f"Beside func, history={type(history).__name__}, storage={type(storage).__name__} take {_mib(now)}"
    if direct:
        return f"{held}, and adjoint='direct' {size.steps} graphs of func; {_mib(free)} are free. Use adjoint='exact'."
    for kept in (_DEVICE, Host(), Checkpoint()):
        need = device_bytes(exponentials_for(size), kept, size)
        if need < min(now / 2, free) and not (isinstance(kept, Host) and device.type == "cpu"):
            name = type(kept).__name__.lower()
            return f"{held}; {_mib(free)} are free. history='exponentials', storage='{name}' would take {_mib(need)}."
    return f"{held}; {_mib(free)} are free. No history or storage takes less: use a smaller batch, or a smaller func."


def device_bytes(history: History, storage: Storage, size: Size) -> int:
    """The peak memory of a training step on the device of the state, in bytes, without that of ``func`` itself."""
    count, row, sums = size.steps + 1, size.row_bytes, size.sums
    engine, kept = _engine_rows(history, size)
    total = engine
    if not history.keeps_slopes and size.train:
        stored = storage.dtype.itemsize * row // (8 if size.double else 4) if storage.dtype is not None else row
        if isinstance(storage, Checkpoint):
            budget = storage.bytes_for(Sizes(count, kept * row, sums * row, history.block))
            total = 2 * engine + -(-budget // row)
        elif isinstance(storage, Host):
            total = engine + 32 * sums
        else:
            total = engine + count * sums * stored // row
    return int(total * row)


def host_bytes(storage: Storage, size: Size) -> int:
    """The host memory, or file size, that stored rows take, in bytes."""
    if not isinstance(storage, Host) or not size.train:
        return 0
    width = size.row_bytes * (1 if storage.dtype is None else storage.dtype.itemsize / (8 if size.double else 4))
    return int((size.steps + 1) * size.sums * width)


def free_bytes(device: torch.device) -> int:
    """The memory of a device that this process can use now, in bytes, with what its allocator holds in reserve."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        stats, share = torch.cuda.memory_stats(device), torch.cuda.get_per_process_memory_fraction(device)
        reserved, used = (stats.get(f"{kind}_bytes.all.current", 0) for kind in ("reserved", "allocated"))
        return max(0, min(free, int(share * total) - reserved)) + reserved - used
    return _host_free()


def _host_free() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def _engine_rows(history: History, size: Size) -> tuple[int, int]:
    """How many rows the memory of a backward pass holds, and how many a snapshot of a forward pass has."""
    sums, count = size.sums, size.steps + 1
    if isinstance(history, Window):
        reach = min(history.length, size.steps)
        return min(count, 2 * reach + 3 * history.block) * sums, reach
    if isinstance(history, Exponentials):
        if history.mesh is not None:
            return (len(history.mesh.rates) + 1 + 2 * history.block) * sums, sums * len(history.mesh.rates) + 1
        terms = 0 if size.steps < 2 * history.block else history.terms or EXPONENTIALS_GUESS
        return (terms + 2 * history.block) * sums, terms + history.block
    kept, held = count, 0
    if isinstance(history, FFT):
        held = sum(history.levels(size.steps))
    elif isinstance(history, Full):
        kept, held = 0 if history.host else count, history.block_for(size.row_bytes // (8 if size.double else 4))
    return kept * sums + 2 * sums * held, count


def exponentials_for(size: Size) -> Exponentials:
    """Exponentials with a tolerance that suits the dtype of the state."""
    return Exponentials(tol=1e-11 if size.double else 1e-8)


def _mib(count: float) -> str:
    return f"{count / 2**20:.1f} MiB" if count < 2**33 else f"{count / 2**30:.1f} GiB"


@dataclass(frozen=True)
class Prediction:
    """The predicted memory and work of a solve; printed as a short table.

    Attributes:
        steps: the number of steps.
        numbers: the number of elements of the state.
        history, storage: what will be used.
        device_bytes, host_bytes: memory on the device and on the host, without that of ``func`` itself.
        evaluations, products: evaluations of ``func`` and vector-Jacobian products, of both passes together. They are
            lower bounds: iterations, and rows that ``checkpoint`` recomputes more than once, are not counted.
        history_flops: floating-point operations of the history sums.
        why: what was left to ``auto``, and how that was decided.
    """

    steps: int
    numbers: int
    history: History
    storage: Storage
    device_bytes: int
    host_bytes: int
    evaluations: int
    products: int
    history_flops: float
    why: str

    def __str__(self) -> str:
        lines = {
            "steps": f"{self.steps}, a state of {self.numbers} elements",
            "history": str(self.history),
            "storage": str(self.storage),
            "memory": f"{_mib(self.device_bytes)} on the device, {_mib(self.host_bytes)} on the host, without func",
            "work": f"{self.evaluations} evaluations of func, {self.products} vector-Jacobian products, "
            f"{self.history_flops:.2g} flop in history sums",
            "why": self.why,
        }
        return "\n".join(f"{name:8} {text}" for name, text in lines.items())


def predict(history: History, storage: Storage, size: Size, numbers: int, stages: int, why: str) -> Prediction:
    """The memory and work of one training step (of one forward pass, without gradients); ``numbers``: elements."""
    steps = size.steps
    if isinstance(history, Exponentials):
        per_step = 2 * (history.block + 2 * (history.terms or EXPONENTIALS_GUESS))
    elif isinstance(history, Window):
        per_step = 2 * min(history.length, steps)
    else:
        per_step = steps if isinstance(history, Full) else 40 * max(1, steps.bit_length()) ** 2 // 4
    passes = 2 if size.train else 1
    recomputed = int(size.train and storage.recomputes) + int(size.train)
    return Prediction(
        steps, numbers, history, storage, device_bytes(history, storage, size), host_bytes(storage, size),
        stages * steps * (1 + recomputed), steps if size.train else 0,
        float(per_step * steps * numbers * size.sums * passes), why,
    )  # fmt: skip
