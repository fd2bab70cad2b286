"""Linear diffusion as a sum of powers of attention: the numbers and the gradients of the steps that it stands for."""

import pytest
import torch

from neuralfde.errors import InputError
from neuralfde.models.graph import FGrand


def graph(nodes=30):
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, nodes, (2, 80), generator=draw)
    x = torch.randn(nodes, 5, generator=draw, dtype=torch.float64)
    return x, torch.cat([edges, edges.flip(0)], 1)


def model(**options):
    torch.manual_seed(0)
    made = FGrand(5, 3, **{"hidden": 6, "heads": 2, "t": 5.0, "step": 0.5, "order": 0.7, **options}).double()
    with torch.no_grad():  # away from the start, where attention is uniform and the source is off
        for p in made.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    return made


@pytest.mark.parametrize(
    "options",
    [{}, {"source": False, "learn_order": True, "t": 0.5}, {"over": "source", "t": 8.0}, {"source": "held"}],
)
def test_powers_are_the_same_solution_with_the_same_gradients(options):
    (x, edges), found = graph(), []
    for powers in (False, True):
        made = model(powers=powers, **options)
        logits = made(x, edges)
        logits.square().sum().backward()
        found.append({"logits": logits.detach()} | {name: p.grad for name, p in made.named_parameters()})
    steps, powers = found
    for name, value in steps.items():
        torch.testing.assert_close(powers[name], value, rtol=1e-9, atol=1e-11, msg=name)


def test_what_powers_cannot_do_is_refused():
    for options in ({"variant": "nl"}, {"method": "abm"}, {"step": None}):
        with pytest.raises(InputError, match="powers=True needs"):
            model(powers=True, **options)
    with pytest.raises(InputError, match="adjoint, history would have no say: leave it out"):
        model(powers=True, adjoint="paper", history="fft")
    made = model(powers=True, t=40.0, step=2.0, order=0.5)
    with torch.no_grad():
        made.block.func.a.fill_(3.0)
    with pytest.raises(InputError, match="step=2 is too long for an explicit scheme"):
        made(*graph())


@pytest.mark.gpu
def test_kernels_give_the_numbers_of_the_cpu():
    (x, edges), found = graph(), []
    for device in ("cpu", "cuda"):
        made = model(powers=True).to(device)
        logits = made(x.to(device), edges.to(device))
        logits.square().sum().backward()
        found.append([logits.detach().cpu(), *[p.grad.cpu() for p in made.parameters()]])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
