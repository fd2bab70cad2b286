"""Fractional equations as layers."""

from .block import FDEBlock
from .cell import FDECell

__all__ = ["FDEBlock", "FDECell"]
