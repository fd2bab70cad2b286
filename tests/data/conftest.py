"""Where the real data files are, if they are."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real raw files: NEURALFDE_DATA, or ../shared/data beside the repository."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("NEURALFDE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data: set NEURALFDE_DATA to a data folder ({folder} does not exist)")
    return folder
