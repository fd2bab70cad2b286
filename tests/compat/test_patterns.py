"""Call patterns of programs written for torchfde and FROND: what they hang on modules, import and pass."""

import importlib
import math

import pytest
import torch
from torch import nn

from neuralfde import CapturedTensorError, UnsupportedError
from neuralfde.compat import torchfde, torchfde_legacy
from neuralfde.errors import InputError

DOUBLE = torch.float64


class Diffusion(nn.Module):
    """The right-hand side of F-GRAND-l: attention and source are computed before the solve and hung on the module."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.3, dtype=DOUBLE))
        self.attention_weights = None
        self.sources = []
        self.seen = None

    def forward(self, t, x):
        return torch.sigmoid(self.rate) * (self.attention_weights @ x - x) + 0.1 * self.sources[0]


class Block(nn.Module):
    """Attention and diffusion share a layer, so that a gradient counted twice would show."""

    def __init__(self, how="module"):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.odefunc = how, Diffusion()
        self.odefunc.key = nn.Linear(3, 3, dtype=DOUBLE)

    def forward(self, solve, x):
        func = self.odefunc
        func.seen = (x * x).sum()  # what an earlier pass left behind has no graph any more
        func.seen.backward(retain_graph=False)
        score = func.key(x) @ x.T
        func.attention_weights, func.sources = torch.softmax(score, -1), [torch.tanh(func.key(x))]
        call = {"module": func, "function": lambda t, z: func(t, z), "method": func.forward}[self.how]
        return solve(call, x, torch.tensor(0.6, dtype=DOUBLE), t=1.0, step_size=0.125)


def by_autograd(func, x, beta, t, step_size):
    """The predictor as a plain loop."""
    h, b, slopes, z = step_size, float(beta), [], x
    for k in range(round(t / h)):
        slopes.append(func(torch.tensor(k * h), z))
        weights = [h**b / math.gamma(b + 1) * ((k + 1 - j) ** b - (k - j) ** b) for j in range(k + 1)]
        z = x + sum(w * v for w, v in zip(weights, slopes, strict=True))
    return z


def gradients(how, solve):
    block = Block(how)
    x = torch.linspace(-1, 1, 12, dtype=DOUBLE).reshape(4, 3).requires_grad_()
    block(solve, x).square().sum().backward()
    before = (block.odefunc.attention_weights.grad_fn, block.odefunc.sources[0].grad_fn)
    assert all(before)  # the module holds what it held
    return x.grad, block.odefunc.rate.grad, block.odefunc.key.weight.grad


@pytest.mark.parametrize("how", ["module", "function", "method"])
@pytest.mark.parametrize(
    "call",
    [
        torchfde.fdeint,
        torchfde.fdeint_adjoint,
        lambda *a, **k: torchfde.fdeint_adjoint(*a, adjoint="direct", **k),
        torchfde_legacy.fdeint,
    ],
    ids=["fdeint", "fdeint_adjoint", "direct", "legacy"],
)
def test_tensors_hung_on_a_module_get_their_gradients(call, how):
    wanted = gradients(how, by_autograd)
    got = gradients(how, lambda *a, **k: call(*a, method="predictor", **k))
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-12)


def test_what_torchfdes_adjoint_would_drop_is_refused():
    with pytest.raises(InputError, match="'attention_weights', 0"):
        gradients("module", lambda *a, **k: torchfde_legacy.fdeint_adjoint(*a, method="predictor", **k))


def test_the_advice_about_captured_tensors_fits_the_call():
    rate = torch.tensor(1.0, requires_grad=True).exp()
    with pytest.raises(CapturedTensorError) as caught:
        torchfde.fdeint(lambda t, y: -rate * y, torch.ones(1), 0.5, 1.0, 0.1, "gl")
    assert "attribute of the module" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ["torchfde", "torchfde_legacy"])
def test_every_name_of_torchfde_can_be_imported(name):
    module = importlib.import_module(f"neuralfde.compat.{name}")
    for public in ("fdeint", "fdeint_adjoint", "LearnbleFDEINT", "set_tensor_mode", "get_tensor_mode"):
        assert hasattr(module, public)
    with pytest.raises(UnsupportedError, match="CustomKernel"):
        module.LearnbleFDEINT(state_dim=3, hidden_dim=8, dropout=0.1, method="AttentionKernel_simple")


def test_the_legacy_module_has_legacy_numbers():
    given = (lambda t, y: -y, torch.ones(1), 0.5, 1.0, 0.05)
    for method in ("gl", "trap", "predictor"):
        assert torch.equal(torchfde_legacy.fdeint(*given, method), torchfde.fdeint(*given, method, legacy=True))
    with pytest.raises(InputError, match="Leave one out"):
        torchfde_legacy.fdeint(*given, "gl", adjoint="direct")


def test_an_adjoint_may_be_chosen_also_in_options():
    y0 = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    found = []
    for more in ({"adjoint": "paper"}, {"options": {"adjoint": "paper"}}, {"adjoint": "direct"}, {}):
        out = torchfde.fdeint(lambda t, y: -y * y, y0, 0.6, 2.0, 0.2, "predictor", **more)
        found.append(torch.autograd.grad(out.sum(), y0)[0])
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[2], found[3])
    assert (found[0] - found[3]).abs().max() > 1e-3


def test_an_order_given_as_a_number_keeps_its_precision():
    y0 = torch.ones(1, dtype=DOUBLE)
    given = (lambda t, y: -y, y0)
    number = torchfde.fdeint(*given, 0.7, 1.0, 0.1, "predictor")
    assert torch.equal(number, torchfde.fdeint(*given, torch.tensor(0.7, dtype=DOUBLE), 1.0, 0.1, "predictor"))


@pytest.mark.parametrize(("t", "h"), [(1.0, 0.1), (2.5, 1.0)])
def test_steps_as_frond_counts_them(t, h):
    """FROND's grid is ``arange(0, t, h)``, n points: n steps of ``predictor``, n - 1 of ``gl`` and ``trap``."""
    n = len(torch.arange(0, t, h))
    y0, func = torch.ones(1, dtype=DOUBLE), lambda t, y: -y * (1 + t)
    ours = torchfde.fdeint(func, y0, 0.6, n * h, h, "predictor")
    torch.testing.assert_close(ours, by_autograd(func, y0, 0.6, n * h, h))
    path = torchfde.fdeint(func, y0, 0.6, (n - 1) * h, h, "gl", {"return_history": True})
    assert len(path) == n


GLOBAL = nn.Linear(2, 2, dtype=DOUBLE)


def test_a_function_may_mention_a_global_module():
    x = torch.ones(3, 2, dtype=DOUBLE, requires_grad=True)
    grads = []
    for solve in (by_autograd, lambda *a, **k: torchfde.fdeint(*a, method="predictor", **k)):
        GLOBAL.attention = torch.softmax(GLOBAL(x).T @ x, -1)
        out = solve(
            lambda t, y: GLOBAL(y) @ GLOBAL.attention, x, torch.tensor(0.6, dtype=DOUBLE), t=1.0, step_size=0.125
        )
        grads.append(torch.autograd.grad(out.sum(), [x, GLOBAL.weight]))
    for g, w in zip(*grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-12)
