"""neuralfde: neural fractional differential equations in PyTorch."""

__version__ = "0.1.0"
