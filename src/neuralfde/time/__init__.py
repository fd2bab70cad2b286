"""Time at its own pace: the mesh that a tolerance asks for."""

from .controller import Tolerance
from .jumps import Jumps, read_jumps, with_jumps
from .search import Equation, Found, find_mesh

__all__ = ["Equation", "Found", "Jumps", "Tolerance", "find_mesh", "read_jumps", "with_jumps"]
