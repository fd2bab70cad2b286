"""The graph experiments on a tiny synthetic graph; on Cora where its files are; on two processes."""

import math
import os
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp

from neuralfde.cli.experiment import FolderReport
from neuralfde.errors import InputError
from neuralfde.models.graph import FGrand
from neuralfde.models.message_passing import Graph
from neuralfde_experiments import graph_cost, graph_training, graphs
from neuralfde_experiments.data.graphs import principal, rare_words
from neuralfde_experiments.data.samplers import NodeSampler
from neuralfde_experiments.graph_ensemble import drop
from neuralfde_experiments.graph_sampled import accuracies, train_epoch
from neuralfde_experiments.graph_settings import PAPER, candidates, canonical, settings_for
from neuralfde_experiments.graph_synthetic import GraphSize, synthetic_graph
from neuralfde_experiments.processes import Processes

TINY = GraphSize(1700, 5000, 12, 3, 0.5, 0.2, 0.9)
QUICK = {"t": 2.0, "step": 1.0, "hidden": 8, "heads": 2, "epochs": 12, "lr": 0.02, "evaluate_every": 3}


@pytest.fixture
def tiny(monkeypatch):
    """A synthetic graph under Cora's name, so that random splits are drawn on it."""

    def load(name, root=None):
        data = synthetic_graph(TINY)
        data.name = name
        return data

    monkeypatch.setattr(graph_training, "named_graph", load)
    graph_training.graph_of.cache_clear()
    yield
    graph_training.graph_of.cache_clear()


@pytest.mark.parametrize("variant", ["l", "nl"])
def test_a_run_chooses_the_order_and_reports_every_split(tiny, variant):
    config = graphs.Config(variant=variant, seeds=3, orders="0.6,1.0", choose_on=2, device="cpu", **QUICK)
    rows = {r["case"]: r for r in graphs.run(config)}
    chosen = rows["chosen order"]["order"]
    assert chosen == max((0.6, 1.0), key=lambda o: rows["chosen order"][f"val at {o:g}"])
    splits = [rows[f"order {chosen:g}, seed {s}"] for s in (123, 124, 126)]
    summary = rows["summary"]
    assert summary["test"] == pytest.approx(sum(r["test"] for r in splits) / 3, abs=0.01)
    assert summary["test"] > 60
    assert summary["paper"] == (85.0 if variant == "l" else 82.6)


def test_choices_do_not_look_at_the_test_nodes(tiny, monkeypatch):
    config = graphs.Config(seeds=2, orders="0.6,1.0", tune=1, device="cpu", **QUICK)
    honest = {r["case"]: r for r in graphs.run(config)}
    real = graph_training.evaluate

    def misleading(*args):
        marks = real(*args)
        marks[:, 2] = 1 - marks[:, 2]
        return marks

    monkeypatch.setattr(graph_training, "evaluate", misleading)
    misled = {r["case"]: r for r in graphs.run(config)}
    assert honest["chosen order"] == misled["chosen order"]
    assert honest["chosen settings"] == misled["chosen settings"]
    assert honest["summary"]["val"] == misled["summary"]["val"]
    assert honest["summary"]["test"] + misled["summary"]["test"] == pytest.approx(100, abs=0.02)


def test_side_by_side_is_one_by_one(tiny):
    s = settings_for(
        "cora", **{k: v for k, v in QUICK.items() if k != "evaluate_every"}, input_dropout=0.0, dropout=0.0
    )
    together = graph_training.train_splits("cora", s, [0, 1, 2])
    alone = [graph_training.train_splits("cora", s, [k])[0] for k in range(3)]
    for a, b in zip(together, alone, strict=True):
        assert a["val"] == pytest.approx(b["val"], abs=0.5)
        assert a["test"] == pytest.approx(b["test"], abs=0.5)


def test_one_model_on_a_cpu_is_solved_by_powers_with_the_same_gradients(tiny):
    quick = {k: v for k, v in QUICK.items() if k != "evaluate_every"}
    s = settings_for("cora", **quick, input_dropout=0.0, dropout=0.0)
    found = []
    for adjoint in ("exact", "direct"):
        training = graph_training.Training("cora", s, [0], [s], adjoint=adjoint)
        assert training.model.powers == (adjoint == "exact")
        training.optimiser.step = lambda: None
        training.update()
        found.append({name: p.grad for name, p in training.model.named_parameters()})
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-6)
    assert not graph_training.Training("cora", replace(s, step=2.0), [0], [s]).model.powers, "no promise of stability"


def test_settings_side_by_side_are_each_ones_own(tiny):
    """Members with their own order, rate, decay and dropout train as they do alone; dropout is drawn anew."""
    quick = {k: v for k, v in QUICK.items() if k != "evaluate_every"}
    s = settings_for("cora", **quick, input_dropout=0.0, dropout=0.0)
    each = [s, replace(s, lr=0.005, weight_decay=0.05, order=0.6), replace(s, attention_decay=0.1, dropout=0.5)]
    together = graph_training.train_splits("cora", s, [0, 0, 0], each=each)
    alone = [graph_training.train_splits("cora", own, [0])[0] for own in each]
    for a, b, close in zip(together, alone, (0.5, 0.5, 8), strict=True):
        assert a["order"] == b["order"]
        assert a["val"] == pytest.approx(b["val"], abs=close)
    assert together[1]["val"] != together[0]["val"]


def test_draws_of_dropout_are_asked_to_agree(tiny):
    """The loss has the distance of each draw from the sharpened mean; without dropout the draws are the same."""
    quick = {k: v for k, v in QUICK.items() if k != "evaluate_every"}
    s = settings_for("cora", **quick, input_dropout=0.5, dropout=0.5, consistency=1.0)
    kinds = ("cora", s, [0, 1], [s, replace(s, consistency=0.0)], "l", "exact", False, "cpu", None)
    training = graph_training.Training(*kinds)
    gradients = []
    for ramp in (0.0, 1.0):
        torch.manual_seed(0)
        training.ramp.fill_(ramp)
        training.optimiser.step = lambda: None
        training.update()
        gradients.append(training.model.decoder.grad.clone())
    changed = (gradients[0] != gradients[1]).flatten(1).any(1)
    assert changed.tolist() == [True, False]
    rows = graph_training.train_splits("cora", s, [0])
    assert rows[0]["val"] > 60


def test_training_ends_when_time_is_over(tiny):
    s = settings_for("cora", **{k: v for k, v in QUICK.items() if k != "evaluate_every"} | {"epochs": 100})
    rows = graph_training.train_splits("cora", s, [0], until=0.0)
    assert rows[0]["epoch"] <= 4


def test_features_may_add_up_to_one(tiny):
    x = graph_training.graph_of("cora", None, "cpu", True).x
    assert not torch.equal(x.to_dense(), graph_training.graph_of("cora", None, "cpu").x.to_dense())


def test_rare_words_count_more_and_the_mean_square_stays():
    x = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = rare_words(x)
    assert torch.equal(found == 0, x == 0)
    assert float(found[0, 1] / found[0, 0]) == pytest.approx(math.log(4) / math.log(4 / 3))
    assert float(found.square().mean()) == pytest.approx(float(x.square().mean()))


def test_principal_components_are_those_of_the_singular_values():
    x = torch.randn(60, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -3, 30)
    state = torch.random.get_rng_state()
    found = principal(x, 4)
    assert torch.equal(torch.random.get_rng_state(), state), "drawn aside"
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    torch.testing.assert_close(found @ found.mT, (u * s)[:, :4] @ (u * s)[:, :4].mT, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(principal(x.to_sparse(), 4), found, rtol=1e-3, atol=1e-3)


def test_a_training_takes_components_in_place_of_the_features(tiny):
    s = settings_for("cora", **{k: v for k, v in QUICK.items() if k != "evaluate_every"}, components=3, idf=True)
    training = graph_training.Training("cora", s, [0], [s])
    assert training.data.x.shape == (len(training.data.y), 3)
    assert training.model.encoder.in_features == 3


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_a_steady_rate_is_not_learned(tiny, seeds):
    s = settings_for("cora", **{k: v for k, v in QUICK.items() if k != "evaluate_every"}, steady=True)
    for steady in (True, False):
        own = replace(s, steady=steady)
        training = graph_training.Training("cora", own, seeds, [own] * len(seeds))
        training.update()
        assert bool((training.model.block.func.a == 0).all()) == steady


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_the_mean_of_the_weights_is_evaluated_and_training_stays_the_same(tiny, seeds):
    quick = {k: v for k, v in QUICK.items() if k != "evaluate_every"}
    s = settings_for("cora", **quick, input_dropout=0.0, dropout=0.0, batch_norm=True)
    found = {}
    for average in (0.0, 0.5, 0.9):
        own = replace(s, average=average)
        training = graph_training.Training("cora", own, seeds, [own] * len(seeds))
        weights = []
        training.update = lambda update=training.update, t=training, w=weights: (
            update(),
            w.append(t.model.decoder_bias.clone() if len(seeds) > 1 else t.model.decoder.bias.clone()),
        )
        training.fit(1, math.inf)
        found[average] = weights, training
    for average in (0.5, 0.9):
        weights, training = found[average]
        torch.testing.assert_close(weights, found[0.0][0], rtol=1e-4, atol=1e-5)
        mean = weights[0]
        for k, new in enumerate(weights[1:], 1):
            mean = torch.lerp(mean, new, max(1 - average, graph_training.RECENT / (k + graph_training.RECENT)))
        own = training.mean.module
        torch.testing.assert_close(own.decoder_bias if len(seeds) > 1 else own.decoder.bias, mean)
        torch.testing.assert_close(
            training.mark, graph_training.evaluate(own, training.data, training.masks), rtol=0, atol=0
        )


def test_dropout_with_a_probability_for_each_member():
    x = torch.ones(3, 4000)
    dropped = drop(x, torch.tensor([0.0, 0.5, 0.8]), True)
    assert torch.equal(drop(x, torch.tensor([0.1, 0.2, 0.3]), False), x)
    assert torch.equal(dropped[0], x[0])
    torch.testing.assert_close(
        (dropped == 0).double().mean(1), torch.tensor([0.0, 0.5, 0.8]).double(), atol=0.04, rtol=0
    )
    torch.testing.assert_close(dropped.amax(1), torch.tensor([1.0, 2.0, 5.0]))


def test_the_order_can_be_learned(tiny):
    rows = graphs.run(graphs.Config(seeds=1, order=0.7, learn_order=True, device="cpu", **QUICK))
    assert rows[-1]["learned"]
    assert rows[0]["order"] != 0.7


def test_a_run_goes_on_where_it_stopped(tiny, tmp_path, monkeypatch):
    config = graphs.Config(seeds=2, order=0.8, together=1, device="cpu", **QUICK)
    first = FolderReport(tmp_path, "graphs", config)
    graphs.run(config, first)
    first.finish("interrupted")
    monkeypatch.setattr(graphs, "train_splits", lambda *a, **k: pytest.fail("trained again"))
    again = graphs.run(config, FolderReport(tmp_path, "graphs", config, resume=True))
    assert again[-1]["test"] == first.rows[-1]["test"]


def test_settings_are_the_papers_table():
    assert (PAPER["cora"].hidden, PAPER["cora"].t, PAPER["cora"].step, PAPER["cora"].lr) == (80, 4.0, 0.2, 0.005)
    assert canonical("CoauthorCS") == canonical("CS") == "coauthor-cs"
    assert settings_for("Physics", dropout=0.1).dropout == 0.1
    assert settings_for("cora", variant="nl") == PAPER["cora"]
    assert settings_for("photo", "tuned", "nl").heads == 2
    assert settings_for("photo", "tuned", "nl", consistency=0.0).consistency == 0
    assert candidates(PAPER["cora"], 5, 1) == candidates(PAPER["cora"], 5, 1)
    with pytest.raises(InputError, match="heads=3 does not divide"):
        settings_for("cora", heads=3)
    with pytest.raises(InputError, match="'coraa' has no settings"):
        settings_for("coraa")
    with pytest.raises(InputError, match="settings='mine'"):
        settings_for("cora", "mine")
    with pytest.raises(InputError, match="Use choose_from=169"):
        graphs.run(graphs.Config(seeds=10, choose_from=125))
    with pytest.raises(InputError, match="at least 1"):
        graphs.run(graphs.Config(seeds=0))


def test_cost_rows_and_the_papers_beside_them():
    small = {"repeats": 1, "hidden": 8, "heads": 2, "t": 3.0, "device": "cpu", "variants": "l", "columns": 4}
    rows = graph_cost.run(graph_cost.Config(scale=0.005, **small))
    measured = [r for r in rows if r["source"] == "measured"]
    assert [r["adjoint"] for r in measured] == ["direct", "exact", "exact+columns", "exact+recompute", "paper"]
    assert all(r["training_s"] > 0 and "synthetic" in r["graph"] for r in measured)
    assert sum(r["source"] == "paper" for r in rows) == 2
    rows = graph_cost.run(
        graph_cost.Config(graph="products", scale=0.001, batches="300,600", largest="exact", adjoints="exact", **small)
    )
    assert [r["nodes"] for r in rows if "nodes" in r] == [300, 600]
    with pytest.raises(InputError, match="'arxiv', 'products'"):
        graph_cost.run(graph_cost.Config(graph="paper"))
    with pytest.raises(InputError, match="there is no 'rows'"):
        graph_cost.run(graph_cost.Config(scale=0.005, adjoints="exact+rows", **small))


@pytest.mark.parametrize("fails", [False, True])
def test_a_row_leaves_nothing_behind(monkeypatch, fails):
    """Neither the model nor what it was trained on outlives the row, or later rows would count it as theirs."""
    made, real = [], graph_cost.model_of

    def watched(*args):
        model = real(*args)
        made.extend(weakref.ref(p) for p in model.parameters())
        return model

    def graph_made(*args):
        graph = Graph.from_edge_index(*args)
        made.append(weakref.ref(graph))
        return graph

    def no_memory(*args):
        raise RuntimeError("out of memory")

    if fails:
        monkeypatch.setattr(graph_cost, "F", SimpleNamespace(cross_entropy=no_memory))
    monkeypatch.setattr(graph_cost, "model_of", watched)
    monkeypatch.setattr(graph_cost, "Graph", SimpleNamespace(from_edge_index=graph_made))
    small = {"repeats": 1, "hidden": 8, "heads": 2, "t": 3.0, "device": "cpu", "columns": 4, "scale": 0.005}
    more = "direct,exact+replay,exact+blocks+states,exact+recompute+host,exact+attention"
    rows = graph_cost.run(graph_cost.Config(adjoints=more, **small))
    assert len(made) > 20
    assert all(ref() is None for ref in made)
    assert all(("failed" in r) == fails for r in rows if r["source"] == "measured")
    assert fails or all(r["kept_mib"] == 0 for r in rows if r["source"] == "measured")


def test_a_row_that_fails_does_not_stop_the_others(monkeypatch):
    monkeypatch.setattr(graph_cost, "measure", lambda *a: (_ for _ in ()).throw(RuntimeError("out of memory")))
    config = graph_cost.Config(scale=0.005, variants="l", device="cpu")
    assert [r.get("failed") for r in graph_cost.run(config)[:4]] == ["out of memory"] * 4


@pytest.mark.parametrize("pairs", [0.0, 1e-6, 1e-5])
@pytest.mark.parametrize("limit", [5, 900, 1000, 2500, 39_000, 99_000, 1_000_000])
def test_the_largest_size_is_found_to_a_twentieth(limit, pairs):
    asked, cap = [], 30 + limit + pairs * limit**2

    def peak(size):
        asked.append(size)
        return 30 + size + pairs * size**2 if size <= limit else None

    best, mib = graph_cost.largest_that(peak, cap, 1000, 100_000)
    assert min(limit, 100_000) / 1.05 <= best + 1 <= min(limit, 100_000) + 1
    assert mib == 30 + best + pairs * best**2
    assert len(asked) == len(set(asked)) <= 13
    assert graph_cost.largest_that(lambda size: None, cap, 1000, 100_000) == (0, 0.0)


def test_the_largest_batch_is_looked_for_under_a_cap(monkeypatch):
    caps = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**33))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: caps.append(share))

    def attempt(config, data, variant, adjoint, device, cap):
        return {"failed": "out of memory"} if data.num_nodes > 1500 else {"training_mib": data.num_nodes / 2}

    monkeypatch.setattr(graph_cost, "_attempt", attempt)
    config = graph_cost.Config(graph="products", scale=0.001, cap_gib=1.0)
    draw = graph_cost._batches(config, graph_cost.whole_graph("products", 0.001, 0))
    row = graph_cost.largest_batch(config, draw, "l", "exact", torch.device("cuda"))
    assert 1500 / 1.05 <= row["largest"] <= 1500
    assert row["training_mib"] == row["largest"] / 2
    assert row["cap_gib"] == 1.0
    assert set(caps) == {1.0}


def sampled_gradients(rank, world, port, out):
    """Gradients of the first step of two batches, dealt out to the processes."""
    torch.set_num_threads(1)
    if world > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    data, device = synthetic_graph(TINY), torch.device("cpu")
    data.x = data.x.double()
    torch.manual_seed(rank)  # other weights on every rank, until DDP spreads those of rank 0
    model = FGrand(12, 3, hidden=8, heads=2, variant="nl", t=2.0, step=1.0).double()
    wrapped = Processes(device, rank, world).wrap(model)
    sampler = NodeSampler(data, 200, batches=2, seed=3, rank=rank, world=world)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    loss = train_epoch(wrapped, sampler, optimiser, device, per_step=2)
    if rank == 0:
        torch.save(
            {"loss": loss, "steps": [b - p.detach() for b, p in zip(before, model.parameters(), strict=True)]}, out
        )
    if world > 1:
        torch.distributed.destroy_process_group()
        time.sleep(0.5)  # gloo's threads still let go of tensors, which aborts a process that is already ending


def test_two_processes_have_the_gradient_of_one(tmp_path):
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sampled_gradients(0, 1, port, tmp_path / "one.pt")
    mp.spawn(sampled_gradients, args=(2, port, tmp_path / "two.pt"), nprocs=2)
    one, two = (torch.load(tmp_path / f"{n}.pt", weights_only=True) for n in ("one", "two"))
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-12)
    for a, b in zip(one["steps"], two["steps"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert max(a.abs().max() for a in one["steps"]) > 0


def test_sampled_training_learns_and_refuses_uneven_shares():
    data, device = synthetic_graph(TINY), torch.device("cpu")
    torch.manual_seed(0)
    model = FGrand(12, 3, hidden=8, heads=2, t=2.0, step=1.0)
    sampler, optimiser = NodeSampler(data, 400, batches=4), torch.optim.Adam(model.parameters(), lr=0.02)
    losses = [train_epoch(model, sampler, optimiser, device) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert accuracies(model, sampler, device, 600)["test"] > 0.6
    with pytest.raises(InputError, match="per_step=3"):
        train_epoch(model, sampler, optimiser, device, per_step=3)


@pytest.mark.skipif("NEURALFDE_DATA" not in os.environ, reason="NEURALFDE_DATA names no data folder")
def test_a_short_run_on_cora():
    config = graphs.Config(dataset="Cora", settings="tuned", seeds=1, order=0.9, t=4.0, epochs=16, device="cpu")
    assert graphs.run(config)[-1]["test"] > 70
