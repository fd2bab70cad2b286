"""Cells and whole solves as programs that run without this package."""

import pytest
import torch

import neuralfde as nf
from tests.stubs import Net

ort = pytest.importorskip("onnxruntime")
U = torch.linspace(-1, 1, 60).view(20, 3)


def cell(steps=20, **given):
    torch.manual_seed(0)
    return nf.FDECell(Net(dtype=torch.float32), 0.6, step=0.05, steps=steps, **given).eval()


def walked(step, state):
    found = []
    for u in U:
        z, state = step(state, u)
        found.append(z)
    return torch.stack(found)


@pytest.fixture(scope="module")
def program():
    found = cell()
    with torch.no_grad():
        return found, found.begin(U[0]), walked(found, found.begin(U[0]))


def test_an_exported_cell(program):
    found, state, want = program
    exported = torch.export.export(found, (state, U[0]))
    step = exported.module()
    torch.testing.assert_close(walked(step, state), want)
    late = (torch.tensor(20), *state[1:])
    assert step(late, U[0])[0].isnan().all()  # a stream that is too long is not silently wrong


def test_a_cell_in_onnx(program, tmp_path):
    found, state, want = program
    torch.onnx.export(found, (state, U[0]), dynamo=True, verbose=False).save(tmp_path / "cell.onnx")
    session = ort.InferenceSession(tmp_path / "cell.onnx", providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]

    def step(state, u):
        z, *state = session.run(None, {k: x.numpy() for k, x in zip(names, (*state, u), strict=True)})
        return torch.from_numpy(z), tuple(map(torch.as_tensor, state))

    torch.testing.assert_close(walked(step, state), want)


@pytest.mark.slow
def test_a_cell_compiled_ahead_of_time(program, tmp_path):
    found, state, want = program
    exported = torch.export.export(found, (state, U[0]))
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "cell.pt2"), inductor_configs=quick
    )
    torch.testing.assert_close(walked(torch._inductor.aoti_load_package(path), state), want)


def test_a_cell_whose_order_is_learned_exports():
    found = cell(learn_order=True)
    with torch.no_grad():
        state = found.begin(U[0])
        got, _ = torch.export.export(found, (state, U[0])).module()(state, U[0])
        torch.testing.assert_close(got, found(state, U[0])[0])


@pytest.mark.parametrize(
    "given",
    [{"method": "abm", "t": torch.tensor([0.0, 0.3, 1.0])}, {"order": torch.tensor([0.3, 0.5, 1.0]), "steps": 4}],
    ids=["times between nodes", "orders of channels"],
)
def test_a_whole_solve(given):
    torch.manual_seed(0)
    block = nf.FDEBlock(Net(dtype=torch.float32), **{"order": 0.7, "steps": 4, **given})
    exported = torch.export.export(block.frozen(), (U[:2], U[2]))
    torch.testing.assert_close(exported.module()(U[3:5], U[5]), block(U[3:5], U[5]))


class Sigmoid(torch.nn.Module):
    """An order, or a density of orders, with a parameter."""

    def __init__(self):
        super().__init__()
        self.rate = leaf(0.5)

    def forward(self, t):
        return torch.sigmoid(self.rate * t)


def leaf(*values):
    return torch.nn.Parameter(torch.tensor(*values))


@pytest.mark.parametrize(
    "given",
    [
        {"order": nf.Caputo(leaf(0.6))},
        {"order": nf.Tempered(leaf(0.6), leaf(0.3))},
        {"order": nf.MultiTerm([leaf(0.6), 0.3], [1.0, leaf(0.3)]), "method": "gl-explicit"},
        {"order": nf.MultiTerm(torch.tensor([0.6, 0.3]), torch.tensor([1.0, 0.3])), "method": "gl-explicit"},
        {"order": nf.DistributedOrder(4, density=Sigmoid()), "method": "gl-explicit"},
        {"order": nf.VariableOrder(Sigmoid())},
        {"horizon": leaf(1.3)},
        {"jumps": (leaf([0.33]), leaf([[[1.0, 2.0, 3.0]]]))},
    ],
    ids=["order", "tempered", "sum", "rows of a sum", "density", "order of time", "horizon", "jumps"],
)
def test_a_frozen_block_has_constants_in_place_of_all_that_weights_depend_on(given):
    torch.manual_seed(0)
    block = nf.FDEBlock(Net(dtype=torch.float32), **{"order": 0.7, "steps": 5, **given})
    frozen = block.frozen()
    assert [name for name, _ in frozen.named_parameters() if not name.startswith("func.")] == []
    exported = torch.export.export(frozen, (U[:1],))
    torch.testing.assert_close(exported.module()(U[1:2]), block(U[1:2]))


@pytest.mark.parametrize("given", [{}, {"method": "abm"}, {"t": torch.tensor([0.0, 0.3, 1.0])}], ids=str)
def test_a_whole_solve_of_batches_of_any_size(given):
    torch.manual_seed(0)
    block = nf.FDEBlock(Net(dtype=torch.float32), 0.6, learn_order=True, steps=8, **given)
    size = torch.export.Dim("batch")
    program = torch.export.export(block.frozen(), (U[:2],), dynamic_shapes=({0: size},)).module()
    for z0 in (U[:1], U[:7], U.repeat(20, 1)):
        torch.testing.assert_close(program(z0), block(z0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [{}, {"t": torch.tensor([0.0, 0.3, 1.0])}], ids=["end", "times between nodes"])
def test_a_whole_solve_in_onnx(tmp_path, given):
    torch.manual_seed(0)
    block = nf.FDEBlock(Net(dtype=torch.float32), 0.7, learn_order=True, steps=2, **given).eval()
    torch.onnx.export(block.frozen(), (U[:2],), dynamo=True, verbose=False).save(tmp_path / "solve.onnx")
    session = ort.InferenceSession(tmp_path / "solve.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: U[3:5].numpy()})
    torch.testing.assert_close(torch.from_numpy(got), block(U[3:5]).detach())


@pytest.mark.parametrize(
    ("block", "match"),
    [
        (nf.FDEBlock(Net(), 0.7, steps=5), "frozen"),
        (nf.FDEBlock(Net(), 0.7, steps=5, t=torch.tensor([0.0, 1.0])), "order, t="),
        (nf.FDEBlock(Net(), 0.7).frozen(), "pass steps="),
        (nf.FDEBlock(Net(), 0.7, steps=5, method="trapezoid").frozen(), "explicit"),
        (nf.FDEBlock(Net(), 0.7, steps=5, past=(torch.tensor([-1.0, 0.0]), U[:4].view(2, 2, 3))).frozen(), "past="),
    ],
    ids=["order", "times", "tolerance", "implicit", "past"],
)
def test_what_cannot_be_exported_is_refused(block, match):
    with pytest.raises(nf.UnsupportedError, match=match):
        torch.export.export(block, (U[:2].double(),))
