"""Plan, ledger, observer and canaries of a private federated run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client import machine
from pfl_bench.client.model_checks import batchnorm_layers
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.canaries import build_canaries, canary_result
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.federated.parts import FederatedParts, build_mechanism
from pfl_bench.federated.private_seed import OtherSeedError
from pfl_bench.profiling import phase
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import ConfigError, Participants, returned
from privacy.aggregate import Aggregate
from privacy.description import Description
from privacy.ledger import Ledger
from privacy.mechanism import Mechanism, NoiseScale, Release
from privacy.plan.checks import check_users
from privacy.plan.plan import PlanRequest, PrivacyPlan, make_plan
from privacy.recording.central_record import CentralRecord
from privacy.recording.observation import Observer, ParticipationHistory
from privacy.recording.sum_watch import WATCH_ALL
from privacy.statement.statement import json_epsilon

if TYPE_CHECKING:
    from privacy.empirical.canaries import Canaries


def check_private_users(parts: FederatedParts) -> None:
    """Refuse all that the users of a private run do not allow, whoever takes part.

    Raises:
        privacy.errors.PlanError: There are such settings.
    """
    check_users(_plan_request(parts, Participants()))


def make_federated_plan(parts: FederatedParts, participants: Participants) -> PrivacyPlan | None:
    """Build the plan of a run's configuration; None for a run that claims no privacy.

    Raises:
        ConfigError: A model without a plan has layers that gather running statistics.
        privacy.errors.PlanError: The accounting of the settings would be wrong.
    """
    privacy = parts.resolved.config.privacy
    if privacy is None or privacy.population_size is None:
        if layers := batchnorm_layers(parts.model.module):
            raise ConfigError(
                f"model: BatchNorm layers keep running statistics ({', '.join(layers[:3])}), which "
                "federated training neither sends nor averages; use GroupNorm, or layers whose "
                "statistics are constants, such as torchvision.ops.FrozenBatchNorm2d"
            )
        return None
    return make_plan(_plan_request(parts, participants))


def _plan_request(parts: FederatedParts, participants: Participants) -> PlanRequest:
    resolved, options, privacy = parts.resolved, parts.options, parts.resolved.config.privacy
    assert privacy is not None
    name, num_users = resolved.tree["privacy"]["mechanism"]["name"], parts.split.num_users
    named = privacy.population_size
    assert named is not None
    mechanism_options, audit = resolved.mechanism_options, privacy.audit
    worst_case = audit is not None and audit.kind == "worst_case"

    def build(noise: NoiseScale) -> Mechanism:
        mechanism = build_mechanism(name, mechanism_options, noise)
        returned(mechanism, "description", mechanism.description, Description)
        return mechanism

    return PlanRequest(
        mechanism=name,
        mechanism_build=build,
        mechanism_options=mechanism_options.model_dump() if mechanism_options else {},
        scheme=options.scheme,
        population_size=num_users if named == "training_users" else named,
        num_users=num_users,
        hypothetical_population=privacy.hypothetical_population,
        cohort_size=options.cohort_size,
        noise_cohort_size=privacy.noise_cohort_size,
        num_rounds=options.num_rounds,
        weighting=options.weighting,
        epsilon=privacy.epsilon,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
        accountant=privacy.accountant,
        uploads=parts.algorithm.uploads,
        batchnorm_layers=batchnorm_layers(parts.model.module),
        num_parameters=parts.model.num_parameters,
        data_checksum=parts.task.facts.checksum,
        selected_by=resolved.config.evaluation.select_best,
        nonce=privacy.nonce,
        artificial_users=parts.task.facts.artificial_users,
        num_canaries=audit.count if audit else 0,
        fresh_noise_for="privacy.audit.kind worst_case" if worst_case else None,
        participation_rests_on=participants.rests_on,
        selection_uses_data=participants.uses_data,
        client_state=parts.client_state,
        plugins=machine.plugin_digests(),
    )


def make_observer(mechanism: Mechanism, noise: NoiseScale, num_parameters: int) -> Observer:
    """Make what watches a private run's rounds; with very large P it probes one client of each."""
    stated = mechanism.description
    return Observer(
        noise.cohort_size, stated.norm, num_parameters <= WATCH_ALL, stated.clips_to_bound
    )


class PublicRounds:
    """The rounds of a run without a plan: nothing is claimed, watched or written down."""

    plan: PrivacyPlan | None = None

    def __init__(self, mechanism: Mechanism, seed: int, observer: Observer | None = None) -> None:
        self.mechanism = mechanism
        self.aggregator = UpdateAggregator(mechanism, seed, observer)

    def begin(self, done: int) -> None:
        """Open the ledger, and check that it has recorded the ``done`` rounds of the checkpoint."""

    def check_round(self, index: int) -> None:
        """Check that a round, from 1, is within the budget."""

    def choose_probe(self, index: int, num_users: int) -> int:
        """Choose which of a round's users, from 0, is probed where not all are; -1 for none."""
        return -1

    def add_canaries(self, aggregate: Aggregate, index: int) -> None:
        """Take the round's canaries into the sum, by the same clip as clients."""

    def record(
        self,
        index: int,
        users: NDArray[np.int64],
        release: Release,
        aggregate: Aggregate,
        trained: Sequence[int],
    ) -> None:
        """Write the round's line of the ledger; replayed rounds must be as they were recorded.

        ``users``, of shape (n,), took part. Of ``trained`` updates were taken in, as often as they
        were; canaries are not among them.
        """

    def watch(self, index: int, release: Release, central: torch.Tensor) -> None:
        """Let the canaries see the release, and ``central``, shape (P,), after the central step."""

    def scalars(self, release: Release, fraction_clipped: float) -> dict[str, float]:
        """Scalars for the round's line of metrics; the fraction of clients clipped has no noise."""
        return {}

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of round ``done``; None without a ledger."""
        return None

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """Result of the canaries after ``done`` rounds; None without canaries."""
        return None

    def state_dict(self) -> dict[str, Any] | None:
        """State that changes from round to round beside the mechanism's."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave; RunFolderError if the run began with another seed.

        With other streams, groups, noise and canaries would be drawn anew in the midst of the run,
        and what the plan says of them would not hold.
        """

    def close(self) -> None:
        """Close the ledger."""


class PrivateRounds(PublicRounds):
    """Takes a private run's clients in, watches what is released, and writes it down.

    Args:
        plan: What the run claims.
        resolved: The configuration.
        seed: The private seed, of which all streams here are.
        initial: Shape (P,): the central parameters that the run begins with, in the memory where
            they move.
        path: The ledger's file.
    """

    plan: PrivacyPlan

    def __init__(
        self,
        plan: PrivacyPlan,
        resolved: ResolvedConfig,
        seed: int,
        initial: torch.Tensor,
        path: Path,
    ) -> None:
        self._observer = make_observer(plan.mechanism, plan.noise, plan.request.num_parameters)
        super().__init__(plan.mechanism, seed, self._observer)
        self.plan = plan
        self._seed = seed
        self._initial = initial.clone()
        self._central_record = CentralRecord(initial)
        self._path = path
        self._ledger: Ledger | None = None
        self._digest: str | None = None
        self._history = ParticipationHistory(plan.request.num_users)
        self._num_canaries = 0
        self._canaries: Canaries | None = None
        options = resolved.config.privacy.audit if resolved.config.privacy else None
        if options is not None:
            self._canaries = build_canaries(options, plan, seed, initial.device)

    def begin(self, done: int) -> None:
        """Open and check the ledger."""
        self._ledger = Ledger(self._path)
        self._ledger.check_resume(done, self.plan.ledger_constants(), self._digest)

    def ledger_digest(self, done: int) -> str:
        """SHA-256 of the ledger's line of round ``done``."""
        assert self._ledger is not None
        return self._ledger.digest(done)

    def check_round(self, index: int) -> None:
        """Check it by the plan."""
        self.plan.check_round(index)

    def choose_probe(self, index: int, num_users: int) -> int:
        """Choose by a stream of its own."""
        rng = stream(self._seed, Purpose.PROBE, index)
        return int(rng.integers(num_users)) if num_users else -1

    def add_canaries(self, aggregate: Aggregate, index: int) -> None:
        """Take them in, and count them."""
        self._num_canaries = 0
        clip_norm = self.plan.mechanism.clip_norm
        if self._canaries is None:
            return
        assert clip_norm is not None
        # The strongest observer knows what everybody else sends.
        self._canaries.know_others(aggregate.total)
        first = self.plan.request.num_users
        for update in self._canaries.updates(index, clip_norm):
            self.aggregator.add(aggregate, update, 1.0, index, first + self._num_canaries)
            self._num_canaries += 1

    def record(
        self,
        index: int,
        users: NDArray[np.int64],
        release: Release,
        aggregate: Aggregate,
        trained: Sequence[int],
    ) -> None:
        """Observe what was released, and append its line."""
        with phase("ledger"):
            # From a GPU once, for all who look at it.
            release = replace(release, mean_update=release.mean_update.cpu())
            drawn = self._history.add(users, index)
            observed = self._observer.observe(release, aggregate) | drawn
            observed |= self._central_record.round(release.mean_update, users, trained)
            entry = self.plan.ledger_entry(
                index, users, release, aggregate, observed, self._num_canaries
            )
            assert self._ledger is not None  # begin() has opened it
            self._ledger.append(entry)
            self._digest = self._ledger.digest(index)

    def scalars(self, release: Release, fraction_clipped: float) -> dict[str, float]:
        """Clip, noise, and fractions of clients."""
        scalars = {
            "privacy/clip_norm": float(release.clip_norm or 0.0),
            "privacy/update_noise_stddev": release.update_noise_stddev,
            "privacy/fraction_clipped": fraction_clipped,
        }
        if release.noisy_fraction_unclipped is not None:
            scalars["privacy/noisy_fraction_unclipped"] = release.noisy_fraction_unclipped
        guesses = None if self._canaries is None else self._canaries.last_guesses
        if guesses is not None:
            scalars |= {"canaries/right": float(guesses[0]), "canaries/trials": float(guesses[1])}
        return scalars

    def watch(self, index: int, release: Release, central: torch.Tensor) -> None:
        """Let the canaries see it."""
        if self._canaries is not None:
            self._canaries.observe(index, release.mean_update, central - self._initial)

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """Result of the canaries after ``done`` rounds; None without canaries."""
        if self._canaries is None:
            return None
        result = canary_result(self._canaries, self.plan, done)
        return {**result, "upper_bound": json_epsilon(self.plan.actual.epsilon(done))}

    def state_dict(self) -> dict[str, Any]:
        """Participations, canaries, digest of the ledger, and seed."""
        canaries = None if self._canaries is None else self._canaries.state_dict()
        return {
            "history": self._history.state_dict(),
            "canaries": canaries,
            "ledger": self._digest,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them, if the seed is still the same."""
        if state.get("seed") != self._seed:
            raise OtherSeedError(self._path.parent)
        self._history.load_state_dict(state["history"])
        self._digest = state["ledger"]
        if self._canaries is not None:
            self._canaries.load_state_dict(state["canaries"])

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()
