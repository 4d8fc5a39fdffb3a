"""Published numbers beside measured ones, and which of two is the better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl_bench.config import Expected, RunConfig


def compare(
    config: RunConfig, summary: Mapping[str, Any], metrics: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Set measured numbers beside the published ones.

    Args:
        config: Has the published ones.
        summary: The run's: "variant" and "data" of it; "num_users" of the data, where a published
            number asks for it, by split; "departure", why its model is not the row's, if it is not.
        metrics: The measured ones.

    Returns:
        One entry an expected number, its verdict "reproduced" (within tolerance), "differs", or
        "not comparable" with the reason in "why".
    """
    rows = []
    audited = config.privacy is not None and config.privacy.audit is not None
    for expected in config.expected:
        measured = metrics.get(expected.metric)
        why = ""
        if measured is None:
            names = ", ".join(sorted(metrics))
            verdict, why = "not comparable", f"not measured; there are: {names}"
        elif reason := _other_data(expected, summary):
            verdict, why = "not comparable", reason
        elif departure := summary.get("departure"):
            verdict, why = "not comparable", departure
        elif audited:
            verdict, why = "not comparable", "canaries (privacy.audit) have moved the model"
        else:
            near = abs(measured - expected.value) <= expected.tolerance
            verdict = "reproduced" if near else "differs"
        rows.append(
            {
                "metric": expected.metric,
                "published": expected.value,
                "tolerance": expected.tolerance,
                "source": expected.source,
                "measured": measured,
                "difference": None if measured is None else measured - expected.value,
                "verdict": verdict,
                "why": why,
            }
        )
    return rows


def _other_data(expected: Expected, summary: Mapping[str, Any]) -> str:
    """Why the published number is not for these data; empty if it is."""
    variant = summary["variant"]
    if expected.variants is not None and variant not in expected.variants:
        return f"data is {variant}; the published number is for {', '.join(expected.variants)}"
    split_by = summary["data"]["split_by"]
    if expected.split_by not in (None, split_by):
        return (
            f"the data are split by {split_by}; the published number is for a split by "
            f"{expected.split_by}: prepare them as the head of the row says"
        )
    if expected.num_users is not None:
        # Runs of before it was counted are compared anew when they are seen in another table.
        num_users = summary["data"].get("num_users", {}).get("train")
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


def lower_is_better(metric: str) -> bool:
    """Whether the smaller value of a metric is the better one.

    It is of losses and perplexities, pooled or as they spread over clients and strata, and of every
    standard deviation.

    Args:
        metric: Name such as "val/loss", "val/client_loss_p90" or "client_accuracy_sd".
    """
    words = metric.rpartition("/")[2].split("_")
    return words[-1] == "sd" or not {"loss", "perplexity"}.isdisjoint(words)
