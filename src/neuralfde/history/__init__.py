"""Histories: how the weighted past is summed."""

from .axpy import add_rows
from .base import Block, History, Memory, ieee, reduced
from .exponentials import Exponentials
from .fading_mesh import FadingOnMesh
from .fading_mesh import Mesh as FadingMesh
from .fft import FFT
from .full import Blocked, Full
from .long_blocks import LongBlocks, Modes, Weighed
from .sum_of_exponentials import SumOfExponentials
from .window import Window

__all__ = [
    "FFT",
    "Block",
    "Blocked",
    "Exponentials",
    "FadingMesh",
    "FadingOnMesh",
    "Full",
    "History",
    "LongBlocks",
    "Memory",
    "Modes",
    "SumOfExponentials",
    "Weighed",
    "Window",
    "add_rows",
    "ieee",
    "reduced",
]
