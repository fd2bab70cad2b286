"""The command ``neuralfde``, beside the package: its help and its lists need no torch, which is slow to import.

``app`` needs the extra ``cli``; ``experiments``, which knows what is installed, needs nothing.
"""
