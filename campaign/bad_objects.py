"""Objects that cannot be, and calls with arguments in the wrong place; one expression between two bars."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import neuralfde
from neuralfde.history import History
from neuralfde.schemes import Scheme, StageSolver
from neuralfde.solve.steppers import Stepper
from neuralfde.storage import Storage

#: What a solve is made of: objects of these kinds check their own numbers.
CHOICES = (History, Scheme, StageSolver, Storage, Stepper)
NUMBER = re.compile(r"(int|float)( \| None)?")
OBJECTS = """
ABM(corrections=0) | ABM(corrections=-1) | ABM(corrections=1.5) | ABM(corrections=True) | ABM(corrections='x') |
Window(0) | Window(-3) | Window(1.5) | Window(True) | Window('3') | Window(None) | Full(block=0) | Full(block=-1) |
Full(block=1.5) | Full(block='x') | FFT(block=0) | FFT(block=1.5) | FFT(growth=1) | FFT(growth=0) | FFT(growth='x') |
Exponentials(tol=0.0) | Exponentials(tol=-1.0) | Exponentials(tol=2.0) | Exponentials(tol=nan) |
Exponentials(tol='x') | Exponentials(block=1) | Exponentials(block='x') | Exponentials(terms=1) |
Exponentials(terms=65) | Exponentials(terms=2.5) | Checkpoint(budget=0) | Checkpoint(every=0) |
Checkpoint(every=1.5) | Checkpoint(every='x') | Checkpoint(budget=1, every=1) | Checkpoint(budget=nan) |
Host(dtype=torch.int64) | Host(dtype='x') | Device(dtype=torch.int32) | Device(dtype='float32') |
NewtonKrylov(tol=-1.0) | NewtonKrylov(tol=0.0) | NewtonKrylov(tol=nan) | NewtonKrylov(tol='x') |
NewtonKrylov(max_iter=0) | NewtonKrylov(max_iter=1.5) | NewtonKrylov(krylov=0) | NewtonKrylov(krylov='x') |
FixedPoint(tol=-1.0) | FixedPoint(tol='x') | FixedPoint(max_iter=0) | FixedPoint(max_iter='x') | Multistep(rule='x') |
Multistep(rule=3) | Trapezoid(implicit=False) | VariableOrder(3) | VariableOrder(None) | DistributedOrder() |
DistributedOrder(16) | DistributedOrder([0.5], [1.0], density=relax) | DistributedOrder(relax, interval=(1.0, 0.5)) |
DistributedOrder(relax, interval=(0.0, 3.0)) | DistributedOrder('x', density=relax) |
DistributedOrder(0, density=torch.exp) |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([0.5], [1.0, 2.0]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([], []), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm(0.5, 1.0), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm('ab', 'cd'), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([0.0], [1.0]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([2.5], [1.0]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([nan], [1.0]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([0.5], [nan]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([0.5], [0.0]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([0.5], ['x']), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, MultiTerm([-0.5, 0.5], [1.0, 1.0]), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, DistributedOrder(lambda b: None), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, DistributedOrder(lambda b: b * nan), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, DistributedOrder(0, density=torch.exp), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, CustomKernel([nan] * 9), steps=4, method='gl') |
fdeint(relax, torch.ones(2), 1.0, CustomKernel(torch.ones(9, 5)), steps=4, method='gl') | fdeint() | fdeint(relax) |
fdeint(relax, torch.ones(2)) | fdeint(relax, torch.ones(2), 1.0) | fdeint(relax, torch.ones(2), 1.0, 0.5, 0.1) |
fdeint(relax, torch.ones(2), 0.5, torch.linspace(0, 1, 5), steps=4) |
fdeint(torch.ones(2), relax, 1.0, 0.5, steps=4) | solve(relax, torch.ones(2), 1.0) | plan(relax, torch.ones(2), 1.0) |
FDEBlock() | FDEBlock(relax, steps=4)('x') | FDEBlock(relax, steps=4)() | FDEBlock(relax, 0.5, torch.ones(2)) |
FDEBlock(relax, steps=4)(torch.ones(2), velocity=torch.ones(2)) |
FDEBlock(relax, steps=4)(torch.ones(2), horizon=-1.0) | profile_order(3) | fit() | mittag_leffler() |
Newton(linear=3) | Newton(linear='dense') | neuralfde.schemes.Dense(most=0) | neuralfde.schemes.Dense(most='x') |
neuralfde.schemes.Krylov(size=0) | neuralfde.schemes.Krylov(restarts='x') |
neuralfde.schemes.Krylov(preconditioner='x') | neuralfde.schemes.Given(3, relax) |
neuralfde.special.binomial_series('x', 3) | neuralfde.special.binomial_series(0.5, 2.5) |
neuralfde.special.l1_weights(None, 3) | neuralfde.special.series_product('x', torch.ones(2)) |
neuralfde.special.series_reciprocal([1.0, 2.0]) | neuralfde.special.binomial_remainder('x', torch.ones(2), 2) |
torch.jit.trace(FDEBlock(relax, steps=4), torch.ones(2))
"""


def of_fields() -> Iterator[str]:
    """A text, a negative number and a list for every number that a public object of the solver is made of."""
    for name in neuralfde.__all__:
        kind = getattr(neuralfde, name)
        if is_dataclass(kind) and issubclass(kind, CHOICES):  # type: ignore[arg-type]
            numbers = [f.name for f in fields(kind) if f.init and NUMBER.fullmatch(str(f.type))]
            yield from (f"{name}({field}={bad})" for field in numbers for bad in ("'x'", "-1", "[]"))
