"""What a store says of its source, as ``data stats`` shows it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.report.statistics import format_statistics, store_statistics

FACT: dict[str, Any] = {
    "counted": "eggs of all hens",
    "users": 1200,
    "samples": 34_567,
    "mean": 28.805833,
    "sd": 3.5,
    "published": {
        "title": "Hen 1999, table 3",
        "users": 1201,
        "samples": 34_567,
        "mean": 28.78,
        "sd": 3.5,
    },
}
HEADING = "the source before any choice"


def text_of(path: Path, extra: dict[str, Any]) -> str:
    with StoreWriter(
        path,
        task="toy",
        variant="toy-small",
        source="made by a test",
        split_by="user",
        num_classes=2,
        input_shape=(1,),
        fields={"inputs": FieldSpec("uint8", (1,)), "targets": FieldSpec("uint8")},
        extra=extra,
    ) as writer:
        writer.append("train", "a", inputs=np.zeros((2, 1), np.uint8), targets=[0, 1])
    with Store(path) as store:
        return format_statistics(store_statistics(store))


def test_the_source_stands_beside_what_was_published(tmp_path: Path) -> None:
    sentences = ["users: 1,200 here, 1,201 published", "mean: 28.81 here, 28.78 published"]
    extra = {"before": 1, "any_name": FACT, "differs_from_published": sentences}
    lines = text_of(tmp_path / "s.h5", extra).splitlines()
    start = lines.index(f"{HEADING}: eggs of all hens")
    assert lines[start - 1] == ""
    assert lines[start + 1 : start + 10] == [
        "                   here  Hen 1999, table 3",
        "users             1,200              1,201",
        "samples          34,567             34,567",
        "mean a user       28.81              28.78",
        "sd (population)    3.50               3.50",
        "differs from what was published:",
        "  users: 1,200 here, 1,201 published",
        "  mean: 28.81 here, 28.78 published",
        "",
    ]


@pytest.mark.parametrize(
    ("differs", "told"),
    [
        ({"differs_from_published": []}, "nothing differs from what was published"),
        ({"differs_from_published": None}, "too few samples to be all that was published"),
        ({}, None),
    ],
)
def test_nothing_differs_or_nothing_is_compared(
    tmp_path: Path, differs: dict[str, Any], told: str | None
) -> None:
    lines = text_of(tmp_path / "s.h5", {"table": FACT, **differs}).splitlines()
    after = lines[lines.index(f"{HEADING}: eggs of all hens") + 6]
    assert after.startswith(told) if told else after == ""


def without(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(fact: dict[str, Any]) -> None:
        for key in path[:-1]:
            fact = fact[key]
        del fact[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        without("counted"),
        without("sd"),
        without("published"),
        without("published", "title"),
        without("published", "mean"),
        lambda fact: fact.update(published=[1, 2]),
        lambda fact: fact.update(users="many"),
    ],
)
def test_other_shapes_show_nothing(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    fact = copy.deepcopy(FACT)
    change(fact)
    # As older versions wrote them, too.
    extra = {
        "table1": fact,
        "table5": {"train": {"clients": 1, "samples": 2}},
        "all_windows": {"users": 1130, "examples": 4_226_206, "mean": 3740.0, "sd": 6210.5},
        "published_table_1": FACT["published"],
        "differs_from_published": ["sd: 1 here, 2 published"],
    }
    text = text_of(tmp_path / "s.h5", extra)
    assert HEADING not in text
    assert "published" not in text
    assert text == text_of(tmp_path / "s.h5", {})


def test_splits_of_one_user_are_said_to_be_undivided(tmp_path: Path) -> None:
    said = "each split is one user: a row's task.partition makes clients of data that have none"
    assert said in text_of(tmp_path / "one.h5", {}).splitlines()
