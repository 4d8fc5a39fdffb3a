"""Notes of a plan's accounting for its statement.

Guarantee: every assumption that a plan makes and a reader might not expect is said: simulated
cohorts, hypothetical populations, the sampler's demands, a useless delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from privacy.statement.statement import nonce_note, round_up, selection_note

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
    """Notes of a plan for the statement, a sentence or two each; none without privacy."""
    if not mechanism.is_private:
        return ()
    notes = [*_simulation_notes(request, noise, simulated, actual)]
    if request.scheme.note:
        notes.append(request.scheme.note)
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
    notes += _publication_notes(request.nonce, request.selected_by)
    notes += plugin_notes(request.plugins)
    for label, setting in (("simulated", simulated), ("actual", actual)):
        notes += delta_notes(setting, f"The {label} delta")
    return tuple(notes)


def example_level_notes(
    setting: Setting, nonce: str | int | None, selected_by: str | None
) -> tuple[str, ...]:
    """Notes of DP-SGD for the statement, a sentence or two each."""
    notes = [
        "The unit is one example: a user who owns several is protected less than that.",
        "Nothing is simulated: simulated and actual epsilon are the same.",
    ]
    if setting.noise_multiplier == 0.0:
        notes.append("The noise multiplier is 0: there is no guarantee.")
    notes += _publication_notes(nonce, selected_by)
    notes += delta_notes(setting, "Delta", "the number of examples", "example")
    return tuple(notes)


def sampling_notes(setting: Setting, as_poisson: float | None) -> tuple[str, ...]:
    """Notes for the statement on how DP-SGD's batches are drawn, a sentence or two each.

    ``as_poisson`` is the epsilon that the steps would have on Poisson samples; None where they are
    such.
    """
    scheme = setting.participation.scheme
    notes = [scheme.note] if scheme.note else []
    if as_poisson is not None:
        notes.append(
            f"Accounted as Poisson samples, which these batches are not, the steps would have "
            f"epsilon {round_up(as_poisson, 4)}: as-published numbers of such batches are often of "
            "that kind, and no proof covers it."
        )
    return tuple(notes)


def plugin_notes(plugins: Mapping[str, str]) -> tuple[str, ...]:
    """Notes for the statement on the user's plug-ins, of their digests by name."""
    if not plugins:
        return ()
    named = ", ".join(f"{name} ({digest})" for name, digest in plugins.items())
    return (
        f"Plug-ins from outside of this package were at hand: {named}. The guarantee rests on "
        "their code too, where the run uses them.",
    )


def _simulation_notes(
    request: PlanRequest, noise: NoiseScale, simulated: Setting, actual: Setting
) -> Iterator[str]:
    if noise.noise_multiplier == 0.0:
        yield "The noise multiplier is 0: there is no guarantee, both epsilons are infinite."
    if noise.ratio != 1.0:
        yield (
            f"The noise of a cohort of {simulated.participation.cohort_size:g} is simulated with "
            f"cohorts of {actual.participation.cohort_size:g}: it is scaled by {noise.ratio:g}, "
            "and only the deployment has the simulated epsilon."
        )
    if request.population_size != request.num_users:
        yield (
            f"The simulated population of {request.population_size} users is hypothetical: the "
            f"data have {request.num_users}."
        )


def _publication_notes(nonce: str | int | None, selected_by: str | None) -> Iterator[str]:
    """Of a run whose noise is pinned, or whose model was chosen."""
    if nonce is not None:
        yield nonce_note(nonce)
    if selected_by is not None:
        yield selection_note(selected_by)


def delta_notes(
    setting: Setting, subject: str, units: str = "the population", unit: str = "user"
) -> Iterator[str]:
    """Say of a delta, called ``subject``, if it is so large that it promises nothing."""
    one = 1.0 / setting.participation.population_size
    if setting.delta is not None and setting.delta >= one:
        yield (
            f"{subject} {setting.delta:.4g} is not below one over {units} ({one:.4g}): publishing "
            f"one {unit} at random would satisfy it."
        )
