"""The command ``neuralfde``, for those who import the package anyway; see ``neuralfde_command``."""

from neuralfde_command.app import app, main

__all__ = ["app", "main"]
