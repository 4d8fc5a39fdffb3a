"""LEAF's data tools: dropping, sampling, splitting and partition, and the store of it."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pfl_bench.data import FieldSpec, Store
from pfl_bench.types import ConfigError, DataError
from tasks.common.leaf import gathering as gathering_module
from tasks.common.leaf import parts as parts_module
from tasks.common.leaf.gathering import Gathering, Partition, PartitionOptions, write_partition
from tasks.common.leaf.parts import rank_examples
from tasks.common.leaf.plan import bounds, rank_users, systematic_bounds
from tests import warm
from tests.helpers import REPOSITORY
from tests.tasks.leaf_samples import (
    FIELDS,
    USERS,
    append,
    arrays_of,
    contents,
    numbers_of,
    partitioned,
    pooled,
)

EVERYTHING = sorted(number for own in USERS.values() for number in own)
SPLITS = {
    "train": {"a": [1, 2, 3], "b": [4, 5]},
    "val": {"a": [6], "b": [7]},
    "test": {"a": [8, 9], "b": [10]},
}


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def write(out: Path, partition: Partition, **changes: Any) -> dict[str, dict[str, int]]:
    given = {name: changes.pop(name) for name in ("progress", "convert") if name in changes}
    facts: dict[str, Any] = {"task": "toy", "variant": "v", "source": "s", "num_classes": 2}
    facts |= {"input_shape": (2,), "fields": FIELDS, **changes}
    written = write_partition(out, partition, **{"progress": silent, "extra": {}, **given, **facts})
    return dict(written["splits"])


def checksum(folder: Path, partition: Partition) -> str:
    write(folder / "x.h5", partition)
    with Store(folder / "x.h5") as store:
        store.verify()
        return store.facts.checksum


# Splitting


def test_a_split_by_example_divides_each_user(tmp_path: Path) -> None:
    with partitioned(tmp_path) as partition:
        parts = contents(partition)
        assert contents(partition) == parts  # again and again
        assert (partition.split_by, partition.artificial_users) == ("example", False)
    sizes = {name: {u: len(own) for u, own in users.items()} for name, users in parts.items()}
    # The shares of c are whole numbers; a remainder goes where the user's own draw says.
    assert {user: sizes["train"][user] for user in "acd"} == {"a": 1, "c": 8, "d": 20}
    assert sizes["train"]["b"] in (1, 2)
    for name in ("val", "test"):
        assert sizes[name]["c"] == 1
        assert sizes[name]["d"] in (2, 3)
    for user, numbers in USERS.items():
        assert sorted(n for users in parts.values() for n in users.get(user, [])) == numbers


def test_a_split_by_user_keeps_users_whole(tmp_path: Path) -> None:
    with partitioned(tmp_path, split_by="user", train_fraction=0.5, val_fraction=0.25) as partition:
        parts = contents(partition)
        assert partition.split_by == "user"
    assert {name: len(users) for name, users in parts.items()} == {"train": 2, "val": 1, "test": 1}
    together = {user: sorted(own) for users in parts.values() for user, own in users.items()}
    assert together == USERS


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_an_order_puts_the_earliest_into_train(tmp_path: Path, order: str) -> None:
    users = {u: own if order == "ascending" else own[::-1] for u, own in USERS.items()}
    with partitioned(tmp_path, users, order_by="time") as partition:
        parts = contents(partition)
        assert partition.facts["split"]["order_by"] == "time"
        assert "split_seed" not in partition.facts["split"]
    # A larger number is an earlier time.
    assert parts["train"]["d"] == list(range(64, 44, -1))
    assert parts["val"]["d"] == [44, 43, 42]
    assert parts["test"]["d"] == [41, 40]


def test_equal_times_stay_as_they_came(tmp_path: Path) -> None:
    numbers = np.array([5, 3, 9, 4])
    arrays = {**arrays_of(numbers), "time": np.array([1, 0, 1, 1])}
    with Gathering(tmp_path / "x.h5", FIELDS) as gathering:
        gathering.append("all", "a", **arrays)
        (train,) = gathering.partition(
            PartitionOptions(train_fraction=1.0, val_fraction=0.0), "time"
        )
        assert train.arrays["inputs"][:, 0].tolist() == [3, 5, 9, 4]


@pytest.mark.parametrize(
    "options",
    [{}, {"split_by": "user"}, {"partition": "iid"}, {"num_users": 3}, {"data_fraction": 0.5}],
)
def test_the_result_depends_on_the_seed_and_not_on_the_order_of_the_source(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    pieces = [(user, [number]) for user, own in USERS.items() for number in own]
    found = []
    for seed, mix in ((0, 1), (0, 2), (1, 1)):
        random.Random(mix).shuffle(pieces)
        with Gathering(tmp_path / "x.h5", FIELDS) as gathering:
            for user, numbers in pieces:
                gathering.append("all", user, **arrays_of(numbers))
            found.append(
                checksum(
                    tmp_path, gathering.partition(PartitionOptions(split_seed=seed, **options))
                )
            )
    assert found[0] == found[1] != found[2]


@given(count=st.integers(1, 1000), train=st.floats(0.001, 1.0), share=st.floats(0.0, 1.0))
def test_bounds_are_in_order_and_keep_one_for_train(count: int, train: float, share: float) -> None:
    val = (1.0 - train) * share
    train_end, val_end = bounds(count, train, val)
    assert 1 <= train_end <= val_end <= count
    assert abs(train_end - train * count) <= max(0.5, 1 - train * count)
    assert val_end == train_end or abs(val_end - (train + val) * count) <= 0.501


@given(
    user=st.text(max_size=9),
    count=st.integers(1, 1000),
    train=st.floats(0.001, 1.0),
    share=st.floats(0.0, 1.0),
)
def test_systematic_bounds_give_each_split_its_share_up_or_down(
    user: str, count: int, train: float, share: float
) -> None:
    val = (1.0 - train) * share
    train_end, val_end = systematic_bounds(user, count, train, val, 7)
    assert 1 <= train_end <= val_end <= count
    assert systematic_bounds(user, count, train, val, 7) == (train_end, val_end)
    if train * count >= 1:
        shares = (train * count, val * count, (1 - train - val) * count)
        for found, wanted in zip(
            (train_end, val_end - train_end, count - val_end), shares, strict=True
        ):
            assert abs(found - wanted) < 1 + 1e-6


@pytest.mark.parametrize("fractions", [(0.8, 0.1), (0.6, 0.2), (0.7, 0.0), (0.5, 0.25)])
@pytest.mark.parametrize("seed", [0, 1])
def test_small_users_give_every_split_its_fraction(
    fractions: tuple[float, float], seed: int
) -> None:
    """Rounded to the nearest, users of 3 and 5 examples gave test none of the 8,000 below."""
    train, val = fractions
    sums = np.zeros(3)
    for user in range(2000):
        count = 3 + user % 3
        train_end, val_end = systematic_bounds(f"user-{user}", count, train, val, seed)
        sums += train_end, val_end - train_end, count - val_end
    wanted = np.array([train, val, 1 - train - val])
    # A user's part of a split differs from its share by less than one example, so the standard
    # deviation of a sum over 2,000 independent users is below 22.4 examples: four of them.
    assert np.abs(sums - wanted * sums.sum()).max() < 4 * math.sqrt(2000) / 2
    other = [systematic_bounds(f"user-{user}", 3, train, val, seed + 2) for user in range(99)]
    assert other != [systematic_bounds(f"user-{user}", 3, train, val, seed) for user in range(99)]


@given(
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=20),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_ranking_examples_does_not_depend_on_their_order(
    numbers: list[int], seed: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(numbers))
    ranked = []
    for order in (numbers, shuffled):
        arrays = {
            k: v if k != "words" else list(map(np.array, v)) for k, v in arrays_of(order).items()
        }
        ranks = rank_examples(arrays, FIELDS, "a", seed)
        assert sorted(ranks) == list(range(len(numbers)))
        ranked.append([order[rank] for rank in ranks])
    assert ranked[0] == ranked[1]


def test_rankings_differ_between_users_seeds_and_purposes() -> None:
    arrays = {"inputs": np.arange(100, dtype=np.uint16).reshape(50, 2)}
    fields = {"inputs": FIELDS["inputs"]}
    orders = {
        tuple(rank_examples(arrays, fields, client, seed)) for client in "ab" for seed in (0, 1)
    }
    assert len(orders) == 4
    users = [str(number) for number in range(50)]
    drawn = {tuple(rank_users(users, seed, what)) for seed in (0, 1) for what in ("", "sample")}
    assert len(drawn) == 4


def test_ragged_values_do_not_run_into_one_another() -> None:
    fields = {"a": FieldSpec("uint8", ragged=True), "b": FieldSpec("uint8", ragged=True)}
    arrays = {
        "a": [np.array(v, np.uint8) for v in ([1, 2], [1])],
        "b": [np.array(v, np.uint8) for v in ([3], [2, 3])],
    }
    swapped = {name: values[::-1] for name, values in arrays.items()}
    for seed in range(8):  # by chance equal digests would keep the order once in 2 ** 8
        first, second = (
            rank_examples(arrays, fields, "u", seed),
            rank_examples(swapped, fields, "u", seed),
        )
        assert first.tolist() == [1 - place for place in second.tolist()]


# Published splits


def published(folder: Path, splits: Any = SPLITS, **options: Any) -> Partition:
    with Gathering(folder / "x.h5", FIELDS) as gathering:
        for split, users in splits.items():
            append(gathering, split, users)
        partition = gathering.partition(PartitionOptions(**options))
        partition.seen = contents(partition)  # type: ignore[attr-defined]
        return partition


def test_published_splits_stay_as_they_are(tmp_path: Path) -> None:
    partition = published(tmp_path)
    assert partition.seen == SPLITS  # type: ignore[attr-defined]
    assert partition.split_by == "example"
    assert partition.facts["split"] == {"by": "example", "as": "published"}
    disjoint = {"train": {"a": [1], "b": [2]}, "test": {"c": [3]}}
    assert published(tmp_path, disjoint).split_by == "user"


def test_splits_that_share_some_users_are_refused(tmp_path: Path) -> None:
    splits = {"train": {"a": [1], "b": [2]}, "test": {"b": [3], "c": [4]}}
    with pytest.raises(DataError, match=r"1 users are in several.*'b'.*1 are not in train.*'c'"):
        published(tmp_path, splits)


def test_published_data_of_which_no_training_user_is_kept_are_refused(tmp_path: Path) -> None:
    splits = {"train": {"a": [1]}, "test": {"b": [2, 3, 4]}}
    for partition in ("natural", "iid"):
        with pytest.raises(ConfigError, match="none is in the published split train"):
            published(tmp_path, splits, min_examples=2, partition=partition)


def test_published_data_without_train_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no 'train'"):
        published(tmp_path, {"test": {"a": [1]}})


@pytest.mark.parametrize(
    "option",
    [{"split_by": "user"}, {"train_fraction": 0.7}, {"val_fraction": 0.0}, {"split_seed": 1}],
)
def test_options_of_the_split_are_refused_for_published_splits(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=rf"^{next(iter(option))}: .*split by its publisher"):
        published(tmp_path, **option)


def test_the_seed_of_published_splits_may_draw_users_or_deal(tmp_path: Path) -> None:
    seeds = [published(tmp_path, num_users=1, split_seed=seed).seen for seed in range(8)]  # type: ignore[attr-defined]
    assert {tuple(sorted(parts["train"])) for parts in seeds} == {("a",), ("b",)}
    assert all(set(parts["train"]) == set(parts["test"]) for parts in seeds)
    partition = published(tmp_path, partition="iid", split_seed=3)
    assert pooled(partition.seen) == list(range(1, 11))  # type: ignore[attr-defined]


def test_a_seed_of_which_nothing_depends_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"split_seed: .*in the order of 'time'"),
        partitioned(tmp_path, order_by="time", split_seed=3),
    ):
        pass
    for used in ({"num_users": 2}, {"partition": "iid"}, {"split_by": "user"}):
        with partitioned(tmp_path, order_by="time", split_seed=3, **used) as partition:
            assert contents(partition)


# Who is kept


def test_small_users_are_dropped_over_all_splits_together(tmp_path: Path) -> None:
    with partitioned(tmp_path, min_examples=3) as partition:
        parts = contents(partition)
        assert set(parts["train"]) == {"c", "d"}
        assert partition.facts["users_dropped"] == 2
    partition = published(tmp_path, min_examples=6)
    assert set(partition.seen["train"]) == {"a"}  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="min_examples = 26 drops all 4 users; the largest has 25"):
        partitioned(tmp_path, min_examples=26).__enter__()


def test_a_fraction_or_a_number_of_users_is_kept(tmp_path: Path) -> None:
    users = {f"u{number:03d}": [number, number + 1000] for number in range(200)}
    kept = []
    for options in ({"user_fraction": 0.3}, {"num_users": 60}, {"num_users": 60, "split_seed": 1}):
        with partitioned(tmp_path, users, **options) as partition:
            parts = contents(partition)
            drawn = {"kept": 60, "of": 200, "split_seed": options.get("split_seed", 0)}
            assert partition.facts["users_sampled"] == drawn
        assert pooled(parts) == sorted(n for user in parts["train"] for n in users[user])
        kept.append(set(parts["train"]))
    assert len(kept[0]) == 60
    assert kept[0] == kept[1] != kept[2]
    with partitioned(tmp_path, users, user_fraction=0.001) as partition:
        assert len(contents(partition)["train"]) == 1


def test_users_are_drawn_independently_of_how_they_are_split(tmp_path: Path) -> None:
    users = {f"u{number:03d}": [number] for number in range(400)}
    with partitioned(
        tmp_path, users, num_users=200, split_by="user", train_fraction=0.5
    ) as partition:
        kept = {user for users in contents(partition).values() for user in users}
    with partitioned(tmp_path, users, split_by="user", train_fraction=0.5) as partition:
        everyone = set(contents(partition)["train"])
    # 200 of 400 are kept, 200 are in train of the whole: 100 in both, with a deviation of 5.
    assert (len(kept), len(everyone)) == (200, 200)
    assert 70 < len(kept & everyone) < 130


def test_a_fraction_of_the_data_is_what_users_are_drawn_up_to(tmp_path: Path) -> None:
    users = {
        f"u{number:03d}": range(number * 50, number * 50 + 1 + number % 40) for number in range(200)
    }
    total = sum(len(own) for own in users.values())
    with partitioned(tmp_path, users, data_fraction=0.2) as partition:
        held = sum(count["examples"] for count in partition.counts.values())
        assert partition.facts["users_sampled"]["kept"] == partition.counts["train"]["users"]
    assert 0.2 * total <= held < 0.2 * total + 40


def test_users_are_drawn_from_those_with_enough_examples(tmp_path: Path) -> None:
    with partitioned(tmp_path, min_examples=3, num_users=2) as partition:
        assert set(contents(partition)["train"]) == {"c", "d"}
    with pytest.raises(ConfigError, match="num_users 3: there are only 2 users with at least 3"):
        partitioned(tmp_path, min_examples=3, num_users=3).__enter__()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"train_fraction": 0.0}, "train_fraction"),
        ({"train_fraction": 0.95, "val_fraction": 0.1}, "sum to more than 1"),
        ({"val_fraction": -0.1}, "val_fraction"),
        ({"split_seed": -1}, "split_seed"),
        ({"min_examples": 1.5}, "min_examples"),
        ({"user_fraction": 0.0}, "user_fraction"),
        ({"user_fraction": 1.5}, "user_fraction"),
        ({"data_fraction": 0}, "data_fraction"),
        ({"num_users": 0}, "num_users"),
        ({"num_users": 3, "user_fraction": 0.5}, "user_fraction and num_users"),
        ({"data_fraction": 0.3, "user_fraction": 0.5}, "user_fraction and data_fraction"),
        ({"iid_users": 3}, "partition=iid"),
        ({"partition": "iid", "iid_users": 0}, "iid_users"),
        ({"partition": "dirichlet"}, "partition"),
        ({"fraction": 0.5}, "fraction"),
    ],
)
def test_options_that_do_not_fit_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PartitionOptions(**wrong)


# Artificial users


@pytest.mark.parametrize("group_bytes", [1, 400, 1 << 28])
@pytest.mark.parametrize("batch_bytes", [1, 1 << 23])
def test_artificial_users_get_equal_shares_of_each_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int, batch_bytes: int
) -> None:
    with partitioned(tmp_path) as partition:
        natural = contents(partition)
    with partitioned(tmp_path, partition="iid", iid_users=7) as partition:
        expected = checksum(tmp_path, partition)
    monkeypatch.setattr(parts_module, "GROUP_BYTES", group_bytes)
    monkeypatch.setattr(gathering_module, "BATCH_BYTES", batch_bytes)
    with partitioned(tmp_path, partition="iid", iid_users=7) as partition:
        parts = contents(partition)
        assert partition.artificial_users
        assert partition.facts["artificial_users"] is True
        found = checksum(tmp_path, partition)
    # The same examples in each split, so that both partitions are tested on the same ones.
    for name, users in natural.items():
        assert pooled({name: parts[name]}) == pooled({name: users})
    assert list(parts["train"]) == [f"iid-{user}" for user in range(7)]
    for users in parts.values():
        sizes = [len(own) for own in users.values()]
        assert max(sizes) - min(sizes) <= 1
        assert set(users) <= set(parts["train"])
    assert found == expected  # however little is in memory at a time


def test_there_are_as_many_artificial_users_as_natural_ones(tmp_path: Path) -> None:
    users = {f"u{number}": range(number * 20, number * 20 + 10) for number in range(12)}
    with partitioned(tmp_path, users, partition="iid") as partition:
        assert {len(own) for own in contents(partition).values()} == {12}
        assert partition.facts["partition"]["users"] == {"train": 12, "val": 12, "test": 12}
    # Names are of one length, so that their order is that of their numbers.
    with partitioned(tmp_path, users, partition="iid") as partition:
        assert sorted(contents(partition)["train"]) == list(contents(partition)["train"])


def test_artificial_users_are_mixed(tmp_path: Path) -> None:
    users = {f"u{number:02d}": range(number * 100, number * 100 + 50) for number in range(40)}
    with partitioned(
        tmp_path, users, partition="iid", train_fraction=1.0, val_fraction=0.0
    ) as partition:
        parts = contents(partition)["train"]
    # Of 40 users each has 50 of 2,000 examples: about 29 of 40 natural users are seen by chance.
    seen = [len({number // 100 for number in own}) for own in parts.values()]
    assert 25 < np.mean(seen) < 32
    assert len({own[0] // 100 for own in parts.values()}) > 15  # in random order, too


def test_artificial_users_of_a_split_by_user_are_disjoint(tmp_path: Path) -> None:
    users = {f"u{number:02d}": range(number * 20, number * 20 + 9) for number in range(20)}
    with partitioned(tmp_path, users, partition="iid", split_by="user", iid_users=10) as partition:
        parts = contents(partition)
        assert checksum(tmp_path, partition)  # the store accepts it
    assert {name: len(own) for name, own in parts.items()} == {"train": 8, "val": 1, "test": 1}
    names = [name for own in parts.values() for name in own]
    assert len(set(names)) == 10
    assert pooled(parts) == sorted(n for own in users.values() for n in own)


@pytest.mark.parametrize(
    "options", [{"iid_users": 32}, {"iid_users": 1, "split_by": "user", "train_fraction": 0.5}]
)
def test_more_artificial_users_than_can_be_filled_are_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with (
        pytest.raises(ConfigError, match=f"iid_users {options['iid_users']}"),
        partitioned(tmp_path, partition="iid", **options),
    ):
        pass


def test_a_split_with_fewer_examples_than_artificial_users_has_fewer_users(tmp_path: Path) -> None:
    with partitioned(tmp_path, partition="iid", iid_users=20) as partition:
        examples = {name: count["examples"] for name, count in partition.counts.items()}
        found = {name: len(own) for name, own in contents(partition).items()}
        assert examples["train"] > 20 > examples["val"]
        assert found == {**examples, "train": 20}


# Gathering and writing


def test_a_user_spread_over_appends_is_together(tmp_path: Path) -> None:
    with Gathering(tmp_path / "x.h5", FIELDS) as gathering:
        for numbers in ([1, 2], [5]):
            for user in "ba":
                gathering.append("all", user, **arrays_of(n + 100 * (user == "b") for n in numbers))
        assert gathering.splits == ("all",)
        assert gathering.clients("all") == ["b", "a"]
        assert gathering.clients("val") == []
        partition = gathering.partition(PartitionOptions(train_fraction=1.0, val_fraction=0.0))
        parts = contents(partition)["train"]
    assert {user: sorted(own) for user, own in parts.items()} == {
        "a": [1, 2, 5],
        "b": [101, 102, 105],
    }


def test_a_store_says_what_was_done(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []
    out = tmp_path / "x.h5"
    with partitioned(tmp_path, min_examples=2, partition="iid", iid_users=5) as partition:
        counts = write(
            out,
            partition,
            fields={"inputs": FieldSpec("uint8", (1,)), "targets": FieldSpec("uint8")},
            extra={"files": 3},
            names={"words": ["x", "y"]},
            progress=lambda *step: steps.append(step),
            convert=lambda arrays: {
                "inputs": arrays["inputs"][:, :1],
                "targets": np.array(numbers_of(arrays)) % 2,
            },
        )
        assert counts == partition.counts
    assert [step[1] for step in steps] == list(range(1, partition.num_parts + 1))
    assert {step[2] for step in steps} == {partition.num_parts}
    with Store(out) as store:
        store.verify()
        users = {name: store.split(name).num_users for name in store.split_names}
        assert store.facts.extra == {
            "split": {
                "by": "example",
                "as": "prepared here",
                "train_fraction": 0.8,
                "val_fraction": 0.1,
                "rounding": "systematic",
                "split_seed": 0,
            },
            "min_examples": 2,
            "users_dropped": 1,
            "artificial_users": True,
            "partition": {"as": "iid", "users": users, "split_seed": 0},
            "files": 3,
        }
        assert store.names("words") == ["x", "y"]
        assert store.split("train").num_users == 5
        values = store.split("train").read("inputs", 0, store.split("train").num_examples)
        assert (values[:, 0] % 2).tolist() == store.split("train").read("targets", 0, 30).tolist()


def test_a_dealt_gathering_takes_no_more(tmp_path: Path) -> None:
    gathering = Gathering(tmp_path / "x.h5", FIELDS)
    with pytest.raises(ValueError, match=r"with Gathering"):
        gathering.append("all", "a", **arrays_of([1]))
    with gathering:
        gathering.append("all", "a", **arrays_of([1]))
        gathering.partition(PartitionOptions())
        with pytest.raises(ValueError, match="partitioned"):
            gathering.append("all", "a", **arrays_of([2]))
    with Gathering(tmp_path / "x.h5", FIELDS) as mixed:
        append(mixed, "all", {"a": [1]})
        append(mixed, "train", {"a": [1]})
        with pytest.raises(ValueError, match="both split and unsplit"):
            mixed.partition(PartitionOptions())


def test_bad_examples_are_refused_with_split_and_user(tmp_path: Path) -> None:
    with Gathering(tmp_path / "x.h5", FIELDS) as gathering:
        for change in ({"inputs": [[1, -1]]}, {"time": [1.5]}, {"words": [[1], [2]]}):
            with pytest.raises(DataError, match=r"x\.h5: split 'all', client 'a'"):
                gathering.append("all", "a", **{**arrays_of([1]), **change})
        with pytest.raises(DataError, match="identifier"):
            gathering.append("all", "", **arrays_of([1]))
        with pytest.raises(DataError, match="no examples"):
            gathering.partition(PartitionOptions())
        with pytest.raises(ValueError, match="order_by 'words'"):
            gathering.partition(PartitionOptions(), "words")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write the store: its folder .*absent"):
        Gathering(tmp_path / "absent" / "x.h5", FIELDS)
    with pytest.raises(DataError, match="is a folder; name the file"):
        Gathering(tmp_path, FIELDS)


@pytest.mark.parametrize("stage", ["gathering", "partition", "writing"])
def test_nothing_is_left_behind(tmp_path: Path, stage: str) -> None:
    def interrupt(*step: Any) -> None:
        raise KeyboardInterrupt

    def work() -> None:
        with Gathering(tmp_path / "x.h5", FIELDS) as gathering:
            append(gathering, "all", USERS)
            (folder,) = tmp_path.iterdir()
            assert folder.name.startswith(".x.h5.gathering-")
            if stage == "gathering":
                interrupt()
            partition = gathering.partition(PartitionOptions())
            if stage == "writing":
                write(tmp_path / "x.h5", partition, progress=interrupt)
            for _ in partition:
                interrupt()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError
from tasks.common.leaf.gathering import Gathering, PartitionOptions, write_partition
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fields = {"inputs": FieldSpec("uint8", (50_000,))}
for limit in map(int, sys.argv[2:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    stage = "gathering"
    try:
        with Gathering(Path(sys.argv[1]) / "x.h5", fields) as gathering:
            for user in "abcdefghij":
                gathering.append("all", user, inputs=np.ones((2, 50_000), np.uint8))
            stage = "partition"
            partition = gathering.partition(PartitionOptions(train_fraction=1.0, val_fraction=0.0))
            stage = "writing"
            facts = dict(task="t", variant="v", source="s", num_classes=1, input_shape=(1,))
            out = Path(sys.argv[1]) / "x.h5"
            write_partition(out, partition, lambda *step: None, extra={}, fields=fields, **facts)
            stage = "done"
    except DataError as error:
        print(stage, error)
    else:
        print(stage)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes on Windows")
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    limits = ["100000", "600000", "980000", "1001000", "2000000"]
    out = warm.python("-c", LIMITED, str(tmp_path), *limits, cwd=REPOSITORY, check=True)
    assert not out.stderr
    lines = out.stdout.splitlines()
    stages = [line.split()[0] for line in lines]
    assert stages == ["gathering", "gathering", "partition", "writing", "done"]
    assert all("cannot write temporary data" in line for line in lines[:3])
    assert all("ree space" in line for line in lines[:4])
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_temporary_files_that_somebody_cut_are_told(tmp_path: Path) -> None:
    with partitioned(tmp_path) as partition:
        for path in filter(Path.is_file, tmp_path.rglob("*")):
            path.write_bytes(b"")
        with pytest.raises(
            DataError, match=r"x\.h5: temporary data beside it cannot be read .temp"
        ):
            contents(partition)
