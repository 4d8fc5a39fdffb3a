"""Each mechanism with each kind of canaries: a run to its summary, or a refusal before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.errors import PlanError
from tests.helpers import make_config

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
