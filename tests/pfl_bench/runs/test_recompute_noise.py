"""Correlated noise and clients' reports, computed again: sound runs agree, broken ones do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.checkpoint import load, steps_saved
from privacy.audit.rounding import Allowed
from privacy.mechanisms import column_normalized_banded
from privacy.mechanisms.banded_matrix_factorization import BandedMatrixFactorization
from privacy.noise import banded_columns
from privacy.noise.tree_factorization import tree_noise_profile
from privacy.reference import correlated
from privacy.reference.correlated import Correlated
from privacy.reference.noise import Setting
from privacy.reference.reports import PrivUnit
from privacy.reference.round import MECHANISMS
from privacy.reference.streams import NOISE, stream
from tests.helpers import change_checkpoint
from tests.pfl_bench.runs.test_recompute import ROUNDS, again, make
from tests.sabotage.paper_bugs import BUGS
from tests.sabotage.paper_planting import drive
from tests.sabotage.test_paper_bugs_plant import smaller

APART: dict[str, Any] = {
    "federated__sampling": "cyclic_poisson",
    "federated__separation": 3,
    "federated__cohort_size": 10,
    "federated__num_rounds": 9,
    "privacy__noise_cohort_size": 15,
    "privacy__noise_multiplier": 2.0,
    "checkpoint__every": 5,
}
LOCAL: dict[str, Any] = {"privacy__noise_cohort_size": None, "privacy__accountant": "pld"}


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "tree_aggregation"},
        {"name": "tree_aggregation", "restart_every": 5},
        {"name": "banded_matrix_factorization", "bands": 3},
        {"name": "banded_matrix_factorization", "bands": 4, "strategy": "square_root"},
        {"name": "banded_matrix_factorization", "bands": 1},
        {"name": "banded_inverse_square_root", "bands": 3},
        {"name": "column_normalized_banded", "bands": 3},
        {"name": "buffered_toeplitz", "buffers": 2},
        {"name": "local_gaussian"},
        {"name": "privunit"},
    ],
    ids=lambda mechanism: "-".join(str(value) for value in mechanism.values()),
)
def test_a_sound_run_comes_to_the_same(tmp_path: Path, mechanism: dict[str, Any]) -> None:
    # The noise of a report is that of its own round alone.
    changes = APART if MECHANISMS[mechanism["name"]] is Correlated else LOCAL
    num_rounds = changes.get("federated__num_rounds", ROUNDS)
    folder = make(tmp_path / "run", **changes, privacy__mechanism={"clip_norm": 2.0, **mechanism})
    done = again(folder)
    assert (done.problems, done.reasons) == ([], [])
    assert sorted(done.rounds) == list(range(1, num_rounds + 1))
    assert done.far < 2e-6


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "tree_aggregation"},
        {"name": "banded_matrix_factorization", "bands": 3},
        {"name": "banded_inverse_square_root", "bands": 3},
        {"name": "column_normalized_banded", "bands": 3},
        {"name": "buffered_toeplitz", "buffers": 2},
    ],
    ids=lambda mechanism: mechanism["name"],
)
def test_a_sum_for_noise_in_a_checkpoint_is_named(
    tmp_path: Path, mechanism: dict[str, Any]
) -> None:
    """One that lies in the place of what coming rounds take back."""
    folder = make(tmp_path / "run", **APART, privacy__mechanism={"clip_norm": 2.0, **mechanism})

    def change(step: int, state: dict[str, Any]) -> None:
        noise = state["trainer"]["mechanism"]["noise"]
        noise[-1] = noise[-1] + (state["trainer"]["central"] if step == 5 else 1e-3)

    steps = steps_saved(folder / "checkpoints")
    assert list(steps) == [5, 9]
    kept = {step: path.read_bytes() for step, path in steps.items()}
    for step, path in steps.items():
        change_checkpoint(path, partial(change, step))
        done = audit_run(folder, recompute="all")
        failed = {one.name: one.evidence for one in done.checks if one.outcome == "failed"}
        assert list(failed) == ["recomputation"]
        place = len(load(path)["trainer"]["mechanism"]["noise"]) - 1
        what = f"round {step}: the checkpoint's trainer.mechanism.noise.{place} is off by"
        assert what in failed["recomputation"]
        path.write_bytes(kept[step])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("banded_begins_with_one", "noise vector"),
        ("banded_sign_turned", "noise vector"),
        ("banded_forgets_draws_on_resume", "noise vector"),
        ("tree_nodes_share_draw", "noise vector"),
        ("tree_never_restarts", "noise vector"),
        ("tree_restarts_its_noise", "noise vector"),
        ("inverse_of_half_its_bands", "noise vector"),
        ("buffers_decay_twice", "noise vector"),
        ("local_noise_by_server", "noise vector"),
        ("local_noise_split_over_cohort", "noise vector"),
        ("local_noise_same_in_all_reports", "noise vector"),
        ("local_noise_less_when_unclipped", "noise vector"),
        ("privunit_of_larger_epsilon", "noise vector"),
        ("privunit_best_of_three", "noise vector"),
        ("privunit_without_coin", "noise vector"),
        ("privunit_short_update_sends_nothing", "noise vector"),
    ],
)
def test_a_planted_bug_is_named(name: str, what: str, tmp_path: Path) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == name]
    drive(smaller(bug), tmp_path / "run")
    problems = again(tmp_path / "run").problems
    assert any(f": {what}" in problem for problem in problems), problems


def test_no_trial_is_made_that_could_explain_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == "tree_never_restarts"]
    drive(bug, tmp_path / "run")
    made: list[object] = []
    monkeypatch.setattr(Allowed, "measure", lambda *arguments: made.append(arguments))
    assert again(tmp_path / "run").problems
    assert made == []


def test_reports_without_noise_are_the_updates(tmp_path: Path) -> None:
    mechanism = {"name": "privunit", "clip_norm": 2.0}
    changes = {**LOCAL, "privacy__mechanism": mechanism, "privacy__noise_multiplier": 0.0}
    done = again(make(tmp_path / "run", **changes))
    assert (done.problems, sorted(done.rounds)) == ([], [1, 2, 3, 4])


def test_reports_in_bfloat16_are_computed_until_rounding_decides_a_coin(tmp_path: Path) -> None:
    changes = {**LOCAL, "privacy__mechanism": {"name": "privunit", "clip_norm": 2.0}}
    coin = "rounding decides a client's coin"
    ended = []
    for seed in range(4):
        done = again(make(tmp_path / str(seed), **changes, precision="bfloat16", seed=seed))
        assert done.problems == []
        ended += [bool(done.rounds), any(coin in reason for reason in done.reasons)]
    # Both come about: rounds that are compared, and rounds that are not.
    assert any(ended[::2])
    assert any(ended[1::2])


def test_a_bug_of_reports_in_bfloat16_is_named(tmp_path: Path) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == "privunit_best_of_three"]
    bug = smaller(bug)
    drive(replace(bug, changes={**bug.changes, "precision": "bfloat16"}), tmp_path / "run")
    assert any(": noise vector" in problem for problem in again(tmp_path / "run").problems)


@pytest.mark.parametrize("length", [50, 1_000_000])
def test_reports_move_with_updates_as_far_as_is_allowed(length: int) -> None:
    mechanism = PrivUnit(Setting("privunit", {"clip_norm": 1.0}, 0.1, 1.0, 1.0, length, 0, 1))
    mechanism.begin(1)
    mechanism.report(1, torch.zeros(length, dtype=torch.float64))
    stddev = mechanism.stddev
    for user in range(20):
        rng = np.random.default_rng(user)
        draws = torch.from_numpy(rng.standard_normal((2, length)))
        update, move = draws / torch.linalg.vector_norm(draws, dim=1, keepdim=True)
        near = mechanism._randomized(update + 1e-4 * move, np.random.default_rng(user))
        far = float((near - mechanism._randomized(update, np.random.default_rng(user))).norm())
        assert 0.0 < far <= 1e-4 * mechanism.follows * stddev


def test_columns_above_one_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(rounds: int, bands: int) -> np.ndarray:
        return 1.5 * banded_columns.optimized_columns(rounds, bands)

    monkeypatch.setattr(column_normalized_banded, "optimized_columns", longer)
    mechanism = {"name": "column_normalized_banded", "bands": 3, "clip_norm": 2.0}
    folder = make(tmp_path / "run", **APART, privacy__mechanism=mechanism)
    (problem, *_) = again(folder).problems
    assert problem == "round 1: a column of the strategy has norm 1.5, above 1"


@pytest.mark.parametrize(
    ("name", "options", "strategy"),
    [
        ("banded_matrix_factorization", {"bands": 3, "strategy": "optimal"}, [0.9, 0.3, 0.1]),
        ("banded_matrix_factorization", {"bands": 9, "strategy": "square_root"}, None),
        ("column_normalized_banded", {"bands": 3}, banded_columns.optimized_columns(9, 3)),
        ("buffered_toeplitz", {}, {"first": 0.7, "weights": [0.3, 0.1], "decays": [0.9, 0.2]}),
        ("banded_inverse_square_root", {"bands": 3}, None),
    ],
)
def test_noise_of_all_rounds_is_that_of_the_matrix(
    name: str, options: dict[str, Any], strategy: Any
) -> None:
    setting = Setting(name, {"clip_norm": 1.0, **options}, 1.0, 1.0, 1.0, 5, 7, 9, strategy)
    draws = np.stack([stream(7, NOISE, number).standard_normal(5) for number in range(1, 10)])
    if name == "banded_inverse_square_root":
        inverse = sum(a * np.eye(9, k=-k) for k, a in enumerate(correlated.series(0.5, 3)))
        inverse *= np.linalg.norm(np.linalg.inv(inverse)[:, 0])
    else:
        c = np.zeros((9, 9))
        for s, column in enumerate(correlated.columns(setting)):
            c[s : s + len(column), s] = column[: 9 - s]
        inverse = np.linalg.inv(c)
    mechanism = Correlated(setting)
    # A round before those that were asked for last is drawn from the first round on.
    for number in (6, 9, 9, 2, 3):
        mechanism.begin(number)
        made = mechanism.noise(np.random.default_rng(0)).numpy()
        np.testing.assert_allclose(made, inverse[number - 1] @ draws, atol=1e-12)
        assert mechanism.stddev == pytest.approx(float(np.linalg.norm(inverse[number - 1])))


def test_draws_are_made_once_for_all_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = {"name": "tree_aggregation", "clip_norm": 2.0}
    folder = make(tmp_path / "run", **APART, privacy__mechanism=mechanism)
    drawn: list[int] = []

    def opened(seed: int, purpose: int, number: int) -> np.random.Generator:
        drawn.append(number)
        return stream(seed, purpose, number)

    monkeypatch.setattr(correlated, "stream", opened)
    assert again(folder).rounds == list(range(1, 10))
    assert drawn == list(range(1, 10))


def test_noise_is_drawn_again_by_no_code_of_the_mechanism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BandedMatrixFactorization, "_correlated", lambda self, draws: draws)
    mechanism = {"name": "banded_matrix_factorization", "bands": 3, "clip_norm": 2.0}
    folder = make(tmp_path / "run", **APART, privacy__mechanism=mechanism)
    (check,) = [one for one in audit_run(folder).checks if one.name == "noise_replay"]
    assert check.outcome == "failed"
    assert "the noise is not that of the seed's stream in 9 rounds" in check.evidence


def test_more_rounds_than_configured_are_not_computed(tmp_path: Path) -> None:
    mechanism = {"name": "banded_matrix_factorization", "bands": 3, "clip_norm": 2.0}
    folder = make(tmp_path / "run", **APART, privacy__mechanism=mechanism)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("num_rounds: 9", "num_rounds: 8"))
    check = again(folder).to_check()
    assert check.outcome == "skipped"
    assert check.evidence == "not recomputed: the ledger has more rounds than were configured"


def test_halved_noise_of_one_report_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = UpdateAggregator._client_noise

    class Half:
        def __init__(self, rng: np.random.Generator) -> None:
            self._rng = rng

        def standard_normal(self, size: int) -> np.ndarray:
            return 0.5 * self._rng.standard_normal(size)

    def halved(self: Any, index: int, client: int) -> Any:
        rng = noise(self, index, client)
        return rng if client % 9 else Half(rng)

    monkeypatch.setattr(UpdateAggregator, "_client_noise", halved)
    mechanism = {"name": "local_gaussian", "clip_norm": 2.0}
    problems = again(make(tmp_path / "run", **LOCAL, privacy__mechanism=mechanism)).problems
    assert any(": least noise of a report: " in problem for problem in problems), problems


def test_noise_of_a_tree_is_as_large_as_the_papers_estimate() -> None:
    options = {"clip_norm": 1.0, "restart_every": 12}
    setting = Setting("tree_aggregation", options, 1.0, 1.0, 1.0, 1, 0, 30)
    stddevs = []
    for number in range(1, 31):
        mechanism = Correlated(setting)
        mechanism.begin(number)
        stddevs.append(mechanism.stddev)
    np.testing.assert_allclose(stddevs, tree_noise_profile(30, 12)[0], rtol=1e-12)


@pytest.mark.parametrize("length", [2, 3, 50, 100_000])
def test_reports_of_privunit_mean_the_update(length: int) -> None:
    mechanism = PrivUnit(Setting("privunit", {"clip_norm": 1.0}, 0.2, 1.0, 1.0, length, 0, 1))
    # The densities' ratio is e^epsilon, and the threshold is where the mean is longest.
    ratio = mechanism.chosen / (1 - mechanism.chosen) * (1 - mechanism.cap) / mechanism.cap
    assert ratio == pytest.approx(np.exp(5.0), rel=1e-9)
    at = mechanism.mean(mechanism.threshold)
    assert at == pytest.approx(mechanism.threshold, rel=1e-9)
    assert at > max(mechanism.mean(mechanism.threshold * by) for by in (0.99, 1.01))
