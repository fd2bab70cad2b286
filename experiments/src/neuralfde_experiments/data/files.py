"""Finding raw data files and verifying them before anything reads them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from neuralfde.errors import InputError

ROOT_VARIABLE = "NEURALFDE_DATA"
"""Environment variable that names the data folder when no ``root`` is given."""

LARGEST = 2**30
"""No file that is downloaded has more bytes; a mirror that sends more is cut off."""


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """The data folder: ``root``, or the one in the environment variable ``NEURALFDE_DATA``."""
    chosen = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if chosen is None:
        raise InputError(
            f"No data folder is given. Name one with --data (in Python: root=), or set the environment variable "
            f"{ROOT_VARIABLE}."
        )
    return Path(chosen).expanduser()


def existing_root(root: str) -> None:
    """Reads the option ``data``; a folder that does not exist is refused before anything starts."""
    if not data_root(root).is_dir():
        raise InputError("there is no such folder. Give one that exists, with the raw files below it.")


def read_checked(path: Path, accepted: Iterable[str]) -> bytes:
    """The content of a file whose sha256 is one of ``accepted``; any other file is refused unread."""
    accepted = tuple(accepted)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. Check the data folder.") from error
    found = hashlib.sha256(content).hexdigest()
    if found not in accepted:
        raise InputError(
            f"{path} ({len(content)} bytes) is not the published file: its checksum is {found}, not "
            f"{' or '.join(accepted)}. It may be cut short or altered; delete it and fetch it again."
        )
    return content


def missing(name: str, looked_for: Iterable[Path], remedy: str) -> InputError:
    """The error for missing data: where it was expected, and what to do."""
    places = ", ".join(str(path) for path in looked_for)
    return InputError(f"{name} is not in the data folder. Looked for: {places}. {remedy}")


def download(urls: Iterable[str], path: Path, accepted: Iterable[str], timeout: float = 60.0) -> None:
    """Fetch the file from the first of ``urls``, all https, that has the right one; nothing else is written to path."""
    accepted, failures = tuple(accepted), []
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            failure = _fetch(url, partial, accepted, timeout)
            if failure is None:
                partial.replace(path)
                return
            failures.append(f"{url}: {failure}")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}. Choose another data folder.") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    raise InputError(f"{path.name} could not be downloaded. {'; '.join(failures)}. Place it at {path} by hand.")


def _fetch(url: str, partial: Path, accepted: tuple[str, ...], timeout: float) -> str | None:
    """Write what a mirror sends to a file, piece by piece; returns what went wrong, or None."""
    if not url.startswith("https://"):
        return "not fetched, since it is not https"
    seen, size = hashlib.sha256(), 0
    with partial.open("wb") as file:
        try:
            with urlopen(url, timeout=timeout) as answer:
                if not answer.geturl().startswith("https://"):
                    return "leads away from https"
                while piece := answer.read(2**20):
                    seen.update(piece)
                    size += file.write(piece)
                    if size > LARGEST:
                        return "sends more than any of these files has"
        except (HTTPException, TimeoutError, ConnectionError, URLError) as error:
            return str(error) or type(error).__name__
        file.flush()
        os.fsync(file.fileno())
    return None if seen.hexdigest() in accepted else f"answered with another file ({size} bytes, wrong checksum)"
