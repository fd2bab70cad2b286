"""Adaptive steps: the march that finds a mesh for a tolerance; jumps and events."""

from .controller import Tolerance
from .events import Cell, Event, Moment, root, samples_of, support, times_of
from .jumps import Jumps, read_jumps, value_of_jump, with_jumps
from .search import Equation, Found, find_mesh, refuse_hopeless

__all__ = [
    "Cell",
    "Equation",
    "Event",
    "Found",
    "Jumps",
    "Moment",
    "Tolerance",
    "find_mesh",
    "read_jumps",
    "refuse_hopeless",
    "root",
    "samples_of",
    "support",
    "times_of",
    "value_of_jump",
    "with_jumps",
]
