"""A value that is not wanted costs nothing and is wanted again outside."""

import pytest
import torch

from neuralfde.models.csr import Graph
from neuralfde.models.diffusion import diffuse
from neuralfde.rhs.field import derivative_only, unvalued, value_wanted


def test_wanted_unless_told_otherwise():
    assert value_wanted()
    with derivative_only():
        assert not value_wanted()
        with derivative_only(False):
            assert value_wanted()
    with pytest.raises(ZeroDivisionError), derivative_only():
        raise ZeroDivisionError
    assert value_wanted()


def test_diffusion_has_its_gradient_without_its_value():
    draw = torch.Generator().manual_seed(0)
    graph = Graph.from_edge_index(torch.randint(0, 7, (2, 12), generator=draw), 7)
    inputs = [torch.randn(s, generator=draw).requires_grad_() for s in ((graph.num_edges,), (7, 3), (1,), (7, 3), (1,))]
    seed = torch.randn(7, 3, generator=draw)
    found = []
    for only in (False, True):
        with derivative_only(only):
            out = diffuse(graph, *inputs)
        found.append(torch.autograd.grad(out, inputs, seed))
    assert out.untyped_storage().nbytes() == unvalued(out).untyped_storage().nbytes() == out.element_size()
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
