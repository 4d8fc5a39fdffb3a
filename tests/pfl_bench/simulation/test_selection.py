"""Selections: their laws, what they learn, and one that a reader writes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pfl_bench.simulation.selection
from pfl_bench import plugins
from pfl_bench.federated.sampling import build_sampler
from pfl_bench.files import read_metrics
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.runner import run
from pfl_bench.simulation.devices.limits import Limits
from pfl_bench.simulation.devices.timeline import Outcome
from pfl_bench.simulation.selection import available, oort, uniform
from pfl_bench.simulation.selectors import (
    Feedback,
    Selector,
    Users,
    draw_by_weight,
)
from pfl_bench.types import ConfigError, PluginError
from privacy.schemes.fixed_size import FixedSize
from tests.helpers import REPOSITORY, make_config

NAMES = plugins.available(plugins.SELECTION)


def users_of(count: int, seconds: list[float] | None = None) -> Users:
    return Users(
        np.arange(1, count + 1), np.array(seconds) if seconds else np.linspace(10.0, 90.0, count)
    )


def feedback_of(
    index: int,
    users: list[int],
    losses: list[float],
    examples: list[int] | None = None,
    outcomes: list[Outcome] | None = None,
    seconds: list[float] | None = None,
) -> Feedback:
    return Feedback(
        index,
        np.array(users, np.int64),
        np.array(outcomes or [Outcome.COUNTED] * len(users), np.int8),
        np.array(seconds or [10.0] * len(users)),
        np.array(losses, np.float64),
        np.array(examples or [10] * len(users), np.int64),
    )


def test_the_shipped_selections_are_found() -> None:
    assert {"uniform", "available", "oort"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_selection_gives_candidates_and_none_twice(name: str, data: st.DataObject) -> None:
    selector: Selector = plugins.build(
        plugins.SELECTION, name, plugins.options_type(plugins.SELECTION, name)(), users_of(30)
    )
    for index in range(1, 5):
        members = data.draw(st.sets(st.integers(0, 29)))
        candidates = np.array(sorted(members), np.int64)
        number = data.draw(st.integers(1, 35))
        before = candidates.copy()
        chosen = selector.select(candidates, number, index, np.random.default_rng(index))
        again = selector.select(candidates, number, index, np.random.default_rng(index))
        assert chosen.tolist() == again.tolist()
        assert candidates.tolist() == before.tolist()
        assert len(set(chosen.tolist())) == len(chosen) == min(number, len(candidates))
        assert set(chosen.tolist()) <= members
        ids = sorted(chosen.tolist())
        losses = data.draw(
            st.lists(
                st.floats(width=32),
                min_size=len(ids),
                max_size=len(ids),
            )
        )
        outcomes = [Outcome(user % 3) for user in ids]
        selector.report(feedback_of(index, ids, losses, None, outcomes))


def test_uniform_draws_what_fixed_size_sampling_draws() -> None:
    everybody = np.arange(50)
    selector = uniform.build(uniform.Options(), users_of(50))
    sampler = build_sampler(FixedSize(), 50, 7)
    for index in range(1, 20):
        rngs = [stream(3, Purpose.SAMPLING, index) for _ in range(2)]
        chosen = np.sort(selector.select(everybody, 7, index, rngs[0]))
        assert chosen.tolist() == sampler.draw(rngs[1], index).tolist()
    assert (selector.only_available, selector.uses_data) == (False, False)


def test_the_available_are_drawn_alike() -> None:
    selector = available.build(available.Options(), users_of(60))
    assert (selector.only_available, selector.uses_data) == (True, False)
    rng, candidates = np.random.default_rng(0), np.arange(0, 60, 3)
    drawn = [selector.select(candidates, 8, index, rng) for index in range(1, 601)]
    counts = np.bincount(np.concatenate(drawn), minlength=60)
    assert counts[np.arange(60) % 3 != 0].sum() == 0
    # Binomial(600, 8 / 20): standard deviation 12.
    assert (np.abs(counts[::3] - 240) < 60).all()


def test_weights_are_probabilities_of_being_drawn_next() -> None:
    candidates, weights = np.array([4, 7, 9]), np.array([1.0, 3.0, 0.0])
    rng = np.random.default_rng(0)
    firsts = [int(draw_by_weight(candidates, weights, 1, rng)[0]) for _ in range(2000)]
    # Binomial(2000, 3/4): standard deviation 19.
    assert abs(firsts.count(7) - 1500) < 80
    assert firsts.count(9) == 0
    pairs = {tuple(sorted(draw_by_weight(candidates, weights, 2, rng).tolist())) for _ in range(50)}
    assert pairs == {(4, 7)}


def oort_of(count: int, seconds: list[float] | None = None, **options: Any) -> oort.Oort:
    return oort.build(oort.Options(**options), users_of(count, seconds))


def shares(selector: oort.Oort, candidates: list[int], number: int, index: int) -> dict[int, float]:
    """How often each candidate is chosen, of 400 draws."""
    rng = np.random.default_rng(0)
    drawn = [
        user
        for _ in range(400)
        for user in selector.select(np.array(candidates), number, index, rng).tolist()
    ]
    return {user: drawn.count(user) / 400 for user in candidates}


@pytest.mark.parametrize(("index", "explored"), [(1, 9), (2, 8), (36, 4), (200, 2)])
def test_oort_explores_less_and_less(index: int, explored: int) -> None:
    selector = oort_of(60)
    selector.report(feedback_of(1, list(range(30)), [1.0] * 30))
    chosen = selector.select(np.arange(60), 10, index, np.random.default_rng(0))
    assert np.count_nonzero(chosen >= 30) == explored


def test_oort_takes_the_others_where_one_kind_is_short() -> None:
    selector = oort_of(60)
    selector.report(feedback_of(1, list(range(30)), [1.0] * 30))
    few_new = selector.select(np.arange(33), 10, 1, np.random.default_rng(0))
    assert sorted(few_new[few_new >= 30].tolist()) == [30, 31, 32]
    few_known = selector.select(np.arange(28, 60), 10, 500, np.random.default_rng(0))
    assert set(few_known[few_known < 30].tolist()) == {28, 29}


def test_oort_prefers_who_learns_most_and_by_how_much() -> None:
    """Three known clients by hand: utilities 10, 20 and 40, then the bonus of each."""
    selector = oort_of(4, [1.0] * 4, exploration=0.0, exploration_min=0.0, cut_off=0.0)
    selector.report(feedback_of(1, [0, 1, 2], [1.0, 2.0, 4.0]))
    quantile = float(np.quantile([10.0, 20.0, 40.0], 0.95))
    low = 9.99
    bonus = math.sqrt(0.1 * math.log(5))
    scores = [(min(value, quantile) - low) / (40.0 - low) + bonus for value in (10.0, 20.0, 40.0)]
    found = shares(selector, [0, 1, 2], 1, 5)
    for user, score in enumerate(scores):
        assert found[user] == pytest.approx(score / sum(scores), abs=0.08)


def test_oort_admits_by_the_cut_off_alone() -> None:
    selector = oort_of(4, [1.0] * 4, exploration=0.0, exploration_min=0.0, staleness=0.0)
    selector.report(feedback_of(1, [0, 1, 2], [1.0, 3.9, 4.0]))
    found = shares(selector, [0, 1, 2], 1, 5)
    assert found[0] == 0.0
    assert min(found[1], found[2]) > 0.3


def test_oort_penalises_the_slow_and_remembers_the_long_unseen() -> None:
    slow = oort_of(4, [10.0, 10.0, 40.0, 10.0], exploration=0.0, exploration_min=0.0, cut_off=0.0)
    slow.report(feedback_of(1, [0, 2], [1.0, 1.0], seconds=[10.0, 40.0]))
    found = shares(slow, [0, 2], 1, 5)
    assert found[2] == pytest.approx((1 / 16) / (1 + 1 / 16), abs=0.05)
    stale = oort_of(4, [1.0] * 4, exploration=0.0, exploration_min=0.0, cut_off=0.0)
    stale.report(feedback_of(1, [0], [1.0]))
    for index in range(2, 100):
        stale.report(feedback_of(index, [1], [1.0]))
    found = shares(stale, [0, 1], 1, 100)
    old, new = (1.0 + math.sqrt(0.1 * math.log(100) / last) for last in (1, 99))
    assert found[0] == pytest.approx(old / (old + new), abs=0.08)


def test_oort_explores_the_large_and_quick() -> None:
    seconds = [1.0] * 20 + [100.0] * 20
    selector = oort_of(40, seconds, exploration_window=2.0)
    chosen = selector.select(np.arange(40), 4, 1, np.random.default_rng(0))
    # Of the quick ones the eight with the most examples: slow ones count a ten-thousandth.
    assert set(chosen.tolist()) <= set(range(12, 20))


def test_who_did_not_finish_counts_as_the_mean_of_the_others() -> None:
    selector = oort_of(4, [1.0] * 4)
    outcomes = [Outcome.COUNTED, Outcome.LOST, Outcome.COUNTED]
    seconds = [5.0, 60.0, 7.0]
    selector.report(feedback_of(1, [0, 1, 2], [1.0, math.nan, 3.0], None, outcomes, seconds))
    assert selector._utility.tolist() == [10.0, 20.0, 30.0, 0.0]
    assert selector._seconds.tolist() == [5.0, 60.0, 7.0, 1.0]
    assert selector._last.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("later", "percentile"), [(1.0, 35.0), (1.05, 35.0), (2.0, 30.0), (7.0, 25.0), (0.5, 30.0)]
)
def test_the_pacer_moves_with_what_is_learned(later: float, percentile: float) -> None:
    selector = oort_of(4, [1.0] * 4, pacer_rounds=3)
    selector.report(feedback_of(0, [0, 1], [1.0, 1.0]))
    selector = _noted(selector)
    for index in range(1, 7):
        selector.report(feedback_of(index, [0, 1], [1.0 if index <= 3 else later] * 2))
    assert selector._percentile == percentile


def _noted(selector: oort.Oort) -> oort.Oort:
    """The same selector with its clients known and its history empty."""
    selector._last += 1
    selector._history = []
    return selector


def test_a_restored_oort_goes_on_alike(tmp_path: Path) -> None:
    whole, resumed = oort_of(30), oort_of(30)
    for index in range(1, 30):
        chosen = np.sort(whole.select(np.arange(30), 6, index, np.random.default_rng(index)))
        losses = [1.0 + user / index for user in chosen.tolist()]
        whole.report(feedback_of(index, chosen.tolist(), losses))
    path = tmp_path / "state.pt"
    torch.save(whole.state_dict(), path)
    resumed.load_state_dict(torch.load(path, weights_only=True))
    for index in range(30, 50):
        pair = [
            np.sort(one.select(np.arange(30), 6, index, np.random.default_rng(index))).tolist()
            for one in (whole, resumed)
        ]
        assert pair[0] == pair[1]
        for one in (whole, resumed):
            one.report(feedback_of(index, pair[0], [1.0 + user for user in pair[0]]))


@settings(max_examples=60, deadline=None)
@given(
    separation=st.integers(1, 5),
    most=st.none() | st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_nobody_takes_part_too_often_or_too_soon(
    separation: int, most: int | None, seed: int
) -> None:
    limits = Limits(12, 2, 6, separation, most)
    rng, seen = np.random.default_rng(seed), {user: [] for user in range(12)}
    for index in range(1, 20):
        if index == 10:
            state, limits = limits.state_dict(), Limits(12, 2, 6, separation, most)
            limits.load_state_dict(state)
        allowed = limits.allowed(index)
        chosen = np.sort(rng.permutation(allowed)[: rng.integers(0, 6)])
        limits.note(chosen, index)
        for user in range(12):
            rounds = seen[user]
            may = (most is None or len(rounds) < most) and (
                not rounds or index - rounds[-1] >= separation
            )
            assert may == (user in allowed.tolist())
        for user in chosen.tolist():
            seen[user].append(index)


@pytest.mark.parametrize(
    ("separation", "most", "wrong"), [(7, None, "separation 7"), (1, 1, "raise it to 2")]
)
def test_limits_that_cannot_be_kept_are_refused(
    separation: int, most: int | None, wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        Limits(12, 2, 12, separation, most)
    Limits(12, 2, 3, separation, 1)  # in three rounds nobody needs to come again


class Wrong(Selector):
    """Selects as the test says, wrongly."""

    only_available, uses_data = True, False

    def __init__(self, how: str) -> None:
        self.how = how

    def select(
        self, candidates: np.ndarray, number: int, index: int, rng: np.random.Generator
    ) -> np.ndarray:
        wrong: dict[str, Any] = {
            "a user twice": candidates[:1].repeat(2),
            "users who are not among": np.setdiff1d(np.arange(60), candidates)[:1],
            "where 2 were wanted": candidates[:3],
            "type float64, not user numbers": candidates[:2] / 2,
            "type bool, not user numbers": candidates > 3,
            r"shape \(\) and type object, not user numbers": None,
            r"array of shape \(\) and type object": [candidates[:1].tolist(), [1, 2]],
            r"shape \(\) and type int64, not user numbers": np.int64(3),
            r"shape \(1, 2\) and type int64, not user numbers": candidates[None, :2],
        }
        return wrong[self.how]


WRONG = [
    "a user twice",
    "users who are not among",
    "where 2 were wanted",
    "type float64, not user numbers",
    "type bool, not user numbers",
    r"shape \(\) and type object, not user numbers",
    r"shape \(\) and type int64, not user numbers",
    r"shape \(1, 2\) and type int64, not user numbers",
]


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_selection_is_named(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "build", lambda options, users: Wrong(how))
    config = make_config(
        "federated", federated__cohort_size=1, systems={"source": {"name": "generated"}}
    )
    with pytest.raises(PluginError, match=f"'available' has selected.*{how}"):
        run(config, tmp_path / "run")


def test_a_selection_may_give_a_list_or_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lists(Wrong):
        def select(self, candidates: np.ndarray, number: int, index: int, rng: Any) -> Any:
            return candidates[:1].tolist() if index % 2 else []

    monkeypatch.setattr(available, "build", lambda options, users: Lists(""))
    config = make_config(
        "federated", federated__cohort_size=1, systems={"source": {"name": "generated"}}
    )
    run(config, tmp_path)
    selected = [line["systems/selected"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert selected == [1, 0, 1, 0, 1, 0]


def test_the_selection_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file as the page has it, found and run."""
    page = (REPOSITORY / "docs/systems.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"^```python methods/selectors/(\w+\.py)\n(.*?)^```$",
        page,
        re.DOTALL | re.MULTILINE,
    )
    ((name, text),) = blocks
    assert len([line for line in text.splitlines() if line.strip()]) <= 10
    (tmp_path / name).write_text(text, encoding="utf-8")
    folders = [*pfl_bench.simulation.selection.__path__, str(tmp_path)]
    monkeypatch.setattr(pfl_bench.simulation.selection, "__path__", folders)
    monkeypatch.setattr(
        pfl_bench.simulation.selection.__spec__, "submodule_search_locations", folders
    )
    config = make_config(
        "federated",
        federated__selection={"name": name.removesuffix(".py")},
        federated__cohort_size=3,
        systems={"source": {"name": "generated"}, "overcommitment": 1.0},
    )
    summary = run(config, tmp_path / "run")
    assert summary["status"] == "finished"
    others = make_config(
        "federated",
        federated__cohort_size=3,
        systems={"source": {"name": "generated"}, "overcommitment": 1.0},
    )
    usual = run(others, tmp_path / "usual")
    assert summary["systems"]["simulated_seconds"] < usual["systems"]["simulated_seconds"]
