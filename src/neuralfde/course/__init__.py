"""Solves that take several solves, or no steps at all: events, jumps by functions of the state, linear equations."""

from .exact import needs_no_steps, solved_exactly, stats_of
from .follow import follow

__all__ = ["follow", "needs_no_steps", "solved_exactly", "stats_of"]
