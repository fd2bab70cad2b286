"""The command ``neuralfde``: a demo, a benchmark, and the experiments of other packages.

``app`` needs the extra ``cli``. What a package of experiments imports needs nothing beside torch: ``experiment`` (the
contract), ``measuring`` (clock, peak memory, machine), ``predator_prey`` and ``pelts`` (the equation and the data that
the demo shows).
"""
