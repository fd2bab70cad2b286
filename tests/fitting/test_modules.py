"""A user's module in a fit: tensors it shares, and how it is left when the fit ends, fails or is interrupted."""

import pytest
import torch
from torch import nn

import neuralfde
from neuralfde import InputTypeError
from neuralfde.fitting import Adam, LevenbergMarquardt, fit

DOUBLE = torch.float64
TIMES = torch.linspace(0, 1, 9, dtype=DOUBLE)
OPTIONS = {"order": 0.8, "steps": 8, "intervals": None}


def values(rate=1.3):
    return neuralfde.fdeint(lambda t, z: -rate * z, torch.ones(1, 1, dtype=DOUBLE), TIMES, 0.8, steps=8, method="abm")


class Shared(nn.Module):
    """``-rate z`` by way of tensors that several places share: layers, weights and buffers, nested or not."""

    def __init__(self, kind, dtype=torch.float32):
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False, dtype=dtype)
        if kind == "layer":
            self.second = self.first
        elif kind == "weight":
            self.second = nn.Linear(1, 1, bias=False, dtype=dtype)
            self.second.weight = self.first.weight
        else:
            self.second = nn.ModuleDict({"inner": nn.Sequential(self.first, nn.Identity())})
            self.third = self.second
        self.register_buffer("share", torch.tensor(0.5, dtype=dtype))
        self.register_buffer("again", self.share)
        self.register_buffer("calls", torch.tensor(0))
        self.fail_after, self.counts = None, False
        with torch.no_grad():
            self.first.weight.fill_(-0.4)

    def forward(self, t, z):
        if self.counts:
            self.calls += 1
        if self.fail_after is not None and not torch.is_grad_enabled():
            self.fail_after -= 1
            if self.fail_after == 0:
                raise KeyboardInterrupt
        second = self.second["inner"] if isinstance(self.second, nn.ModuleDict) else self.second
        return self.share * self.first(z) + self.again * second(z)


def held(module):
    """Every tensor at every path, and what it holds."""
    paths = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    return {n: (id(x), type(x), x.dtype, x.requires_grad) for n, x in paths.items()}


@pytest.mark.parametrize("optimiser", [LevenbergMarquardt(), Adam(epochs=1)])
@pytest.mark.parametrize("kind", ["layer", "weight", "nested"])
def test_shared_tensors_are_one_unknown_and_stay_what_they_are(kind, optimiser):
    model = Shared(kind, DOUBLE)
    model.counts = isinstance(optimiser, Adam)
    before = held(model)
    found = fit(model, TIMES, values(), optimiser=optimiser, **OPTIONS)
    assert list(found.estimates) == ["first.weight[0,0]"]
    assert held(model) == before
    assert int(model.calls) == 0  # the fit counts in a buffer of its own
    assert float(model.first.weight.detach()) == found.flat.item()
    if isinstance(optimiser, LevenbergMarquardt):
        assert found.estimates["first.weight[0,0]"] == pytest.approx(-1.3, rel=1e-6)
        torch.testing.assert_close(found.predict(TIMES), values())
    assert held(model) == before


@pytest.mark.parametrize("after", [1, 7, 30])
@pytest.mark.parametrize("kind", ["layer", "weight", "nested"])
def test_an_interrupted_fit_leaves_the_module_as_it_was(kind, after):
    model = Shared(kind)
    before, model.fail_after = held(model), after
    with pytest.raises(KeyboardInterrupt):
        fit(model, TIMES, values(), **OPTIONS)
    assert held(model) == before
    assert float(model.first.weight.detach()) == pytest.approx(-0.4)

    def stop(progress):
        raise RuntimeError("enough")

    model.fail_after = None
    with pytest.raises(RuntimeError, match="enough"):
        fit(model, TIMES, values(), callback=stop, **OPTIONS)
    assert held(model) == before
    assert float(model.first.weight.detach()) == pytest.approx(-0.4)


def test_complex_parameters_are_refused():
    model = nn.Linear(1, 1, bias=False, dtype=torch.complex64)
    with pytest.raises(InputTypeError, match="two parameters"):
        fit(model, TIMES, values(), **OPTIONS)


def test_a_module_is_fitted_by_an_implicit_method():
    """What a fit looks up about the module, it looks up before: func must not change while it is solved."""
    module = Shared("layer", DOUBLE)
    found = fit(module, TIMES, values(), **{**OPTIONS, "method": "trapezoid"})
    assert found.converged
    assert found.loss < 1e-4
