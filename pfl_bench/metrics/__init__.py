"""Metric families, one file each; found by name (``pfl_bench.plugins``)."""

from __future__ import annotations

from pfl_bench import plugins
from pfl_bench.types import Metric, Task


def build_metrics(task: Task) -> list[Metric]:
    """Build the task's metric families, empty."""
    families = [plugins.load(plugins.METRIC, family) for family in task.metrics]
    return [family.build(family.Options(), task.facts) for family in families]


def lower_is_better(metric: str) -> bool:
    """Whether the smaller value of a metric is the better one.

    It is of losses and perplexities, pooled or as they spread over clients and strata, and of every
    standard deviation.

    Args:
        metric: Name such as "val/loss", "val/client_loss_p90" or "client_accuracy_sd".
    """
    words = metric.rpartition("/")[2].split("_")
    return words[-1] == "sd" or not {"loss", "perplexity"}.isdisjoint(words)
