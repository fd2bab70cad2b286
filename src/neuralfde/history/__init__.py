"""History engines: how the weighted past is summed."""

from .base import BlockEngine, Engine, History, Snapshots
from .blocked import Blocked
from .exponentials import Exponentials
from .fading import Fading
from .full import FFT, Full
from .precision import ieee, precise, reduced
from .thin import add_thin
from .window import Window

__all__ = [
    "FFT",
    "BlockEngine",
    "Blocked",
    "Engine",
    "Exponentials",
    "Fading",
    "Full",
    "History",
    "Snapshots",
    "Window",
    "add_thin",
    "ieee",
    "precise",
    "reduced",
]
