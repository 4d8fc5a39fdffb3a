"""Settings whose claim would be false, or mean nothing, start no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.accountant import compose_epsilon
from privacy.amplification import Composition, sampled_gaussian
from privacy.errors import PlanError, PrivacyError
from privacy.mechanisms.none import NoPrivacy
from privacy.sampling_scheme import Participation
from tests.helpers import make_config

LAPLACE = {"name": "laplace", "clip_norm": 0.5}
NOISE: dict[str, Any] = {"privacy__epsilon": None, "privacy__noise_multiplier": 2.0}
AUDIT = {"kind": "one_run", "direction": "coordinate", "count": 8}


@pytest.mark.parametrize(
    ("setting", "changes", "words"),
    [
        (
            "private_federated",
            {"privacy__mechanism": {"name": "none"}, "privacy__audit": AUDIT, **NOISE},
            "claims no epsilon that they could bound",
        ),
        (
            "private_federated",
            {
                "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5},
                "privacy__audit": AUDIT | {"bound": "gaussian"},
                "privacy__noise_cohort_size": None,
                **NOISE,
            },
            "needs a mechanism whose server adds Gaussian noise",
        ),
        (
            "private_federated",
            {"privacy__audit": {"kind": "one_shot", "count": 8, "bound": "gaussian"}},
            "bound gaussian is of kind one_run",
        ),
        (
            "central_dp",
            {"privacy__mechanism": LAPLACE},
            "'laplace' is not available for central training",
        ),
        (
            "federated",
            {"federated__shadow": 1, "systems": {"source": {"name": "generated"}}},
            "has them selected among devices",
        ),
        (
            "central_dp",
            {"central__batch_size": 10_000},
            "10000 is more than the .* training examples",
        ),
    ],
)
def test_no_run_is_started(
    setting: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, PrivacyError), match=words):
        run(make_config(setting, **changes), tmp_path / "run")
    assert not (tmp_path / "run/ledger.jsonl").exists()


def test_nothing_is_composed_in_place_of_what_nobody_accounts() -> None:
    users = Participation.named("selected", 100, 10.0)
    with pytest.raises(PlanError, match="no users can be drawn"):
        users.scheme.draw(users, np.random.default_rng(0), 1, None)
    with pytest.raises(PlanError, match="nothing can be accounted"):
        NoPrivacy().composition(Participation.named("poisson", 100, 10.0), 1.0, 5)
    schemes = (Participation.named(name, 100, 10.0) for name in ("poisson", "truncated_poisson"))
    parts = [sampled_gaussian(users, 1.0, 5) for users in schemes]
    with pytest.raises(PlanError, match="not composed with rounds of another sampling scheme"):
        compose_epsilon(parts, 1e-5, "pld")


def test_prv_is_not_asked_beyond_its_precision() -> None:
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(500.0))
    rounds = Composition(event, 1_000_000, "add-or-remove-one")
    with pytest.raises(PlanError, match="beyond the precision of the accountant prv"):
        compose_epsilon([rounds], 5e-10, "prv")
