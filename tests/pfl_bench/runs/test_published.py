"""One run's numbers beside published ones: differences, verdicts, and what cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_bench.config.schema import RunConfig
from pfl_bench.runs.published import compare
from pfl_bench.types import ExpectedResult, RunSummary
from tests.helpers import make_config

PAPER = {"metric": "test/accuracy", "value": 0.7, "tolerance": 0.05, "source": "table 1"}
DIVERGED = {"metric": "val/loss", "round": 1, "unit": "round", "value": 9e9, "start": 2.0}


def config_of(setting: str = "federated", audit: Any = None, **entry: Any) -> RunConfig:
    splits = {"evaluation__splits": ["test"]}
    if audit is not None:
        splits["privacy__audit"] = audit
    return make_config(setting, expected=[PAPER | entry], **splits).config


def compared(measured: float, entry: dict[str, Any], **summary: Any) -> ExpectedResult:
    metrics = {"test/accuracy": measured, "test/loss": measured, "test/personal_accuracy": measured}
    known = {
        "name": "row", "setting": "federated", "variant": "digits", "seed": 0, "expected": [],
        "metrics": metrics, "best": {}, **summary,
    }  # fmt: skip
    (found,) = compare(config_of(**entry), RunSummary.of(known))
    return found


SPREAD = {"sd": 0.001, "seeds": 50}


def users(count: int | None, **others: int) -> dict[str, Any]:
    return {"data": {"num_users": {"train": count, **others}} if count else {}}


@pytest.mark.parametrize(
    ("measured", "entry", "summary", "verdict"),
    [
        (0.71, SPREAD, {}, "reproduced"),
        (0.71, SPREAD | {"measured_here": True}, {}, "as measured before"),
        (0.9, SPREAD, {}, "differs"),
        (0.71, {}, {}, "undecided"),
        (0.71, {"sd": 1.0, "seeds": 2}, {}, "says nothing"),
        # Chance lies in the interval of the number, which is wider than the margin.
        (
            0.2,
            {"value": 0.1, "sd": 0.1, "seeds": 3},
            {"data": {"num_classes": 10}},
            "says nothing",
        ),
        (0.2, {"value": 0.1, "sd": 0.1, "seeds": 3}, {}, "undecided"),
        (0.71, SPREAD, {"diverged": DIVERGED}, "diverged"),
        (0.71, SPREAD | {"diverged": True}, {"diverged": DIVERGED}, "reproduced"),
        (0.71, SPREAD, {"departure": "it is of another kind"}, "not the row"),
        (0.71, SPREAD | {"variants": ["digits"]}, {}, "reproduced"),
        (0.71, SPREAD | {"variants": ["full"]}, {}, "not comparable"),
        (0.71, SPREAD | {"split_by": "user"}, {"data": {"split_by": "user"}}, "reproduced"),
        (0.71, SPREAD | {"split_by": "user"}, {"data": {"split_by": "example"}}, "not comparable"),
        (0.71, SPREAD | {"split_by": "user"}, {}, "not comparable"),
        # A tenth of the published users, and no more; of the training split.
        (0.71, SPREAD | {"num_users": 100}, users(110), "reproduced"),
        (0.71, SPREAD | {"num_users": 100}, users(90, test=7), "reproduced"),
        (0.71, SPREAD | {"num_users": 100}, users(111), "not comparable"),
        (0.71, SPREAD | {"num_users": 100}, users(89, test=100), "not comparable"),
        (0.71, SPREAD | {"num_users": 100}, users(None), "not comparable"),
        (0.71, SPREAD | {"metric": "test/perplexity"}, {}, "not comparable"),
        (0.71, SPREAD | {"statistic": "best_over_rounds"}, {}, "not comparable"),
        # At the end of the run it need not be measured.
        (
            0.71,
            SPREAD | {"statistic": "best_over_rounds"},
            {"metrics": {}, "best": {"test/accuracy": {"value": 0.71, "round": 2}}},
            "reproduced",
        ),
    ],
)
def test_verdicts(
    measured: float, entry: dict[str, Any], summary: dict[str, Any], verdict: str
) -> None:
    found = compared(measured, entry, **summary)
    assert found.verdict == verdict
    if verdict in ("diverged", "not the row", "not comparable"):
        assert found.why


@pytest.mark.parametrize(
    ("metric", "chance"),
    [("test/accuracy", 0.25), ("test/personal_accuracy", 0.25), ("test/loss", None)],
)
def test_what_is_written_of_a_number(metric: str, chance: float | None) -> None:
    for measured in (0.5, 0.0):
        found = compared(measured, {"metric": metric}, data={"num_classes": 4})
        assert (found.published, found.measured, found.chance) == (0.7, measured, chance)
        assert found.difference == pytest.approx(measured - 0.7)
    gone = compared(0.5, {"metric": "test/perplexity"})
    assert (gone.measured, gone.difference) == (None, None)
    assert gone.why.startswith("not measured; there are: test/accuracy, test/loss,")


def test_how_a_run_is_not_the_row_s_is_the_reason() -> None:
    summary = RunSummary.of(
        {
            "name": "row", "setting": "federated", "variant": "digits", "seed": 0, "expected": [],
            "metrics": {"test/accuracy": 0.7}, "departure": "it is short",
        }
    )  # fmt: skip
    (found,) = compare(config_of(), summary, ["rounds 4 -> 2"])
    assert (found.verdict, found.why) == ("not the row", "rounds 4 -> 2; it is short")


def test_canaries_make_a_run_not_comparable() -> None:
    audit = {"kind": "one_run", "count": 8}
    for given, verdict in ((audit, "not comparable"), (None, "reproduced")):
        known = RunSummary.of(
            {
                "name": "row", "setting": "private_federated", "variant": "digits", "seed": 0,
                "expected": [], "metrics": {"test/accuracy": 0.7},
            }
        )  # fmt: skip
        (found,) = compare(config_of("private_federated", given, **SPREAD), known)
        assert found.verdict == verdict
