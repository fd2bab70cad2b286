"""F-GRAND against a dense reference written with matrices, its gradients, and its manners as a module."""

import copy
import io
import math

import pytest
import torch
from torch_geometric.data import Data

from neuralfde.errors import InputError, InputTypeError, UnsupportedError
from neuralfde.models import softmax_attention
from neuralfde.models.graph import SCORES, FGrand
from neuralfde.models.message_passing import Graph, attention
from neuralfde_experiments.graph_ensemble import FGrandEnsemble


def small(nodes=9, features=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, nodes, (2, 20), generator=draw)
    x = torch.randn(nodes, features, generator=draw, dtype=torch.float64)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1))


def model(variant="l", seed=0, **options):
    torch.manual_seed(seed)
    chosen = {"hidden": 6, "heads": 2, "t": 2.0, "step": 0.5, "order": 0.7, **options}
    made = FGrand(5, 3, variant=variant, **chosen).double()
    with torch.no_grad():  # away from the start, where attention is uniform and the source is off
        for p in made.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    return made


def dense_attention(m, adjacency, z):
    att = m.attention if m.attention is not None else m.block.func.attention
    q, k = (lin(z).view(len(z), att.heads, -1) for lin in (att.query, att.key))
    if att.kind == "scaled_dot":
        s = torch.einsum("ihd,jhd->ijh", q, k) / math.sqrt(q.shape[2])
    elif att.kind == "cosine":
        s = torch.cosine_similarity(q[:, None], k[None], dim=3)
    elif att.kind == "pearson":
        q, k = (v - v.mean(2, keepdim=True) for v in (q, k))
        s = torch.cosine_similarity(q[:, None], k[None], dim=3)
    else:
        d = (q[:, None] - k[None]).square().sum(3)
        s = att.variance**2 * torch.exp(-d / (2 * att.lengthscale**2))
    mask, along = adjacency[..., None], 1 if att.over == "target" else 0
    if att.normalise == "softmax":
        return torch.softmax(s.masked_fill(~mask, -math.inf), along).mean(2)
    o = s - s[adjacency].max()
    p = (o + (o**2 + 4).sqrt()) / 2 * mask
    return (p / p.sum(along, keepdim=True)).mean(2)


def dense_model(m, data, held=False):
    """The predictor written as a sum over the whole past, with matrices of nodes × nodes."""
    n = len(data.x)
    adjacency = torch.eye(n, dtype=torch.bool) & m.loops
    adjacency[data.edge_index[1], data.edge_index[0]] = True
    f, beta, h = m.block.func, m.order, m.block.options["step"]
    z0 = m.encoder(data.x) if m.norm is None else m.norm(m.encoder(data.x))
    source = z0.detach() if held else z0
    fixed = dense_attention(m, adjacency, z0) if m.variant == "l" else None
    z, slopes = z0, []
    for k in range(1, round(m.block.t / h) + 1):
        a = dense_attention(m, adjacency, z) if fixed is None else fixed
        slopes.append(torch.sigmoid(f.a) * (a @ z - z) + (0.0 if f.b is None else f.b * source))
        w = [h**beta / torch.exp(torch.lgamma(beta + 1)) * ((k - j) ** beta - (k - j - 1) ** beta) for j in range(k)]
        z = z0 + sum(wj * v for wj, v in zip(w, slopes, strict=True))
    return m.decoder(torch.relu(z))


def gradients(m, out):
    seed = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    named = dict(m.named_parameters())
    found = torch.autograd.grad((out * seed).sum(), list(named.values()))
    return dict(zip(named, found, strict=True))


@pytest.mark.parametrize("over", ["target", "source"])
@pytest.mark.parametrize("normalise", ["softmax", "squareplus"])
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_forward_and_gradients_are_those_of_the_dense_model(variant, kind, normalise, over):
    data = small()
    data.edge_index = data.edge_index[:, :25]  # not symmetric: sources and targets are told apart
    m = model(variant, attention=kind, normalise=normalise, over=over, learn_order=True)
    out, expected = m(data), dense_model(m, data)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
    got, want = gradients(m, out), gradients(m, expected)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-10, msg=lambda s, n=name: f"{n}: {s}")


@pytest.mark.parametrize("adjoint", ["exact", "direct"])
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_a_source_may_be_held_fixed_and_attention_be_without_loops(variant, adjoint):
    data = small()
    ring = torch.arange(len(data.x))
    data.edge_index = torch.cat([data.edge_index[:, :10], torch.stack([ring, ring.roll(1)])], 1)
    m = model(variant, source="held", loops=False, adjoint=adjoint)
    out, expected = m(data), dense_model(m, data, held=True)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(FGrandEnsemble([m, m])(data)[1], out, rtol=1e-11, atol=1e-11)
    got, want = gradients(m, out), gradients(m, expected)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-10, msg=lambda s, n=name: f"{n}: {s}")
    with pytest.raises(InputError, match="loops=False needs an edge in and an edge out"):
        m(data.x, data.edge_index[:, :10])


@pytest.mark.parametrize("variant", ["l", "nl"])
def test_batch_norm_is_that_of_the_dense_model_and_of_an_ensemble(variant):
    data, members = small(), [model(variant, seed=k, batch_norm=True) for k in range(2)]
    together = FGrandEnsemble(members)
    found = together(data)
    for k, m in enumerate(members):
        out, expected = m(data), dense_model(m, data)
        torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(found[k], out, rtol=1e-11, atol=1e-11)
        got, want = gradients(m, m(data)), gradients(m, expected)
        torch.testing.assert_close(got["norm.weight"], want["norm.weight"], rtol=1e-9, atol=1e-10)
    fresh = model(variant, seed=1, batch_norm=True)
    fresh(data)  # one pass, as the ensemble
    torch.testing.assert_close(together.eval()(data)[1], fresh.eval()(data), rtol=1e-11, atol=1e-11)
    with pytest.raises(InputError, match="batch_norm counts"):
        model("l", batch_norm=True, recompute=True)


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_exact_adjoint_is_direct_differentiation(variant, source):
    data = small()
    exact, direct = (
        gradients(m, m(data)) for m in (model(variant, adjoint=a, source=source) for a in ("exact", "direct"))
    )
    for name in direct:
        torch.testing.assert_close(exact[name], direct[name], rtol=1e-10, atol=1e-10)
        assert exact[name].abs().max() > 0


@pytest.mark.parametrize("variant", ["l", "nl"])
def test_attention_starts_as_an_average_and_rows_add_to_one(variant):
    data, m = small(), FGrand(5, 3, hidden=6, heads=2, variant=variant, start="average").double()
    graph = Graph.from_edge_index(data.edge_index, len(data.x))
    att = m.attention if variant == "l" else m.block.func.attention
    with torch.no_grad():
        att.query.bias.zero_()
        weight = att(graph, m.encoder(data.x))
    degree = torch.bincount(graph.row)
    torch.testing.assert_close(weight, 1.0 / degree[graph.row.long()].double(), rtol=1e-4, atol=0)


def attention_of(m):
    return m.attention if m.variant == "l" else m.block.func.attention


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_attention_learns_from_its_start(variant, kind):
    """Fresh weights: the gradient of every attention map is that of direct differentiation, not zero, and moves it."""
    data, found = small(), []
    for adjoint in ("exact", "direct"):
        torch.manual_seed(0)
        m = FGrand(5, 3, hidden=6, heads=2, variant=variant, attention=kind, adjoint=adjoint).double()
        found.append({name: p.grad for name, p in attention_of(m).named_parameters() if _backward(m, data)})
    for name, grad in found[1].items():
        torch.testing.assert_close(found[0][name], grad, rtol=1e-9, atol=1e-13)
    for name in ("query.weight", "key.weight"):
        assert found[0][name].abs().max() > 1e-5
    graph, optimiser = m.prepare(data.edge_index, 9), torch.optim.Adam(m.parameters(), lr=0.02)
    before = attention_of(m)(graph, m.encode(data.x, m.encoder.weight, m.encoder.bias)).detach()
    for _ in range(20):
        optimiser.zero_grad()
        _backward(m, data)
        optimiser.step()
    assert (attention_of(m)(graph, m.encode(data.x, m.encoder.weight, m.encoder.bias)) - before).abs().max() > 0.05


def _backward(m, data):
    out = m(data)
    torch.nn.functional.cross_entropy(out, torch.arange(len(out)) % 3).backward()
    return True


def test_calls_of_torch_geometric():
    data, m = small(), model()
    out = m(data)
    torch.testing.assert_close(m(data.x, data.edge_index), out)
    torch.testing.assert_close(m(data.x, Graph.from_edge_index(data.edge_index, 9)), out)
    assert m.prepare(data.edge_index, 9) is m.prepare(data.edge_index, 9)
    kept = m.prepare(data.edge_index, 9)
    data.edge_index[0, 0] = 8
    assert m.prepare(data.edge_index, 9) is not kept
    with torch.inference_mode():
        assert m(data.x, data.edge_index.clone()).shape == (9, 3)


def test_sparse_features_are_the_same_features():
    data, m = small(), model()
    data.x[data.x.abs() < 0.5] = 0.0
    data.x[4] = 0.0
    dense, sparse = m(data), m(Data(x=data.x.to_sparse(), edge_index=data.edge_index))
    torch.testing.assert_close(sparse, dense, rtol=1e-12, atol=1e-12)
    got, want = gradients(m, sparse), gradients(m, dense)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-10, atol=1e-11)


def test_sparse_features_that_were_written_to_are_other_features():
    data, m = small(), model()
    x = data.x.to_sparse().coalesce()
    m(x, data.edge_index)
    for write in (lambda: x.values().mul_(2), lambda: x.mul_(2)):
        write()
        torch.testing.assert_close(m(x, data.edge_index), m(x.to_dense(), data.edge_index))
    x = data.x.to_sparse().requires_grad_()
    first, second = (torch.autograd.grad(m(x, data.edge_index).sum(), x)[0] for _ in range(2))
    torch.testing.assert_close(first.to_dense(), second.to_dense())
    with pytest.raises(InputError, match="to_dense"):
        model(recompute=True)(x, data.edge_index)


def test_copies_and_files_leave_the_graph_behind():
    data, m = small(), model()
    out = m(data)
    torch.testing.assert_close(copy.deepcopy(m)(data), out)
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    other = model(seed=5)
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    torch.testing.assert_close(other(data), out)
    assert copy.deepcopy(m)._prepared.last is None


def test_dropout_only_in_training():
    data, m = small(), model(input_dropout=0.5, dropout=0.5)
    assert not torch.equal(m(data), m(data))
    m.eval()
    torch.testing.assert_close(m(data), m(data))


def test_dropped_nodes_lose_all_their_features():
    data, m = small(nodes=200), model(node_dropout=0.25)
    torch.manual_seed(0)
    left = m.drop(data.x)
    gone = (left == 0).all(1)
    assert 20 < gone.sum() < 80
    torch.testing.assert_close(left[~gone], data.x[~gone] / 0.75)
    torch.manual_seed(0)
    maps = m.encoder.weight, m.encoder.bias
    torch.testing.assert_close(m.encode(m.drop(data.x.to_sparse()), *maps), m.encode(left, *maps))
    assert m.eval().drop(data.x) is data.x


def test_members_of_an_ensemble_drop_nodes_of_their_own():
    data = small(nodes=200)
    one, other = FGrandEnsemble([model(seed=0, node_dropout=0.25), model(seed=0, node_dropout=0.25)]).encode(data.x)
    gone = [(z == model().encoder.bias).all(1) for z in (one, other)]
    assert all(20 < g.sum() < 80 for g in gone)
    assert not torch.equal(*gone)


def test_what_is_computed_again_is_dropped_again():
    found = []
    for recompute in (False, True):
        m = model(recompute=recompute, input_dropout=0.3, node_dropout=0.2, dropout=0.4)
        torch.manual_seed(1)
        found.append(squared_gradients(m, small()))
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-12)


def test_refusals_say_what_to_do():
    with pytest.raises(InputError, match="keep_attention='some'"):
        FGrand(5, 3, variant="nl", keep_attention="some")
    with pytest.raises(InputError, match="source='fixed'"):
        FGrand(5, 3, source="fixed")
    with pytest.raises(InputError, match="variant='nll'"):
        FGrand(5, 3, variant="nll")
    with pytest.raises(InputError, match="attention='dot'"):
        FGrand(5, 3, attention="dot")
    with pytest.raises(InputError, match="start='uniform'"):
        FGrand(5, 3, hidden=8, start="uniform")
    with pytest.raises(InputError, match="over='row'"):
        FGrand(5, 3, hidden=8, over="row")
    with pytest.raises(InputError, match="heads=4 does not divide"):
        FGrand(5, 3, hidden=6, heads=4)
    with pytest.raises(InputTypeError, match=r"model\(x, edge_index\)"):
        model()(small().x)
    with pytest.raises(InputError, match="9 nodes, x has 3"):
        model()(small().x[:3], Graph.from_edge_index(small().edge_index, 9))

    for name, wrong in {"hidden": 0, "classes": 0, "heads": 2.0, "columns": 0}.items():
        with pytest.raises((InputError, InputTypeError), match=f"{name}={wrong} must be"):
            FGrand(**{"in_features": 5, "classes": 3, name: wrong})
    with pytest.raises(InputError, match=r"dropout=2\.0 must be a share"):
        FGrand(5, 3, dropout=2.0)
    with pytest.raises(InputTypeError, match="decoder takes the state at this time"):
        FGrand(5, 3, t=torch.linspace(0, 4, 5))


def test_features_that_a_model_was_not_made_for_are_refused():
    data, m = small(), model()
    for x in (data.x[:, :4], data.x[0], data.x[None]):
        with pytest.raises(InputError, match=r"must be \(nodes, 5\)"):
            m(x, data.edge_index)
    for x in (data.x.float(), data.x.long()):
        with pytest.raises(InputTypeError, match="convert one"):
            m(x, data.edge_index)


@pytest.mark.parametrize("variant", ["l", "nl"])
def test_what_needs_every_operation_is_refused(variant):
    data, m = small(), model(variant)
    params = {name: p.detach() for name, p in m.named_parameters()}
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda p: torch.func.functional_call(m, p, (data.x, data.edge_index)).sum())(params)
    with pytest.raises(UnsupportedError, match=r"torch\.export"):
        torch.export.export(m, (data.x, data.edge_index))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_a_compiler_leaves_it_alone(variant):
    data, m = small(), model(variant)
    torch.testing.assert_close(torch.compile(m, backend="eager")(data.x, data.edge_index), m(data.x, data.edge_index))


@pytest.mark.parametrize("over", ["target", "source", "both"])
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_an_ensemble_is_its_members_side_by_side(variant, kind, over):
    data = small()
    members = [model(variant, seed=k, attention=kind, normalise="squareplus", over=over) for k in range(3)]
    together = FGrandEnsemble(members)
    out, alone = together(data), torch.stack([m(data) for m in members])
    torch.testing.assert_close(out, alone, rtol=1e-12, atol=1e-12)
    sparse = Data(x=data.x.to_sparse(), edge_index=data.edge_index)
    torch.testing.assert_close(together(sparse), out, rtol=1e-12, atol=1e-12)
    seed = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * seed).sum().backward()
    (alone * seed).sum().backward()
    for k, m in enumerate(members):
        inner = m.attention if variant == "l" else m.block.func.attention
        got = together.attention if variant == "l" else together.block.func.attention
        torch.testing.assert_close(together.encoder.grad[k], m.encoder.weight.grad, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(together.block.func.a.grad[k], m.block.func.a.grad, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(got.query.grad[k], inner.query.weight.grad, rtol=1e-9, atol=1e-11)
    with pytest.raises(InputError, match="the same settings"):
        FGrandEnsemble([model(t=1.0), model(t=2.0)])


@pytest.mark.parametrize("learn", [True, False])
def test_members_have_orders_of_their_own(learn):
    data = small()
    members = [model(seed=k, order=0.5 + 0.2 * k, learn_order=learn) for k in range(2)]
    together = FGrandEnsemble(members)
    out, alone = together(data), torch.stack([m(data) for m in members])
    torch.testing.assert_close(out, alone, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(together.order, torch.stack([m.order for m in members]))
    if learn:
        out.square().sum().backward()
        alone.square().sum().backward()
        got = together.block.raw_order.grad.flatten()
        torch.testing.assert_close(got, torch.cat([m.block.raw_order.grad for m in members]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("source", [True, False])
def test_columns_may_be_solved_apart(source, recompute):
    data = small()
    whole, parts = (model(source=source, **how) for how in ({}, {"columns": 4, "recompute": recompute}))
    torch.testing.assert_close(parts(data), whole(data), rtol=1e-12, atol=1e-12)
    found = []
    for m in (whole, parts):
        m(data).square().sum().backward()
        found.append({name: p.grad for name, p in m.named_parameters()})
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-10, atol=1e-12)
    with pytest.raises(InputError, match="variant='l'"):
        model("nl", columns=4)


def test_equal_scores_over_both_are_the_symmetric_normalisation():
    data = small()
    graph = Graph.from_edge_index(data.edge_index, 9)
    zero = torch.zeros(4, data.x.shape[1], dtype=data.x.dtype)
    weight = attention(graph, data.x, zero, None, zero, None, 2, over="both")
    source, target = graph.edge_index
    inward, outward = (torch.bincount(ends, minlength=9).to(data.x) for ends in (target, source))
    torch.testing.assert_close(weight, (inward[target] * outward[source]).rsqrt())


def squared_gradients(m, data):
    m.zero_grad()
    m(data).square().sum().backward()
    return [p.grad.clone() for p in m.parameters()]


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("how", [{"recompute": True}, {"keep_attention": True}, {"heads": 3, "keep_attention": "all"}])
def test_attention_kept_or_computed_again_gives_the_same_gradients(how, source):
    data = small()
    heads = {"heads": how.get("heads", 2), "source": source}
    usual, other = model("nl", **heads), model("nl", **{**heads, **how})
    torch.testing.assert_close(other(data), usual(data), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squared_gradients(other, data), squared_gradients(usual, data), rtol=1e-11, atol=1e-12)


def test_kept_attention_is_used_once_and_makes_no_second_evaluation(monkeypatch):
    data, made = small(), model("nl", keep_attention=True)
    seen, plain = [], softmax_attention.sddmm
    monkeypatch.setattr(softmax_attention, "sddmm", lambda *a: seen.append(1) or plain(*a))
    logits = made(data)
    forward, steps, heads = len(seen), 4, 2
    logits.sum().backward()
    assert forward == steps * heads
    assert len(seen) == forward
    two = [made(data) for _ in range(2)]  # two solves before their backward passes do not share anything
    made.zero_grad()
    sum(z.square().sum() for z in two).backward()
    found = [p.grad.clone() for p in made.parameters()]
    torch.testing.assert_close(found, [2 * g for g in squared_gradients(model("nl"), data)], rtol=1e-11, atol=1e-12)
