"""Notes of a statement that hold for every unit: no noise, pinned noise, selection, a large delta.

Guarantee: none of its own; what a reader of any statement might not expect is said in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from privacy.statement.statement import nonce_note, selection_note


def no_noise_note(unit: str) -> str:
    """What a reader should know of rounds without noise."""
    infinite = ", both epsilons are infinite" if unit == "user" else ""
    return f"The noise multiplier is 0: there is no guarantee{infinite}."


def closing_notes(
    unit: str,
    deltas: Mapping[str, tuple[float | None, int]],
    nonce: str | int | None,
    selected_by: str | None,
) -> Iterator[str]:
    """What every statement says at the end of its notes, as far as it applies.

    Args:
        unit: "user" or "example".
        deltas: Delta (None without privacy) and population of each setting, by its label; the
            label is empty where there is one setting alone.
        nonce: What pins the noise; None for a run's own noise.
        selected_by: Metric by which one of the models is chosen; None for the last one.
    """
    if nonce is not None:
        yield nonce_note(nonce)
    if selected_by is not None:
        yield selection_note(selected_by)
    over = "the population" if unit == "user" else f"the number of {unit}s"
    for label, (delta, population) in deltas.items():
        if delta is not None and delta >= 1.0 / population:
            yield (
                f"{f'The {label} delta' if label else 'Delta'} {delta:.4g} is not below one over "
                f"{over} ({1.0 / population:.4g}): publishing one {unit} at random would satisfy "
                "it."
            )
