"""Raw graph files: miniature ones written here, harmful ones refused, and the real ones where they are."""

import hashlib
import os
import pickle
import sys
import warnings
from collections import defaultdict
from types import MappingProxyType, ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from neuralfde.errors import InputError
from neuralfde_experiments.data import catalog, graphs
from neuralfde_experiments.data.raw_graphs import read_archive, safe_unpickle
from neuralfde_experiments.data.splits import grand_split

sp = pytest.importorskip("scipy.sparse")
pytest.importorskip("torch_geometric")

# 24 nodes: a ring of 0..20 with one loop and one repeated edge, a pair 21-22, and 23 alone.
NODES, FEATURES, CLASSES = 24, 5, 3
TEST_INDEX = [22, 18, 20, 19, 21]  # 23 is missing, as some nodes of CiteSeer are


def ring():
    links = defaultdict(list)
    for i in range(21):
        links[i] = [(i + 1) % 21, (i - 1) % 21]
    links[3] += [3, 4]
    links[21], links[22] = [22], [21]
    return links


def features():
    return (np.random.default_rng(0).random((NODES, FEATURES)) < 0.5).astype(np.float32)


def labels():
    return np.arange(NODES) % CLASSES


def planetoid_parts():
    x, y = features(), np.eye(CLASSES, dtype=np.int32)[labels()]
    parts = {
        "allx": sp.csr_matrix(x[:18]), "tx": sp.csr_matrix(x[TEST_INDEX]),
        "ally": y[:18], "ty": y[TEST_INDEX], "graph": ring(),
    }  # fmt: skip
    pickled = {part: pickle.dumps(value, protocol=3) for part, value in parts.items()}
    return pickled | {"test.index": "\n".join(map(str, TEST_INDEX)).encode()}


def install(monkeypatch, folder, key, contents, pattern):
    """Write the files and make their sums the accepted ones."""
    raw = folder / "Mini" / "raw"
    raw.mkdir(parents=True)
    for part, content in contents.items():
        (raw / pattern.format(part)).write_bytes(content)
    sums = {part: (hashlib.sha256(content).hexdigest(),) for part, content in contents.items()}
    entry = catalog.GraphFiles("Mini", pattern, MappingProxyType(sums), CLASSES, 15, "nowhere")
    monkeypatch.setitem(catalog.GRAPHS, key, entry)
    return raw


@pytest.fixture
def few_per_class(monkeypatch):
    """Splits of a graph of two dozen nodes: two of each class train."""
    monkeypatch.setattr(grand_split, "__kwdefaults__", {**grand_split.__kwdefaults__, "per_class": 2})


def archive(**changes):
    import io

    adjacency = sp.csr_matrix(
        (np.ones(22, np.float32), ([*range(21), 3], [*((i + 1) % 21 for i in range(21)), 3])), (NODES, NODES)
    )
    attributes = sp.csr_matrix(features() * 2.5)
    arrays = {"labels": labels()}
    for prefix, m in (("adj", adjacency), ("attr", attributes)):
        arrays |= {f"{prefix}_data": m.data, f"{prefix}_indices": m.indices, f"{prefix}_indptr": m.indptr}
        arrays[f"{prefix}_shape"] = np.array(m.shape)
    out = io.BytesIO()
    np.savez(out, **(arrays | changes))
    return out.getvalue()


def test_planetoid_files(monkeypatch, tmp_path, few_per_class):
    install(monkeypatch, tmp_path, "cora", planetoid_parts(), "ind.mini.{}")
    data = graphs.load_graph("Cora", tmp_path)
    assert data.num_nodes == 21
    assert data.edge_index.shape == (2, 42)
    assert data.is_undirected()
    assert not data.has_self_loops()
    torch.testing.assert_close(data.x, torch.from_numpy(features()[:21]))
    assert data.y.tolist() == labels()[:21].tolist()
    assert data.name == "cora"
    assert [int(m.sum()) for m in (data.train_mask, data.val_mask, data.test_mask)] == [6, 9, 6]
    whole = graphs.load_graph("cora", tmp_path, largest_component=False)
    assert whole.num_nodes == 23
    assert torch.equal(whole.x[21:], torch.from_numpy(features()[[21, 22]]))


def test_archive_files(monkeypatch, tmp_path, few_per_class):
    install(monkeypatch, tmp_path, "photo", {"archive": archive()}, "mini.npz")
    data = graphs.load_graph("photo", tmp_path, normalise=True)
    assert data.num_nodes == 21
    assert data.edge_index.shape == (2, 42)
    binary = torch.from_numpy(features()[:21])
    torch.testing.assert_close(data.x, binary / binary.sum(1, keepdim=True).clamp(min=1))


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_harmful_pickle_is_refused_and_not_run(tmp_path, protocol):
    target = tmp_path / "harm"
    with pytest.raises(InputError, match="was not run"):
        safe_unpickle(pickle.dumps({"x": Harm(str(target))}, protocol=protocol))
    assert not target.exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "os system", "numpy load", "builtins getattr", "copyreg _reconstructor"]
)
def test_no_other_name_is_admitted(name):
    with pytest.raises(InputError, match="was not run"):
        safe_unpickle(b"c" + name.replace(" ", "\n").encode() + b"\n.")


def test_an_archive_with_objects_is_refused_and_not_run(tmp_path):
    target = tmp_path / "harm"
    with pytest.raises(InputError, match="cannot be read"):
        read_archive(archive(labels=np.array([Harm(str(target))], dtype=object)))
    assert not target.exists()


def test_damaged_files_are_refused(monkeypatch, tmp_path):
    raw = install(monkeypatch, tmp_path, "cora", planetoid_parts(), "ind.mini.{}")
    with pytest.raises(InputError, match="cannot be read"):
        safe_unpickle(planetoid_parts()["allx"][:50])
    with pytest.raises(InputError, match="cannot be read"):
        read_archive(archive()[:100])
    with pytest.raises(InputError, match="contradicts"):
        read_archive(archive(attr_indices=np.full(1, 99)))
    with pytest.raises(InputError, match="names a node outside"):
        read_archive(archive(adj_indices=np.full(22, 99)))
    (raw / "ind.mini.graph").write_bytes(b"other")
    with pytest.raises(InputError, match="not the published file"):
        graphs.load_graph("cora", tmp_path)
    (raw / "ind.mini.tx").unlink()
    with pytest.raises(InputError, match=r"ind\.mini\.tx.*nowhere"):
        graphs.load_graph("cora", tmp_path)


def test_parts_that_do_not_fit_are_refused(monkeypatch, tmp_path):
    parts = planetoid_parts() | {"test.index": b"18\n19"}
    install(monkeypatch, tmp_path, "cora", parts, "ind.mini.{}")
    with pytest.raises(InputError, match="do not fit together"):
        graphs.load_graph("cora", tmp_path)


def test_names():
    assert graphs._canonical("CoauthorCS") == "coauthor-cs"
    assert graphs._canonical("Physics") == "coauthor-physics"
    assert graphs._canonical("ogbn_arxiv") == "ogbn-arxiv"
    with pytest.raises(InputError, match="Did you mean 'citeseer'"):
        graphs.load_graph("citesear", "nowhere")


def test_ogb_is_asked_for_only_when_needed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(InputError, match=r"pip install ogb.*synthetic-arxiv"):
        graphs.load_graph("ogbn-arxiv", tmp_path)


def test_ogb_graphs_become_undirected_with_masks(monkeypatch, tmp_path):
    from torch_geometric.data import Data

    class Dataset:
        def __init__(self, name, root):
            pass

        def __getitem__(self, _):
            return Data(x=torch.ones(3, 2), y=torch.tensor([[0], [1], [1]]), edge_index=torch.tensor([[0, 1], [1, 2]]))

        def get_idx_split(self):
            return {"train": torch.tensor([2]), "valid": torch.tensor([0]), "test": torch.tensor([1])}

    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", SimpleNamespace(PygNodePropPredDataset=Dataset))
    with pytest.raises(InputError, match="Fetch it with ogb"):
        graphs.load_graph("ogbn-arxiv", tmp_path)
    (tmp_path / "ogbn_arxiv").mkdir()
    data = graphs.load_graph("ogbn-arxiv", tmp_path)
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.y.tolist() == [0, 1, 1]
    assert data.train_mask.tolist() == [False, False, True]


def test_split_parts_are_disjoint_cover_all_and_follow_the_seed():
    y = torch.arange(4000) % 7
    a, b, c = grand_split(y, 3), grand_split(y, 3), grand_split(y, 4)
    assert torch.equal(a.train.int() + a.val.int() + a.test.int(), torch.ones(4000, dtype=torch.int))
    assert y[a.train].bincount().tolist() == [20] * 7
    assert int(a.train.sum() + a.val.sum()) == 1500
    assert torch.equal(a.train, b.train)
    assert not torch.equal(a.test, c.test)
    fixed = [grand_split(y, seed, development_seed=9) for seed in (3, 4)]
    assert torch.equal(fixed[0].test, fixed[1].test)
    assert not torch.equal(fixed[0].train, fixed[1].train)


def test_split_is_grands_draw_number_for_number():
    y = torch.arange(300) % 3
    split = grand_split(y, 12345, development=100, per_class=5)
    development = np.random.RandomState(12345).choice(300, 100, replace=False)
    draw = np.random.RandomState(12345)
    train = np.concatenate([draw.choice(development[development % 3 == c], 5, replace=False) for c in range(3)])
    assert sorted(train) == split.train.nonzero()[:, 0].tolist()


def test_impossible_splits_are_refused():
    with pytest.raises(InputError, match="between 1 and 9"):
        grand_split(torch.zeros(10, dtype=torch.long), 0)
    with pytest.raises(InputError, match="Class 1 has"):
        grand_split((torch.arange(3000) < 30).long(), 0)


REAL = {
    "cora": (2485, 5069, 1433, 7), "citeseer": (2120, 3679, 3703, 6), "pubmed": (19717, 44324, 500, 3),
    "computers": (13381, 245778, 767, 10), "photo": (7487, 119043, 745, 8), "coauthor-cs": (18333, 81894, 6805, 15),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_graphs_have_their_published_sizes(data_folder, name):
    data = graphs.load_graph(name, data_folder, seed=1)
    assert (data.num_nodes, data.num_edges // 2, data.x.shape[1], data.num_classes) == REAL[name]
    assert data.is_undirected()
    assert int(data.y.max()) + 1 == data.num_classes
    assert int(data.train_mask.sum()) == 20 * data.num_classes
    assert int((data.train_mask | data.val_mask).sum()) == (5000 if name == "coauthor-cs" else 1500)


@pytest.mark.slow
def test_real_physics_graph(data_folder):
    data = graphs.load_graph("coauthor-physics", data_folder)
    assert (data.num_nodes, data.num_edges // 2, data.x.shape[1], data.num_classes) == (34493, 247962, 8415, 5)


@pytest.mark.parametrize("name", ["CiteSeer", "Photo"])
def test_real_graphs_are_those_of_torch_geometric(data_folder, tmp_path, name):
    from torch_geometric.datasets import Amazon, Planetoid

    (tmp_path / name).mkdir()
    (tmp_path / name / "raw").symlink_to((data_folder / name / "raw").resolve())
    reader = Amazon if name == "Photo" else Planetoid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own cache files trip torch.load's check on some versions
        theirs = reader(str(tmp_path), name)[0]
    ours = graphs.load_graph(name, data_folder, largest_component=False)
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)
    assert torch.equal(ours.edge_index, graphs.undirected(theirs.edge_index, theirs.num_nodes))
    assert ours.edge_index.shape == theirs.edge_index.shape
