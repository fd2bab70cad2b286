"""The published graph files: where each is in the data folder, and the sha256 of every accepted version of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GraphFiles:
    """One graph's files.

    Args:
        folder: under the data folder, as torch_geometric names it; the files are in its ``raw``.
        pattern: file name of each part.
        sums: accepted sha256 of each part.
        classes: number of classes.
        development: size of the development set of GRAND's splits.
        source: the repository that publishes the files.
    """

    folder: str
    pattern: str
    sums: MappingProxyType[str, tuple[str, ...]]
    classes: int
    development: int
    source: str


def _planetoid(folder: str, classes: int, **sums: str) -> GraphFiles:
    parts = {part.replace("_", "."): (value,) for part, value in sums.items()}
    pattern = f"ind.{folder.lower()}.{{}}"
    return GraphFiles(folder, pattern, MappingProxyType(parts), classes, 1500, "github.com/kimiyoung/planetoid, data/")


def _archive(folder: str, file: str, classes: int, sums: tuple[str, ...], development: int = 1500) -> GraphFiles:
    """``sums``: the file as published, and the same arrays recompressed."""
    parts = MappingProxyType({"archive": sums})
    return GraphFiles(folder, file, parts, classes, development, "github.com/shchur/gnn-benchmark, data/npz/")


GRAPHS = {
    "cora": _planetoid(
        "Cora",
        7,
        allx="9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        ally="2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        graph="58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        test_index="297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
        tx="b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        ty="41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    ),
    "citeseer": _planetoid(
        "CiteSeer",
        6,
        allx="2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        ally="f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        graph="d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        test_index="2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
        tx="539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        ty="55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    ),
    "pubmed": _planetoid(
        "PubMed",
        3,
        allx="508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        ally="0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        graph="5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        test_index="b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
        tx="4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        ty="ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    ),
    "computers": _archive(
        "Computers",
        "amazon_electronics_computers.npz",
        10,
        (
            "736ba1d9fd85eac2da83a5ad25c463f04b0031a6ca01563f90a7099d9e8ffb2c",
            "31f68de2eef9eb3ba00190e48b05e98bfd88870183a69cd746b1211b68637d3e",
        ),
    ),
    "photo": _archive(
        "Photo",
        "amazon_electronics_photo.npz",
        8,
        (
            "bdb1feb8e6ff42ee44024b04479145029c563fd42fc31bff80af20887ba0439a",
            "bbd79ecd5203127c0e89e63c5de768a543a72d446165d213d3b044aea05af60b",
        ),
    ),
    "coauthor-cs": _archive(
        "CS",
        "ms_academic_cs.npz",
        15,
        (
            "933c745734e78908c7eb77172a673fee0503f30e26e5a99b36814d88534c42e3",
            "da2b5df77184370cd2961124b262fe8cc94541566fa5dd0c7df5076e99a6c179",
        ),
        development=5000,
    ),
    "coauthor-physics": _archive(
        "Physics",
        "ms_academic_phy.npz",
        5,
        (
            "e4d68468eba5fb8f6b280ffd406bd53e6e4295ba1dd2967d6fe99b978e4b3375",
            "df1d6d99c145ec5bd2f00e351741fe5ccf061e9d253db2b01644980d537302f7",
        ),
    ),
}
"""By the name :func:`neuralfde_experiments.data.graphs.load_graph` takes.

The Planetoid parts ``x`` and ``y`` repeat rows of ``allx`` and ``ally``, and are not read.
"""
