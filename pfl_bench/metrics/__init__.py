"""Metric families, one file each; found by name (``pfl_bench.plugins``).

Beside ``Options`` and ``build``, the module of a family says which of its values are better when
they are lower, ``LOWER_IS_BETTER`` (a frozenset of names, which may be empty), and which speak for
a run in tables and in the line of progress, ``HEADLINES`` (a tuple of names, the first one first).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pfl_bench import plugins
from pfl_bench.types import Metric, PluginError, Task, returned

# What trainers call losses of their own, whatever families measure.
_LOSSES = frozenset({"loss", "step_loss", "train_loss", "val_loss"})
# What is measured of models that clients keep beside the central one.
PERSONAL = "personal_"
# What the numbers of a spread begin with: dozens for each metric.
_SPREADS = ("client_", "stratum_")
# What a distribution over clients or over the values of a column adds to the name of a value.
_DERIVED = re.compile(r"(_weighted)?_p\d+$|_by_client$|_mean$")


def build_metrics(task: Task, names: Iterable[str] | None = None) -> list[Metric]:
    """Build families of metrics by name, empty; None for the task's own."""
    wanted = task.metrics if names is None else names
    families = [plugins.load(plugins.METRIC, family) for family in wanted]
    built = ((family, family.build(family.Options(), task.facts)) for family in families)
    return [returned(family, "build", metric, Metric) for family, metric in built]


@dataclass(frozen=True)
class MetricDirections:
    """Names of metrics that are better when lower, and of those that speak for a run."""

    lower: frozenset[str]
    headlines: tuple[str, ...]

    @classmethod
    def of(cls, families: Iterable[str]) -> MetricDirections:
        """Directions that some families state, by their names; PluginError if one does not."""
        lower: frozenset[str] = frozenset()
        headlines: dict[str, None] = {}
        for name in families:
            family = plugins.load(plugins.METRIC, name)
            for key in ("LOWER_IS_BETTER", "HEADLINES"):
                stated = getattr(family, key, None)
                if isinstance(stated, str) or not isinstance(stated, Collection):
                    what = f"no {key}" if stated is None else f"the {key} {stated!r:.60}"
                    raise PluginError(
                        f"the metric family '{name}' has {what}; its module says which of its "
                        "values are better when lower, such as LOWER_IS_BETTER = "
                        "frozenset({'loss'}), and which speak for a run, such as HEADLINES = "
                        "('accuracy',)"
                    )
            lower |= frozenset(family.LOWER_IS_BETTER)
            headlines |= dict.fromkeys(family.HEADLINES)
        return cls(lower, tuple(headlines))

    @classmethod
    def of_recorded(cls, recorded: Mapping[str, Any] | None) -> MetricDirections:
        """Directions as a summary has them; None, as in older ones: those of all families."""
        if not isinstance(recorded, Mapping):
            return cls.of(plugins.available(plugins.METRIC))
        lower, headlines = (recorded.get(key, ()) for key in ("lower_is_better", "headlines"))
        return cls(frozenset(lower), tuple(headlines))

    def to_json_dict(self) -> dict[str, list[str]]:
        """The directions for ``summary.json``, so that nobody has to load the task to read it."""
        return {"lower_is_better": sorted(self.lower), "headlines": list(self.headlines)}

    def lower_is_better(self, metric: str) -> bool:
        """Whether the smaller value of a metric, such as "val/client_loss_p90", is the better one.

        It is of what the families say, pooled or as it spreads over clients and strata, of the
        trainers' own losses, and of every standard deviation.
        """
        name = metric.rpartition("/")[2]
        if name == "sd" or name.endswith("_sd"):
            return True
        name = _DERIVED.sub("", name).removeprefix(PERSONAL).removeprefix("client_")
        lower = self.lower | _LOSSES
        if name.startswith("stratum_"):  # then the name of a column, whatever that is
            return any(name.endswith(f"_{value}") for value in lower)
        return name in lower


def is_spread(metric: str) -> bool:
    """Whether a metric, such as "test/client_loss_p90", is of a spread over clients or strata."""
    return metric.partition("/")[2].removeprefix(PERSONAL).startswith(_SPREADS)


def lower_is_better(metric: str, recorded: Mapping[str, Any] | None = None) -> bool:
    """Whether a metric is better when smaller, by what a summary has or else all families."""
    return MetricDirections.of_recorded(recorded).lower_is_better(metric)
