"""Time at its own pace: the mesh that a tolerance asks for."""

from .controller import Tolerance
from .events import SHARES, Cell, Event, Moment, root
from .jumps import Jumps, read_jumps, value_of_jump, with_jumps
from .search import Equation, Found, find_mesh

__all__ = [
    "SHARES",
    "Cell",
    "Equation",
    "Event",
    "Found",
    "Jumps",
    "Moment",
    "Tolerance",
    "find_mesh",
    "read_jumps",
    "root",
    "value_of_jump",
    "with_jumps",
]
