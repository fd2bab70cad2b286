"""MNIST and Fashion-MNIST from a folder, and scikit-learn's embedded digits, as plain tensors.

The folder is laid out as torchvision does it, ``ROOT/MNIST/raw/train-images-idx3-ubyte.gz`` and so on (or the same
files unpacked); torchvision itself is not needed. Every file is verified by checksum, and nothing is downloaded unless
asked.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from neuralfde.errors import InputError, nearest

from . import files
from .files import data_root, missing, read_checked

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images and labels of one data set.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"`` or ``"digits"``.
        train_images, test_images: grey values 0 to 255.
        train_labels, test_labels: class numbers.
        mean, std: of the training pixels divided by 255, for ``(images / 255 - mean) / std``.
        classes: name of each class.

    Shapes:
        images ``(count, height, width)`` uint8, labels ``(count,)`` int64.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: float
    std: float
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """Where a set in the idx format is: its folder, its mirrors, and the sha256 of each file packed and unpacked."""

    folder: str
    mirrors: tuple[str, ...]
    files: dict[str, tuple[str, str]]
    classes: tuple[str, ...]


SOURCES = {
    "mnist": _Source(
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte": (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            "train-labels-idx1-ubyte": (
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            "t10k-images-idx3-ubyte": (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            "t10k-labels-idx1-ubyte": (
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        },
        DIGIT_NAMES,
    ),
    "fashion-mnist": _Source(
        "FashionMNIST",
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        ),
        {
            "train-images-idx3-ubyte": (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1-ubyte": (
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3-ubyte": (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1-ubyte": (
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
        FASHION_NAMES,
    ),
}
"""The sets read from files; the checksums are of the files whose md5 torchvision publishes."""


def load_images(name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False) -> ImageData:
    """Load an image set by name.

    LeCun et al., "Gradient-based learning applied to document recognition", 1998 (MNIST); Xiao et al.,
    "Fashion-MNIST", arXiv:1708.07747; the digits are the test part of UCI's optical digits as scikit-learn ships it.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"`` or ``"digits"`` (8 × 8, embedded in scikit-learn, no files needed).
        root: the data folder; default: the environment variable ``NEURALFDE_DATA``. Not used by ``"digits"``.
        download: fetch missing files from the public mirrors into ``root``.
    """
    if name == "digits":
        return load_digits()
    if name not in SOURCES:
        raise InputError(f"name={name!r} is no image set. {nearest(name, [*SOURCES, 'digits'])}")
    source, folder = SOURCES[name], data_root(root)
    train_images = _read_idx(name, source, folder, "train-images-idx3-ubyte", download)
    train_labels = _read_idx(name, source, folder, "train-labels-idx1-ubyte", download).long()
    test_images = _read_idx(name, source, folder, "t10k-images-idx3-ubyte", download)
    test_labels = _read_idx(name, source, folder, "t10k-labels-idx1-ubyte", download).long()
    mean, std = pixel_statistics(train_images)
    return ImageData(name, train_images, train_labels, test_images, test_labels, mean, std, source.classes)


def load_digits() -> ImageData:
    """The 1797 digits of scikit-learn: every fifth image of each class tests (355), the others train (1442).

    The split uses no random numbers, so it is the same everywhere. Grey values 0 to 16 are scaled to 0 to 255.
    """
    try:
        from sklearn.datasets import load_digits as embedded
    except ImportError as error:
        raise InputError("The digits come with scikit-learn, which is missing: pip install scikit-learn.") from error
    raw = embedded()
    images = torch.from_numpy(raw.images).mul(255 / 16).round().to(torch.uint8)
    labels = torch.from_numpy(raw.target).long()
    test = torch.zeros(len(labels), dtype=torch.bool)
    for c in range(10):
        test[(labels == c).nonzero()[4::5, 0]] = True
    mean, std = pixel_statistics(images[~test])
    return ImageData("digits", images[~test], labels[~test], images[test], labels[test], mean, std, DIGIT_NAMES)


def pixel_statistics(images: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of uint8 pixels divided by 255, exact, from their histogram."""
    counts = torch.zeros(256, dtype=torch.int64)
    for part in images.split(4096):
        counts += torch.bincount(part.reshape(-1), minlength=256)
    level, weight = torch.arange(256).double() / 255, counts.double() / counts.sum()
    mean = float((weight * level).sum())
    return mean, math.sqrt(float((weight * (level - mean) ** 2).sum()))


def _read_idx(name: str, source: _Source, root: Path, stem: str, fetch: bool) -> Tensor:
    """One file, packed or unpacked, verified and parsed."""
    packed_sum, plain_sum = source.files[stem]
    plain = root / source.folder / "raw" / stem
    packed = plain.with_name(stem + ".gz")
    if not packed.exists() and not plain.exists():
        if not fetch:
            told = "Pass download=True (--download) to fetch it, or place the file there."
            raise missing(name, (packed, plain), told)
        files.download([mirror + packed.name for mirror in source.mirrors], packed, [packed_sum])
    if not packed.exists():
        return parse_idx(read_checked(plain, [plain_sum]), plain)
    try:
        return parse_idx(gzip.decompress(read_checked(packed, [packed_sum])), packed)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{packed} is not a gzip file that can be unpacked ({error}). Fetch it again.") from error


def parse_idx(content: bytes, path: Path) -> Tensor:
    """The idx format: two zero bytes, the type (8: uint8), the number of sizes, the sizes (big-endian), the values."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise InputError(f"{path} is not an idx file of bytes: it starts with {content[:4].hex() or 'nothing'}.")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise InputError(
            f"{path} announces {shape} bytes but holds {len(content) - start}. It is cut short or altered."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)
