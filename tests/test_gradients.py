"""Every adjoint that says `exact` against autograd through an independent textbook loop, in float64."""

import pytest
import torch

import neuralfde
from neuralfde import FFT, Full, Window, fdeint
from neuralfde.door import names
from tests import reference
from tests.stubs import F64, Net, TreeNet, flat, relative

METHODS = tuple(names.METHODS)
IMPLICIT = {name for name, scheme in names.METHODS.items() if scheme.implicit}
HISTORIES = [Full(), Full(block=4), FFT(block=2, growth=2), Window(5), Window(64), "auto"]
STEPS, T0, T1 = 24, 0.5, 2.0
TIMES = torch.tensor([T0, 0.75, 1.25, T1], dtype=F64)


@pytest.fixture
def case():
    torch.manual_seed(3)
    net = Net()
    z0 = torch.randn(2, 3, dtype=F64, requires_grad=True)
    u = torch.randn(3, dtype=F64, requires_grad=True)
    beta = torch.tensor(0.6, dtype=F64, requires_grad=True)
    return net, z0, u, beta, [z0, u, beta, *net.parameters()]


def loss_of(ys: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, ys.numel() + 1, dtype=ys.dtype).reshape(ys.shape).sin()
    return (weights * ys).sum() + 0.5 * ys.pow(2).sum()


def reference_gradient(case, method, trajectory, window=None):
    net, z0, u, beta, leaves = case
    h = (T1 - T0) / STEPS
    weights = reference.uniform(method, beta.reshape(1, 1, 1), torch.full((1, 1), h, dtype=F64), STEPS)
    n = torch.arange(STEPS + 1)
    inside = (n[:, None] - n <= (window or STEPS))[..., None, None]
    slope = lambda n, z: net(torch.tensor(T0 + n * h, dtype=F64), z, u)
    zs = reference.solve(slope, [z0], torch.where(inside, weights.matrix, 0.0), weights.stage)
    nodes = [round((float(t) - T0) / h) for t in TIMES] if trajectory else [STEPS]
    ys = torch.stack([zs[n] for n in nodes])
    return ys, flat(torch.autograd.grad(loss_of(ys), leaves))


@pytest.mark.parametrize("trajectory", [False, True], ids=["terminal", "trajectory"])
@pytest.mark.parametrize("method", METHODS)
def test_exact_and_direct_equal_autograd_through_the_textbook_loop(case, method, trajectory):
    net, z0, u, beta, leaves = case
    ys_ref, want = reference_gradient(case, method, trajectory)
    tol = 1e-10 if method in IMPLICIT else 1e-12
    times = TIMES if trajectory else torch.stack([TIMES[0], TIMES[-1]])
    for history in HISTORIES:
        if isinstance(history, Window) and history.length < STEPS:
            continue
        for adjoint in ("exact", "direct"):
            ys = fdeint(net, z0, times, beta, args=(u,), method=method, steps=STEPS, history=history, adjoint=adjoint)
            ys = ys if trajectory else ys[-1:]
            got = flat(torch.autograd.grad(loss_of(ys), leaves))
            assert relative(ys, ys_ref) < tol, (history, adjoint)
            assert relative(got, want) < tol, (history, adjoint)


@pytest.mark.parametrize("method", METHODS)
def test_a_window_is_honoured_in_both_passes(case, method):
    net, z0, u, beta, leaves = case
    ys_ref, want = reference_gradient(case, method, True, window=5)
    for adjoint in ("exact", "direct"):
        for block in (2, 64):
            window = Window(5, block=block)
            ys = fdeint(net, z0, TIMES, beta, args=(u,), method=method, steps=STEPS, history=window, adjoint=adjoint)
            got = flat(torch.autograd.grad(loss_of(ys), leaves))
            assert relative(ys, ys_ref) < 1e-10
            assert relative(got, want) < 1e-10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("history", [Full(block=4), FFT(block=2, growth=2), Window(6)], ids=lambda h: type(h).__name__)
def test_exact_equals_direct_for_nested_states(method, history):
    torch.manual_seed(1)
    net = TreeNet()
    x, y = torch.randn(2, 3, dtype=F64, requires_grad=True), torch.randn(4, dtype=F64, requires_grad=True)
    u = torch.randn(3, dtype=F64, requires_grad=True)
    beta = torch.tensor(0.7, dtype=F64, requires_grad=True)
    leaves = [x, y, u, beta, *net.parameters()]
    grads = []
    for adjoint in ("exact", "direct"):
        out = fdeint(
            net, {"x": x, "rest": (y,)}, 1.0, beta, args=(u,), method=method, steps=20, history=history, adjoint=adjoint
        )
        assert set(out) == {"x", "rest"}
        loss = loss_of(out["x"]) + loss_of(out["rest"][0])
        grads.append(flat(torch.autograd.grad(loss, leaves)))
    assert relative(*grads) < (1e-10 if method in IMPLICIT else 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_at_times_between_nodes(case, method):
    net, z0, u, beta, leaves = case
    times = torch.tensor([T0, 0.6, 1.31, 1.97, T1], dtype=F64)
    grads = []
    for adjoint in ("exact", "direct"):
        ys = fdeint(net, z0, times, beta, args=(u,), method=method, steps=20, adjoint=adjoint)
        grads.append(flat(torch.autograd.grad(loss_of(ys), leaves)))
    assert relative(*grads) < 1e-10

    def value(b: float) -> torch.Tensor:
        return loss_of(fdeint(net, z0, times, b, args=(u,), method=method, steps=20)).detach()

    eps = 1e-5
    slope = (value(0.6 + eps) - value(0.6 - eps)) / (2 * eps)
    index = z0.numel() + u.numel()
    assert abs(grads[0][index] - slope) < 1e-6 * (1 + slope.abs())


@pytest.mark.parametrize("grading", [1.0, 2.0])
def test_gradients_between_nodes_of_a_stiff_equation_are_those_of_the_limited_output(grading):
    times = torch.linspace(0, 3, 16, dtype=F64)

    def states(rate, order, z0):
        def func(t, z, rate):
            return -1e3 * rate * (z - torch.cos(t))

        return fdeint(func, z0, times, order, steps=11, grading=grading, method="trapezoid", args=(rate,)).flatten()

    at = torch.tensor(1.0, dtype=F64), torch.tensor(0.8, dtype=F64), torch.tensor([0.2, 3.0], dtype=F64)
    found = torch.autograd.functional.jacobian(states, at)
    forward = torch.func.jacfwd(states, argnums=(0, 1, 2))(*at)
    for k, (own, along) in enumerate(zip(found, forward, strict=True)):
        moved = [[x + d * (i == k) for i, x in enumerate(at)] for d in (1e-6, -1e-6)]
        slope = (states(*moved[0]) - states(*moved[1])) / 2e-6
        assert relative(own, along) < 1e-10
        assert relative(own if own.ndim == 1 else own.sum(1), slope) < 1e-6


def test_float32_agrees_with_float64(case):
    net, z0, u, beta, _ = case
    grads = []
    for dtype in (torch.float64, torch.float32):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (z0, u, beta)]
        field = Net(dtype=dtype)
        field.load_state_dict({k: v.to(dtype) for k, v in net.state_dict().items()})
        y = fdeint(field, leaves[0], 1.0, leaves[2], args=(leaves[1],), steps=50)
        assert y.dtype == dtype
        grads.append(flat(torch.autograd.grad(loss_of(y), [*leaves, *field.parameters()])).double())
    assert relative(grads[1], grads[0]) < 1e-5


@pytest.mark.parametrize("times", [TIMES, torch.stack([TIMES, TIMES + 0.03 * (TIMES > T0)])], ids=["shared", "own"])
@pytest.mark.parametrize("storage", ["device", "checkpoint", "host"])
@pytest.mark.parametrize("method", ["predictor", "trapezoid", "abm"])
def test_a_backward_pass_leaves_the_result_as_it_is(case, method, storage, times):
    net, z0, u, beta, leaves = case
    more = {"method": method, "storage": storage, "history": "exponentials", "args": (u,)}
    ys = fdeint(net, z0, times, beta, steps=STEPS, **more)
    before = ys.detach().clone()
    first = torch.autograd.grad(loss_of(ys), leaves, create_graph=True)
    assert torch.equal(ys, before)
    torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)  # PyTorch itself looks for changes here


def test_gradcheck(case):
    net, z0, u, beta, _ = case
    torch.autograd.gradcheck(
        lambda z, u, b: fdeint(net, z, 0.8, b, args=(u,), steps=7, method="abm", params=[]),
        (z0, u, beta),
    )


@pytest.mark.parametrize("adjoint", ["exact", "direct", "paper"])
def test_a_second_backward_over_a_retained_graph_gives_the_same_gradient(case, adjoint):
    net, z0, u, _, _ = case
    y = fdeint(net, z0, 1.0, 0.5, args=(u,), steps=30, adjoint=adjoint)
    leaves = [z0, u, *net.parameters()]
    first = torch.autograd.grad(loss_of(y), leaves, retain_graph=True)
    second = torch.autograd.grad(loss_of(y), leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_failed_backward_leaves_the_next_one_correct(case):
    net, z0, u, _, _ = case
    y = fdeint(net, z0, 1.0, 0.5, args=(u,), steps=30)
    want = torch.autograd.grad(loss_of(y), [z0], retain_graph=True)[0]
    calls = {"left": 5}

    def broken(*_):
        calls["left"] -= 1
        if calls["left"] == 0:
            raise KeyboardInterrupt

    hook = net.a.register_forward_hook(broken)
    with pytest.raises(KeyboardInterrupt):
        torch.autograd.grad(loss_of(y), [z0], retain_graph=True)
    hook.remove()
    assert torch.equal(torch.autograd.grad(loss_of(y), [z0])[0], want)


def test_two_solves_may_be_interleaved(case):
    net, z0, u, _, _ = case
    alone = []
    for beta in (0.4, 0.9):
        y = fdeint(net, z0, 1.0, beta, args=(u,), steps=20)
        alone.append(torch.autograd.grad(loss_of(y), [z0, u, *net.parameters()]))
    first, second = (fdeint(net, z0, 1.0, beta, args=(u,), steps=20) for beta in (0.4, 0.9))
    both = torch.autograd.grad(loss_of(first) + loss_of(second), [z0, u, *net.parameters()])
    for a, b, c in zip(*alone, both, strict=True):
        assert relative(c, a + b) < 1e-13


def test_analytic_derivatives_of_the_mittag_leffler_function_are_approached_at_the_order_of_the_scheme():
    # D^β z = λz, z(0) = 1, λ = -1: ∂z/∂λ and ∂z/∂β at t = 1, β = 0.5 (design table, mpmath)
    exact = (0.427583576156, 0.273212014784, -0.144070581343)
    for method, order in (("predictor", 1.0), ("abm", 1.5), ("trapezoid", 1.5), ("gl", 1.0), ("l1", 1.0)):
        errors = []
        for steps in (40, 80, 160):
            lam = torch.tensor(-1.0, dtype=F64, requires_grad=True)
            beta = torch.tensor(0.5, dtype=F64, requires_grad=True)
            z = fdeint(
                lambda t, z, k: k * z, torch.ones((), dtype=F64), 1.0, beta, args=(lam,), method=method, steps=steps
            )
            grads = torch.autograd.grad(z, [lam, beta])
            errors.append([abs(float(a) - e) for a, e in zip((z.detach(), *grads), exact, strict=True)])
        for k in range(3):
            rate = torch.log2(torch.tensor(errors[1][k] / errors[2][k]))
            assert abs(rate - order) < 0.3, (method, k, errors)


def test_the_paper_adjoint_is_biased_and_says_so(case):
    net, z0, u, _, _ = case
    errors = []
    for steps in (50, 400):
        grads = []
        for adjoint in ("exact", "paper"):
            y = fdeint(net, z0, 1.0, 0.5, args=(u,), steps=steps, adjoint=adjoint)
            grads.append(flat(torch.autograd.grad(loss_of(y), list(net.parameters()))))
        errors.append(relative(grads[1], grads[0]))
    assert min(errors) > 0.02  # refining the step does not remove it
    assert "approximation" in (neuralfde.Paper.__doc__ or "").lower()


def test_the_paper_adjoint_follows_its_equations(case):
    """eq. back_pred1 and back_pred2 by hand, with autograd for the products."""
    net, z0, u, _, _ = case
    steps, beta, h = 12, 0.5, 1.0 / 12
    b = torch.tensor(beta, dtype=F64)
    f = lambda n, z: net(torch.tensor(n * h, dtype=F64), z, u)
    weights = reference.uniform("predictor", b.reshape(1, 1, 1), torch.full((1, 1), h, dtype=F64), steps)
    table = weights.matrix[0]
    zs = [z.detach() for z in reference.solve(f, [z0], weights.matrix, weights.stage)]
    seed = loss_of(zs[-1].requires_grad_()[None])
    lam = {steps: torch.autograd.grad(seed, zs[-1])[0]}
    theta = [torch.zeros_like(p) for p in net.parameters()]
    pulled = {}
    for n in range(steps, 0, -1):
        z = zs[n].detach().requires_grad_()
        found = torch.autograd.grad(f(n, z), [z, *net.parameters()], lam[n])
        pulled[n] = found[0]
        theta = [a + h * g for a, g in zip(theta, found[1:], strict=True)]
        lam[n - 1] = lam[steps] + sum(table[j][n - 1] * pulled[j] for j in range(n, steps + 1))
    y = fdeint(net, z0, 1.0, beta, args=(u,), steps=steps, adjoint="paper")
    got = torch.autograd.grad(loss_of(y[None]), [z0, *net.parameters()])
    assert relative(got[0], lam[0]) < 1e-12
    assert relative(flat(got[1:]), flat(theta)) < 1e-12
