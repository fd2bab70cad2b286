"""Finding raw data files and making sure that they are the right ones before anything reads them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from neuralfde.errors import InputError

ROOT_VARIABLE = "NEURALFDE_DATA"
"""Environment variable that names the data folder when no ``root`` is given."""

_ALGORITHMS = {32: "md5", 64: "sha256"}


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """The data folder: ``root``, or the one the environment variable ``NEURALFDE_DATA`` names."""
    chosen = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if chosen is None:
        raise InputError(f"No data folder is given. Pass root=, or set the environment variable {ROOT_VARIABLE}.")
    return Path(chosen).expanduser()


def digest(content: bytes, like: str) -> str:
    """Hash of ``content`` by the algorithm that ``like``, a hexadecimal hash, was made with (md5 or sha256)."""
    return hashlib.new(_ALGORITHMS[len(like)], content, usedforsecurity=False).hexdigest()


def read_checked(path: Path, accepted: Iterable[str]) -> bytes:
    """The content of a file whose hash is one of ``accepted``; any other file is refused unread."""
    accepted = tuple(accepted)
    content = path.read_bytes()
    if not any(digest(content, like) == like for like in accepted):
        found = digest(content, accepted[0])
        raise InputError(
            f"{path} ({len(content)} bytes) is not the published file: its checksum is {found}, not "
            f"{' or '.join(accepted)}. It may be cut short or altered; delete it and fetch it again."
        )
    return content


def missing(name: str, looked_for: Iterable[Path], remedy: str) -> InputError:
    """The error for data that is not there: where it was looked for, and what to do."""
    places = ", ".join(str(path) for path in looked_for)
    return InputError(f"{name} is not in the data folder. Looked for: {places}. {remedy}")


def download(urls: Iterable[str], path: Path, accepted: Iterable[str], timeout: float = 60.0) -> None:
    """Fetch the first of ``urls`` that answers with the right file; nothing else is ever written to ``path``."""
    accepted = tuple(accepted)
    failures = []
    for url in urls:
        try:
            with urlopen(url, timeout=timeout) as answer:
                content = answer.read()
        except (URLError, TimeoutError, ConnectionError) as error:
            failures.append(f"{url}: {error}")
            continue
        if any(digest(content, like) == like for like in accepted):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".part")
            partial.write_bytes(content)
            partial.replace(path)
            return
        failures.append(f"{url}: answered with another file (wrong checksum)")
    raise InputError(f"{path.name} could not be downloaded. {'; '.join(failures)}. Place it at {path} by hand.")
