"""Stores that name a task but were not prepared by it: refused with what they lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.types import DataError
from tasks.amazon_review import task as amazon_review
from tasks.reddit import statistics as reddit
from tasks.reddit_albert import task as reddit_albert
from tasks.sent140 import task as sent140


def statistics_of(path: Path) -> dict[str, Any]:
    with Store(path) as store:
        return reddit.statistics(store, reddit.Options(), lambda what, done, total: None)


def building(module: Any) -> Callable[[Path], Any]:
    return lambda path: module.build(module.Options(data=str(path)))


@pytest.mark.parametrize(
    ("task", "names", "read", "told"),
    [
        ("amazon_review", [], building(amazon_review), "has no vocabulary; prepare the data again"),
        ("sent140", [], building(sent140), "has no vocabulary; prepare the data again"),
        ("reddit_albert", [], building(reddit_albert), "has no ordinary token in its vocabulary"),
        ("reddit", ["tokens"], statistics_of, "s.h5: first, counted missing, so this is no store"),
        (
            "reddit",
            ["tokens", "first", "counted"],
            statistics_of,
            "the names of subreddits missing",
        ),
    ],
)
def test_what_a_store_lacks_is_named(
    tmp_path: Path, task: str, names: list[str], read: Callable[[Path], Any], told: str
) -> None:
    fields = {name: FieldSpec("uint8") for name in (*names, "subreddit", "targets")}
    with StoreWriter(
        tmp_path / "s.h5",
        task=task,
        variant="v",
        source="s",
        split_by="user",
        num_classes=2,
        input_shape=(1,),
        fields=fields,
        extra={"artificial_users": False},
    ) as writer:
        writer.append("train", "a", **{name: [1] for name in fields})
    with pytest.raises(DataError, match=told):
        read(tmp_path / "s.h5")
