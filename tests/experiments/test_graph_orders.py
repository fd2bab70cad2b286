"""Graphs on which the order may matter: what is read, how splits are drawn, how they are judged and searched."""

import argparse
import hashlib
import io
import time
from dataclasses import replace

import graph_filter
import graphs_search
import numpy as np
import pytest
import torch
from graph_orders import CHOOSE, KINDS, OrderCase, drawn
from graph_space import FINALISTS, Case

from neuralfde.errors import InputError
from neuralfde_experiments import graph_training
from neuralfde_experiments.data import order_graphs
from neuralfde_experiments.data.graphs import WAVES, load_graph, random_waves, set_random_split
from neuralfde_experiments.graph_settings import FROND, reported_seeds

NODES = 60


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Small files under the names of Airport, with four classes, and of minesweeper, with splits of several sizes."""
    draw = np.random.RandomState(0)
    labels, edges = np.arange(NODES) % 4, draw.randint(0, NODES, (150, 2))
    masks = draw.randint(0, 3, (10, NODES))
    features = (labels[:, None] == np.arange(4)) + 0.1 * draw.randn(NODES, 4)
    arrays = {
        "airport": {"features": features, "labels": labels, "edges": edges},
        "minesweeper": {"node_features": features, "node_labels": labels % 2, "edges": edges}
        | {f"{part}_masks": masks == k for k, part in enumerate(("train", "val", "test"))},
    }
    for name, held in arrays.items():
        content = io.BytesIO()
        np.savez(content, **held)
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content.getvalue())
        entry = order_graphs.OrderGraph(path.name, hashlib.sha256(content.getvalue()).hexdigest(), name != "airport")
        monkeypatch.setitem(order_graphs.ORDER_GRAPHS, name, entry)
    monkeypatch.setitem(order_graphs.ORDER_GRAPHS, "airport-overlapping", order_graphs.ORDER_GRAPHS["airport"])
    graph_training.graph_of.cache_clear()
    yield tmp_path
    graph_training.graph_of.cache_clear()


def parts(data):
    return [m.nonzero()[:, 0].tolist() for m in (data.train_mask, data.val_mask, data.test_mask)]


def test_airport_has_degrees_beside_its_features_and_splits_by_seed(files):
    data = load_graph("Airport", files, seed=3)
    assert data.x.shape == (NODES, 4 + 6 + 1)
    degree = torch.bincount(data.edge_index[0], minlength=NODES)
    assert (data.x[:, 4:10].argmax(1) == degree.clamp(max=5)).all()
    found = parts(data)
    assert [len(p) for p in found] == [42, 9, 9]
    assert sorted(found[0] + found[1] + found[2]) == list(range(NODES)), "a node is in one part"
    assert parts(set_random_split(data, 4)) != found
    assert parts(set_random_split(data, 3)) == found
    published = load_graph("airport-overlapping", files)
    assert bool((published.train_mask & published.test_mask).any()), "as in the published code"
    with pytest.raises(InputError, match="tolokers is not in the data folder"):
        load_graph("tolokers", files)


def test_splits_of_several_sizes_are_judged_side_by_side_as_one_by_one(files):
    s = FROND["minesweeper"].__class__(8, 2.0, 1.0, 0.02, 0.0, 0.0, 0.0, 2, epochs=8)
    together = graph_training.train_splits("minesweeper", s, [0, 1, 2], root=str(files))
    for row in together:
        (alone,) = graph_training.train_splits("minesweeper", s, [row["seed"]], root=str(files))
        assert {k: row[k] for k in ("val", "test", "epoch")} == {k: alone[k] for k in ("val", "test", "epoch")}
    assert reported_seeds("minesweeper") == tuple(range(10))
    assert reported_seeds("airport") == reported_seeds("cora") == (123, 124, 126, 129, 133, 138, 144, 151, 159, 168)


def test_area_under_the_curve_counts_pairs():
    torch.manual_seed(0)
    score, labels = torch.randint(0, 5, (2, 30)).float(), torch.randint(0, 2, (2, 30))
    labels[0, :4] = graph_training.NONE
    found = graph_training.area_under_curve(torch.stack([0 * score, score], 2), labels)
    for member in range(2):
        one, zero = (score[member][labels[member] == c] for c in (1, 0))
        pairs = one[:, None] - zero[None]
        assert float(found[member]) == pytest.approx(float(((pairs > 0) + 0.5 * (pairs == 0)).mean()))


def test_every_kind_of_order_has_the_same_search():
    assert drawn("chameleon") == drawn("chameleon")
    case = OrderCase("chameleon", {"explore": 1e12, "final": 1e12})
    answer = {"seconds": 1.0}
    for k in range(3 * len(KINDS) + 1):  # of the fourth settings one kind only
        job = case.next()
        case.running += 1
        rows = [{"val": float(k), "order": 0.5, "epoch": 1, "seed": s} for _ in job.settings for s in job.seeds]
        assert job.seeds == CHOOSE
        assert case.take(job, answer | {"rows": rows})["val"] == k
    case.pending = [replace(job, until=0.0) for job in case.pending]
    third = drawn("chameleon")[2][0]
    final = [case.next() for _ in KINDS]
    assert [(j.stage, j.track) for j in final] == [("final", kind) for kind in KINDS]
    assert all(j.settings[0].lr == third.lr and j.settings[0].t == third.t for j in final), "not the fourth"
    assert [j.settings[0].order for j in final] == list(KINDS.values())


def test_airport_is_searched_with_its_features_as_they_are_and_as_waves():
    groups = drawn("airport")
    assert groups[:2] == [(replace(FROND["airport"], waves=w),) for w in (0.0, 10.0)]
    assert all(s.waves > 0 for g in groups[1:] for s in g)
    first = OrderCase("airport", {"explore": 1e12, "final": 1e12}).next()
    assert (first.seeds, first.settings[0].epochs) == (CHOOSE[:2], 120)


def test_waves_stand_for_numbers_and_leave_marks_alone(files):
    x = load_graph("airport", files).x
    found = random_waves(x, 5.0)
    assert found.shape == (NODES, 4 + 2 * 4 * WAVES + 6 + 1)
    numbers, waves, marks = found.split([4, 8 * WAVES, 7], 1)
    torch.testing.assert_close(numbers.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(numbers.std(0), torch.ones(4))
    assert torch.equal(marks, x[:, 4:])
    sines, cosines = waves.chunk(2, 1)
    torch.testing.assert_close(sines**2 + cosines**2, torch.ones(NODES, 4 * WAVES))
    first = x[:, 0].argsort()  # a wave is a function of one number alone: equal numbers have equal waves
    twin = x.clone()
    twin[first[1], 0] = twin[first[0], 0]
    again = random_waves(twin, 5.0)[:, 4 : 4 + WAVES]
    assert torch.equal(again[first[1]], again[first[0]])
    assert torch.equal(found, random_waves(x, 5.0)), "drawn once and for all"


def test_a_training_takes_waves_in_place_of_the_features(files):
    s = FROND["airport"].__class__(8, 2.0, 1.0, 0.02, 0.0, 0.0, 0.0, 2, epochs=3, waves=5.0)
    data = graph_training.graph_of("airport", str(files), "cpu", waves=5.0)
    assert torch.equal(data.x, random_waves(graph_training.graph_of("airport", str(files), "cpu").x, 5.0))
    rows = graph_training.train_splits("airport", s, [0, 1], root=str(files))
    assert [row["seed"] for row in rows] == [0, 1]


def test_the_first_settings_may_take_longer_and_where_none_ended_the_published_ones_are_reported():
    now = time.time()
    case = OrderCase("airport", {"explore": now - 1, "final": now + 100})
    first = [case.next() for _ in KINDS]
    assert [(j.stage, j.track) for j in first] == [("explore", kind) for kind in KINDS]
    final = [case.next() for _ in KINDS]
    assert [(j.stage, j.track) for j in final] == [("final", kind) for kind in KINDS]
    assert all(j.settings[0].hidden == FROND["airport"].hidden for j in final)


def test_changes_asked_for_are_tried_first_with_the_best_known():
    known = [replace(FROND["photo"], lr=lr, epochs=0, patience=0) for lr in (0.01, 0.02)]
    changes = [{"average": 0.9}, {"weight_decay": 0.5, "rows": True}, {"rows": True}]
    case = Case("photo", "l", {"explore": time.time() + 100}, explored=("plain",), width=1, changes=changes, apart=True)
    case.found = {s: {100: s.lr} for s in known}
    first, second, third, fourth = (case.explore().settings[0] for _ in range(4))
    best = replace(known[1], epochs=first.epochs, patience=first.patience)
    assert first == replace(best, average=0.9)
    assert second == replace(best, weight_decay=0.5, rows=True), "a decay that is asked for is taken as it is"
    assert third == replace(best, weight_decay=third.weight_decay, rows=True)
    assert third.weight_decay == pytest.approx(best.weight_decay / 10), "others go with the size of the features"
    assert (fourth.rows, fourth.average) == (False, 0.0), "then what is always tried"


def test_half_of_the_validation_nodes_judges_what_the_other_half_chose():
    lucky = torch.zeros(2, 400, dtype=torch.bool)
    lucky[0, ::2] = True
    lucky[1] = lucky[0].roll(1)  # as good, on other nodes
    found = graph_filter.judged(lucky, 0)
    assert (found["best"], found["after"], found["epoch"]) == (50.0, 50.0, 1)
    assert found["other"] <= 50.0, "the luck of one half is not that of the other"
    lucky[1] = True
    assert graph_filter.judged(lucky, 0) == {"best": 100.0, "other": 100.0, "after": 100.0, "epoch": 2}


class Instant:
    """Workers that answer at once: the validation accuracy is the learning rate's, the test accuracy says nothing."""

    def __init__(self):
        self.idle, self.given = [None], []

    def give(self, job):
        self.idle.pop()
        self.given.append(job)

    def answers(self, seconds):
        time.sleep(0.002)
        if self.idle:
            return
        job = self.given[-1]
        self.idle.append(None)
        common = {"test": 50.0, "order": 0.5, "epoch": 1}
        rows = [{"seed": seed, "val": s.lr, **common} for s in job.settings for seed in job.seeds]
        yield job, {"seconds": 0.01, "rows": rows}


def test_a_search_goes_through_its_stages_and_chooses_by_validation(tmp_path):
    args = {
        "data": "",
        "device": "cuda",
        "minutes": 0.2,
        "width": 3,
        "finalists": FINALISTS,
        "known": [],
        "settled": "",
        "explore": 0.05,
        "changes": ["average=0.9,idf=true"],
    }
    args |= {"tracks": "plain,agree", "explored": "plain,agree", "stages": "explore,final,other,done"}
    workers, out = Instant(), graphs_search.Results(tmp_path / "search.json", {})
    given = argparse.Namespace(**args, cases="photo:l,airport:order")
    graphs_search.search(given, workers, out, time.time())
    first = next(j for j in workers.given if j.dataset == "photo").settings[0]
    assert (first.batch_norm, first.attention, first.consistency) == (True, "pearson", 0.0), "FROND's"
    final = [j for j in workers.given if j.dataset == "photo" and j.stage in ("final", "other")]
    stages = [("final", "plain")] * FINALISTS + [("other", "agree")] * FINALISTS
    assert [(j.stage, j.track) for j in final] == stages
    assert {j.seeds for j in final} == {reported_seeds("photo")}
    tried = [s for j in workers.given if j.stage == "explore" and j.track == "plain" for s in j.settings]
    assert final[0].settings[0].lr == max(s.lr for s in tried)
    assert (final[0].settings[0].epochs, final[0].settings[0].patience) == (400, 100)
    reported = [r for r in out.rows if "test" in r]
    assert sorted(r["track"] for r in reported) == [
        "0.5",
        "1",
        *["agree"] * FINALISTS,
        "learned",
        *["plain"] * FINALISTS,
    ]
    assert "photo l" in graphs_search.table(out.rows)
