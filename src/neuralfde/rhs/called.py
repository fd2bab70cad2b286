"""``func`` as it was when ``fdeint`` was called: a backward pass may come after anything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ..base.torch_private import hooks_at_rest, places, version_of, with_parameters
from ..errors import ChangedFunctionError


class Called:
    """What a backward pass needs to evaluate the same ``func`` again.

    Args:
        func: the right-hand side.
        leaves: the tensors it depends on; those that require grad now get a gradient, whatever becomes of them.
    """

    def __init__(self, func: Callable[..., Any], leaves: Sequence[Tensor] = ()) -> None:
        self.func = func
        self.wanted = [x for x in leaves if x.requires_grad]
        modules = func.modules() if isinstance(func, nn.Module) else ()
        self.modes = [(module, module.training) for module in modules]
        self.owned = places(func)
        self.versions = {name: version_of(x) for name, x in self.owned.items()}

    def _refuse_changes(self) -> None:
        """Raise if somebody has written to a buffer or a parameter since; what ``func`` itself writes is its own."""
        for name, x in self.owned.items():
            if version_of(x) != self.versions[name]:
                raise ChangedFunctionError(
                    f"{name} of func was changed in place between the forward and the backward pass, which evaluates "
                    "func again. Call backward() before such changes, or use adjoint='direct', which keeps the graphs "
                    "of the forward pass."
                )

    @contextlib.contextmanager
    def restored(self, keeps_state: bool) -> Iterator[None]:
        """Within, parameters, buffers and modes of modules are as they were, and what required grad does.

        ``torch.func.functional_call`` takes its own away again when the call ends, before a backward pass begins. A
        func that ``keeps_state`` writes to copies of its buffers, so that they are updated once, in the forward pass.
        Hooks on tensors stay aside: autograd calls them with the total.
        """
        if not keeps_state:
            self._refuse_changes()
        now, frozen = places(self.func), [x for x in self.wanted if not x.requires_grad]
        swapped = {name: x for name, x in self.owned.items() if now.get(name) is not x}
        if keeps_state:
            swapped |= {name: x.clone() for name, x in self.owned.items() if not x.requires_grad}
        changed = [module for module, mode in self.modes if module.training != mode]
        try:
            for module in changed:
                module.training = not module.training
            for x in frozen:
                x.requires_grad_()
            with with_parameters(self.func, swapped), hooks_at_rest(self.wanted):
                yield
        finally:
            for module in changed:
                module.training = not module.training
            for x in frozen:
                x.requires_grad_(False)
