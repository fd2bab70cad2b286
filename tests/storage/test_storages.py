"""Every storage with every history gives the gradient of rows kept on the device, whatever happens on the way."""

import itertools

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.storage import Sizes
from neuralfde.storage.checkpoint import least_budget
from tests.stubs import F64, Autonomous, Net, relative

HISTORIES = [nf.Exponentials(tol=1e-10, block=8), nf.Window(20, block=8)]
STORAGES = ["device", "host", "file", "checkpoint", nf.Checkpoint(every=16), nf.Checkpoint(budget=10_000)]


@pytest.fixture
def storage(request, tmp_path):
    return nf.Host(path=str(tmp_path)) if request.param == "file" else request.param


def loss(func, storage, history, method="predictor", adjoint="exact", steps=100, **options):
    z0 = torch.linspace(-1, 1, 6, dtype=F64).view(2, 3)
    times = torch.linspace(0, 2, 6, dtype=F64)
    y = nf.fdeint(
        func, z0, times, 0.6, steps=steps, method=method, history=history, storage=storage, adjoint=adjoint, **options
    )
    return (y**2).sum()


def gradients(func, *given, **options):
    func.zero_grad()
    loss(func, *given, **options).backward()
    return torch.cat([p.grad.reshape(-1) for p in func.parameters()])


@pytest.fixture
def func():
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("history", HISTORIES, ids=["exponentials", "window"])
@pytest.mark.parametrize("storage", STORAGES, indirect=True, ids=str)
@pytest.mark.parametrize("method", ["predictor", "abm", "trapezoid"])
def test_same_gradient(func, storage, history, method):
    expected = gradients(func, "device", history, method)
    assert relative(gradients(func, storage, history, method), expected) < 1e-11


@pytest.mark.parametrize("storage", STORAGES, indirect=True, ids=str)
def test_same_gradient_as_full_sums(func, storage):
    expected = gradients(func, "device", "full")
    assert relative(gradients(func, storage, HISTORIES[0]), expected) < 1e-9
    paper = gradients(func, "device", "full", adjoint="paper")
    assert relative(gradients(func, storage, HISTORIES[0], adjoint="paper"), paper) < 1e-9


@pytest.mark.parametrize("storage", STORAGES, indirect=True, ids=str)
def test_after_an_exception_in_the_middle_of_either_pass(func, storage):
    expected = gradients(func, "device", HISTORIES[0])
    for when in (40, 130):
        count = [0]

        def stop(n, total, when=when, count=count):
            count[0] += 1
            if count[0] == when:
                raise RuntimeError("stop here")

        with pytest.raises(RuntimeError, match="stop here"):
            gradients(func, storage, HISTORIES[0], callback=stop)
        assert relative(gradients(func, storage, HISTORIES[0]), expected) < 1e-12


@pytest.mark.parametrize("storage", STORAGES, indirect=True, ids=str)
def test_two_models_interleaved_and_a_second_backward_pass(func, storage):
    other = Net()
    expected = [gradients(f, "device", HISTORIES[0]) for f in (func, other)]
    func.zero_grad()
    other.zero_grad()
    first, second = loss(func, storage, HISTORIES[0]), loss(other, storage, HISTORIES[0])
    first.backward(retain_graph=True)
    second.backward()
    first.backward()
    found = [torch.cat([p.grad.reshape(-1) for p in f.parameters()]) for f in (func, other)]
    assert relative(found[0], 2 * expected[0]) < 1e-12
    assert relative(found[1], expected[1]) < 1e-12


def test_dropout_is_the_same_in_recomputed_segments():
    torch.manual_seed(0)
    field, found = Autonomous(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()), []
    for storage in ("device", "checkpoint"):
        torch.manual_seed(1)
        found.append(gradients(field, storage, HISTORIES[0]))
    assert torch.equal(*found)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.bfloat16, 3e-2), (torch.float16, 3e-3), (torch.float32, 1e-6)])
@pytest.mark.parametrize("kind", [nf.Device, nf.Host])
def test_rows_in_lower_precision(func, dtype, tol, kind):
    expected = gradients(func, "device", HISTORIES[0])
    error = relative(gradients(func, kind(dtype=dtype), HISTORIES[0]), expected)
    assert 0 < error < tol


@pytest.mark.parametrize(
    ("history", "storage", "adjoint"),
    [
        ("fft", "host", "exact"),
        ("fft", "checkpoint", "exact"),
        ("full", nf.Device(dtype=torch.bfloat16), "exact"),
        (HISTORIES[0], "host", "direct"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_alternative(func, history, storage, adjoint):
    with pytest.raises(nf.InputError, match=r"Use (history='exponentials'|adjoint='exact')"):
        loss(func, storage, history, adjoint=adjoint)


def test_wrong_storages_are_refused():
    with pytest.raises(nf.InputTypeError, match="bfloat16"):
        nf.Device(dtype=torch.int32)
    with pytest.raises(nf.InputError, match="not both"):
        nf.Checkpoint(budget=1, every=1)
    with pytest.raises(nf.InputError, match="need at least"):
        loss(Net(), nf.Checkpoint(budget=100), HISTORIES[0])


@pytest.mark.parametrize("count", [1, 5, 100, 2001, 9999])
def test_segments_cover_every_step_within_the_budget(count):
    sizes = Sizes(count, 40, 1, 16)
    budget, starts = least_budget(sizes), nf.Checkpoint().starts(sizes, count, 0)
    ends = [*starts[1:], count]
    assert starts[0] == 0
    assert all(a % 16 == 0 for a in starts)
    for kept, (a, b) in enumerate(zip(starts, ends, strict=True)):
        assert a < b
        assert kept * sizes.state + (b - a) <= budget
        assert nf.Checkpoint().starts(sizes, b - a, kept) == [0]
    assert budget <= (2 * sizes.state * count) ** 0.5 + sizes.state + 2 * sizes.block


def most_bytes(storage, sizes, count, kept):
    """What states and rows take at most, and how often each row is computed, in the order of a backward pass."""
    starts = storage.starts(sizes, count, kept)
    if len(starts) == 1:
        return kept * sizes.state + count * sizes.row, 1
    spans = enumerate(itertools.pairwise([*starts, count]))
    parts = [most_bytes(storage, sizes, b - a, kept + k) for k, (a, b) in spans]
    return max(x for x, _ in parts), 1 + max(x for _, x in parts)


def test_memory_of_checkpoints_does_not_grow_beyond_ten_thousand_steps():
    """Rows of 8 MiB: beside them what is always granted does not count."""
    found = [most_bytes(nf.Checkpoint(), Sizes(n, 140 << 23, 1 << 23, 16), n, 0) for n in (10_000, 100_000, 1_000_000)]
    assert found[0][0] * 1.02 > found[1][0] > found[2][0] * 0.98 > found[0][0] * 0.95
    assert [passes for _, passes in found] == [2, 4, 6]


@pytest.mark.parametrize("method", ["predictor", "trapezoid"])
def test_a_small_budget_computes_rows_more_often_and_keeps_it(method):
    history = nf.Exponentials(block=4)

    def gradients(**storage):
        torch.manual_seed(0)
        func, z0 = Net(), torch.randn(2, 3, dtype=F64, requires_grad=True)
        order, t = torch.tensor(0.6, dtype=F64, requires_grad=True), torch.linspace(0, 1, 5, dtype=F64)
        s = nf.solve(func, z0, t, order, steps=400, method=method, history=history, **storage)
        return s.stats.history_bytes, torch.autograd.grad(s.ys.square().sum(), [z0, order, *func.parameters()])

    (_, whole), (held, few) = gradients(), gradients(storage=nf.Checkpoint(budget=5000))
    assert held < 5000 + 4000
    assert all(relative(a, b) < 1e-13 for a, b in zip(few, whole, strict=True))
