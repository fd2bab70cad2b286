"""``func`` as it was when ``fdeint`` was called: a backward pass may come after anything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ..base.torch_private import hooks_at_rest, with_parameters


class Called:
    """What a backward pass needs to evaluate the same ``func`` again.

    Args:
        func: the right-hand side.
        leaves: the tensors it depends on; those that require grad now get a gradient, whatever becomes of them.
    """

    def __init__(self, func: Callable[..., Any], leaves: Sequence[Tensor] = ()) -> None:
        self.func = func
        self.wanted = [x for x in leaves if x.requires_grad]
        self.modules = dict(func.named_modules()) if isinstance(func, nn.Module) else {}
        self.training = [m.training for m in self.modules.values()]
        self.owned = self._owned()

    def _owned(self) -> dict[str, Tensor]:
        """Parameters and buffers by name; shared ones under each of their names."""
        return {
            f"{path}.{name}" if path else name: x
            for path, module in self.modules.items()
            for held in (module._parameters, module._buffers)
            for name, x in held.items()
            if x is not None
        }

    @contextlib.contextmanager
    def restored(self, keeps_state: bool) -> Iterator[None]:
        """Within, parameters, buffers and modes of modules are as they were, and what required grad does.

        ``torch.func.functional_call`` takes its own away again when the call ends, before a backward pass begins. A
        func that ``keeps_state`` writes to copies of its buffers, so that they are updated once, in the forward pass.
        Hooks on tensors stay aside: autograd calls them with the total.
        """
        now, frozen = self._owned(), [x for x in self.wanted if not x.requires_grad]
        swapped = {name: x for name, x in self.owned.items() if now.get(name) is not x}
        if keeps_state:
            buffers = {f"{path}.{k}" if path else k for path, m in self.modules.items() for k in m._buffers}
            swapped |= {name: x.clone() for name, x in self.owned.items() if name in buffers}
        changed = [
            (m, m.training) for m, then in zip(self.modules.values(), self.training, strict=True) if m.training != then
        ]
        try:
            for module, mode in changed:
                module.training = not mode
            for x in frozen:
                x.requires_grad_()
            with with_parameters(self.func, swapped), hooks_at_rest(self.wanted):
                yield
        finally:
            for module, mode in changed:
                module.training = mode
            for x in frozen:
                x.requires_grad_(False)
