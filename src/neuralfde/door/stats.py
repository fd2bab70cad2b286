"""What a solve cost and how it was done."""

from __future__ import annotations

from dataclasses import dataclass

from ..history import History
from ..schemes import Scheme
from ..solve.plan import Plan, Run
from ..storage import Storage
from .adaptive import Adapted
from .names import ADJOINTS
from .validation import Problem


@dataclass(frozen=True)
class Stats:
    """What a solve cost and how it was done.

    Attributes:
        steps: the number of steps.
        step: the step size; with steps of different lengths their mean.
        evaluations: how often ``func`` was evaluated in the forward pass, and in the search for a mesh. A call that is
            vectorised over several steps counts once for each of them.
        history_bytes: memory of the history and the storage at the end of the forward pass.
        method, adjoint, history, storage, stepper: what was used.
        why: what was left to ``auto``, and how that was decided.
        factorisations, linear_solves: those of implicit stages that were solved one by one.
        rejected: steps rejected in the search for a mesh.
        smallest_step, largest_step: the extremes of the step sizes.
    """

    steps: int
    step: float
    evaluations: int
    history_bytes: int
    method: Scheme
    adjoint: str
    history: History
    storage: Storage
    stepper: str = "single"
    why: str = ""
    factorisations: int = 0
    linear_solves: int = 0
    rejected: int = 0
    smallest_step: float = 0.0
    largest_step: float = 0.0

    @property
    def accepted(self) -> int:
        """The number of accepted steps: all steps of the solve."""
        return self.steps


def stats_of(plan: Plan, went: Run, problem: Problem, march: Adapted | None) -> Stats:
    """The statistics of a finished solve; ``march`` is how its mesh was found, with adaptive steps."""
    grid, adjoint, stages = problem.request.grid, problem.adjoint, went.stages
    solver = f"; solver: {stages.why}" if stages is not None and stages.why else ""
    shortest, longest = grid.extremes
    return Stats(
        steps=grid.steps,
        step=grid.step,
        evaluations=plan.field.evaluations + (0 if march is None else march.evaluations),
        history_bytes=went.history_bytes,
        method=problem.scheme,
        adjoint=next((k for k, v in ADJOINTS.items() if v == adjoint), type(adjoint).__name__),
        history=problem.history,
        storage=problem.storage,
        stepper=went.stepper,
        why=f"{problem.why}; stepper={went.stepper}: {went.why}{went.instead}{solver}",
        factorisations=0 if stages is None else stages.factorisations,
        linear_solves=0 if stages is None else stages.linear_solves,
        rejected=0 if march is None else march.found.rejected,
        smallest_step=shortest,
        largest_step=longest,
    )
