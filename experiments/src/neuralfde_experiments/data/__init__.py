"""Data sets the experiments train on."""
