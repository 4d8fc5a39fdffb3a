"""Privacy bugs of example-level DP's statistics and batches, planted one at a time into a real run.

Their own file, since the table of planted bugs is of federated runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.amplification import sampled_gaussian
from privacy.noise import feature_statistics
from privacy.noise.feature_statistics import ReleasedStatistics, StatisticsSums
from privacy.plan import example_level
from tests.contracts.small_stores import write_mnist, write_scattering
from tests.helpers import change_checkpoint, make_config
from tests.pfl_bench.runs.test_edited_runs import ledger_edit

Patch = pytest.MonkeyPatch
STATISTICS = {"noise_multiplier": 8.0, "mean_clip_norm": 0.5, "square_clip_norm": 0.25}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "mnist-scattering.h5"
    write_scattering(path, "mnist")
    return path


def small(store: Path, **changes: Any) -> ResolvedConfig:
    """Two epochs of four batches of twelve of 48 examples' features."""
    settings: dict[str, Any] = {
        "task": {"name": "mnist", "data": str(store)},
        "model": {"name": "scatter_linear"},
        "central__num_epochs": 2,
        "central__batch_size": 12,
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 2.0,
        "privacy__statistics": STATISTICS,
        "evaluation__every": 1000,
        "evaluation__splits": [],
        "checkpoint__every": 1,
    }
    return make_config("central_dp", **{**settings, **changes})


def failed(folder: Path) -> set[str]:
    return {check.name for check in audit_run(folder, 2).checks if check.outcome == "failed"}


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_an_honest_run_passes_and_goes_on_with_its_statistics(
    sampling: str, store: Path, tmp_path: Path
) -> None:
    config = small(store, central__sampling=sampling)
    whole = run(config, tmp_path / "whole")
    # Poisson's 48 / 12 epochs are as long as four full batches.
    done = audit_run(tmp_path / "whole", 2)
    outcomes = {check.name: check.outcome for check in done.checks}
    assert done.verdict == "passed"
    for name in ("statistics", "configuration", "rounds", "epsilon_actual", "referee_actual"):
        assert outcomes[name] == "passed", name
    # As a run that was killed after its first epoch.
    part = tmp_path / "part"
    run(config, part)
    for name in ("summary.json", "checkpoints/step-00000002.pt"):
        (part / name).unlink()
    resumed = run(config, part, resume=True)
    assert resumed["model_sha256"] == whole["model_sha256"]
    ledgers = [(folder / "ledger.jsonl").read_bytes() for folder in (tmp_path / "whole", part)]
    assert ledgers[0] == ledgers[1]


def test_a_forged_metric_of_a_model_with_statistics_fails(store: Path, tmp_path: Path) -> None:
    run(small(store), tmp_path)
    checks = {check.name: check for check in audit_run(tmp_path, recompute="all").checks}
    assert checks["outcome"].outcome == "passed"
    assert "6 metrics of test" in checks["outcome"].evidence
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["metrics"]["test/accuracy"] += 0.2
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    checks = {check.name: check for check in audit_run(tmp_path, recompute="all").checks}
    assert checks["outcome"].outcome == "failed"
    assert "test/accuracy is" in checks["outcome"].evidence


@pytest.mark.parametrize(
    ("where", "name", "key"),
    [
        ("ledger", "mean", "sum_squares"),
        ("ledger", "square", "count"),
        ("checkpoint", "square", "sum_squares"),
        ("checkpoint", "release_sha256", ""),
    ],
)
def test_other_numbers_of_released_statistics_fail(
    where: str, name: str, key: str, store: Path, tmp_path: Path
) -> None:
    """Within what the law of the noise allows."""

    def change(holder: dict[str, Any]) -> None:
        if key:
            holder["statistics"][name][key] += 1 if key == "count" else 0.01
        else:
            holder["statistics"][name] = "0" * 64

    run(small(store), tmp_path)
    if where == "ledger":
        ledger_edit(lambda lines: [change(line) for line in lines] and None)(tmp_path)
    for path in (tmp_path / "checkpoints").glob("step-*.pt"):
        change_checkpoint(path, lambda state: change(state["trainer"]))
    done = audit_run(tmp_path, recompute="all")
    found = {check.name: check.evidence for check in done.checks if check.outcome == "failed"}
    assert list(found) == ["recomputation"]
    words = f"noise of the {name} of statistics: its {key.replace('_', ' of ')}: "
    wanted = words if where == "ledger" else "epoch 2 has other statistics than the ledger"
    assert wanted in found["recomputation"]


def release_without_noise(place: int) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        real = StatisticsSums.release

        def release(self: Any, num_examples: int, rng: Any) -> ReleasedStatistics:
            released = real(self, num_examples, rng)
            parts = [released.mean, released.square]
            parts[place] = self._sums[place] / num_examples
            return ReleasedStatistics(*parts)

        patch.setattr(StatisticsSums, "release", release)

    return plant


def clip_nothing(patch: Patch) -> None:
    patch.setattr(feature_statistics, "_clip", lambda vectors, bound: vectors)


def noise_of_one_bound(patch: Patch) -> None:
    """Each sum gets the noise of a bound of a quarter."""
    real = StatisticsSums.release

    def release(self: Any, num_examples: int, rng: Any) -> ReleasedStatistics:
        clean = [np.asarray(total) / num_examples for total in self._sums]
        noised = real(self, num_examples, rng)
        noise = [noised.mean - clean[0], noised.square - clean[1]]
        return ReleasedStatistics(*(c + n / 4.0 for c, n in zip(clean, noise, strict=True)))

    patch.setattr(StatisticsSums, "release", release)


def leave_unaccounted(patch: Patch) -> None:
    patch.setattr(example_level, "example_level_composition", lambda statistics: sampled_gaussian)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (release_without_noise(0), "statistics"),
        (release_without_noise(1), "statistics"),
        (clip_nothing, "statistics"),
        (noise_of_one_bound, "statistics"),
        (leave_unaccounted, "epsilon_actual"),
    ],
    ids=["mean", "variance", "clip", "scale", "accounting"],
)
def test_a_planted_bug_fails_the_audit(
    plant: Callable[[Patch], None], expected: str, store: Path, tmp_path: Path
) -> None:
    with Patch.context() as patch:
        plant(patch)
        run(small(store, central__num_epochs=1), tmp_path)
    assert expected in failed(tmp_path)


def shuffled_as_poisson(document: dict[str, Any]) -> None:
    document["sampling"], document["adjacency"] = "poisson", "add-or-remove-one"


def without_statistics(document: dict[str, Any]) -> None:
    del document["statistics"]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [(shuffled_as_poisson, "configuration"), (without_statistics, "statistics")],
)
def test_another_ledger_than_the_configured_run_s_fails(
    edit: Callable[[dict[str, Any]], None], expected: str, store: Path, tmp_path: Path
) -> None:
    run(small(store, central__num_epochs=1, central__sampling="shuffled"), tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    (line,) = ledger.read_text(encoding="utf-8").splitlines()
    document = json.loads(line)
    edit(document)
    ledger.write_text(json.dumps(document, sort_keys=True) + "\n", encoding="utf-8")
    assert expected in failed(tmp_path)


def test_statistics_are_neither_forgotten_nor_asked_for_in_vain(
    store: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"which nothing releases: set privacy\.statistics"):
        run(small(store, privacy__statistics=None), tmp_path / "a")
    with pytest.raises(ConfigError, match="the model has no statistics of features"):
        run(small(store, model={"name": "scatter_linear", "groups": 27}), tmp_path / "b")
    pixels = tmp_path / "pixels.h5"
    write_mnist(pixels)
    with pytest.raises(ConfigError, match="takes scattering features"):
        run(small(pixels), tmp_path / "c")
    with pytest.raises(ConfigError, match="scatter_linear and scatter_cnn alone"):
        small(store, model={"name": "tramer_cnn", "groups": 27})
    with pytest.raises(ConfigError, match="under the section 'privacy' alone"):
        make_config("central", central__sampling="shuffled")
    with pytest.raises(ConfigError, match="cuts the batches of central training"):
        make_config("federated", federated__sampling="shuffled")
