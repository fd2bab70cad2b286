"""torchfde's calls with torchfde's own numbers: ``compat.torchfde`` with ``legacy=True`` throughout.

For programs whose published results are to be repeated: change ``import torchfde`` to
``from neuralfde.compat import torchfde_legacy as torchfde``.
"""

from __future__ import annotations

from functools import partial

from . import torchfde
from .torchfde import LearnbleFDEINT, get_tensor_mode, set_tensor_mode

__all__ = ["LearnbleFDEINT", "fdeint", "fdeint_adjoint", "get_tensor_mode", "set_tensor_mode"]

fdeint = partial(torchfde.fdeint, legacy=True)
fdeint_adjoint = partial(torchfde.fdeint_adjoint, legacy=True)
