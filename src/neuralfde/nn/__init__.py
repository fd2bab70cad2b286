"""Fractional equations as layers."""

from .block import FDEBlock

__all__ = ["FDEBlock"]
