"""`compat.torchfde` against torchfde's own results, and against its formulas written again here as plain loops."""

import json
import logging
import math

import pytest
import torch
from torch import nn

from neuralfde import fdeint as solve
from neuralfde.compat import torchfde
from neuralfde.errors import InputError, InputTypeError, UnsupportedError
from tests.compat import torchfde_cases

NAMES = ["predictor", "corrector", "l1", "gl", "trap", "glmulti"]
SHARES = [0.2, 0.8]


def orders(name, dtype=torch.float32):
    return torch.tensor([0.35, 0.8], dtype=dtype) if name == "glmulti" else torch.tensor(0.4, dtype=dtype)


def options(name, **more):
    return {"multi_coefficient": torch.tensor(SHARES), **more} if name == "glmulti" else more


class Slope(nn.Module):
    def __init__(self, seed=0, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)

    def forward(self, t, y):
        return self.net(y) + 0.3 * torch.sin(3 * t)


def gl_coefficient(beta, m):
    c = 1.0
    for j in range(1, m + 1):
        c *= 1 - (1 + beta) / j
    return c


def weight(name, n, j, betas, h):
    """What row j contributes to row n, with the sign of the sum that is subtracted."""
    beta, m = betas[0], n - j
    if name in ("l1", "trap"):
        if j:
            return (m + 1) ** (1 - beta) - 2 * m ** (1 - beta) + (m - 1) ** (1 - beta)
        if name == "l1":
            return (n - 1) ** (1 - beta) - n ** (1 - beta)
        return (n - 1) ** (1 - beta) - (n - 1 + beta) * n**-beta
    if name == "gl":
        return gl_coefficient(beta, m)
    return sum(s * h**-b * gl_coefficient(b, m) for s, b in zip(SHARES, betas, strict=True))


def naive_row(name, n, first, rows, slopes, betas, h, memory=10**9):
    """Row n of a legacy recurrence from rows and slopes 0 … n-1."""
    beta = betas[0]
    js = [j for j in range(n) if j >= n - memory]
    if name in ("predictor", "corrector"):
        b = h**beta / math.gamma(beta + 1)
        return first + sum(b * ((n - j) ** beta - (n - 1 - j) ** beta) * slopes[j] for j in js)
    past = sum(weight(name, n, j, betas, h) * rows[j] for j in js)
    if name == "glmulti":
        return (slopes[-1] - past) / weight(name, n, n, betas, h)
    return h**beta * (1 if name == "gl" else math.gamma(2 - beta)) * slopes[-1] - past


def naive(name, func, first, betas, h, steps, memory=10**9, corrections=1):
    rows, slopes = [first], []
    for n in range(1, steps + 1):
        slopes.append(func(torch.tensor((n - 1) * h, dtype=first.dtype), rows[-1]))
        row = naive_row(name, n, first, rows, slopes, betas, h, memory)
        if name == "corrector":
            beta = betas[0]
            a = h**beta / math.gamma(beta + 2)
            known = first
            for j in range(max(0, n - memory), n):
                m = n - j
                w = (m + 1) ** (beta + 1) - 2 * m ** (beta + 1) + (m - 1) ** (beta + 1)
                w = (n - 1) ** (beta + 1) - (n - 1 - beta) * n**beta if j == 0 else w
                known = known + a * w * slopes[j]
            for _ in range(corrections):
                row = known + a * func(torch.tensor(n * h, dtype=first.dtype), row)
        rows.append(row)
    return rows


def naive_adjoint(name, suffix, func, rows, seed, betas, h):
    """The reverse recurrence: gradients of the first row and of the parameters."""
    steps = len(rows) - 1
    params = list(func.parameters())
    lam, products, totals = [seed], [], [torch.zeros_like(p) for p in params]
    for k in range(1, steps + 1):
        n = steps - k + 1
        z = rows[n].detach().requires_grad_()
        found = torch.autograd.grad(func(torch.tensor(n * h, dtype=z.dtype), z), [z, *params], lam[-1])
        products.append(found[0])
        totals = [t + h * g for t, g in zip(totals, found[1:], strict=True)]
        if suffix == "o":
            lam.append(lam[-1] + h * found[0])
        else:
            lam.append(naive_row(name, k, lam[0], lam, products, betas, h))
    return [lam[-1], *totals]


def close(a, b, tol=1e-5):
    a, b = a.detach(), b.detach()
    assert (a - b).abs().max() <= tol * max(1.0, float(b.abs().max())), float((a - b).abs().max())


@pytest.mark.parametrize("memory", [-1, 7])
@pytest.mark.parametrize("name", NAMES)
def test_legacy_solution(name, memory):
    func, y0, beta = Slope(), torch.randn(4, 3), orders(name)
    got = torchfde.fdeint(
        func, y0, beta, 2.0, 0.1, name, options(name, return_history=True, memory=memory), legacy=True
    )
    want = naive(name, func, y0, beta.reshape(-1).tolist(), 0.1, 20, 10**9 if memory == -1 else memory)
    assert got.shape == (21, 4, 3)
    close(got, torch.stack(want))


@pytest.mark.parametrize("suffix", ["f", "o"])
@pytest.mark.parametrize("name", NAMES)
def test_legacy_adjoint(name, suffix):
    func, y0, beta = Slope(), torch.randn(4, 3).requires_grad_(), orders(name)
    out = torchfde.fdeint_adjoint(func, y0, beta, 2.0, 0.1, f"{name}-{suffix}", options(name, legacy=True))
    seed = torch.randn_like(out)
    got = torch.autograd.grad(out, [y0, *func.parameters()], seed)
    with torch.no_grad():
        rows = naive(name, func, y0, beta.reshape(-1).tolist(), 0.1, 20)
    want = naive_adjoint(name, suffix, func, rows, seed, beta.reshape(-1).tolist(), 0.1)
    close(out, rows[-1])
    for g, w in zip(got, want, strict=True):
        close(g, w)


@pytest.mark.parametrize("name", NAMES)
def test_legacy_autograd(name):
    func, beta = Slope(dtype=torch.float64), orders(name, torch.float64)
    y0 = torch.randn(4, 3, dtype=torch.float64).requires_grad_()
    out = torchfde.fdeint(func, y0, beta, 2.0, 0.125, name, options(name), legacy=True)
    seed = torch.randn_like(out)
    want = naive(name, func, y0, beta.reshape(-1).tolist(), 0.125, 16)[-1]
    a = torch.autograd.grad(out, [y0, *func.parameters()], seed)
    b = torch.autograd.grad(want, [y0, *func.parameters()], seed)
    for g, w in zip(a, b, strict=True):
        close(g, w, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_default_is_caputo_with_the_exact_gradient(name):
    """A constant slope of 0 keeps the initial value; the gradient is that of autograd through the loop."""
    kept = torchfde.fdeint(lambda t, y: 0 * y, torch.ones(3), orders(name), 1.0, 0.01, name, options(name))
    close(kept, torch.ones(3))
    func, beta = Slope(dtype=torch.float64), orders(name, torch.float64)
    y0 = torch.randn(4, 3, dtype=torch.float64).requires_grad_()
    grads = []
    for call, suffix in ((torchfde.fdeint, ""), (torchfde.fdeint_adjoint, "-f"), (torchfde.fdeint_adjoint, "-o")):
        out = call(func, y0, beta, 1.0, 0.125, name + suffix, options(name))
        grads.append(torch.autograd.grad(out.square().sum(), [y0, *func.parameters()]))
    if name in ("predictor", "corrector", "l1"):  # Caputo schemes in torchfde too
        rows = naive(name, func, y0, beta.reshape(-1).tolist(), 0.125, 8)
    else:  # the same recurrence for y - y0
        start = torch.zeros_like(y0)
        moved = lambda t, u: func(t, u + y0)
        rows = [u + y0 for u in naive(name, moved, start, beta.reshape(-1).tolist(), 0.125, 8)]
    want = torch.autograd.grad(rows[-1].square().sum(), [y0, *func.parameters()])
    for got in grads:
        for g, w in zip(got, want, strict=True):
            close(g, w, 1e-6)  # multi_coefficient is float32


def test_legacy_forgets_the_initial_value_and_the_default_does_not():
    for name in ("gl", "trap"):
        run = lambda legacy, name=name: float(
            torchfde.fdeint(lambda t, y: -y, torch.ones(1), 0.5, 1.0, 0.002, name, legacy=legacy)
        )
        assert abs(run(False) - 0.427583576156) < 2e-3  # E_½(-1)
        assert abs(run(True)) < 0.05


def test_multi_term_gradients_of_orders_and_coefficients():
    beta = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    share = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    y0 = torch.ones(2, dtype=torch.float64)

    def final(b, s):
        out = torchfde.fdeint(lambda t, y: -y * y, y0, b, 1.0, 0.1, "glmulti", {"multi_coefficient": s})
        return out.sum()

    assert torch.autograd.gradcheck(final, (beta, share))
    assert torch.autograd.grad(final(beta.detach(), share), share)[0].abs().min() > 0


def test_tuple_states_and_trajectories():
    net = nn.Linear(3, 3)
    func = lambda t, y: (net(y[1]), -y[0])
    y0 = (torch.randn(2, 3), torch.randn(2, 3))
    for legacy in (False, True):
        end = torchfde.fdeint(func, y0, 0.5, 1.0, 0.1, "gl", legacy=legacy)
        path = torchfde.fdeint(func, y0, 0.5, 1.0, 0.1, "gl", {"return_history": True}, legacy=legacy)
        assert isinstance(end, tuple)
        assert [tuple(p.shape) for p in path] == [(11, 2, 3)] * 2
        for e, p, s in zip(end, path, y0, strict=True):
            close(p[-1], e)
            close(p[0], s)


def test_plain_functions_train_what_they_capture():
    net, y0 = Slope(), torch.randn(4, 3)
    out = torchfde.fdeint(lambda t, y: net(t, y), y0, 0.6, 1.0, 0.1, "predictor")
    got = torch.autograd.grad(out.sum(), list(net.parameters()))
    want = torch.autograd.grad(solve(net, y0, 1.0, torch.tensor(0.6), step=0.1).sum(), list(net.parameters()))
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-6)


def test_the_grid_is_torchfdes(caplog):
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        path = torchfde.fdeint(lambda t, y: -y, torch.ones(1), 0.5, 1.0, 0.3, "gl", {"return_history": True, "x": 1})
    assert path.shape[0] == 4
    assert "does not divide" in caplog.text
    assert "'x' is ignored" in caplog.text


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"method": "predictr"}, "Did you mean 'predictor'"),
        ({"method": "gl-x"}, "may end in"),
        ({"t": -1.0}, "positive"),
        ({"step_size": 2.0}, "no longer than t"),
        ({"t": torch.linspace(0, 1, 5)}, r"t has shape \(5,\) .*return_history"),
        ({"options": {"memory": 0}}, "whole past"),
        ({"beta": torch.tensor([0.1, 0.2])}, "one order"),
        ({"method": "glmulti", "options": {"multi_coefficient": [1.0, 2.0]}}, "2 entries for 1"),
    ],
)
def test_refusals(change, match):
    call = {"beta": 0.5, "t": 1.0, "step_size": 0.1, "method": "gl", **change}
    with pytest.raises(InputError, match=match):
        torchfde.fdeint(lambda t, y: -y, torch.ones(1), **call)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"t": torch.tensor(1.0, requires_grad=True)}, r"t requires grad.*horizon"),
        ({"step_size": torch.tensor(0.1, requires_grad=True)}, "step_size requires grad"),
        ({"t": float("inf")}, "positive, finite"),
        ({"t": "1"}, "positive, finite"),
        ({"method": None}, "'predictor'"),
        ({"options": {"memory": 5.5}}, "whole number"),
        ({"options": {"corrector_step": 1.5}}, "whole number"),
        ({"options": [1]}, "a dict"),
    ],
    ids=str,
)
def test_no_number_is_cut_or_loses_its_gradient(change, match):
    given = {"t": 1.0, "step_size": 0.1, "method": "predictor"} | change
    with pytest.raises((InputError, InputTypeError), match=match):
        torchfde.fdeint(lambda t, y: -y, torch.ones(2), 0.6, **given)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"func": None}, "func must be callable as func"),
        ({"func": lambda t, y: y[:1]}, "a slope of the structure"),
        ({"func": lambda t, y: None}, "a slope of the structure"),
        ({"beta": torch.tensor(0.6, requires_grad=True)}, r"no gradient for them\. Pass beta\.detach"),
        ({"beta": 0.0}, r"beta=\[0\.0\] must be positive"),
        ({"beta": float("nan")}, "must be positive"),
        (
            {"beta": [0.6], "method": "glmulti", "options": {"multi_coefficient": "a"}},
            "multi_coefficient must be numbers",
        ),
    ],
    ids=["no func", "short slope", "no slope", "learned order", "order 0", "order NaN", "no shares"],
)
def test_legacy_refuses_what_has_no_result(change, match):
    given = {"func": lambda t, y: -y, "beta": 0.6, "method": "predictor"} | change
    with pytest.raises((InputError, InputTypeError), match=match):
        torchfde.fdeint_adjoint(y0=torch.ones(2), t=1.0, step_size=0.1, legacy=True, **given)


def test_legacy_knows_no_transforms():
    with pytest.raises(UnsupportedError, match="Leave legacy= out"):
        torch.func.vmap(lambda y: torchfde.fdeint(lambda t, y: -y, y, 0.6, 1.0, 0.1, "gl", legacy=True))(
            torch.ones(2, 2)
        )


@pytest.mark.parametrize("name", torchfde_cases.cases())
def test_legacy_is_torchfde(name):
    """Against what torchfde itself computed; see torchfde_cases.py."""
    want = json.loads(torchfde_cases.FILE.read_text())[name]
    got = torchfde_cases.run(torchfde.fdeint, torchfde.fdeint_adjoint, torchfde_cases.cases()[name], legacy=True)
    close(torch.tensor(got["solution"]), torch.tensor(want["solution"]))
    close(torch.tensor(got["gradient"]), torch.tensor(want["gradient"]))


def test_tensor_modes_are_accepted():
    torchfde.set_tensor_mode("loop")
    assert torchfde.get_tensor_mode() == "concat"
    with pytest.raises(InputError, match="Did you mean 'concat'"):
        torchfde.set_tensor_mode("concatenate")


def test_the_older_name_of_l1():
    z0 = torch.ones(2, dtype=torch.float64)
    given = (lambda t, z: -z, z0, 0.5, 1.0, 0.1)
    assert torch.equal(torchfde.fdeint(*given, "implicitl1"), torchfde.fdeint(*given, "l1"))
    with pytest.raises(InputError, match="older releases"):
        torchfde.fdeint(*given, "implicitl1", legacy=True)
