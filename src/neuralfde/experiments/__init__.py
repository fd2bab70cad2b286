"""Experiments: each is a frozen ``Config`` and ``run(config, report) -> rows``."""

from .registry import EXPERIMENTS, Experiment, load
from .runtime import FolderReport, Report, option

__all__ = ["EXPERIMENTS", "Experiment", "FolderReport", "Report", "load", "option"]
