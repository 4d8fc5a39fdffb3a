"""Published numbers beside measured ones, and whether they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.schema import Expected, RunConfig
from pfl_bench.metrics import MetricDirections
from pfl_bench.runs.divergence import describe_divergence
from pfl_bench.runs.equivalence import Published
from pfl_bench.runs.rows import judge, measured_value
from pfl_bench.types import ExpectedResult, RunSummary, as_float

# What a result says as the row does.
_OF_ROW = {"metric", "statistic", "sd", "seeds", "tolerance", "source", "measured_here"}


def best_over_rounds(
    rounds: Sequence[Mapping[str, Any]], splits: Sequence[str], directions: MetricDirections
) -> dict[str, dict[str, Any]]:
    """The best value of each metric of some splits, over lines of ``metrics.jsonl``.

    Gives by metric "value" and the first "round" that had it; NaN is never the best.
    """
    best: dict[str, dict[str, Any]] = {}
    for line in rounds:
        for name, given in line.items():
            value = as_float(given) if name.partition("/")[0] in splits else None
            if value is None or math.isnan(value):
                continue
            sign = -1 if directions.lower_is_better(name) else 1
            if name not in best or sign * value > sign * best[name]["value"]:
                best[name] = {"value": value, "round": line["round"]}
    return best


def compare(
    config: RunConfig, summary: RunSummary, not_the_row: Sequence[str] = ()
) -> tuple[ExpectedResult, ...]:
    """Set measured numbers beside the published ones.

    Args:
        config: Has the published ones.
        summary: The run's; what it says of expected numbers is not looked at.
        not_the_row: How the run's configuration differs from the row that the numbers are of.

    Returns:
        One for each expected number, its verdict for this run alone: that of
        ``pfl_bench.runs.equivalence`` ("as measured before" where nobody published the number), or
        "diverged", "not the row" or "not comparable", whose reason is in ``why``.
    """
    other = "; ".join((*not_the_row, *filter(None, [summary.departure])))
    return tuple(_compare(expected, config, summary, other) for expected in config.expected)


def _compare(
    expected: Expected, config: RunConfig, summary: RunSummary, other: str
) -> ExpectedResult:
    """Compare one number; ``other`` says how the run is not the row's, empty if it is."""
    diverged = describe_divergence(summary.diverged)
    measured = measured_value(summary, expected.metric, expected.statistic)
    chance = _chance(expected.metric, summary)
    why = other or _not_comparable(expected, config, summary)
    if measured is None and not why:
        why = "not measured in any round: the run has recorded no best value"
    if diverged and not expected.diverged:
        verdict, why = "diverged", "; ".join(filter(None, (diverged, why)))
    elif other:
        verdict = "not the row"
    elif why or measured is None:
        verdict = "not comparable"
    else:
        published = Published(
            expected.value, expected.tolerance, expected.sd, expected.seeds, chance
        )
        verdict, _ = judge([measured], published, expected.measured_here)
    return ExpectedResult(
        **expected.model_dump(include=_OF_ROW),
        published=expected.value,
        chance=chance,
        measured=measured,
        difference=None if measured is None else measured - expected.value,
        verdict=verdict,
        why=why,
    )


def with_comparison(
    summary: dict[str, Any],
    resolved: ResolvedConfig,
    expected: Sequence[Expected] | None = None,
) -> dict[str, Any]:
    """Content of ``summary.json``, with its "expected" as ``compare`` finds it by today's rules.

    ``expected`` are the published numbers, None for the row's own. A summary that lacks a member is
    a ``RunFolderError``.
    """
    config = resolved.config
    if expected is not None:
        config = config.model_copy(update={"expected": list(expected)})
    known = RunSummary.of({"expected": (), **summary})
    compared = compare(config, known, resolved.not_the_row)
    return {**summary, "expected": list(map(asdict, compared))}


def _not_comparable(expected: Expected, config: RunConfig, summary: RunSummary) -> str:
    """Reason why a measured number cannot be compared with the published one; empty if it can."""
    if expected.statistic == "last" and expected.metric not in summary.metrics:
        return f"not measured; there are: {', '.join(sorted(summary.metrics))}"
    if config.privacy is not None and config.privacy.audit is not None:
        return "canaries (privacy.audit) have moved the model"
    variant = summary.variant
    if expected.variants is not None and variant not in expected.variants:
        return f"data is {variant}; the published number is for {', '.join(expected.variants)}"
    data = summary.data  # runs of before have less there
    split_by = data.get("split_by")
    if expected.split_by not in (None, split_by):
        return (
            f"the data are split by {split_by}; the published number is for a split by "
            f"{expected.split_by}: prepare them as the head of the row says"
        )
    if expected.num_users is not None:
        # Runs of before it was counted are compared anew when they are seen in another table.
        num_users = data.get("num_users", {}).get("train")
        if num_users is None:
            return (
                f"the published number is of {expected.num_users:,} training users, and the run "
                "does not say of how many it is: run it anew"
            )
        # Copies and versions of one sample differ by a few users.
        if abs(num_users - expected.num_users) > 0.1 * expected.num_users:
            return (
                f"the data have {num_users:,} training users; the published number is of "
                f"{expected.num_users:,}: prepare them as the head of the row says"
            )
    return ""


def _chance(metric: str, summary: RunSummary) -> float | None:
    """The accuracy of a guess among the classes of the data; None of other metrics."""
    num_classes = summary.data.get("num_classes")
    is_accuracy = metric.rpartition("/")[2] in ("accuracy", "personal_accuracy")
    return 1 / num_classes if is_accuracy and num_classes else None
