"""Where the rows live that the backward pass starts from."""

from .base import Storage, Tape
from .device import Device

__all__ = ["Device", "Storage", "Tape"]
