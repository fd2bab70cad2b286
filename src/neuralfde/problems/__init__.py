"""Test problems with known answers, used by tests, documentation and benchmarks alike.

Their ``source`` says who posed an equation and what was chosen or constructed here. References:

- Ahmed, El-Sayed, El-Saka: J. Math. Anal. Appl. 325 (2007) 542-553.
- Barbosa, Machado, Vinagre, Calderón: Analysis of the Van der Pol oscillator containing derivatives of fractional
  order, J. Vib. Control 13 (2007).
- Diethelm, Ford, Freed: Nonlinear Dynamics 29 (2002) 3-22; Numerical Algorithms 36 (2004) 31-52.
- Diethelm, Ford: Numerical solution of the Bagley-Torvik equation, BIT 42 (2002); Multi-order fractional differential
  equations and their numerical solution, Appl. Math. Comput. 154 (2004); Numerical analysis for distributed-order
  differential equations, J. Comput. Appl. Math. 225 (2009).
- Grigorenko, Grigorenko: Phys. Rev. Lett. 91 (2003) 034101.
- Hartley, Lorenzo, Qammer: Chaos in a fractional order Chua's system, IEEE Trans. Circuits Syst. I 42 (1995).
- Li, Deng, Zhao: Discrete Contin. Dyn. Syst. B 24 (2019), doi 10.3934/dcdsb.2019026.
- Mainardi: Fractional relaxation-oscillation and fractional diffusion-wave phenomena, Chaos Solitons Fractals 7 (1996);
  Some basic problems in continuum and statistical mechanics, in Fractals and Fractional Calculus in Continuum
  Mechanics, Springer 1997, 291-348.
- Odibat, Momani: Modified homotopy perturbation method, Chaos Solitons Fractals 36 (2008).
- Okyere et al.: Fractional order SIR model with constant population, Br. J. Math. Comput. Sci. 14 (2016).
- Ongun, Arslan, Garrappa: Adv. Difference Equ. 2013:102.
- Samko: Fractional integration and differentiation of variable order, Anal. Math. 21 (1995).
- Stynes, O'Riordan, Gracia: SIAM J. Numer. Anal. 55 (2017).
- Torvik, Bagley: On the appearance of the fractional derivative in the behavior of real materials, J. Appl. Mech. 51
  (1984).
- Wang, Li: Does the fractional Brusselator with efficient dimension less than 1 have a limit cycle?, Phys. Lett. A 363
  (2007).
- Xue, Bai: Benchmark problems for Caputo fractional-order ordinary differential equations, Fract. Calc. Appl. Anal. 20
  (2017).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..door.migration import refuse
from ..errors import InputError, nearest
from . import general, scalar, systems
from .base import Problem

#: Every problem by name; each is a function whose arguments (an order, a rate) have defaults.
PROBLEMS: dict[str, Callable[..., Problem]] = {
    "relaxation": scalar.relaxation,
    "diethelm-ford-freed": scalar.diethelm_ford_freed,
    "smooth": scalar.smooth,
    "power": scalar.power,
    "saturation": scalar.saturation,
    "rotation": scalar.rotation,
    "oscillation": scalar.oscillation,
    "xue-bai-system": scalar.xue_bai_system,
    "xue-bai-linear": scalar.xue_bai_linear,
    "bagley-torvik": general.bagley_torvik,
    "bagley-torvik-cubic": general.bagley_torvik_cubic,
    "bagley-torvik-low": general.bagley_torvik_low,
    "basset": general.basset,
    "distributed": general.distributed,
    "variable": general.variable,
    "tempered": general.tempered,
    "brusselator": systems.brusselator,
    "lorenz": systems.lorenz,
    "chua": systems.chua,
    "sir": systems.sir,
    "predator-prey": systems.predator_prey,
    "riccati": systems.riccati,
    "van-der-pol": systems.van_der_pol,
}

__all__ = ["PROBLEMS", "Problem", "problem"]


def problem(name: str, **arguments: Any) -> Problem:
    """A problem by its name: ``problem('relaxation', order=0.3)``."""
    if name not in PROBLEMS:
        raise InputError(f"unknown problem {name!r}. {nearest(name, PROBLEMS)}")
    refuse(f"problem({name!r})", arguments, inspect.signature(PROBLEMS[name]).parameters)
    return PROBLEMS[name](**arguments)
