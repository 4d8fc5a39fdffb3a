"""Refusals of a privacy plan: combinations whose accounting would be untrue of what runs.

Guarantee: each check names a clause of the proof that would break: the cohort is drawn as it is
accounted, the choice of participants does not depend on users' data, one user moves the sum by at
most the clip, nothing of a client bypasses the clip or outlives its round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privacy.errors import PlanError, PrivacyError, check_count

if TYPE_CHECKING:
    from privacy.mechanism import Mechanism
    from privacy.plan.types import PlanRequest


def check_sizes(request: PlanRequest) -> None:
    """Check what holds with and without privacy: names, counts, and a cohort that can be drawn."""
    if request.weighting not in ("uniform", "examples"):
        raise PrivacyError(
            f"weighting is {request.weighting!r}, but must be 'uniform' or 'examples'"
        )
    counts = {
        "population_size": request.population_size,
        "num_users": request.num_users,
        "cohort_size": request.cohort_size,
        "num_rounds": request.num_rounds,
        "num_parameters": request.num_parameters,
    }
    if request.noise_cohort_size is not None:
        counts["noise_cohort_size"] = request.noise_cohort_size
    for name, count in counts.items():
        check_count(name, count)
    if request.scheme.takes_everybody and request.cohort_size != request.num_users:
        raise PlanError(
            f"under full participation every one of the {request.num_users} users is in the "
            f"cohort, but cohort_size is {request.cohort_size}; set cohort_size to "
            f"{request.num_users}, or sample by poisson"
        )


def check_not_private(request: PlanRequest) -> None:
    """Check a run without privacy: it must not be configured as if it had some."""
    if request.num_canaries:
        raise PlanError(
            f"privacy.audit adds canaries with the mechanism {request.mechanism}, which claims no "
            "epsilon that they could bound, and has no bound to send them at; choose a private "
            "mechanism, or remove privacy.audit"
        )
    if request.epsilon is not None or request.noise_multiplier:
        setting = "epsilon" if request.epsilon is not None else "noise_multiplier"
        raise PlanError(
            f"{setting} is set with the mechanism {request.mechanism}, which neither clips nor "
            "noises, so no epsilon could be stated; choose the mechanism gaussian or "
            f"adaptive_gaussian, or leave {setting} out"
        )


def check_private(request: PlanRequest, mechanism: Mechanism) -> None:
    """Check a private run: populations, sensitivity, and that nothing bypasses the clip."""
    check_users(request)
    _check_everybody(request)
    _check_sensitivity(request, mechanism.clip_norm)
    _check_uploads(request)
    _check_client_state(request)
    if request.fresh_noise_for:
        _check_steps(request, mechanism)


def check_users(request: PlanRequest) -> None:
    """Check what the number of the data's users allows; one PlanError says all that it does not."""
    refusals, cohort_size, num_users = [], request.cohort_size, request.num_users
    population_size = request.population_size
    if cohort_size > num_users:
        refusals.append(
            f"cohort_size {cohort_size} is more than the {num_users} users in the data, so no such "
            "cohort can be drawn without drawing a user twice; lower cohort_size "
            "(noise_cohort_size may stay larger, within population_size)"
        )
    whose = "its"
    if population_size != num_users and not request.hypothetical_population:
        refusals.append(
            f"population_size is {population_size}, but the data have {num_users} users: the "
            "simulated epsilon would be that of a population nobody has. Set population_size to "
            "the data's users, or declare hypothetical_population: true, which the privacy "
            "statement will say"
        )
        population_size, whose = num_users, "the data's"
    noise_cohort = request.noise_cohort_size or min(cohort_size, num_users)
    if noise_cohort > population_size:
        refusals.append(
            f"a round of the simulated deployment has {noise_cohort} users (noise_cohort_size, "
            f"else cohort_size), but {whose} population is {population_size}: the sampling "
            "probability would exceed 1; lower noise_cohort_size"
        )
    if refused := delta_refusal(request.delta, max(population_size, num_users)):
        refusals.append(refused)
    if refusals:
        raise PlanError("\n".join(refusals))


def delta_refusal(delta: float | None, number: int, unit: str = "user") -> str:
    """Refusal of a delta too large for so many users (or examples); "" for no refusal.

    Published rows have 1/N itself: they run, with a note, and fail the check of their audit.
    """
    if delta is None or delta * number <= 1.0 + 1e-9:
        return ""
    return (
        f"delta is {delta:.4g}, but must not be above 1/{number} ({1.0 / number:.3g}), one over "
        f"the number of {unit}s: publishing one {unit} at random would satisfy it. Lower delta, or "
        f"set it to null, which is {number} ** -1.1"
    )


def check_participation(request: PlanRequest) -> None:
    """Check a private run: that its users take part as is accounted."""
    if request.selection_uses_data:
        raise PlanError(
            "federated.selection chooses users by what comes of their data, such as their training "
            "losses: who takes part would disclose it without noise, and one user's data would "
            "change in which rounds others are, which no sensitivity covers; choose a selection "
            "that sees no losses, such as available or uniform, or remove the section 'privacy'"
        )
    if request.participation_rests_on and request.scheme.is_drawn:
        raise PlanError(
            f"{request.scheme.name} sampling is accounted, but who takes part rests on "
            f"{', '.join(request.participation_rests_on)} too, and is not drawn as that scheme "
            "draws, so that its guarantee would be of another run. What holds is no amplification: "
            "set federated.sampling to selected, federated.max_participations and "
            "federated.separation to what the run shall keep to, and the mechanism to "
            "banded_matrix_factorization, tree_aggregation or any other"
        )
    if not request.scheme.is_drawn:
        for name, users, cohort in (
            ("population_size", request.population_size, request.noise_cohort_size),
            ("the number of the data's users", request.num_users, request.cohort_size),
        ):
            _check_enough_users(request, name, users, cohort or request.cohort_size)


def _check_enough_users(request: PlanRequest, name: str, users: int, cohort: int) -> None:
    """Check that so many rounds can be filled without anybody coming too often or too soon."""
    separation, rounds = request.scheme.min_separation, request.num_rounds
    apart = min(separation, rounds)
    if cohort * apart > users:
        raise PlanError(
            f"separation is {separation}: any {apart} rounds after one another need "
            f"{cohort * apart} different users, {cohort} each, but {name} is {users}; lower the "
            f"separation to {max(1, users // cohort)} or less, or the cohort"
        )
    most = request.participation(users, cohort).most_participations(rounds)
    if cohort * rounds > users * most:
        raise PlanError(
            f"max_participations is {request.scheme.max_participations}: {rounds} rounds of "
            f"{cohort} users are {cohort * rounds} participations, but {users} users ({name}) have "
            f"{users * most}; raise max_participations to {-(-cohort * rounds // users)} or more, "
            "or lower the rounds or the cohort"
        )


def _check_client_state(request: PlanRequest) -> None:
    if request.client_state:
        raise PlanError(
            f"{', '.join(request.client_state)}: remembers clients from round to round (error "
            "feedback, control variates, models of their own), but the accounting takes what a "
            "client sends to be made of its data and of earlier releases alone, not of which "
            "rounds it was in or of what it has not sent yet. Models of their own are trained "
            "without noise, no statement covers them, and the object that keeps them takes the "
            "central step too. Choose one without such a state (compression without error "
            "feedback; fedavg for ditto, whose central model is fedavg's bit for bit), or remove "
            "the section 'privacy'"
        )


def _check_steps(request: PlanRequest, mechanism: Mechanism) -> None:
    """Check that one round's step, measured by itself, says something of the run."""
    described = mechanism.description
    if described.correlates_rounds:
        why = "that is correlated over rounds"
    elif described.randomizes_clients:
        why = "that each client adds for itself"
    elif described.law != "gaussian":
        why = "that is not Gaussian"
    else:
        return
    raise PlanError(
        f"{request.fresh_noise_for} measures one round's step and composes it as a Gaussian "
        f"mechanism's, but {request.mechanism} has noise {why}; use the kind one_run, which rests "
        "on no such thing"
    )


def _check_everybody(request: PlanRequest) -> None:
    noise_cohort = request.noise_cohort_size or request.cohort_size
    if request.scheme.takes_everybody and noise_cohort != request.population_size:
        raise PlanError(
            f"under full participation the simulated cohort is its whole population, but "
            f"noise_cohort_size is {noise_cohort} and population_size {request.population_size}; "
            "make them equal, or sample by poisson"
        )


def _check_sensitivity(request: PlanRequest, clip_norm: float | None) -> None:
    if request.weighting == "examples":
        raise PlanError(
            "weighting by examples with a private mechanism: a user with many examples would move "
            "the sum by more than clip_norm, and the weights would disclose how many examples a "
            "user has; set weighting: uniform"
        )
    if clip_norm is None or not math.isfinite(clip_norm):
        raise PlanError(
            f"clip_norm is {clip_norm!r} with the private mechanism {request.mechanism}: without a "
            "finite bound one user could move the sum by any amount, and no noise hides that; set "
            "a finite clip_norm, such as 0.1"
        )


def _check_uploads(request: PlanRequest) -> None:
    if request.uploads != ("update",):
        others = [upload for upload in request.uploads if upload != "update"]
        raise PlanError(
            f"the algorithm's clients send {list(request.uploads)}, but only 'update' is clipped "
            f"and noised: {others or 'nothing else'} would reach the server in the clear, or "
            "nothing would be noised; choose an algorithm whose clients send the update alone, "
            "such as fedavg, or the mechanism none"
        )
    if request.batchnorm_layers:
        layers = ", ".join(request.batchnorm_layers)
        raise PlanError(
            f"the model gathers running statistics of users' data in BatchNorm layers ({layers}): "
            "they would reach the server without clipping or noise; replace them by GroupNorm, or "
            "by layers whose statistics are constants, such as torchvision.ops.FrozenBatchNorm2d"
        )
