"""History engines: how the weighted past is summed."""

from .base import Engine, History, Snapshots
from .blocked import Blocked
from .exponentials import Exponentials
from .fading import Fading
from .full import FFT, Full
from .precision import ieee, precise
from .window import Window

__all__ = [
    "FFT",
    "Blocked",
    "Engine",
    "Exponentials",
    "Fading",
    "Full",
    "History",
    "Snapshots",
    "Window",
    "ieee",
    "precise",
]
