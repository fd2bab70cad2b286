"""Models built on the solver."""
