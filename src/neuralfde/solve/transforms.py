"""Two Functions that every transform of PyTorch can follow: a solve, and the gradients that its adjoint gives.

With ``S(x)`` the solve and ``J`` its Jacobian, the second is ``p(x, g) = Jᵀ g``. Its derivatives are those of the
doubled system (:mod:`.several`), whose outputs are ``S(x)`` and ``J ẋ``:

- forward mode of ``S``: the second output. Forward mode of ``p`` in ``(ẋ, ġ)``: the gradient in x of
  ``⟨ġ, S⟩ + ⟨g, J ẋ⟩``, that is the adjoint of the doubled system.
- reverse mode of ``p`` for ``u``: ``∂⟨u, p⟩/∂g = J u``, and ``∂⟨u, p⟩/∂x`` is the gradient in x of ``⟨g, J u⟩``.

So every derivative of any order is a solve and an adjoint of the same engine, with the memory of its history and
storage.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base.torch_private import transform_level, without_tangent
from ..base.torch_transforms import dual, refuse_many, tangents_apart
from . import loop
from .fields import PushedField
from .loop import Record
from .plan import COEFFICIENTS, Run
from .several import Case, Doubled, Inputs, Mapped, front


@dataclass
class Kept:
    """What one solve leaves for its gradients: the record of the forward pass, or the gradients if they are known.

    ``mapped`` are those of solves that vmap made of it, ``doubled`` those that forward mode did, each at its level.
    """

    run: Run = field(default_factory=Run)
    record: Record | None = None
    gradients: tuple[Tensor | None, ...] | None = None
    mapped: dict[Any, Kept] = field(default_factory=dict)
    doubled: dict[int, tuple[Doubled, Kept]] = field(default_factory=dict)


def transformed(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """``(states at nodes, states between nodes)``, ready for any transform; forward mode takes one solve, not two."""
    values, tangents = zip(*[(None, None) if x is None else without_tangent(x) for x in inputs], strict=True)
    if all(t is None for t in tangents):
        found: tuple[Tensor, Tensor | None] = TensorSolve.apply(case, Kept(), *inputs)  # type: ignore[no-untyped-call]
        return found
    two = Doubled(case, values, tangents)
    both = transformed(two.case, two.inputs)
    pairs = zip(two.values(both), two.tangents(both), strict=True)
    return tuple(None if v is None or t is None else dual(v, t) for v, t in pairs)  # type: ignore[return-value]


def _keep_everything(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What a Function of a case needs for its derivatives: all that it was given."""
    ctx.case, ctx.kept, *tensors = inputs
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


class TensorSolve(torch.autograd.Function):
    """``(states at nodes, states between nodes)`` of a case and its inputs."""

    @staticmethod
    def forward(case: Case, kept: Kept, *inputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The engine's forward pass."""
        with _as_called(case, inputs):
            out, between, kept.record = _forward(case, kept, inputs)
        return out, between

    setup_context = staticmethod(_keep_everything)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """The engine's backward pass."""
        full = _or_zeros(ctx.case, ctx.saved_tensors, grads)
        return (None, None, *TensorPull.apply(ctx.case, ctx.kept, *full, *ctx.saved_tensors))  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        """The second half of the doubled system."""
        with tangents_apart(ctx.saved_tensors) as inputs:
            two, kept = Doubled(ctx.case, inputs, given[2:]), Kept()
            ctx.kept.doubled[transform_level()] = two, kept
            return two.tangents(TensorSolve.apply(two.case, kept, *two.inputs))  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, axes: Any, case: Case, kept: Kept, *inputs: Tensor | None) -> Any:
        """The mapped solve."""
        many = Mapped(case, inputs, axes[2:], info.batch_size, info.randomness, every=False)
        inner = kept.mapped.setdefault((axes[2:], many.all), Kept())
        found = TensorSolve.apply(many.case, inner, *many.inputs)  # type: ignore[no-untyped-call]
        return tuple(map(many.all.each, found)), tuple(None if x is None else 0 for x in found)


class TensorPull(torch.autograd.Function):
    """The gradients of all inputs of a case from those of its two outputs; None where none is wanted."""

    @staticmethod
    def forward(
        case: Case, kept: Kept, out: Tensor, between: Tensor | None, *inputs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The engine's backward pass, after a forward pass where there is no record of one."""
        if kept.gradients is not None:
            known, kept.gradients = kept.gradients, None
            return known
        with _as_called(case, inputs):
            record = kept.record or _forward(case, kept, inputs)[2]
            kept.record = None
            plan, c, z0 = case.bound(inputs)
            grads = out.detach(), None if between is None else between.detach()
            found = loop.backward(plan, kept.run, record, c, z0, grads)
            record.release()
        every = (*found.coefficients, found.z0, *found.tensors)
        return tuple(g if wanted else None for g, wanted in zip(every, case.wanted, strict=True))

    setup_context = staticmethod(_keep_everything)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Any, ...]:
        """One tangent solve and its adjoint."""
        refuse_many(tangents)
        out, between, *inputs = ctx.saved_tensors
        two, kept = Doubled(ctx.case, inputs, tangents), Kept()
        moved = two.tangents(TensorSolve.apply(two.case, kept, *two.inputs))  # type: ignore[no-untyped-call]
        grads = two.gradients((None, None), (out, between))
        found = TensorPull.apply(two.case, kept, *grads, *two.inputs)  # type: ignore[no-untyped-call]
        return (None, None, *moved, *two.own(found))

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        """The adjoint of the doubled system."""
        with tangents_apart(ctx.saved_tensors) as (out, between, *inputs):
            known = ctx.kept.doubled.pop(transform_level(), None)
            two, kept = known or (Doubled(ctx.case, inputs, given[4:]), Kept())
            grads = two.gradients(given[2:4], (out, between))
            return two.own(TensorPull.apply(two.case, kept, *grads, *two.inputs))  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, axes: Any, case: Case, kept: Kept, out: Tensor, between: Tensor, *inputs: Tensor) -> Any:
        """The mapped solve's gradients, each solve's own."""
        many = Mapped(case, inputs, axes[4:], info.batch_size, info.randomness, every=True)
        inner = kept.mapped.setdefault((axes[4:], many.all), Kept())
        grads = [many.all.rows(front(g, a, info.batch_size)) for g, a in zip((out, between), axes[2:4], strict=True)]
        found = many.own(TensorPull.apply(many.case, inner, *grads, *many.inputs))  # type: ignore[no-untyped-call]
        return found, tuple(None if x is None else 0 for x in found)


def _forward(case: Case, kept: Kept, inputs: Inputs) -> tuple[Tensor, Tensor | None, Record]:
    plan, c, z0 = case.bound(inputs)
    out, between, record = loop.forward(plan, kept.run, c, z0)
    record.witness = None  # func has been looked at before it was taken as a function of tensors
    return out, between, record


@contextlib.contextmanager
def _as_called(case: Case, inputs: Inputs) -> Any:
    """Within, ``func`` is as it was when ``fdeint`` was called, and no gradient is followed."""
    z0, called = inputs[COEFFICIENTS], case.plan.called
    assert z0 is not None
    assert called is not None
    cast = torch.autocast(z0.device.type, enabled=False) if case.plan.field.autocast else contextlib.nullcontext()
    func = case.plan.field.func
    duals = func.during_pass() if isinstance(func, PushedField) else contextlib.nullcontext()
    with torch.no_grad(), cast, called.restored(False), duals:
        yield


def _or_zeros(case: Case, inputs: Inputs, grads: Inputs) -> Inputs:
    """Zeros in place of gradients that nobody gave."""
    z0, dense, row = inputs[COEFFICIENTS], inputs[3], case.plan.field.structure.row_shape
    assert z0 is not None
    counts = len(case.plan.nodes), None if dense is None else dense.shape[0]
    return [z0.new_zeros(n, *row) if g is None and n is not None else g for g, n in zip(grads, counts, strict=True)]
