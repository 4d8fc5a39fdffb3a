"""Each mechanism with each kind of canaries: a run to its summary, or a refusal before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from pfl_bench.config.loading import load_config
from pfl_bench.files import read_json
from pfl_bench.runs.auditing.opened import open_run
from pfl_bench.runs.auditing.recompute import Recomputation, recompute_run
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.errors import PlanError
from tests.helpers import change_checkpoint, make_config

MECHANISMS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "adaptive_gaussian": {"quantile": 0.5, "count_noise_stddev": 20.0},
    "banded_matrix_factorization": {"bands": 2},
    "tree_aggregation": {},
    "laplace": {},
    "local_gaussian": {},
    "privunit": {},
}
# A step says something of the run only where its noise is Gaussian, central and drawn anew.
STEPS = {"gaussian", "adaptive_gaussian"}
KINDS = ("one_shot", "one_run", "worst_case")


def config_of(mechanism: str, kind: str) -> Any:
    return make_config(
        "private_federated",
        federated__num_rounds=2,
        federated__sampling="cyclic_poisson",
        federated__separation=2,
        privacy__mechanism={"name": mechanism, "clip_norm": 0.5, **MECHANISMS[mechanism]},
        privacy__noise_cohort_size=None,
        privacy__noise_multiplier=0.5 if mechanism == "privunit" else 5.0,
        privacy__epsilon=None,
        privacy__accountant="pld",
        privacy__audit={"kind": kind, "count": 8},
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_run_with_canaries_ends_in_a_summary_or_is_refused(
    mechanism: str, kind: str, tmp_path: Path
) -> None:
    config = config_of(mechanism, kind)
    steps_refused = kind == "worst_case" and mechanism not in STEPS
    sphere_refused = kind == "one_shot" and mechanism == "laplace"
    if steps_refused or sphere_refused:
        with pytest.raises((PlanError, ConfigError), match="one_run"):
            run(config, tmp_path)
        assert not (tmp_path / "ledger.jsonl").exists()
        return
    summary = run(config, tmp_path)
    assert summary["rounds"] == 2
    assert summary["canaries"]["kind"] == kind
    # Whether bounds are below the truth is a matter of many runs: scripts/audit_validation.py.
    assert summary["canaries"]["lower_bound"] >= 0.0
    assert 0.0 < float(summary["canaries"]["upper_bound"]) < float("inf")
    written = json.loads((tmp_path / "canaries.json").read_text())
    assert written["lower_bound"] == summary["canaries"]["lower_bound"]
    assert all(entry["verdict"] == "not comparable" for entry in summary["expected"])
    again = recomputed(tmp_path)
    assert (again.problems, again.reasons, len(again.rounds)) == ([], [], 2)


def test_canaries_of_a_run_that_its_budget_ends_are_of_the_rounds_that_it_had(
    tmp_path: Path,
) -> None:
    config = make_config(
        "private_federated",
        federated__num_rounds=50,
        federated__cohort_size=20,
        privacy__mechanism={"name": "gaussian", "clip_norm": 0.5},
        privacy__noise_cohort_size=40,
        privacy__noise_multiplier=2.0,
        privacy__epsilon=3.0,
        privacy__audit={"kind": "worst_case", "count": 8},
    )
    summary = run(config, tmp_path)
    assert summary["status"] == "budget_exhausted"
    assert summary["rounds"] < 50
    actual = summary["privacy"]["actual"]["epsilon"]
    assert actual > summary["privacy"]["simulated"]["epsilon"]
    assert summary["canaries"]["upper_bound"] == pytest.approx(actual)


def recomputed(folder: Path) -> Recomputation:
    """All rounds of a run, computed again."""
    seed = read_json(folder / "environment.json")["private_seed"]["value"]
    opened = open_run(folder, load_config(folder / "config.yaml"))
    return recompute_run(opened, int(seed, 16), "all")


# Of each kind: what is kept of scores, and the first member of canaries.json that follows.
KEPT: dict[str, tuple[dict[str, Any], str, str]] = {
    "final": ({"kind": "one_shot", "count": 8}, "scores", "scores"),
    "every_round": ({"kind": "one_shot", "count": 8, "access": "every_round"}, "scores", "scores"),
    "guesses": ({"kind": "one_run", "count": 8}, "scores", "scores"),
    "sums": ({"kind": "one_run", "count": 40, "bound": "independent"}, "matched", "lower_bound"),
    "steps": ({"kind": "worst_case", "count": 8}, "misses", "trials.misses"),
}


@pytest.mark.parametrize("what", KEPT)
def test_other_scores_of_canaries_are_found(what: str, tmp_path: Path) -> None:
    audit, kept, member = KEPT[what]
    config = make_config(
        "private_federated",
        federated__num_rounds=2,
        federated__cohort_size=20,
        privacy__noise_cohort_size=None,
        privacy__noise_multiplier=0.3,
        privacy__epsilon=None,
        privacy__audit=audit,
        checkpoint__every=1,
    )
    run(config, tmp_path)
    assert recomputed(tmp_path).problems == []
    path = tmp_path / "canaries.json"
    written = json.loads(path.read_text())
    *above, key = member.split(".")
    part = written
    for name in above:
        part = part[name]
    part[key] = [0.9 * score for score in part[key]] if key == "scores" else part[key] + 0.5
    path.write_text(json.dumps(written))
    (problem,) = recomputed(tmp_path).problems
    assert problem.startswith(f"round 2: the canaries' {member} is off by ")
    del written[member.split(".")[0]]
    path.write_text(json.dumps(written))
    (problem,) = recomputed(tmp_path).problems
    assert "canaries.json has no" in problem

    path.unlink()

    def forget(state: dict[str, Any]) -> None:
        scores = state["trainer"]["private"]["canaries"]["scores"]
        scores[kept] = scores[kept] * 0.9 if isinstance(scores[kept], Tensor) else 99

    change_checkpoint(max((tmp_path / "checkpoints").glob("step-*.pt")), forget)
    (problem,) = recomputed(tmp_path).problems
    assert problem.startswith(f"round 2: the checkpoint's canaries.scores.{kept} is off by ")
