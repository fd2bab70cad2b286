"""History engines: how the weighted past is summed."""

from .base import Engine, History
from .blocked import Blocked
from .full import FFT, Full
from .window import Window

__all__ = ["FFT", "Blocked", "Engine", "Full", "History", "Window"]
