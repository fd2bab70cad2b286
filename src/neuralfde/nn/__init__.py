"""Fractional equations as layers, and models that contain them."""

from .block import FDEBlock
from .cell import FDECell
from .sequence import SequenceModel
from .series import Series, collate

__all__ = ["FDEBlock", "FDECell", "SequenceModel", "Series", "collate"]
