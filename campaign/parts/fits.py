"""Fits through every door: estimates are where the textbook has the least residuals, and covariances are its own."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

import neuralfde
from tests.reference.course import Course

from ..case import Case, Failed, Part

#: How far from the least residuals an estimate may be, in its standard errors; and a covariance, relatively.
OFF, APART = 0.02, 1e-5
SETTINGS: dict[str, Any] = {
    "given": ("function", "module", "trajectories", "own times", "linear"),
    "learn_order": (False, True),
    "scale": ("none", "noise", "noises", "weights"),
    "missing": (False, True),
    "optimiser": ("auto", "lm", "lbfgs"),
    "learn_initial": (False, True),
    "method": ("abm", "predictor", "trapezoid"),
    "bounds": (False, True),
    "times": ("even", "uneven"),
    "starts": (1, 1, 2),
    "stages": ((1.0,), (1.0,), (0.5, 1.0)),
    "steps": (12, 24),
    "numbers": tuple(range(20)),
}
TEXT = """\
import torch
from torch import nn

from neuralfde import fit

GENERATOR = torch.Generator().manual_seed({numbers})
TRUTH = {{"rate": 1.1, "gain": 0.4, "order": 0.7}}
EVEN = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4]
UNEVEN = [0.0, 0.13, 0.2, 0.5, 0.71, 0.9, 1.0, 1.33, 1.4, 1.77, 2.0, 2.1, 2.4]


def slope(t, z, rate, gain):
    return -rate * z + gain * torch.cos(t)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))
        self.gain = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))

    def forward(self, t, z):
        return slope(t, z, self.rate, self.gain)


def noise(count):
    return 0.02 * torch.randn(count, 1, dtype=torch.float64, generator=GENERATOR)

"""


def times_of(case: Case) -> list[list[float]]:
    """The times of each trajectory."""
    names: dict[str, Any] = {}
    exec(TEXT.format(**case), names)
    known = names["EVEN"] if case["times"] == "even" else names["UNEVEN"]
    if case["given"] == "own times":
        return [known, [known[0], *known[2::2]]]
    return [known] * (2 if case["given"] == "trajectories" else 1)


def predicted(case: Case, times: list[list[float]], values: Tensor, starts: list[Tensor]) -> list[Tensor]:
    """The textbook at (rate, gain, order) for each trajectory."""
    rate, gain, order = values
    mesh = torch.linspace(0, 2.4, case["steps"] + 1, dtype=torch.float64)
    found = []
    for own, z0 in zip(times, starts, strict=True):
        course = Course(
            lambda t, z: -rate * z + gain * torch.cos(t), z0.reshape(1), mesh, order, case["method"], even=True
        )
        found.append(torch.stack([course.at(t) for t in own]))
    return found


def data_of(case: Case) -> tuple[dict[str, Any], list[list[float]], list[Tensor]]:
    """Names, times and noisy observations, NaN where one is missing."""
    names: dict[str, Any] = {}
    exec(TEXT.format(**case), names)
    times = times_of(case)
    truth = torch.tensor([1.1, 0.4, 0.7], dtype=torch.float64)
    exact = predicted(case, times, truth, [torch.tensor(x, dtype=torch.float64) for x in (1.0, 0.6)][: len(times)])
    observed = [y + names["noise"](len(y)) for y in exact]
    if case["missing"]:
        observed[0][[2, 7]] = torch.nan
    return names, times, observed


def call(case: Case) -> str:
    """The call of ``fit``."""
    lists = case["given"] in ("trajectories", "own times")
    given = {"learn_order": case["learn_order"], "order": 0.75 if case["learn_order"] else 0.7}
    given |= {k: case[k] for k in ("optimiser", "learn_initial", "method", "starts", "stages", "steps")}
    words = [f"{k}={v!r}" for k, v in given.items()]
    model = "Field()" if case["given"] == "module" else "slope"
    if case["given"] == "linear":
        model = "lambda t, z, gain: gain * torch.cos(t) * torch.ones_like(z)"
        words.append("linear=lambda rate: -rate[..., None, None]")
    if model != "Field()":
        words.append("params={'rate': 0.8, 'gain': 0.2}")
    if case["bounds"]:
        words.append("bounds={'rate': (0.0, 5.0)}")
    if case["scale"] != "none":
        words.append({"noise": "noise=0.02", "noises": "noise=sizes", "weights": "weights=sizes"}[case["scale"]])
    return f"found = fit({model}, {'times' if lists else 'times[0]'}, {'observed' if lists else 'observed[0]'}, " + (
        f"{', '.join(words)})"
    )


def check(case: Case) -> float:
    """One step of Gauss and Newton by the textbook from the estimates must lead nowhere."""
    names, times, observed = data_of(case)
    sizes = [0.02 * (1 + 0.5 * torch.cos(torch.arange(len(y), dtype=torch.float64)))[:, None] for y in observed]
    lists = case["given"] in ("trajectories", "own times")
    names |= {"times": times, "observed": observed, "sizes": sizes if lists else sizes[0]}
    exec(call(case), names)
    fitted = names["found"]
    if not fitted.converged and fitted.message.startswith("stopped short"):
        raise neuralfde.ConvergenceError(fitted.message)  # as good as refused: it says so, with a warning
    labels = list(fitted.estimates)
    flat = torch.tensor(list(fitted.estimates.values()), dtype=torch.float64)

    def residuals(values: Tensor) -> Tensor:
        own = dict(zip(labels, values, strict=True))
        core = torch.stack([own["rate"], own["gain"], own.get("order", torch.tensor(0.7, dtype=torch.float64))])
        learned = [v for k, v in own.items() if k.startswith("initial")]
        starts = learned or [y[0] for y in observed]
        first = 0 if learned else 1  # or the first observation is the initial state, and says nothing else
        rows = zip(predicted(case, times, core, starts), observed, sizes, strict=True)
        by = {"none": lambda s: 1.0, "noise": lambda s: 50.0, "noises": lambda s: 1 / s, "weights": lambda s: s.sqrt()}
        all_of_them = torch.cat([(by[case["scale"]](s) * (z - y))[first:].flatten() for z, y, s in rows])
        return all_of_them[torch.cat([y[first:] for y in observed]).flatten().isfinite()]

    r, matrix = residuals(flat), torch.autograd.functional.jacobian(residuals, flat)
    inverse = torch.linalg.inv(matrix.T @ matrix)
    calibrated = case["scale"] in ("noise", "noises")
    variance = 1.0 if calibrated else float(r.square().sum()) / (len(r) - len(flat))
    off = float(((inverse @ matrix.T @ r).abs() / (variance * inverse.diagonal()).sqrt()).max())
    if off > OFF:
        raise Failed(f"not least: the estimates are {off:.1e} standard errors off, allowed {OFF:g}")
    covariance = variance * inverse
    apart = float((fitted.covariance - covariance).abs().max() / covariance.abs().max())
    if apart > APART:
        raise Failed(f"covariance: another one by {apart:.1e}, allowed {APART:g}")
    return max(off / OFF, apart / APART)


def script(case: Case) -> str:
    """The problem and the call, data as numbers."""
    _, times, observed = data_of(case)
    rows = [y.flatten().tolist() for y in observed]
    data = f"times = {times!r}\nobserved = [torch.tensor(y)[:, None] for y in {rows!r}]"
    return f"{TEXT.format(**case)}\nnan = float('nan')\n{data}\n{call(case)}\nprint(found)\n"


def arrange(case: Case, rng: random.Random) -> Case:
    """A prefix of the times needs enough of them."""
    return {**case, "stages": (1.0,)} if case["given"] == "own times" else case


PART = Part("fits", SETTINGS, check, script, arrange, share=0.2)
