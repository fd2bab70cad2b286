"""The readout is relu, dropout and a linear map."""

import pytest
import torch
import torch.nn.functional as F

from neuralfde.models.readout import readout


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_value_and_gradients(dropout):
    torch.manual_seed(0)
    z, w, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((50, 6), (3, 6), (3,)))
    out = readout(z, w, b, dropout)
    kept = out.grad_fn.saved_tensors[0] > 0 if dropout else torch.ones_like(z, dtype=torch.bool)
    h = F.relu(z) * kept / (1 - dropout)
    expected, seed = F.linear(h, w, b), torch.randn(50, 3, dtype=torch.float64)
    torch.testing.assert_close(out, expected)
    got, want = (torch.autograd.grad(y, (z, w, b), seed) for y in (out, expected))
    for a, e in zip(got, want, strict=True):
        torch.testing.assert_close(a, e)
    if dropout:
        share = kept[z > 0].double().mean()
        assert abs(share - 0.6) < 0.12


def test_under_autocast_and_with_everything_dropped():
    z, w, b = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6), torch.randn(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = readout(z, w, b, 0.5)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(readout(z, w, b, 1.0), b.expand(4, 3))
