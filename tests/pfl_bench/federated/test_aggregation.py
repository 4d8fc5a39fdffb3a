"""Median, trimmed mean and Krum against straightforward numpy, and what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pfl_bench import plugins
from pfl_bench.federated.aggregation import Aggregation, _kept
from pfl_bench.federated.aggregation.krum import squared_distances
from pfl_bench.federated.notices import RoundNotices
from pfl_bench.files import read_metrics
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.aggregate import Aggregate
from privacy.mechanism import Mechanism, NoiseScale
from tests.helpers import PRIVACY, make_config, parts_of

COHORT = 11
ROBUST: dict[str, dict[str, Any]] = {
    "coordinate_median": {},
    "trimmed_mean": {"trimmed_fraction": 0.4},
    "krum": {"num_attackers": 4},
}
UNUSED = np.random.default_rng(0)


def built(name: str, cohort: int = COHORT, **options: Any) -> Mechanism:
    module = plugins.load(plugins.AGGREGATION, name)
    made: Mechanism = module.build(module.Options(**options), NoiseScale(0.0, cohort, cohort))
    return made


def combined(mechanism: Mechanism, updates: NDArray[np.float32]) -> NDArray[np.float32]:
    """What comes of updates that two shards have taken in."""
    shards = [Aggregate.zeros(updates.shape[1]) for _ in range(2)]
    buffer = torch.empty(updates.shape[1])
    for place, update in enumerate(updates):
        # As engines do, in memory that the next client overwrites.
        buffer.copy_(torch.from_numpy(update))
        mechanism.accumulate(shards[2 * place >= len(updates)], buffer, 1.0)
    shards[0].merge(shards[1])
    result = mechanism.release(shards[0], UNUSED).mean_update
    assert result.dtype == torch.float32
    vector: NDArray[np.float32] = result.numpy()
    return vector


def drawn(count: int = COHORT, size: int = 7, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


def krum_by_hand(updates: NDArray[np.float32], attackers: int, selected: int) -> list[int]:
    scores = []
    for own in updates:
        distances = sorted(float(((own - other) ** 2).sum()) for other in updates.astype(float))
        # The first is its own.
        scores.append(sum(distances[1 : 1 + len(updates) - attackers - 2]))
    return sorted(np.argsort(scores)[:selected].tolist())


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_the_median_is_numpy_s(count: int) -> None:
    updates = drawn(count)
    expected = np.median(updates, axis=0)
    np.testing.assert_allclose(combined(built("coordinate_median"), updates), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "fraction", "cut"), [(10, 0.1, 1), (10, 0.29, 2), (100, 0.29, 29), (5, 0.0, 0)]
)
def test_the_trimmed_mean_is_the_mean_of_the_middle(count: int, fraction: float, cut: int) -> None:
    updates = drawn(count)
    expected = np.sort(updates, axis=0)[cut : count - cut].mean(axis=0)
    result = combined(built("trimmed_mean", trimmed_fraction=fraction), updates)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("attackers", "selected"), [(0, 1), (2, 1), (4, 1), (2, 5), (4, 7)])
def test_krum_is_the_paper_s(attackers: int, selected: int) -> None:
    for seed in range(5):
        updates = drawn(seed=seed)
        chosen = krum_by_hand(updates, attackers, selected)
        mechanism = built("krum", num_attackers=attackers, num_selected=selected)
        expected = updates[chosen].mean(axis=0)
        np.testing.assert_allclose(combined(mechanism, updates), expected, rtol=1e-5, atol=1e-7)


def test_distances_keep_their_digits_where_updates_have_much_in_common() -> None:
    near = 1e4 + drawn(4, 50).astype(np.float64)
    updates = [torch.from_numpy(u.astype(np.float32)) for u in near]
    exact = [[float(((a.double() - b.double()) ** 2).sum()) for b in updates] for a in updates]
    np.testing.assert_allclose(squared_distances(updates).numpy(), exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ROBUST)
def test_coordinates_may_be_taken_in_any_number_of_parts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = drawn(size=23)
    whole = combined(built(name, **ROBUST[name]), updates)
    monkeypatch.setattr(_kept, "_ELEMENTS", 3 * COHORT)
    np.testing.assert_array_equal(combined(built(name, **ROBUST[name]), updates), whole)


@pytest.mark.parametrize("name", ROBUST)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    updates = drawn()
    order = np.random.default_rng(1).permutation(COHORT)
    mechanism = built(name, **ROBUST[name])
    np.testing.assert_array_equal(combined(mechanism, updates), combined(mechanism, updates[order]))


@pytest.mark.parametrize("name", ROBUST)
def test_identical_updates_give_their_mean(name: str) -> None:
    updates = np.repeat(drawn(1), COHORT, axis=0)
    result = combined(built(name, **ROBUST[name]), updates)
    np.testing.assert_allclose(result, combined(built("mean"), updates), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    attackers=st.integers(0, 4),
    scale=st.sampled_from([1.0, 1e3, -1e9, 1e17]),
)
def test_fewer_attackers_than_half_stay_within_the_honest(
    seed: int, attackers: int, scale: float
) -> None:
    updates = drawn(seed=seed)
    updates[:attackers] *= np.float32(scale)
    honest = updates[attackers:]
    low, high = honest.min(axis=0), honest.max(axis=0)
    for name in ("coordinate_median", "trimmed_mean"):
        result = combined(built(name, **ROBUST[name]), updates)
        assert ((result >= low) & (result <= high)).all(), name
    # Krum takes a whole update, of honest clients that are near one another.
    near = drawn(seed=seed) * np.float32(1e-2)
    near[:attackers] = updates[:attackers] * np.float32(scale) + 10
    chosen = combined(built("krum", num_attackers=4), near)
    assert any(np.array_equal(chosen, update) for update in near[attackers:])


def test_a_huge_update_does_not_hide_another_attacker() -> None:
    updates = drawn(seed=4) * np.float32(1e-3)
    updates[1:4] += 5  # together, so that their distances to one another are small
    updates[0] = 1e17
    chosen = combined(built("krum", num_attackers=4), updates)
    assert any(np.array_equal(chosen, update) for update in updates[4:])


def test_the_mean_does_not_resist() -> None:
    updates = drawn()
    updates[0] += 1e6
    assert (combined(built("mean"), updates) > updates[1:].max(axis=0)).all()


@pytest.mark.parametrize("name", ROBUST)
def test_updates_that_are_not_finite_are_left_out_and_counted(name: str) -> None:
    updates = drawn(COHORT + 2)
    mechanism = built(name, **ROBUST[name])
    aggregate = Aggregate.zeros(updates.shape[1])
    for place, update in enumerate(updates):
        vector = torch.from_numpy(update.copy())
        if place >= COHORT:
            vector[3] = (torch.nan, torch.inf)[place - COHORT]
        assert mechanism.accumulate(aggregate, vector, 1.0).finite == (place < COHORT)
    assert (aggregate.num_nonfinite, aggregate.num_contributions) == (2, COHORT)
    result = mechanism.release(aggregate, UNUSED).mean_update.numpy()
    np.testing.assert_array_equal(result, combined(mechanism, updates[:COHORT]))


@pytest.mark.parametrize("name", ROBUST)
def test_updates_of_any_precision_are_combined_in_float32(name: str) -> None:
    halves = torch.from_numpy(drawn()).half()
    mechanism, aggregate = built(name, **ROBUST[name]), Aggregate.zeros(halves.shape[1])
    for update in halves:
        mechanism.accumulate(aggregate, update, 1.0)
    result = mechanism.release(aggregate, UNUSED).mean_update.numpy()
    np.testing.assert_array_equal(result, combined(mechanism, halves.float().numpy()))
    assert result.dtype == np.float32


@pytest.mark.parametrize("name", ROBUST)
def test_a_round_without_clients_moves_nothing(name: str) -> None:
    release = built(name, **ROBUST[name]).release(Aggregate.zeros(5), UNUSED)
    assert torch.equal(release.mean_update, torch.zeros(5))


@pytest.mark.parametrize(
    ("options", "needed"),
    [({"num_attackers": 5}, 13), ({"num_attackers": 2, "num_selected": 10}, 12)],
)
def test_krum_refuses_cohorts_that_are_too_small(options: dict[str, int], needed: int) -> None:
    with pytest.raises(ConfigError, match=f"needs {needed} clients.*cohort_size is 11"):
        built("krum", **options)
    mechanism = built("krum", cohort=needed, **options)
    assert combined(mechanism, drawn(needed)).any()
    assert not combined(mechanism, drawn(needed - 1)).any()
    other = built("krum", cohort=needed, **options)
    other.load_state_dict(mechanism.state_dict())
    assert isinstance(other, Aggregation)
    assert other.rounds_left_out == 1


def test_a_trimmed_mean_leaves_rounds_out_in_which_it_would_cut_nobody() -> None:
    mechanism = built("trimmed_mean", cohort=30, trimmed_fraction=0.2)
    assert isinstance(mechanism, Aggregation)
    assert combined(mechanism, drawn(5)).any()
    assert mechanism.rounds_left_out == 0
    assert not combined(mechanism, drawn(4)).any()
    assert mechanism.rounds_left_out == 1
    whole = built("trimmed_mean", cohort=30, trimmed_fraction=0.0)
    assert combined(whole, drawn(1)).any()


def test_rounds_with_too_few_updates_end_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Poisson cohorts of 12 on average are often too small for 2 f + 3 = 11."""
    changes = {"federated__num_rounds": 12, "federated__sampling": "poisson"}
    run(aggregated("krum", **changes), tmp_path)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    few = [line["train/cohort_size"] < 11 for line in lines]
    assert 1 < sum(few) < len(few)
    assert [line["train/rounds_left_out"] for line in lines] == np.cumsum(few).tolist()
    assert [line["train/update_norm"] == 0 for line in lines] == few
    said = capsys.readouterr().err
    assert said.count("is left out, the first of perhaps more") == 1
    assert "krum needs 11 or more finite updates" in said


def test_only_the_first_round_with_too_few_updates_is_said() -> None:
    said = list[str]()
    notices, mechanism = RoundNotices(said.append, list), built("krum", num_attackers=4)
    assert isinstance(mechanism, Aggregation)
    for index, count in enumerate((11, 10, 11, 12, 10), 1):
        combined(mechanism, drawn(count))
        notices.left_out(index, mechanism, count)
    (notice,) = said
    assert "round 2 is left out" in notice
    assert "needs 11 or more finite updates, and 10 came" in notice


def test_a_trimmed_mean_that_trims_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trimmed_fraction 0.05 cuts none of the 11 clients"):
        built("trimmed_mean", trimmed_fraction=0.05)


def test_a_share_next_to_a_half_leaves_something_of_any_cohort() -> None:
    mechanism = built("trimmed_mean", trimmed_fraction=0.4999999999)
    for count in (3, 4):
        expected = np.median(updates := drawn(count), axis=0)
        np.testing.assert_allclose(combined(mechanism, updates), expected, rtol=1e-5, atol=1e-7)


def aggregated(name: str, **changes: Any) -> Any:
    given = {"name": name, **ROBUST.get(name, {})}
    return make_config("federated", federated__aggregation=given, **changes)


@pytest.mark.parametrize("name", ROBUST)
def test_clients_count_alike(name: str) -> None:
    config = aggregated(name, federated__weighting="examples")
    with pytest.raises(ConfigError, match=f"weighting: examples, but the aggregation {name}"):
        parts_of(config)


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [({"name": "qfedavg", "q": 1.0}, "weight"), ({"name": "scaffold"}, "control_variate")],
)
def test_what_clients_send_beside_updates_is_refused(algorithm: dict[str, Any], more: str) -> None:
    for name in ROBUST:
        config = aggregated(name, federated__algorithm=algorithm)
        with pytest.raises(ConfigError, match=f"{name} looks at updates alone.* a {more} too"):
            parts_of(config)


@pytest.mark.parametrize("name", ROBUST)
def test_no_mechanism_covers_them(name: str) -> None:
    with pytest.raises(ConfigError, match=f"aggregation: {name} is no sum"):
        make_config("private_federated", federated__aggregation={"name": name, **ROBUST[name]})


@pytest.mark.parametrize("name", ROBUST)
def test_a_run_is_repeated_bit_for_bit_and_says_that_it_is_not_private(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def once(folder: str, **changes: Any) -> Sequence[float]:
        config = aggregated(name, federated__sampling="fixed_size", **changes)
        summary = run(config, tmp_path / folder)
        assert summary["privacy"] is None
        return [summary["metrics"][key] for key in ("test/loss", "test/accuracy")]

    first = once("first")
    assert "no privacy guarantee of any kind" in capsys.readouterr().err
    assert once("second", federated__engine="sequential", federated__data_workers=2) == first


def test_several_processes_are_refused(tmp_path: Path) -> None:
    changes = {"federated__sampling": "fixed_size", "federated__workers": 2}
    with pytest.raises(ConfigError, match=r"set federated\.workers: 1"):
        run(aggregated("krum", **changes), tmp_path)


def test_a_median_of_one_client_is_its_update(tmp_path: Path) -> None:
    changes = {"federated__sampling": "fixed_size", "federated__cohort_size": 1}
    median = run(aggregated("coordinate_median", **changes), tmp_path / "median")
    mean = run(aggregated("mean", **changes), tmp_path / "mean")
    assert median["metrics"] == mean["metrics"]


def test_privacy_with_the_mean_is_not_refused() -> None:
    config = make_config("private_federated", federated__aggregation={"name": "mean"})
    assert config.config.privacy is not None
    assert config.config.privacy.epsilon == PRIVACY["epsilon"]
