"""Fractional equations as layers, and models made of them."""

from .block import FDEBlock
from .cell import FDECell
from .sequence import SequenceModel
from .series import Series, collate

__all__ = ["FDEBlock", "FDECell", "SequenceModel", "Series", "collate"]
