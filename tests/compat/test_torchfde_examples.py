"""The calls of torchfde's example scripts, ``fde_mnist.py`` and ``test_tuple.py``, on small pictures."""

import pytest
import torch
from torch import nn

from neuralfde.compat import torchfde

CHANNELS = 8


class Convolution(nn.Module):
    """A convolution that sees the time as one more channel."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(CHANNELS + 1, CHANNELS, 3, padding=1)

    def forward(self, t, x):
        return self.layer(torch.cat([torch.ones_like(x[:, :1]) * t, x], 1))


class Slope(nn.Module):
    def __init__(self, pair):
        super().__init__()
        self.pair = pair
        self.before, self.after = nn.GroupNorm(4, CHANNELS), nn.GroupNorm(4, CHANNELS)
        self.relu = nn.ReLU(inplace=True)
        self.convolution = Convolution()

    def forward(self, t, x):
        out = self.after(self.convolution(t, self.relu(self.before(x[0] if self.pair else x))))
        return (out, out) if self.pair else out


class Block(nn.Module):
    def __init__(self, call, method, pair=False, history=False):
        super().__init__()
        self.func, self.call, self.method, self.pair, self.history = Slope(pair), call, method, pair, history

    def forward(self, x):
        options = {"corrector_step": 5, "return_history": True} if self.history else {"corrector_step": 5}
        state = (x, x) if self.pair else x
        out = self.call(self.func, state, torch.tensor(0.5), t=1.0, step_size=0.25, method=self.method, options=options)
        if not self.pair:
            return out
        assert isinstance(out, tuple)
        return out[1][-1] if self.history else out[1]


def train(block):
    """Two steps as the scripts take them: every parameter moves, and evaluation without gradients works."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(CHANNELS, 10))
    model = nn.Sequential(nn.Conv2d(1, CHANNELS, 4, 2, 1), block, head)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pictures, labels = torch.randn(6, 1, 12, 12), torch.arange(6)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimiser.step()
    assert torch.isfinite(loss)
    # the bias before a normalisation of its own group is the only one that need not move
    assert sum(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) >= len(before) - 1
    with torch.no_grad():
        assert model(pictures).shape == (6, 10)


@pytest.mark.parametrize("method", ["predictor", "corrector", "gl", "trap"])
def test_fde_mnist(method, caplog):
    train(Block(torchfde.fdeint, method))
    assert not caplog.records


@pytest.mark.parametrize("method", ["predictor-f", "predictor-o", "gl-f", "gl-o", "trap-f", "trap-o"])
def test_fde_mnist_with_adjoint(method):
    train(Block(torchfde.fdeint_adjoint, method))


@pytest.mark.parametrize("call", [torchfde.fdeint, torchfde.fdeint_adjoint])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("method", ["gl", "trap"])
def test_tuple(call, method, history):
    train(Block(call, method, pair=True, history=history))
