"""Processes that work for another one, and what ``torchrun`` tells those that it starts, through the environment."""

from __future__ import annotations

import multiprocessing
import os
import threading


def rank_and_count() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) where it is alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")) if count > 1 else 0), count


def launched() -> bool:
    """Whether ``torchrun`` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def restarts() -> int:
    """How often ``torchrun --max-restarts`` has started the processes anew after losing one."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def leave_with_parent() -> None:
    """Called first in a worker: it ends when the process that started it does, also when that was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
