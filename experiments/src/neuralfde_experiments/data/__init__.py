"""The data sets of the experiments."""
