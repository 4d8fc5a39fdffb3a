"""FedNova against its definition by hand, and against FedAvg where they are the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.algorithms.fednova import Normalizes, normalizer
from pfl_bench.federated.parts import FederatedParts, build_model, build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import read_metrics
from pfl_bench.runs.auditing.inputs import central_optimizer
from pfl_bench.runs.runner import run
from pfl_bench.types import ClientUpload, ConfigError, LocalResult, LocalTraining
from privacy.audit.inputs import DataAtHand
from privacy.errors import PlanError
from tests.equivalence.test_processes import InTurn
from tests.helpers import PRIVACY, central_of, make_config, parts_of

CPU = torch.device("cpu")
P = 650


def fednova(effective_steps: float | None = None, **changes: Any) -> ResolvedConfig:
    algorithm = {"name": "fednova", "effective_steps": effective_steps}
    return make_config("federated", federated__algorithm=algorithm, **changes)


def central(config: ResolvedConfig, folder: Path, **settings: Any) -> Tensor:
    run(config, folder, **settings)
    return central_of(folder)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_normalizer_is_how_far_steps_along_gradients_of_1_go(momentum: float) -> None:
    moved = velocity = 0.0
    assert normalizer(0, momentum) == 0
    for steps in range(1, 40):
        velocity = momentum * velocity + 1.0
        moved += velocity
        assert normalizer(steps, momentum) == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize(("momentum", "fixed"), [(0.0, None), (0.9, None), (0.9, 7.0)])
def test_a_round_is_that_of_the_definition(
    momentum: float, fixed: float | None, weighting: str, tmp_path: Path
) -> None:
    sgd = {"federated__local_momentum": momentum, "federated__local_weight_decay": 0.01}
    everybody = {"federated__sampling": "full", "federated__cohort_size": 60}
    more = {"federated__local_epochs": 2, "federated__weighting": weighting}
    config = fednova(fixed, federated__central_learning_rate=0.5, **sgd, **everybody, **more)
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    start = model.vector.clone()
    parts = FederatedParts.build(config, task, model)
    trainer = FederatedTrainer(parts, tmp_path, lambda text: None)
    trainer.advance(1)
    local = LocalTraining(2, 4, 0.3, momentum=momentum, weight_decay=0.01)
    forward = Forward(model.module, task, CPU)
    engine = SequentialEngine(Options(), model, task.split("train"), forward, local, 3)
    normalized, scale, total, counts = torch.zeros(P, dtype=torch.float64), 0.0, 0.0, set()
    for result in engine.train(np.arange(60), 1, start):
        n, m = result.num_steps, momentum
        a = (n - m * (1 - m**n) / (1 - m)) / (1 - m)
        weight = result.num_examples if weighting == "examples" else 1.0
        normalized += weight * result.update.double() / a
        scale += weight * a
        total += weight
        counts.add(n)
    assert len(counts) > 3
    tau = scale / total if fixed is None else fixed
    by_hand = start + 0.5 * (tau * normalized / total).float()
    torch.testing.assert_close(trainer.central, by_hand, rtol=1e-5, atol=1e-6)


def test_of_equal_steps_it_is_fedavg_and_of_unequal_ones_not(tmp_path: Path) -> None:
    def both(name: str, **changes: Any) -> tuple[Tensor, Tensor]:
        changes["federated__weighting"] = "examples"
        ours = central(fednova(**changes), tmp_path / f"{name}-ours")
        return ours, central(make_config("federated", **changes), tmp_path / f"{name}-fedavg")

    torch.testing.assert_close(
        *both("three", federated__local_epochs=9, federated__local_steps=3),
        rtol=1e-5,
        atol=1e-6,
    )
    # a is 1: nothing is rounded.
    assert torch.equal(*both("one", federated__local_steps=1))
    ours, fedavg = both("unequal", federated__local_epochs=2)
    assert float((ours - fedavg).norm()) > 1e-2 * float(fedavg.norm())


def test_results_do_not_depend_on_processes_and_engines_and_resume(tmp_path: Path) -> None:
    momentum = {"federated__local_momentum": 0.9, "federated__local_learning_rate": 0.05}
    config = fednova(**momentum)
    one = central(config, tmp_path / "one")
    assert torch.equal(one, central(config, tmp_path / "three", group=InTurn(3)))
    vectorized = fednova(federated__engine="vectorized", **momentum)
    slots = central(vectorized, tmp_path / "slots")
    torch.testing.assert_close(slots, one, rtol=1e-4, atol=1e-6)
    for row in read_metrics(tmp_path / "one" / "metrics.jsonl"):
        assert row["systems/bytes_up"] == row["train/cohort_size"] * (4 * P + 4)
        assert row["systems/bytes_down"] == row["train/cohort_size"] * 4 * P
    # Killed after round 4.
    (tmp_path / "one" / "summary.json").unlink()
    (tmp_path / "one" / "checkpoints" / "step-00000006.pt").unlink()
    run(config, tmp_path / "one", resume=True)
    assert torch.equal(central_of(tmp_path / "one"), one)


def test_whose_update_is_lost_does_not_count_for_the_effective_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User 0 has NaN for its examples, and takes more steps than the others."""
    everybody = {"federated__sampling": "full", "federated__cohort_size": 4}
    config = fednova(None, task__num_users=4, **everybody)
    parts = parts_of(config)
    sizes = np.diff(parts.split.offsets)
    worst = int(sizes.argmax())
    read = type(parts.split).read_user

    def damaged(self: Any, user: int, rng: np.random.Generator) -> Any:
        examples = read(self, user, rng)
        if user == worst:
            examples.inputs.mul_(torch.nan)
        return examples

    monkeypatch.setattr(type(parts.split), "read_user", damaged)
    trainer = FederatedTrainer(parts, tmp_path, lambda text: None)
    trainer.advance(1)
    others = np.ceil(np.delete(sizes, worst) / 4)
    assert parts.algorithm._effective_steps == pytest.approx(others.mean())  # type: ignore[attr-defined]
    assert trainer.central.isfinite().all()


def test_an_update_without_a_step_is_sent_as_it_is() -> None:
    result = LocalResult(0, torch.zeros(2), 0, 0, torch.tensor(0.0), 0)
    sent = Normalizes(0.9, True).send(ClientUpload(torch.zeros(2), 1.0, 8.0), result, 1)
    assert sent.update.tolist() == [0.0, 0.0]
    assert (sent.scalar, sent.num_bytes) == (0.0, 12.0)


@pytest.mark.parametrize(("fixed", "beside"), [(None, 4), (7.0, 0)])
def test_a_normalizer_that_is_sent_takes_four_bytes(fixed: float | None, beside: int) -> None:
    assert parts_of(fednova(fixed)).upload_bytes == 4 * P + beside


def test_a_private_run_needs_steps_that_nobody_sends(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"\['normalizer'\] would reach the server in the clear"):
        run(fednova(privacy=PRIVACY), tmp_path / "refused")
    fixed = {"privacy": PRIVACY, "federated__num_rounds": 1}
    initial = parts_of(fednova(3.0, **fixed)).model.vector
    unknown = central_optimizer(fednova(3.0, **fixed), DataAtHand())
    assert "needs the numbers of users and parameters" in str(unknown)
    moved = []
    for steps in (3.0, 6.0):
        summary = run(fednova(steps, **fixed), tmp_path / str(steps))
        assert summary["privacy"]["simulated"]["epsilon"] > 0
        (row,) = read_metrics(tmp_path / str(steps) / "metrics.jsonl")
        assert row["systems/bytes_up"] == row["train/cohort_size"] * 4 * P
        moved.append(central_of(tmp_path / str(steps)) - initial)
    # The constant comes after the release.
    torch.testing.assert_close(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-6)


def test_what_looks_at_updates_alone_or_reckons_with_their_mean_is_refused(tmp_path: Path) -> None:
    krum = {"name": "krum", "num_attackers": 2}
    with pytest.raises(ConfigError, match=r"looks at updates alone.* a normalizer too"):
        run(fednova(federated__aggregation=krum), tmp_path / "krum")
    attack = {"kind": "label_flip", "corrupted_fraction": 0.1, "labels": "mirror"}
    with pytest.raises(ConfigError, match="fednova takes another"):
        run(fednova(3.0, attack={**attack, "boost": "replace"}), tmp_path / "attack")
    for steps in (0.0, -1.0, float("inf")):
        with pytest.raises(ConfigError, match=re.escape("federated.algorithm.effective_steps")):
            fednova(steps)
