"""Processes that work for another one."""

from __future__ import annotations

import multiprocessing
import os
import threading


def leave_with_parent() -> None:
    """Called first in a worker: it ends when the process that started it does, also when that was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
