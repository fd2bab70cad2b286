"""``linear=`` in blocks and fits."""

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde import linear
from tests.stubs import F64, relative

from .test_linear import N, numbers


class Field(nn.Module):
    """Diffusivities as exponentials of parameters."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(N + 1, dtype=F64))

    def forward(self):
        return linear.diffusion(self.log.exp(), 0.7)


def test_a_block_owns_the_parameters_of_its_linear_part():
    block = nf.FDEBlock(lambda t, z: torch.tanh(z), 0.7, learn_order=True, t=1.0, steps=10, linear=Field()).double()
    assert [n for n, _ in block.named_parameters()] == ["raw_order", "linear.log"]
    block(numbers(2, N)).sum().backward()
    assert float(block.linear.log.grad.abs().min()) > 0
    constant = nf.FDEBlock(None, 0.7, t=1.0, linear=-torch.eye(N))
    assert "linear" in dict(constant.named_buffers())
    assert relative(constant(torch.ones(N)), nf.mittag_leffler(-torch.ones(N), 0.7)) < 1e-6


@pytest.mark.parametrize("kind", ["bands", "sparse"])
def test_a_fit_of_diffusivities_and_reaction(kind):
    at = torch.arange(N)

    def part(k):
        bands = linear.diffusion(k.exp().expand(N + 1), 0.7)
        if kind == "bands":
            return bands
        rows, columns = torch.cat([at, at[1:], at[:-1]]), torch.cat([at, at[:-1], at[1:]])
        b = bands.bands
        return linear.Sparse(rows, columns, torch.cat([b[:, 1], b[1:, 0], b[:-1, 2]]), N)

    def reaction(t, z, r):
        return r * z * (1 - z)

    k, r, times = torch.tensor(-0.5, dtype=F64), torch.tensor(0.8, dtype=F64), torch.linspace(0, 1, 6, dtype=F64)
    z0 = numbers(N)
    data = nf.fdeint(lambda t, z: reaction(t, z, r), z0, times, 0.8, steps=60, linear=part(k))
    noisy = data + 1e-3 * torch.randn(data.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    noisy[0] = z0
    found = nf.fit(
        reaction, times, noisy, params={"k": 0.0, "r": 0.5}, linear=part, order=0.7, learn_order=True, steps=60
    )
    for name, want in (("k", k), ("r", r), ("order", 0.8)):
        low, high = found.intervals[name]
        assert abs(found.estimates[name] - float(want)) < 3 * (high - low)
        assert high - low < 0.1


@pytest.mark.parametrize(
    ("options", "says"), [({"resume": True}, "cannot be resumed"), ({"adjoint": "paper"}, "explicit steps")]
)
def test_what_does_not_go_with_it(options, says):
    with pytest.raises(nf.InputError, match=says):
        nf.solve(
            lambda t, z: z, numbers(2, N), 1.0, 0.7, steps=5, linear=linear.diffusion(numbers(N + 1), 0.7), **options
        )
