"""Operations that are repeated give what the function gives; functions that a list would not do justice are called."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import neuralfde as nf
from neuralfde.base.structure import structure_of
from neuralfde.rhs.field import Field
from neuralfde.rhs.repeated import Repeated, Training
from tests.stubs import F64, relative

ELSEWHERE = torch.zeros(2, dtype=F64)
A = torch.tensor([[0.3, -1.0], [1.0, 0.2]], dtype=F64)
NETWORK = nn.Sequential(nn.Linear(2, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)).to(F64)


@torch.library.custom_op("repeated_by_tests::add", mutates_args=())
def named_like_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 5 - y


def accumulated(t, z):
    out = z * 2
    out += t
    return out.mul_(z)


def by_hand(t, z):
    x = z.detach().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad((x.sin() * x).sum() * t, x)
    return found


def assigned(t, z):
    out = torch.zeros_like(z)
    out[0] = z[1] * t
    out[1] += z[0]
    return out


def read_before_it_is_written(t, z):
    out = torch.zeros_like(z)
    early = z + out
    out[0] = z[1]
    return early * 2 + out


REPEATED = {
    "assigned": assigned,
    "read before it is written": read_before_it_is_written,
    "numbers in memory": lambda t, z: z.new_empty(2).copy_(z),
    "layer norm": lambda t, z: torch.nn.functional.layer_norm(z, (2,)) * t,
    "largest": lambda t, z: z - z.max(0).values + z.max(),
    "indices": lambda t, z: z[[1, 0]] + z.gather(0, torch.tensor([1, 1])),
    "network": lambda t, z: NETWORK(z),
    "matrix and time": lambda t, z: torch.tanh(z @ A) * t + (A**2).sum(),
    "views": lambda t, z: torch.stack([z[1], z[0]]).view(1, 2).transpose(0, 1).reshape(2),
    "the state itself": lambda t, z: z,
    "a view of it": lambda t, z: z.flip(0) if z.ndim > 3 else z.view(2, 1).squeeze(1),
    "a constant": lambda t, z: torch.ones(2, dtype=F64),
    "of time alone": lambda t, z: t * torch.ones_like(z),
    "concatenated": lambda t, z: torch.cat([t.view(1), z])[:2].exp(),
    "complex": lambda t, z: torch.view_as_real(torch.view_as_complex(z.view(1, 2)) ** 2 * (1 + 2j)).view(2),
    "in place": accumulated,
    "a gradient inside": by_hand,
    "where": lambda t, z: torch.where(z > 0.5, z.exp(), z * t),
    "of its shape alone": lambda t, z: torch.ones(2, dtype=F64).view_as(z).expand_as(z).to(z) * z,
    "without dropping out": lambda t, z: torch.nn.functional.dropout(z, 0.5, training=False) * t,
}

CALLED = {
    "a branch by time": lambda t, z: z if t > 0.4 else -z,
    "a number of the time": lambda t, z: z * float(t),
    "a list": lambda t, z: z * t.tolist(),
    "a branch by state": lambda t, z: z if z.sum() > 1 else -z,
    "numpy": lambda t, z: torch.from_numpy(np.sin(z.numpy())),
    "an array": lambda t, z: torch.as_tensor(np.asarray(z) * 2),
    "random numbers": lambda t, z: z + torch.rand(2, dtype=F64),
    "shapes that depend on numbers": lambda t, z: z[z > -9.0],
    "written elsewhere": lambda t, z: torch.add(z * 2, 1, out=ELSEWHERE),
    "a number in a list": lambda t, z: z * torch.tensor([t, 1.0], dtype=F64),
    "a number in a tuple": lambda t, z: z + torch.as_tensor((torch.floor(t), 1.0), dtype=F64),
    "new data": lambda t, z: z + z.new_tensor([[t], [1.0]])[0],
    "an array of numbers": lambda t, z: z + torch.asarray([torch.sign(t)], dtype=F64),
    "split by a tensor": lambda t, z: z + torch.tensor_split(z, z.argmax().view(1))[1].sum(),
    "a mask of bytes": lambda t, z: z + z[(z > -9.0).view(torch.uint8)],
    "an operation of one's own": lambda t, z: torch.ops.repeated_by_tests.add(z, z),
}


TIMES = torch.linspace(0, 0.5, 6, dtype=F64)
ROWS = [torch.tensor([0.2 + k, 1.0 - 0.3 * k], dtype=F64) for k in range(5)]


LOCAL = torch.tensor(0.3, dtype=F64)


def one(f, x, w0):
    return x[0], f(x[0])


def corrected(f, x, w0):
    z = x[0] + w0 * f(x[1])
    return z, f(z)


def repeating(function, args=(), training=None, step=one):
    field = Field(torch.no_grad()(function) if training is None else function, structure_of(ROWS[0]), TIMES, args)
    return Repeated(field, step, training)


def slope(program, n, z):
    return program(n, (z,), LOCAL)[1].clone()


@pytest.mark.parametrize("name", REPEATED)
def test_a_program_gives_what_its_function_gives(name):
    function = REPEATED[name]
    program, kept = repeating(function), []
    for k, z in enumerate(ROWS):
        kept.append((slope(program, k, z), function(TIMES[k], z)))
        assert program.repeats is not False
    assert all(torch.equal(*pair) for pair in kept)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", CALLED)
def test_what_a_list_would_not_know_is_called(name):
    program = repeating(CALLED[name])
    slope(program, 3, ROWS[0].clone())
    assert program.repeats is False


def test_a_function_that_does_something_else_the_second_time_is_called():
    calls = iter(range(9))
    program = repeating(lambda t, z: z * 2 if next(calls) == 0 else z * 3)
    assert [torch.equal(slope(program, 0, ROWS[0]), k * ROWS[0]) for k in (2, 3, 3)] == [True] * 3
    assert program.repeats is False


def test_constants_are_not_computed_again_and_what_nobody_reads_is_left_out():
    program = repeating(lambda t, z: [(A @ A).sum() * z, z.exp()][0])
    for k in range(2):
        slope(program, k, ROWS[k])
    assert len(program._calls) == 1


MATRICES = torch.linspace(-1, 1, 12, dtype=F64).view(3, 2, 2)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 5 if bool(grad.sum() > 0) else grad


#: Right-hand sides of (t, z, matrix (2, 2), vector (2,)).
TRAINED = {
    "a layer": lambda t, z, a, b: torch.tanh(z @ a + b),
    "matrices and rows": lambda t, z, a, b: torch.bmm(z.view(1, 1, 2), a.exp()[None]).view(2) * b,
    "with time": lambda t, z, a, b: (a @ z) * t + b * t**2,
    "time alone": lambda t, z, a, b: b * t,
    "the state itself": lambda t, z, a, b: z,
    "a constant": lambda t, z, a, b: torch.ones(2, dtype=F64),
    "many matrices": lambda t, z, a, b: (z @ MATRICES).tanh().sum(0) @ a,
    "one twice": lambda t, z, a, b: a @ (a.t() @ z.sin()) + b,
    "broadcast": lambda t, z, a, b: (a * z).sum(1) * b[0],
    "relu in place": lambda t, z, a, b: torch.relu_(a @ z) + torch.sigmoid_(b * z),
    "complex": lambda t, z, a, b: torch.view_as_real(torch.view_as_complex(z) * torch.view_as_complex(b)) @ a,
    "softmax": lambda t, z, a, b: torch.softmax(a @ z, 0) - torch.nn.functional.leaky_relu(z * b),
    "bounds": lambda t, z, a, b: torch.maximum(a @ z, b).abs() + (z * b).clamp(-0.5, 0.5),
    "layer norm": lambda t, z, a, b: torch.nn.functional.layer_norm(a @ z, (2,), b, b),
    "group norm": lambda t, z, a, b: torch.nn.functional.group_norm((a @ z).view(1, 2), 1, b).view(2),
    "assigned": lambda t, z, a, b: assigned(t, a @ z) * b,
    "written over": lambda t, z, a, b: (z * b).exp_() + a[0],
    "bounded in place": lambda t, z, a, b: (z + b).clamp_(max=2.0) + a[0],
    "multiplied in place": lambda t, z, a, b: (z * 1.0).mul_(b).mul_(z),
}


@pytest.mark.parametrize("step", [one, corrected])
@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("kept", [0, 6])
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_over_a_block_are_those_of_autograd(name, kept, weigh, step):
    function, args = TRAINED[name], (A.clone().requires_grad_(), torch.tensor([0.4, -0.7], dtype=F64).requires_grad_())
    program = repeating(function, args, Training(args, kept, weigh), step)
    sums = [(row,) if step is one else (row, row.flip(0) * 0.5) for row in ROWS]
    with torch.no_grad():
        ends = [tuple(x.clone() for x in program(n, x, LOCAL)) for n, x in enumerate(sums)]
    products, steps, skipped = program.products, range(4, 0, -1), 3
    if products is None:
        return
    by = [torch.tensor([k, 1.0], dtype=F64) for k in range(5)]
    moved = step is corrected  # whether the gradient of the state is part of the operations
    pulled, expected = {}, {}
    products.begin(steps)
    for n in steps:
        if n == skipped:
            products.skip(n)
            continue
        found = program.pulled(n, sums[n], LOCAL, by[n] if moved else None, by[n])
        pulled[n] = [g if g is None else g.clone() for g in found]
        x, w0 = [y.clone().requires_grad_() for y in sums[n]], LOCAL.clone().requires_grad_()
        z, v = step(lambda y, n=n: function(TIMES[n], y, *args), x, w0)
        assert torch.equal(ends[n][0], z)
        assert torch.equal(ends[n][1], v)
        outputs, inputs = [y for y in ((z, v) if moved else (v,)) if y.requires_grad], (*x, w0, *args)
        expected[n] = [None] * len(inputs)
        if outputs:
            expected[n] = torch.autograd.grad(outputs, inputs, [by[n]] * len(outputs), allow_unused=True)
    rows = torch.stack([torch.stack(sums[n]) for n in steps])
    grads, weights, slopes = products.end(rows, torch.stack([by[n] * (n != skipped) for n in steps]))
    assert slopes is None or not slopes[steps.index(skipped)].any()
    count = len(sums[0])
    for n, own in pulled.items():
        for mine, theirs in zip(own, expected[n], strict=False):
            assert mine is theirs is None or torch.allclose(mine, theirs, rtol=1e-13, atol=1e-14)
        assert (slopes is not None) == weigh
        assert slopes is None or torch.equal(slopes[steps.index(n)], ends[n][1])
        local = expected[n][count]
        if weigh and local is not None:
            torch.testing.assert_close(weights[steps.index(n)], local, rtol=1e-12, atol=1e-13)
    for k, mine in enumerate(grads):
        each = [own[count + 1 + k] for own in expected.values()]
        total = sum((g for g in each if g is not None), torch.zeros_like(args[k]))
        assert torch.allclose(total if mine is None else mine, total, rtol=1e-12, atol=1e-13)
        assert mine is not None or not total.any()


def test_most_backward_passes_are_repeated():
    """Which of them are not is known, so that none is lost unnoticed."""
    refused = set()
    for name, function in TRAINED.items():
        args = A.clone().requires_grad_(), torch.tensor([0.4, -0.7], dtype=F64).requires_grad_()
        program = repeating(function, args, Training(args, 6, False))
        with torch.no_grad():
            for n, z in enumerate(ROWS):
                slope(program, n, z)
        refused |= set() if program.products else {name}
    assert refused == {"group norm"}  # returns fewer gradients than it could write


def test_a_gradient_that_asks_for_numbers_is_not_repeated():
    args = (A.clone().requires_grad_(),)
    program = repeating(lambda t, z, a: Halved.apply(z) @ a, args, Training(args, 6, False))
    with torch.no_grad():
        for n, z in enumerate(ROWS):
            slope(program, n, z)
    assert program.repeats
    assert program.products is None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16)).to(F64)

    def forward(self, t, z):
        return self.net(z) * torch.cos(t)


@pytest.fixture
def seen(monkeypatch):
    """The programs that a solve makes."""
    made, begin = [], Repeated.__init__

    def noted(self, *given, **named):
        begin(self, *given, **named)
        made.append(self)

    monkeypatch.setattr(Repeated, "__init__", noted)
    return made


@pytest.mark.parametrize("method", ["predictor", "abm"])
def test_mapped_solves_are_those_of_a_loop(method, seen):
    nets, z0 = [Net() for _ in range(6)], torch.randn(16, dtype=F64)
    stacked = {k: p.detach() for k, p in stack_module_state(nets)[0].items()}

    def end(params):
        return nf.fdeint(lambda t, z: functional_call(nets[0], params, (t, z)), z0, 1.0, 0.7, steps=40, method=method)

    def loss(params):
        return end(params).square().sum()

    values, grads = vmap(end)(stacked), vmap(torch.func.grad(loss))(stacked)
    assert seen
    assert all(program.repeats for program in seen)
    for k, net in enumerate(nets):
        out = nf.fdeint(net, z0, 1.0, 0.7, steps=40, method=method)
        found = torch.autograd.grad(out.square().sum(), list(net.parameters()))
        assert relative(values[k], out) < 1e-13
        for g, (name, _) in zip(found, net.named_parameters(), strict=True):
            assert relative(grads[name][k], g) < 1e-12


@pytest.mark.parametrize("branch", [False, True])
def test_a_complex_equation_that_changes_its_mind(branch, seen):
    z0 = torch.linspace(0.1, 1, 80, dtype=F64) * (1 + 0.5j)

    def switched(t, z):
        slow = bool(t > 0.5) if branch else t > 0.5
        return z * 1j * (0.2 if slow else 1.0) if branch else torch.where(slow, 0.2, 1.0) * z * 1j

    found = nf.fdeint(switched, z0, 1.0, 0.8, steps=40)
    assert [program.repeats for program in seen] == [not branch]
    pairs = nf.fdeint(
        lambda t, x: torch.view_as_real(switched(t, torch.view_as_complex(x))),
        torch.view_as_real(z0), 1.0, 0.8, steps=40, stepper="single",
    )  # fmt: skip
    assert relative(found, torch.view_as_complex(pairs)) < 1e-14


def test_orders_of_channels_in_several_blocks(seen):
    """Sums of later blocks lie in memory in another order."""
    order = torch.tensor([0.5, 0.9], dtype=F64).repeat(35)
    grads = []
    for options in ({"adjoint": "direct"}, {"stepper": "recorded"}):
        z0 = torch.linspace(-1, 1, 70, dtype=F64)
        w = torch.linspace(0.2, 1, 70, dtype=F64).requires_grad_()
        ys = nf.fdeint(lambda t, z, w: w - 0.3 * z, z0, 0.5, order, steps=70, args=(w,), **options)
        grads += torch.autograd.grad(ys.square().sum(), w)
    assert seen[0].products is not None
    assert relative(*grads) < 1e-13


def test_a_function_that_writes_to_its_state_gets_a_copy(seen):
    def func(t, z):
        return z.sin_() - 0.3 * t

    z0 = torch.linspace(-1, 1, 70, dtype=F64)
    found, single = (nf.fdeint(func, z0, 1.0, 0.7, steps=40, stepper=x) for x in ("recorded", "single"))
    assert torch.equal(found, single)
    assert [program.repeats for program in seen] == [True]


def test_functions_are_recorded_in_inference_mode(seen):
    """What copies looks like a view there: contiguous() is not taken apart."""

    def func(t, z):
        return torch.tanh(z.view(7, 10).t().contiguous().view(70) * (t > 0.5) + 0.5)

    def written(t, z):
        return z.sin_() - 0.3 * t

    for function in (func, written):
        found = []
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                z0 = torch.linspace(-1, 1, 70, dtype=F64)
                found += [nf.fdeint(function, z0, 1.0, 0.7, steps=40, stepper=x) for x in ("auto", "single")]
        assert all(torch.equal(x, found[0]) for x in found)
    assert [program.repeats for program in seen] == [True] * 4


def test_a_callback_may_change_the_function(seen):
    """It is called after each block of steps; the next one has the function that there is then."""
    net, ends = Net(), []

    def callback(n, steps):
        if n == 100:
            net.net[1] = nn.Softplus()

    for stepper in ("recorded", "single"):
        net.net[1] = nn.Tanh()
        z0 = torch.linspace(-1, 1, 16, dtype=F64)
        with torch.no_grad():
            ends.append(nf.fdeint(net, z0, 1.0, 0.7, steps=300, stepper=stepper, callback=callback))
    assert torch.equal(*ends)
    assert not seen[0].repeats


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.2, 1, 70, dtype=F64))

    def forward(self, t: torch.Tensor, z: torch.Tensor):
        late: float = torch.floor(2 * t).tolist()  # TorchScript reads memory itself
        return torch.sin(z) * self.w * (1.0 + late)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_function_is_called(seen):
    func, z0 = torch.jit.script(Scripted()), torch.linspace(-1, 1, 70, dtype=F64)
    found, right = (nf.fdeint(x, z0, 1.0, 0.7, steps=40) for x in (func, Scripted()))
    assert relative(found, right) < 1e-14
    assert not seen[0].repeats  # that of the module as it is
    assert len(seen) == 1
    with pytest.raises(nf.InputError, match="TorchScript"):
        nf.fdeint(func, z0, 1.0, 0.7, steps=40, stepper="recorded")


@pytest.mark.parametrize("train", [False, True])
def test_zeros_without_memory_are_given_some(train):
    """Forward mode makes them; PyTorch crashed where a recording handed them on."""
    w = torch.linspace(0.2, 1, 70, dtype=F64)

    def func(t, z):
        return torch.func.jvp(lambda y: torch.addcmul(y.tanh(), w, w, value=0.3), (z,), (z,))[1]

    z0 = torch.linspace(-1, 1, 70, dtype=F64).requires_grad_(train)
    found, single = (nf.fdeint(func, z0, 0.5, 0.6, steps=40, **x) for x in ({}, {"stepper": "single"}))
    assert relative(found, single) < 1e-14


def test_hooks_act_in_every_step(seen):
    net, z0, calls = Net(), torch.randn(3, 16, dtype=F64), []
    net.net.register_forward_hook(lambda *given: calls.append(1))
    vmap(lambda z: nf.fdeint(net, z, 1.0, 0.7, steps=40, stepper="single"))(z0)
    assert not seen
    assert len(calls) >= 40
