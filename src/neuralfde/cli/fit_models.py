"""The models that ``neuralfde fit`` knows by name, and models from a Python file.

A ``Curve`` is known in closed form and is fitted at any times exactly; an ``Equation`` is solved. All numbers of the
named models are positive.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, nearest
from ..fitting.unknowns import Bounds
from ..special import mittag_leffler
from .predator_prey import lotka_volterra

Guess = Callable[[Tensor, Tensor], dict[str, float]]


@dataclass(frozen=True)
class Curve:
    """``curve(t, order, **params)`` for one measured variable; ``guess(times, values)`` is where the search starts."""

    formula: str
    curve: Callable[..., Tensor]
    guess: Guess
    bounds: dict[str, Bounds] = field(default_factory=dict)  # of parameters searched as they are, not by logarithms


@dataclass(frozen=True)
class Equation:
    """``D^β z = func(t, z, **params)``; ``measured`` says for a number of columns which variables they are.

    ``initial(values)`` is the state the search starts from, where it is not what was measured first.
    """

    formula: str
    func: Callable[..., Tensor]
    guess: Guess
    variables: tuple[str, ...] = ()
    measured: dict[int, list[int]] = field(default_factory=dict)
    initial: Callable[[Tensor], Tensor] | None = None
    positive: bool = True


def _scaled(t: Tensor, tau: Tensor, order: Any) -> Tensor:
    """``-(t / tau)^order``; at t = 0 too, where a logarithm has no derivative."""
    return -(order * (t.clamp(min=1e-300).log() - torch.as_tensor(tau).log())).exp()


def _relaxation(t: Tensor, order: Any, amplitude: Tensor, tau: Tensor) -> Tensor:
    return amplitude * mittag_leffler(_scaled(t, tau, order), order)


def _zener(t: Tensor, order: Any, rest: Tensor, amplitude: Tensor, tau: Tensor) -> Tensor:
    return rest + _relaxation(t, order, amplitude, tau)


def _maxwell(t: Tensor, order: Any, modulus: Tensor, gap: Tensor, tau: Tensor) -> Tensor:
    rise = gap * (1 - order)
    return modulus * (-order * t.log()).exp() * mittag_leffler(_scaled(t, tau, rise), rise, 1 - order)


def _middle(times: Tensor) -> float:
    """A time between the first and the last, on the log scale where they are decades apart."""
    first, last = float(times[times > 0][0]), float(times[-1])
    return math.sqrt(first * last) if last > 100 * first else (first + last) / 3


def _logistic(t: Tensor, z: Tensor, rate: Any, capacity: Any) -> Tensor:
    return rate * z * (1 - z / capacity)


def _epidemic(t: Tensor, z: Tensor, contact: Any, recovery: Any) -> Tensor:
    infected, recovered = contact * z[..., 0] * z[..., 1], recovery * z[..., 1]
    return torch.stack([-infected, infected - recovered, recovered][: z.shape[-1]], -1)


def _cycle(times: Tensor, values: Tensor) -> dict[str, float]:
    """The means are the equilibrium; the strongest period of the first variable gives the rates."""
    even = torch.linspace(float(times[0]), float(times[-1]), 256, dtype=torch.float64)
    at = torch.searchsorted(times, even).clamp(1, len(times) - 1)
    share = (even - times[at - 1]) / (times[at] - times[at - 1])
    signal = values[at - 1, 0] + share * (values[at, 0] - values[at - 1, 0])
    strongest = 1 + int(torch.fft.rfft(signal - signal.mean()).abs()[1:].argmax())
    rate = 2 * math.pi * strongest / float(times[-1] - times[0])
    x, y = values.mean(0).tolist()
    return {"a": rate, "b": rate, "c": rate / y, "d": rate / x}


def _spread(times: Tensor, values: Tensor) -> dict[str, float]:
    infected = values[:, 1 if values.shape[1] > 1 else 0]
    rate = 4 / max(float(times[infected.argmax()] - times[0]), float(times[-1] - times[0]) / 20)
    return {"contact": 2 * rate / float(_susceptible(values)[0]), "recovery": rate}


def _susceptible(values: Tensor) -> Tensor:
    if values.shape[1] == 3:
        return values[0]
    return torch.stack([5 * values.max(), values[0, 0]])


MODELS: dict[str, Curve | Equation] = {
    "relaxation": Curve(
        "z = amplitude E_β(-(t/tau)^β)",
        _relaxation,
        lambda t, v: {"amplitude": float(v[0]), "tau": _middle(t)},
    ),
    "zener": Curve(
        "z = rest + amplitude E_β(-(t/tau)^β)",
        _zener,
        lambda t, v: {"rest": float(v[-1]) / 2, "amplitude": float(v[0]), "tau": _middle(t)},
        bounds={"rest": (0.0, None)},
    ),
    "maxwell": Curve(
        "z = modulus t^-β E_{α-β,1-β}(-(t/tau)^(α-β)), α = β + gap (1 - β)",
        _maxwell,
        lambda t, v: {"modulus": float(v[0]), "gap": 0.5, "tau": _middle(t)},
        bounds={"gap": (0.0, 1.0)},
    ),
    "logistic": Equation(
        "D^β z = rate z (1 - z/capacity)",
        _logistic,
        lambda t, v: {"rate": 4 / float(t[-1] - t[0]), "capacity": 1.1 * float(v.max())},
        ("z",),
        {1: [0]},
    ),
    "lotka-volterra": Equation(
        "D^β x = x (a - c y), D^β y = -y (b - d x)", lotka_volterra, _cycle, ("x", "y"), {2: [0, 1]}
    ),
    "sir": Equation(
        "D^β S = -contact S I, D^β I = contact S I - recovery I, D^β R = recovery I",
        _epidemic,
        _spread,
        ("S", "I", "R"),
        {1: [1], 3: [0, 1, 2]},
        _susceptible,
    ),
}


def model_of(name: str, fitted: bool = True) -> Curve | Equation:
    """A model by its name, or the function of a Python file: ``FILE.py:function``; to be ``fitted`` it has numbers."""
    if name in MODELS:
        return MODELS[name]
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise InputError(f"there is no model {name!r}. {nearest(name, MODELS)} Or give your own as FILE.py:function.")
    return _from_file(Path(path), function, fitted)


def try_out(name: str, model: Equation, t: Tensor, z: Tensor, params: dict[str, float]) -> None:
    """Refuse a function that fails at its first call, or does not give a slope for this state."""
    try:
        slope = model.func(t, z, **params)
    except Exception as error:
        raise InputError(
            f"{name} fails at the initial values: {type(error).__name__}: {error}. Change it, or the initial values."
        ) from error
    if not isinstance(slope, Tensor) or slope.shape != z.shape:
        got = tuple(slope.shape) if isinstance(slope, Tensor) else type(slope).__name__
        raise InputError(
            f"{name} gives {got} for a state z of shape {tuple(z.shape)}; it must give a tensor like z. The last axis "
            "of z holds the variables: write z[..., 0]."
        )


def _from_file(path: Path, function: str, fitted: bool) -> Equation:
    """``def function(t, z, rate=1.0, ...)``: parameters are named, and their defaults are where the search starts."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"there is no file {path}. Give a model of your own as FILE.py:function.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {error}. Try: python {path}") from error
    func = getattr(module, function, None)
    if not callable(func):
        raise InputError(f"{path} has no function {function!r}. Write: def {function or 'model'}(t, z, rate=1.0).")
    given = [*inspect.signature(func).parameters.values()][2:]
    if (fitted and not given) or not all(isinstance(p.default, int | float) for p in given):
        raise InputError(f"{function} needs parameters with first guesses. Write: def {function}(t, z, rate=1.0).")
    guess = {p.name: float(p.default) for p in given}
    text = f"D^β z = {function}({', '.join(['t', 'z', *guess])})"
    return Equation(text, func, lambda times, values: guess, positive=False)
