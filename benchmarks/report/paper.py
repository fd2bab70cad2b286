"""What experiments know themselves: the paper's figures, and how their rows are shown."""

from neuralfde_experiments.graph_cost import PAPER as GRAPH_COST
from neuralfde_experiments.graphs import PAPER_ACCURACY as GRAPH_ACCURACY
from neuralfde_experiments.graphs import PAPER_DIRECT as GRAPH_DIRECT
from neuralfde_experiments.image_adjoints import figure as gradients_figure
from neuralfde_experiments.image_adjoints import markdown as gradients_table
from neuralfde_experiments.image_cost_table import PAPER_MEMORY as IMAGE_MEMORY
from neuralfde_experiments.image_cost_table import figure as image_cost_figure
from neuralfde_experiments.image_cost_table import markdown as image_cost_table

#: tab:mnist and the text of the paper's section on images: test error in per cent with its adjoint and direct.
IMAGE_ERROR = {"mnist": (0.36, 0.39), "fashion-mnist": (7.95, 7.65)}
#: True and recovered parameters of Lotka-Volterra.
LOTKA_VOLTERRA = ((1.0, 0.5, 1.0, 0.3), (0.99, 0.48, 1.05, 0.33))

__all__ = [
    "GRAPH_ACCURACY",
    "GRAPH_COST",
    "GRAPH_DIRECT",
    "IMAGE_ERROR",
    "IMAGE_MEMORY",
    "LOTKA_VOLTERRA",
    "gradients_figure",
    "gradients_table",
    "image_cost_figure",
    "image_cost_table",
]
