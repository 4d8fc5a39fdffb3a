"""What a reader should know of a plan's accounting, for its statement.

Guarantee: every assumption that a plan makes and a reader might not expect is said: simulated
cohorts, hypothetical populations, the sampler's demands, a useless delta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.statement.statement import nonce_note, selection_note

if TYPE_CHECKING:
    from privacy.mechanism import Mechanism, NoiseScale
    from privacy.plan.types import PlanRequest, Setting


def plan_notes(
    request: PlanRequest,
    mechanism: Mechanism,
    noise: NoiseScale,
    simulated: Setting,
    actual: Setting,
) -> tuple[str, ...]:
    """What the statement says of a plan in words, a sentence or two each.

    Args:
        request: What is planned.
        mechanism: The mechanism; one without privacy has nothing to note.
        noise: Its scale.
        simulated: The deployment that is simulated.
        actual: The run itself.
    """
    if not mechanism.is_private:
        return ()
    notes = []
    if noise.noise_multiplier == 0.0:
        notes.append(
            "The noise multiplier is 0: there is no guarantee, both epsilons are infinite."
        )
    if noise.ratio != 1.0:
        notes.append(
            f"The noise of a cohort of {simulated.participation.cohort_size:g} is simulated with "
            f"cohorts of {actual.participation.cohort_size:g}: it is scaled by {noise.ratio:g}, "
            "and only the deployment has the simulated epsilon."
        )
    if request.population_size != request.num_users:
        notes.append(
            f"The simulated population of {request.population_size} users is hypothetical: the "
            f"data have {request.num_users}."
        )
    if request.scheme == "fixed_size":
        notes.append(
            "Cohorts have a fixed size: adjacency is replace-one, the population size is public, "
            "and the sum's sensitivity is twice clip_norm."
        )
    if request.scheme == "full":
        notes.append("Every user takes part in every round: sampling amplifies nothing.")
    if request.scheme == "cyclic_poisson":
        notes.append(
            f"Users belong to {request.separation} groups that take turns: no user is in two "
            f"rounds less than {request.separation} apart. A deployment must enforce it."
        )
    if request.scheme == "selected":
        cap = f"at most {request.max_participations}"
        if request.max_participations is None:
            cap = "any number of" if request.separation == 1 else "as many as fit"
        notes.append(
            f"Devices and a selector decide who takes part: no chance is accounted. A user is in "
            f"{cap} rounds, each two at least {request.separation} apart, which the selector "
            "enforces. Who takes part when is taken as public."
        )
    if mechanism.description.randomizes_clients:
        notes.append(
            "Clients add the noise themselves: the guarantee holds against the server too, for "
            "any two values of a user's data; that a user takes part is no secret."
        )
    if request.num_canaries:
        notes.append(
            f"{request.num_canaries} canary clients are added to audit the run: they move the "
            "model, so that its utility is not that of a run without them."
        )
    if request.artificial_users:
        notes.append(
            "The users of these data are artificial: a guarantee for one of them protects no "
            "person."
        )
    if request.nonce is not None:
        notes.append(nonce_note(request.nonce))
    if request.selected_by is not None:
        notes.append(selection_note(request.selected_by))
    for label, setting in (("simulated", simulated), ("actual", actual)):
        population = setting.participation.population_size
        if setting.delta is not None and setting.delta >= 1.0 / population:
            notes.append(
                f"The {label} delta {setting.delta:.4g} is not below one over the population "
                f"({1.0 / population:.4g}): publishing one user at random would "
                "satisfy it."
            )
    return tuple(notes)
