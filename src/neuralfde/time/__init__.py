"""Adaptive steps: the march that finds a mesh for a tolerance; jumps and events."""

from .events import Event
from .jumps import Jumps, read_jumps, with_jumps

__all__ = ["Event", "Jumps", "read_jumps", "with_jumps"]
