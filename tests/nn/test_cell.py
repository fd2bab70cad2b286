"""A cell goes step by step through what a solve does at once, with its gradients, and says what it cannot do."""

import copy

import pytest
import torch

import neuralfde as nf
from neuralfde.nn import FDECell
from tests.stubs import F64, Net

STEP, TOL = 0.03125, 1e-6
PAST = nf.Exponentials(tol=TOL, block=8)
ORDERS = [0.6, 1.0, torch.tensor([0.3, 0.6, 0.9]), torch.tensor([[0.4], [0.8]])]


def streamed(cell, z0, inputs):
    state, found = cell.begin(z0), [z0]
    for u in inputs:
        z, state = cell(state, u)
        found.append(z)
    return torch.stack(found)


def offline(net, z0, inputs, order, **options):
    """The whole solve, with inputs that hold from one step to the next."""
    times = STEP * torch.arange(len(inputs) + 1, dtype=F64)

    def func(t, z, inputs):
        return net(t, z, inputs[(t / STEP).round().long().clamp(max=len(inputs) - 1)])

    given = {"steps": len(inputs), "history": PAST, **options}
    return nf.fdeint(func, z0, times, order, params=list(net.parameters()), args=(inputs,), **given)


@pytest.fixture
def case():
    torch.manual_seed(0)
    return Net(), torch.randn(2, 3, dtype=F64), torch.randn(40, 2, 3, dtype=F64)


@pytest.mark.parametrize("order", ORDERS, ids=["one", "ordinary", "channels", "samples"])
@pytest.mark.parametrize("method", ["predictor", "gl-explicit", "l1-explicit"])
def test_streaming_equals_the_solve(case, order, method):
    """To rounding with the same exponentials, whether there are any or not; to their tolerance with others."""
    net, z0, inputs = case
    for count in (1, 7, 40):
        with torch.no_grad():
            whole = offline(net, z0, inputs[:count], order, method=method)
            for steps, close in ((count, 1e-13), (1000, TOL)):
                cell = FDECell(net, order, step=STEP, steps=steps, method=method, history=PAST)
                torch.testing.assert_close(streamed(cell, z0, inputs[:count]), whole, rtol=close, atol=close)


@pytest.mark.parametrize("order", ORDERS[::2], ids=["one", "channels"])
def test_gradients_are_those_of_the_solve(case, order):
    """Also of a learned order, whose weights travel with the state."""
    net, z0, inputs = case
    z0.requires_grad_()
    cell = FDECell(net, order, learn_order=True, step=STEP, steps=40, history=PAST).double()
    block = nf.FDEBlock(net, order, learn_order=True).double()
    tensors = [z0, *net.parameters()]
    loss = streamed(cell, z0, inputs).square().sum()
    got = torch.autograd.grad(loss, [*tensors, cell.raw_order])
    loss = offline(net, z0, inputs, block.order).square().sum()
    want = torch.autograd.grad(loss, [*tensors, block.raw_order])
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_complex_states_and_single_precision(case):
    _, z0, inputs = case
    z0, inputs = torch.complex(z0, z0.flip(0)), torch.complex(inputs, inputs)

    def func(t, z, u):
        return 1j * z - t * z + u

    cell = FDECell(func, 0.7, step=STEP, steps=40, history=PAST)
    want = nf.fdeint(lambda t, z: func(t, z, inputs[0]), z0, 40 * STEP, 0.7, steps=40, history=PAST)
    torch.testing.assert_close(streamed(cell, z0, inputs[:1].expand(40, -1, -1))[-1], want, rtol=1e-12, atol=1e-12)
    single = streamed(cell.float(), z0.to(torch.complex64), inputs[:1].expand(40, -1, -1).to(torch.complex64))
    assert single.dtype == torch.complex64
    torch.testing.assert_close(single[-1].to(want), want, rtol=1e-5, atol=1e-5)
    assert {cell.weights.dtype, cell.fade.dtype, cell.fixed_order.dtype} == {F64}  # never rounded


def test_a_cell_follows_a_trained_block(case):
    net, z0, _ = case
    block = nf.FDEBlock(net, 0.4, learn_order=True, t=torch.linspace(1.0, 2.0, 3, dtype=F64), step=STEP)
    cell = nf.FDECell.from_block(block)
    state, found = cell.begin(z0), [z0]
    for _ in range(32):
        z, state = cell(state)
        found.append(z)
    torch.testing.assert_close(torch.stack(found[::16]), block(z0), rtol=1e-8, atol=1e-8)
    assert not any("order" in name for name, _ in cell.named_parameters())
    again = FDECell(net, 0.9, step=STEP, steps=32, start=1.0, history=nf.Exponentials(terms=cell.fade.numel(), tol=0.5))
    again.load_state_dict(copy.deepcopy(cell.state_dict()))  # the weights come with their order
    assert torch.equal(again(again.begin(z0))[0], found[1])


@pytest.mark.parametrize("assign", [False, True])
def test_a_cell_made_on_the_meta_device_gets_its_values_later(case, assign):
    """As a block does: without memory, until a checkpoint is loaded."""
    net, z0, inputs = case
    wanted = FDECell(net, 0.3, step=STEP, steps=40)
    with torch.device("meta"):
        cell = FDECell(copy.deepcopy(net).to("meta"), 0.9, step=STEP, steps=40)
    assert all(x.is_meta for x in cell.state_dict().values())
    cell = cell if assign else cell.to_empty(device="cpu")
    cell.load_state_dict(wanted.state_dict(), assign=assign)
    assert torch.equal(streamed(cell, z0, inputs), streamed(wanted, z0, inputs))


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_order_has_the_weights_of_the_cell_that_loads_it(case, assign):
    """Of its step, its number of steps and its method; how many weights there are depends on the order too."""
    net, z0, inputs = case
    kept = copy.deepcopy(FDECell(net, 0.3, step=1.0, steps=40).state_dict())
    for given in ({"step": STEP, "steps": 40}, {"step": STEP, "steps": 4000}, {"step": 1.0, "steps": 40}):
        cell = FDECell(net, 0.9, **given)
        cell.load_state_dict(kept, assign=assign)
        assert torch.equal(streamed(cell, z0, inputs), streamed(FDECell(net, 0.3, **given), z0, inputs))
    several = FDECell(net, torch.tensor([0.3, 0.6, 0.9]), step=STEP, steps=40)
    with pytest.raises(RuntimeError, match="size mismatch for fixed_order"):
        several.load_state_dict(kept)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"velocity": torch.zeros(2, 3), "order": 1.5}, "velocity="),
        ({"grading": 2.0, "steps": 8, "step": None}, "grading="),
        ({"step": None}, "rtol="),
        ({"history": nf.Window(8)}, "history="),
        ({"order": nf.Tempered(0.5, 1.0)}, "order="),
        ({"linear": -torch.eye(3)}, "linear="),
        ({"lags": [0.1]}, "lags="),
        ({"past": (torch.tensor([-0.1, 0.0]), torch.ones(2, 2, 3))}, "past="),
        ({"event": lambda t, z: z[0, 0] - 0.5}, "event="),
        ({"method": "abm"}, "'gl-explicit'"),
    ],
)
def test_blocks_that_no_cell_can_follow(given, match):
    with pytest.raises(nf.InputError, match=match):
        FDECell.from_block(nf.FDEBlock(Net(), **{"step": STEP, **given}))


def test_the_order_can_be_read_as_in_a_block(case):
    net, *_ = case
    cell = FDECell(net, torch.tensor([0.5, 0.6, 0.7]), learn_order=True, step=STEP, steps=40)
    torch.testing.assert_close(cell.order, torch.tensor([0.5, 0.6, 0.7], dtype=F64), rtol=1e-6, atol=1e-6)
    cell.order.sum().backward()
    assert cell.raw_order.grad.all()
    assert FDECell(net, 0.6, step=STEP, steps=40).order == 0.6


def test_a_step_compiles_to_one_graph(case):
    net, z0, inputs = case
    cell = FDECell(net, 0.6, step=STEP, steps=40)
    state = cell.begin(z0)
    compiled = torch.compile(cell, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(state, inputs[0]), cell(state, inputs[0]))


@pytest.mark.parametrize("learned", [False, True])
def test_what_is_no_state_of_the_cell_is_refused(case, learned):
    net, z0, inputs = case
    cell = FDECell(net, 0.6, learned, step=STEP, steps=40, history=PAST)
    other = FDECell(net, 0.6, learned, step=STEP, steps=4000, history=PAST)
    for bad in (inputs[0], None, cell.begin(z0)[:2], FDECell(net, 0.6, not learned, step=STEP, steps=40).begin(z0)):
        with pytest.raises(nf.InputTypeError, match=r"z, state = cell\(state, \*inputs\)"):
            cell(bad, inputs[0])
    with pytest.raises(nf.InputError, match="not of this cell"):
        cell((*other.begin(z0)[:3], *cell.begin(z0)[3:]), inputs[0])


def test_refusals(case):
    net, z0, inputs = case
    cell = FDECell(net, torch.tensor([0.5, 0.6, 0.7]), step=STEP, steps=3)
    with pytest.raises(nf.InputError, match="longer than steps=3"):
        streamed(cell, z0, inputs[:4])
    for bad, error, match in (
        (torch.zeros(2), nf.InputError, "broadcast"),
        (torch.zeros(3, dtype=torch.int64), nf.InputTypeError, "dtype"),
        ((z0, z0), nf.InputTypeError, "tensor"),
    ):
        with pytest.raises(error, match=match):
            cell.begin(bad)
    for func, error in ((lambda t, z: z[0], nf.InputError), (lambda t, z: z.double(), nf.InputTypeError)):
        cell = FDECell(func, step=STEP, steps=3)
        with pytest.raises(error, match="func returned"):
            cell(cell.begin(z0.float()))
    for given in ({"steps": 0}, {"step": 0.0}, {"method": "trapezoid"}, {"history": "full"}, {"order": 1.5}):
        with pytest.raises(nf.InputError):
            FDECell(net, **{"step": STEP, "steps": 3, **given})
    with pytest.raises(nf.InputError, match=r"take \d+ GiB or more while a cell is made"):
        FDECell(net, step=STEP, steps=10**13)
    with pytest.raises(nf.InputTypeError, match="takes an FDEBlock, got Linear"):
        FDECell.from_block(torch.nn.Linear(3, 3))
