"""Files that are whole at every moment, and checkpoints: checked before they are read, and read without running code.

A checkpoint is one line, ``neuralfde checkpoint VERSION SHA256``, and after it what ``torch.save`` wrote. The one
before it is kept beside it, and used where the newest is damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError

VERSION = 1
_TITLE = b"neuralfde checkpoint"


def write_whole(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Write a file so that a reader, also after a crash, finds the old content or the new one.

    ``previous`` is where the old content goes, if it is to be kept.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()  # on a full disk it takes room
        raise
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """Have the names in a folder written to the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the newest is."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save(path: Path, state: Any) -> None:
    """Write a checkpoint; the one that was there becomes the previous one."""
    kept = io.BytesIO()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # copies may have been made on another stream
    torch.save(state, kept)
    content = kept.getvalue()
    title = b" ".join([_TITLE, str(VERSION).encode(), hashlib.sha256(content).hexdigest().encode()])
    write_whole(path, title + b"\n" + content, previous_of(path))


def load(path: Path) -> Any:
    """The state in a checkpoint, on the CPU; a file that is damaged, or something else, is refused unread."""
    title, _, content = path.read_bytes().partition(b"\n")
    words = title.split(b" ")
    if len(words) != 4 or b" ".join(words[:2]) != _TITLE:
        raise InputError(f"{path} is not a checkpoint of neuralfde.")
    if hashlib.sha256(content).hexdigest().encode() != words[3]:
        raise InputError(f"{path} is damaged: its checksum is wrong.")
    if words[2] != str(VERSION).encode():
        raise InputError(f"{path} was written by another version of neuralfde ({words[2].decode('ascii', 'replace')}).")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whoever made this file also made its checksum: it fails as its bytes want
        reason = str(error).splitlines()[0][:120] if str(error) else ""
        raise InputError(f"{path} holds more than tensors and numbers ({type(error).__name__}: {reason}).") from None


def newest(path: Path) -> tuple[Any, str]:
    """The newest checkpoint that can be read (None: there is none), and what there is to say about it."""
    refused: list[str] = []
    for each in (path, previous_of(path)):
        if not each.exists():
            continue
        try:
            return load(each), f"{' '.join(refused)} Going on from the one before it." if refused else ""
        except InputError as error:
            refused.append(str(error))
    if refused:
        raise InputError(
            f"{' '.join(refused)} Delete {path.stem}*{path.suffix} there to begin the unfinished case anew."
        )
    return None, ""
