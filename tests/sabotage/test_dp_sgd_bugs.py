"""Privacy bugs of DP-SGD's steps, planted one at a time into a run: the reference sees each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from numpy.typing import NDArray

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import parts
from pfl_bench.rng import Purpose, torch_seed
from pfl_bench.runs.audit import RunAudit, audit_run
from pfl_bench.runs.auditing import dp_sgd as recomputed
from pfl_bench.runs.checkpoint import steps_saved
from pfl_bench.runs.runner import run
from pfl_bench.trainers import central, dp_sgd
from pfl_bench.trainers.central import CentralTrainer
from privacy.recording.step_observation import StepObserver
from tests.contracts.small_stores import write_scattering
from tests.helpers import change_checkpoint, make_config

Patch = pytest.MonkeyPatch


def small(**changes: Any) -> ResolvedConfig:
    """One epoch of 38 Poisson batches of 32 of 1203 digits."""
    settings: dict[str, Any] = {
        "central__num_epochs": 1,
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 1.0,
        "evaluation__every": 1000,
        "evaluation__splits": [],
    }
    return make_config("central_dp", **{**settings, **changes})


def evidence_of(done: RunAudit) -> dict[str, tuple[str, str]]:
    return {check.name: (check.outcome, check.evidence) for check in done.checks}


@pytest.mark.parametrize(
    "changes",
    [
        {"central__num_epochs": 2},
        {"central__sampling": "shuffled", "central__num_epochs": 2},
        {"central__optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}},
        {"central__batch_size": 4},
        {"central__schedule": {"decay": "linear"}},
        {"central__optimizer": {"name": "adam"}, "central__learning_rate": 0.02},
        {"central__optimizer": {"name": "adamw", "weight_decay": 0.01}},
        {"central__optimizer": {"name": "adagrad"}, "central__learning_rate": 0.02},
        {"central__optimizer": {"name": "yogi"}, "central__learning_rate": 0.02},
    ],
    ids=[
        "poisson", "shuffled", "momentum", "empty batches", "schedule",
        "adam", "adamw", "adagrad", "yogi",
    ],
)  # fmt: skip
def test_a_sound_run_is_computed_again(changes: dict[str, Any], tmp_path: Path) -> None:
    run(small(**changes), tmp_path)
    done = audit_run(tmp_path)
    found = evidence_of(done)
    for name in ("private_seed", "cohort_replay", "noise_replay", "recomputation"):
        assert found[name][0] == "passed", found[name]
    assert done.verdict == "passed"
    recomputation = next(check for check in done.checks if check.name == "recomputation")
    # Five times what rounding makes is still within the tolerance.
    assert recomputation.numbers["steps"] >= 1
    assert recomputation.numbers["largest"] < 0.2


def test_how_far_a_trial_moves_a_sum_counts_as_the_distance_of_the_step(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """A sketch of four numbers saw a third of it, and a step later a sound run failed."""
    run(small(), tmp_path)
    apart, disturb = [], recomputed._Run._disturb

    def noted(self: Any, *step: Any) -> None:
        apart.append(step[-1])
        disturb(self, *step)

    monkeypatch.setattr(recomputed, "ROUNDING", {"float32": 0.0})
    monkeypatch.setattr(recomputed, "_CLIP_SLACK", 0.0)
    monkeypatch.setattr(recomputed._Run, "_moved", lambda *_: 0.04)
    monkeypatch.setattr(recomputed._Run, "_disturb", noted)
    audit_run(tmp_path)
    assert apart
    assert min(apart) >= 0.04 / 4.0 / 32.0


def test_a_run_with_private_statistics_is_computed_again(tmp_path: Path) -> None:
    store = tmp_path / "mnist-scattering.h5"
    write_scattering(store, "mnist")
    config = small(
        task={"name": "mnist", "data": str(store)},
        model={"name": "scatter_linear"},
        central__batch_size=12,
        privacy__statistics={
            "noise_multiplier": 8.0,
            "mean_clip_norm": 0.5,
            "square_clip_norm": 0.25,
        },
    )
    run(config, tmp_path / "run")
    found = evidence_of(audit_run(tmp_path / "run"))
    assert found["recomputation"][0] == "passed", found["recomputation"]


def half_noise(patch: Patch) -> None:
    real = opacus_optimizer._generate_noise
    patch.setattr(
        opacus_optimizer, "_generate_noise", lambda std, **rest: real(std=std / 2.0, **rest)
    )


def twice_the_rate(patch: Patch) -> None:
    real = central.set_rate
    patch.setattr(central, "set_rate", lambda optimizer, rate: real(optimizer, 2.0 * rate))


def same_noise_each_epoch(patch: Patch) -> None:
    real = CentralTrainer.advance

    def advance(self: Any, index: int) -> dict[str, float]:
        self._private.generator.manual_seed(torch_seed(self._batch_seed, Purpose.NOISE))
        return real(self, index)

    patch.setattr(CentralTrainer, "advance", advance)


def no_clipping(patch: Patch) -> None:
    real = dp_sgd.clipped_sums
    patch.setattr(dp_sgd, "clipped_sums", lambda samples, clip_norm: real(samples, 1e6))


def of_batches(
    change: Callable[[Any, NDArray[np.int64]], NDArray[np.int64]],
) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        real = CentralTrainer._drawn

        def drawn(self: Any, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
            for batch in real(self, rng):
                yield change(self, batch)

        patch.setattr(CentralTrainer, "_drawn", drawn)

    return plant


def twice_as_likely(self: Any, batch: NDArray[np.int64]) -> NDArray[np.int64]:
    rng = np.random.default_rng(int(batch.sum()))
    count, rate = self._split.num_examples, 2.0 * self._examples.sampling_probability
    return np.flatnonzero(rng.random(count) < rate).astype(np.int64)


def with_the_first_eight(self: Any, batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many as were drawn, but the first eight examples are always among them."""
    return np.sort(np.r_[np.arange(8), batch[batch >= 8][: len(batch) - 8]])


@pytest.mark.parametrize(
    ("plant", "expected", "message"),
    [
        (half_noise, "noise_replay", r"epoch 1, step 1: the noise is not .* norm is"),
        (twice_the_rate, "recomputation", r"epoch 1, step 1: the model's parameters"),
        (same_noise_each_epoch, "noise_replay", r"^epoch 2, step 1: the noise"),
        (no_clipping, "recomputation", r"epoch 1, step 1: the clipped sum"),
        (of_batches(twice_as_likely), "cohort_replay", r"epoch 1, step 1: the batch has \d+ exam"),
        (of_batches(with_the_first_eight), "cohort_replay", r"step 1: the batch has other examp"),
    ],
    ids=["half noise", "twice the rate", "same noise", "no clipping", "twice q", "fixed subset"],
)
def test_a_planted_bug_is_named_with_its_step(
    plant: Callable[[Patch], None], expected: str, message: str, tmp_path: Path
) -> None:
    with Patch.context() as patch:
        plant(patch)
        run(small(central__num_epochs=2), tmp_path)
    outcome, evidence = evidence_of(audit_run(tmp_path))[expected]
    assert outcome == "failed"
    assert re.search(message, evidence), evidence


def from_epoch_two(patch: Patch) -> None:
    """Each step after the first epoch moves by twice its rate."""
    real = central.set_rate
    begun = CentralTrainer.advance

    def advance(self: Any, index: int) -> dict[str, float]:
        factor = 1.0 if index == 1 else 2.0
        patch.setattr(central, "set_rate", lambda optimizer, rate: real(optimizer, factor * rate))
        return begun(self, index)

    patch.setattr(CentralTrainer, "advance", advance)


def test_one_step_is_computed_however_short_the_time(tmp_path: Path) -> None:
    run(small(), tmp_path)
    found = evidence_of(audit_run(tmp_path, recompute="first"))
    assert found["recomputation"][0] == "passed"
    assert " of 1 of 38 steps" in found["recomputation"][1]


def test_steps_after_a_checkpoint_are_computed(tmp_path: Path, monkeypatch: Patch) -> None:
    real = recomputed._Run.__init__

    def begin(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self._share = 0.0  # one step from each start

    monkeypatch.setattr(recomputed._Run, "__init__", begin)
    changes: dict[str, Any] = {
        "central__num_epochs": 3,
        "central__optimizer": {"name": "sgd", "momentum": 0.9},
        "checkpoint": {"every": 1, "keep": 3},
    }
    run(small(**changes), tmp_path / "sound")
    outcome, evidence = evidence_of(audit_run(tmp_path / "sound"))["recomputation"]
    assert outcome == "passed"
    assert re.search(r"^clipped sums .* of 3 of 114 steps .* checkpoints of epochs 1, 2", evidence)
    with Patch.context() as patch:
        from_epoch_two(patch)
        run(small(**changes), tmp_path / "planted")
    outcome, evidence = evidence_of(audit_run(tmp_path / "planted"))["recomputation"]
    assert outcome == "failed"
    assert evidence.startswith("epoch 2, step 1: the model's parameters"), evidence


@pytest.fixture
def strict(monkeypatch: Patch) -> Patch:
    """Rounding alone is more than is allowed without a trial."""
    monkeypatch.setattr(recomputed, "ROUNDING", {"float32": 1e-12})
    monkeypatch.setattr(recomputed, "_CLIP_SLACK", 0.0)
    return monkeypatch


@pytest.mark.parametrize("is_sound", [True, False])
def test_what_a_model_makes_of_rounding_is_measured(
    is_sound: bool, tmp_path: Path, strict: Patch
) -> None:
    with Patch.context() as patch:
        if not is_sound:
            of_sums(patch)
        run(small(), tmp_path)
    found = audit_run(tmp_path)
    outcome, evidence = evidence_of(found)["recomputation"]
    assert outcome == ("passed" if is_sound else "failed"), evidence


@pytest.mark.parametrize("is_sound", [True, False])
def test_what_rounding_could_hide_ends_the_steps_and_hides_no_more(
    is_sound: bool, tmp_path: Path, strict: Patch
) -> None:
    strict.setattr(recomputed._Run, "_moved", lambda self, *arguments: 1.1)
    with Patch.context() as patch:
        if not is_sound:
            no_clipping(patch)
        run(small(), tmp_path)
    outcome, evidence = evidence_of(audit_run(tmp_path))["recomputation"]
    assert outcome == ("skipped" if is_sound else "failed"), evidence
    assert ("could hide an example" in evidence) == is_sound


def of_sums(patch: Patch) -> None:
    """Each clipped sum is off by a thousandth."""
    real = dp_sgd.clipped_sums

    def sums(*arguments: Any) -> tuple[list[Any], int]:
        found, lost = real(*arguments)
        return [1.001 * part for part in found], lost

    patch.setattr(dp_sgd, "clipped_sums", sums)


@pytest.mark.parametrize("name", ["x", "0.numbers"])
def test_a_buffer_that_the_model_does_not_have_fails(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    begin = torch.nn.Flatten.__init__

    def with_numbers(self: torch.nn.Flatten) -> None:
        begin(self)
        self.register_buffer("numbers", torch.arange(3))

    monkeypatch.setattr(torch.nn.Flatten, "__init__", with_numbers)
    run(small(checkpoint={"every": 1}), tmp_path)
    assert evidence_of(audit_run(tmp_path))["recomputation"][0] == "passed"
    _, path = max(steps_saved(tmp_path / "checkpoints").items())

    def change(state: dict[str, Any]) -> None:
        state["trainer"]["buffers"][name] = torch.zeros(3, dtype=torch.int64)

    change_checkpoint(path, change)
    failed = {
        check.name: check for check in audit_run(tmp_path).checks if check.outcome == "failed"
    }
    assert f"another buffer '{name}' than the model" in failed["recomputation"].evidence


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_other_moments_in_a_checkpoint_fail(killed: bool, name: str, tmp_path: Path) -> None:
    """Also where a killed run goes on with them."""
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    config = small(
        central__num_epochs=2, checkpoint__every=1, central__optimizer={"name": name, **momentum}
    )
    run(config, tmp_path)
    checkpoints = tmp_path / "checkpoints"
    if killed:
        for done in (tmp_path / "summary.json", checkpoints / "step-00000002.pt"):
            done.unlink()
        ledger = tmp_path / "ledger.jsonl"
        ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])
    step, path = max(steps_saved(checkpoints).items())

    def change(state: dict[str, Any]) -> None:
        for moments in state["trainer"]["optimizer"]["state"].values():
            moments["momentum_buffer" if name == "sgd" else "exp_avg"] += 0.01

    change_checkpoint(path, change)
    if killed:
        run(config, tmp_path, resume=True)
    outcome, evidence = evidence_of(audit_run(tmp_path, recompute="all"))["recomputation"]
    assert outcome == "failed"
    assert f"epoch {step}, step 38: the checkpoint's optimizer's first moment is off" in evidence


def test_a_model_that_remembers_examples_fails(tmp_path: Path, monkeypatch: Patch) -> None:
    """In training alone, so that it evaluates as any."""
    forward = torch.nn.Linear.forward
    last: list[torch.Tensor] = []

    def less_the_last(self: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        before = last[-1] if last and self.training else torch.zeros(())
        last[:] = [inputs.detach().mean(0)]
        return forward(self, inputs - 0.5 * before)

    monkeypatch.setattr(torch.nn.Linear, "forward", less_the_last)
    # The run would refuse the model.
    monkeypatch.setattr(parts, "check_forgets", lambda module, inputs: None)
    run(small(), tmp_path)
    outcome, text = evidence_of(audit_run(tmp_path))["recomputation"]
    assert (outcome, "hangs on the examples before it" in text) == ("failed", True)


def test_a_step_without_noise_within_rounding_is_not_computed_again(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """At a small rate, what float32 may round of the parameters explained a whole step's noise."""
    rate, steps = 1e-5, 0
    step = StepObserver.step

    def without_noise(self: StepObserver, sums: list[Any], gradients: list[Any]) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            for moved, total, noised in zip(self._parameters, sums, gradients, strict=True):
                moved.data.add_(noised - total / 32.0, alpha=rate)
        step(self, sums, gradients)

    monkeypatch.setattr(StepObserver, "step", without_noise)
    run(small(central__learning_rate=rate), tmp_path / "run")
    done = audit_run(tmp_path / "run")
    outcome, evidence = evidence_of(done)["recomputation"]
    assert outcome == "passed"
    assert evidence.startswith("clipped sums and parameters of 2 of 38 steps")
    assert "could hide an example" in evidence
