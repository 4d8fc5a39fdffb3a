"""Quantity skew, histograms of sizes and splits taken together, against their definitions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from pfl_bench.report.statistics import format_statistics
from pfl_bench.report.statistics.store import _HISTOGRAM_BINS, quantity_skew, size_histogram
from tests.pfl_bench.report.test_stats import statistics_of, write

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=40)


@given(SIZES)
def test_the_largest_users_are_the_fewest_that_hold_half(sizes):
    skew = quantity_skew(np.array(sizes))
    ordered = sorted(sizes, reverse=True)
    largest = skew["largest_users"]
    assert sum(ordered[:largest]) >= sum(ordered[largest:])
    assert largest == 1 or sum(ordered[: largest - 1]) < sum(ordered[largest - 1 :])
    assert skew["largest_share"] == largest / len(sizes)


@given(SIZES)
def test_the_curve_of_few_users_has_a_point_a_user(sizes):
    curve = quantity_skew(np.array(sizes))["curve"]
    ordered = sorted(sizes, reverse=True)
    assert curve["users"] == pytest.approx(np.arange(len(sizes) + 1) / len(sizes))
    held = [sum(ordered[:users]) / sum(sizes) for users in range(len(sizes) + 1)]
    assert curve["examples"] == pytest.approx(held)


def test_the_curve_of_many_users_is_thinned_but_exact():
    sizes = np.random.default_rng(0).zipf(1.7, 20_000).clip(max=4000)
    curve = quantity_skew(sizes)["curve"]
    assert 100 <= len(curve["users"]) <= 210
    held = np.cumsum(np.sort(sizes)[::-1])
    for users, share in zip(curve["users"], curve["examples"], strict=True):
        count = round(users * len(sizes))
        assert share == pytest.approx(0 if count == 0 else held[count - 1] / sizes.sum())
    assert (curve["users"][0], curve["users"][1], curve["users"][-1]) == (0, 1 / 20_000, 1)


def test_known_extremes():
    # Ten users alike: half of them hold half. One user as large as all others together.
    assert quantity_skew(np.full(10, 7))["largest_share"] == 0.5
    assert quantity_skew(np.array([1, 30, *[1] * 29]))["largest_users"] == 1
    assert quantity_skew(np.array([30, *[1] * 31]))["largest_users"] == 2


# Twenty times as much, and not quite.
@example([1], [20])
@example([1], [19])
@given(SIZES, SIZES)
def test_the_histogram_counts_every_user_once_in_the_bin_of_the_size(first, second):
    sizes = {"train": np.array(first), "test": np.array(second)}
    histogram = size_histogram(sizes)
    edges = histogram["edges"]
    assert all(low < high for low, high in pairwise(edges))
    for name, own in sizes.items():
        naive = [int(((own >= low) & (own < high)).sum()) for low, high in pairwise(edges)]
        assert histogram["users"][name] == naive
        assert sum(naive) == len(own)
    assert histogram["logarithmic"] == (max(first + second) >= 20 * min(first + second))


def test_as_many_sizes_as_bins_have_a_bin_each():
    for more, width in ((0, 1), (1, 2)):
        sizes = np.arange(100, 100 + _HISTOGRAM_BINS + more)
        assert np.diff(size_histogram({"train": sizes})["edges"]).tolist() == [width] * (
            -(-len(sizes) // width)
        )


def test_all_splits_are_one_population_only_where_users_are_disjoint(tmp_path):
    splits = {"train": [[0] * 6, [1]], "test": [[0], [2]]}
    write(tmp_path / "users.h5", splits)
    result = statistics_of(tmp_path / "users.h5")
    together = result["all_splits"]
    assert (together["users"], together["examples"]) == (4, 9)
    assert together["examples_per_user"]["max"] == 6
    assert together["quantity_skew"]["largest_share"] == 0.25
    assert result["splits"]["test"]["quantity_skew"]["largest_share"] == 0.5
    assert together["labels"]["share_of_users"] == {"0": 0.5, "1": 0.25, "2": 0.25}
    text = format_statistics(result)
    assert ["all", "1", "25.0%"] in [line.split() for line in text.splitlines()]

    write(tmp_path / "examples.h5", splits, split_by="example")
    result = statistics_of(tmp_path / "examples.h5")
    assert result["all_splits"] is None
    rows = [line.split() for line in format_statistics(result).splitlines() if line[:3] == "all"]
    assert [row[:5] for row in rows] == [["all", "2", "9", "4.500", "2.500"]]


@pytest.mark.parametrize("split_by", ["user", "example"])
def test_all_users_are_counted_once_over_all_splits(tmp_path, split_by):
    splits = {"train": [[0] * 6, [1]], "test": [[0, 1], [2], [1, 1, 1]]}
    write(tmp_path / "s.h5", splits, split_by=split_by)
    result = statistics_of(tmp_path / "s.h5")
    # By example, users 0 and 1 are in both splits.
    sizes = [6, 1, 2, 1, 3] if split_by == "user" else [8, 2, 3]
    everyone = result["all_users"]
    assert (everyone["users"], everyone["examples"]) == (len(sizes), 13)
    assert everyone["examples_per_user"]["mean"] == pytest.approx(np.mean(sizes))
    assert everyone["examples_per_user"]["sd"] == pytest.approx(np.std(sizes))
    assert everyone["examples_per_user"]["skewness"] == pytest.approx(stats.skew(sizes))
    histogram = result["size_histogram"]
    assert list(histogram["users"]) == ["train", "test", "all"]
    for low, high, users in zip(
        histogram["edges"], histogram["edges"][1:], histogram["users"]["all"], strict=False
    ):
        assert users == sum(low <= size < high for size in sizes)


def test_the_histogram_is_printed_where_there_are_users(tmp_path):
    write(tmp_path / "s.h5", {"train": [[0]] * 3 + [[0] * 5] * 2, "test": [[1] * 40]})
    lines = [
        line.split() for line in format_statistics(statistics_of(tmp_path / "s.h5")).split("\n")
    ]
    first = lines.index(["examples", "train", "test", "all"])
    rows = lines[first + 1 : lines.index([], first)]
    assert rows[0] == ["1", "3", "0", "3"]
    assert [row[-3:] for row in rows[1:]] == [["2", "0", "2"], ["0", "1", "1"]]


def test_a_store_of_one_split_has_no_row_for_all(tmp_path):
    write(tmp_path / "s.h5", {"train": [[0], [1, 1]]})
    result = statistics_of(tmp_path / "s.h5")
    assert result["all_users"]["users"] == 2
    assert list(result["size_histogram"]["users"]) == ["train"]
    assert "\nall" not in format_statistics(result)


def test_the_table_has_the_sizes_of_a_bin_with_both_ends(tmp_path):
    write(tmp_path / "s.h5", {"train": [[0] * 10, [0] * 12, [0] * 70 + [1]]})
    text = format_statistics(statistics_of(tmp_path / "s.h5"))
    (line,) = [line for line in text.splitlines() if line.startswith("10 - ")]
    assert line.split() == ["10", "-", "12", "2"]
    lines = [line.split() for line in text.splitlines()]
    # Labels and classes; the rarest and the commonest class among users.
    assert any(line[:3] == ["train", "93", "2"] for line in lines)
    assert ["train", "33.3%", "100.0%", "0:100.0%", "1:33.3%"] in lines
