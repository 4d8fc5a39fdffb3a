"""Statistics of the task: those of all tasks on images."""

from tasks.common.images.statistics import Options, figures, format_statistics, statistics

__all__ = ["Options", "figures", "format_statistics", "statistics"]
