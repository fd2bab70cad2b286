"""Fractional equations as layers, and models made of them."""

from .block import FDEBlock
from .sequence import SequenceModel
from .series import Series, collate

__all__ = ["FDEBlock", "SequenceModel", "Series", "collate"]
