"""Bugs planted blind: what is accounted and recorded.

Where the claim is 4.07: 50 of 300 users in 20 rounds, multiplier 1, delta 0.0019. Tests have 20 of
120 users.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import privacy_session as private_rounds
from pfl_bench.federated import round as federated
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.rng import Purpose
from privacy import accountant, calibration
from privacy.clipping import l2_norm
from privacy.ledger import Ledger
from privacy.mechanisms import adaptive_gaussian, banded_matrix_factorization
from privacy.plan import budget
from privacy.plan.plan import PrivacyPlan
from privacy.plan.types import PlanRequest
from tests.sabotage.blind_planting import (
    Blind,
    Vector,
    blind,
    witness,
)
from tests.sabotage.planting import (
    ADAPTIVE,
    BANDED,
    COHORT,
    ROUNDS,
    SMALLER_COHORT,
    Patch,
)

HALF = ROUNDS // 2


def count_unpaid(patch: Patch) -> None:
    def split(noise_multiplier: float, count_noise_stddev: float) -> float:
        witness(noise_multiplier)
        return noise_multiplier

    patch.setattr(adaptive_gaussian, "split_noise", split)


def users_of_all_splits(patch: Patch) -> None:
    from dataclasses import replace

    real = private_rounds.make_plan

    def planned(request: PlanRequest) -> PrivacyPlan:
        more = request.num_users // 5
        witness(more)
        return real(
            replace(
                request,
                num_users=request.num_users + more,
                population_size=request.population_size + more,
            )
        )

    patch.setattr(private_rounds, "make_plan", planned)


def own_cohort_in_deployment(patch: Patch) -> None:
    real = PlanRequest.participation

    def participation(self: PlanRequest, population: int, cohort: int) -> Any:
        witness(cohort - self.cohort_size)
        return real(self, population, min(cohort, self.cohort_size))

    patch.setattr(PlanRequest, "participation", participation)


def delta_of_the_cohort(patch: Patch) -> None:
    real = budget.default_delta

    def delta(population: int) -> float:
        witness(real(COHORT) - real(population))
        return real(COHORT)

    patch.setattr(budget, "default_delta", delta)


def rho_as_epsilon(patch: Patch) -> None:
    """The divergence of order 2 is taken for epsilon: the price of delta is left out."""

    def rdp_epsilon(parts: Any, delta: float) -> float:
        from dp_accounting import rdp

        divergence = rdp.RdpAccountant(orders=[2.0])
        for event, count in parts:
            divergence.compose(event, count)
        epsilon = float(divergence._rdp[0])
        witness(epsilon)
        return epsilon

    patch.setattr(accountant, "renyi_epsilon", rdp_epsilon)
    # Nothing that is computed here is to be remembered, nor anything else taken for it.
    patch.setattr(accountant, "_epsilon", accountant._epsilon.__wrapped__)
    patch.setattr(calibration, "compose_epsilon", accountant.compose_epsilon)


def since_resume(patch: Patch) -> None:
    """A resumed run pays for the rounds that it has run itself."""
    done = [0]
    real_begin, real = FederatedTrainer.begin, PrivacyPlan.statement

    def begin(self: FederatedTrainer, rounds: int) -> None:
        done[0] = rounds
        real_begin(self, rounds)

    def statement(self: PrivacyPlan, rounds: int, status: Any = "final") -> Any:
        from dataclasses import replace

        witness(done[0])
        paid = real(self, max(1, rounds - done[0]), status)
        return replace(paid, rounds=rounds)

    patch.setattr(FederatedTrainer, "begin", begin)
    patch.setattr(PrivacyPlan, "statement", statement)


def strategy_too_large(patch: Patch) -> None:
    """The strategy's columns are longer than 1, so a user counts for more than the noise is for."""
    real = banded_matrix_factorization.optimized_coefficients

    def coefficients(rounds: int, bands: int) -> Vector:
        found: Vector = real(rounds, bands) * 1.25
        witness(float(np.linalg.norm(found)) - 1.0)
        return found

    patch.setattr(banded_matrix_factorization, "optimized_coefficients", coefficients)


def replayed_otherwise(patch: Patch) -> None:
    """A resumed run takes noise from the machine, and its ledger lets recorded rounds pass."""
    real_append, real_stream = Ledger.append, federated.stream
    done: list[int] = []
    real_begin = FederatedTrainer.begin

    def begin(self: FederatedTrainer, rounds: int) -> None:
        done.append(rounds)
        real_begin(self, rounds)

    def append(self: Ledger, entry: Any) -> None:
        if entry["round"] <= self.last_round:
            witness(entry["round"])
            return
        real_append(self, entry)

    def named(seed: int, purpose: Purpose, index: int = 0, client: int = 0) -> np.random.Generator:
        if purpose is Purpose.NOISE:
            return np.random.Generator(np.random.Philox(len(done) * 1000 + index))
        return real_stream(seed, purpose, index, client)

    patch.setattr(FederatedTrainer, "begin", begin)
    patch.setattr(Ledger, "append", append)
    patch.setattr(federated, "stream", named)


def checkpoint_without_ledger(folder: Path) -> None:
    """Who copies a run to another machine leaves its ledger and its checkpoints behind.

    The model is kept: the rounds are run once more, and only they are recorded.
    """
    witness(1.0)
    (folder / "ledger.jsonl").unlink()
    shutil.rmtree(folder / "checkpoints")


def going_on_from_the_model(patch: Patch) -> None:
    """A run begins with the parameters that a run of the same name has left in memory."""
    left: list[Tensor] = []
    real, real_step = FederatedTrainer.__init__, FederatedTrainer._take_central_step

    def init(self: FederatedTrainer, resolved: ResolvedConfig, *given: Any, **more: Any) -> None:
        real(self, resolved, *given, **more)
        if left:
            witness(l2_norm(left[0] - self.central.detach()))
            self.central.data.copy_(left[0])

    def step(self: FederatedTrainer, mean: Tensor, index: int) -> float:
        rate = real_step(self, mean, index)
        left[:] = [self.central.detach().clone()]
        return rate

    patch.setattr(FederatedTrainer, "__init__", init)
    patch.setattr(FederatedTrainer, "_take_central_step", step)


RECORD: tuple[Blind, ...] = (
    blind(
        "count_unpaid",
        "the update has all of the multiplier, and the count comes on top",
        "`split_noise`",
        "the multiplier of both together is 0.98",
        "4.2",
        plant=count_unpaid,
        changes=ADAPTIVE,
        expects=("noise_multiplier",),
    ),
    blind(
        "users_of_all_splits",
        "the population has the users of the test split, who are never drawn",
        "`make_plan`",
        "q is 0.167 and not 0.139",
        "4.07, of a claim of 3.4",
        1.0,
        plant=users_of_all_splits,
        changes={"privacy__population_size": "training_users"},
        expects=("population",),
    ),
    blind(
        "own_cohort_in_deployment",
        "the deployment's rate is that of this run's smaller cohort",
        "`PlanRequest.participation`",
        "q of the deployment is half of what it should be",
        "8.1 at multiplier 1, here about 2, of a claim of half",
        1.0,
        plant=own_cohort_in_deployment,
        changes=SMALLER_COHORT,
        expects=("configuration",),
    ),
    blind(
        "delta_of_the_cohort",
        "delta is the cohort to the -1.1",
        "`default_delta`",
        "delta is 0.0135 for 300 users, far above one in 300",
        "4.07 at the delta that is meant, of a claim of 3.03",
        0.001,
        plant=delta_of_the_cohort,
        expects=("delta",),
    ),
    blind(
        "rho_as_epsilon",
        "a divergence is stated as epsilon",
        "`renyi_epsilon`",
        "the price of delta is left out",
        "4.07, of a claim near 2",
        0.1,
        plant=rho_as_epsilon,
        expects=(
            "epsilon_actual",
            "epsilon_simulated",
        ),
    ),
    blind(
        "paid_since_resume",
        "a resumed run pays for its second half",
        "`PrivacyPlan.statement`",
        "half of the rounds are not accounted",
        "4.07, of a claim of 3.0",
        1.0,
        plant=since_resume,
        interrupt_after=HALF,
        expects=(
            "epsilon_actual",
            "epsilon_simulated",
        ),
    ),
    blind(
        "strategy_too_large",
        "the strategy's columns are 1.25 long: too little noise for one user",
        "`optimized_coefficients`",
        "the multiplier is 0.8",
        "about 1.5 times the claim",
        0.2,
        plant=strategy_too_large,
        changes=BANDED,
        expects=("noise_replay",),
    ),
    blind(
        "replayed_otherwise",
        "three rounds are released again, with other noise, and recorded once",
        "`Ledger.append` lets pass what is recorded; noise differs after a resume",
        "23 rounds are released, 20 are accounted",
        "4.35",
        1.0,
        plant=replayed_otherwise,
        interrupt_after=HALF + 3,
        expects=("central_step", "metrics", "noise_replay"),
    ),
    blind(
        "record_left_behind",
        "ledger and checkpoints are lost, and the run goes on from its model",
        "the folder; `FederatedTrainer.__init__`",
        "33 rounds are in the model, 20 are accounted; 13 share their noise",
        "infinite",
        1.0,
        plant=going_on_from_the_model,
        interrupt_after=HALF + 3,
        between=checkpoint_without_ledger,
        expects=("central_chain",),
    ),
)
