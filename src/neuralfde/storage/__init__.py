"""Where the rows for the backward pass are kept."""

from .base import Sizes, Storage, Tape
from .checkpoint import Checkpoint
from .device import Device, DeviceTape
from .host import Host

__all__ = ["Checkpoint", "Device", "DeviceTape", "Host", "Sizes", "Storage", "Tape"]
