"""Time at its own pace: the mesh that a tolerance asks for."""

from .controller import Tolerance
from .search import Equation, Found, find_mesh

__all__ = ["Equation", "Found", "Tolerance", "find_mesh"]
