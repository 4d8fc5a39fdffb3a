"""Notes that hold for every unit are those that the statements have."""

from __future__ import annotations

import pytest

from privacy.plan.example_level import example_level_statement
from privacy.statement.notes import closing_notes, no_noise_note


@pytest.mark.parametrize("nonce", [None, "pinned"])
@pytest.mark.parametrize("selected_by", [None, "val/accuracy"])
@pytest.mark.parametrize("delta", [1e-5, 0.5])
def test_an_example_level_statement_ends_with_them(
    nonce: str | None, selected_by: str | None, delta: float
) -> None:
    notes = example_level_statement(
        1000, 10, 5, 1.0, 1.0, delta, "rdp", 50, selected_by=selected_by, nonce=nonce
    ).notes
    closing = tuple(closing_notes("example", {"": (delta, 1000)}, nonce, selected_by))
    assert len(closing) == (nonce is not None) + (selected_by is not None) + (delta == 0.5)
    assert notes[len(notes) - len(closing) :] == closing


def test_rounds_without_noise_say_so() -> None:
    notes = example_level_statement(1000, 10, 5, 0.0, 1.0, 1e-5, "rdp", 50).notes
    assert no_noise_note("example") in notes
    assert no_noise_note("user").endswith("both epsilons are infinite.")


def test_both_settings_of_a_plan_are_named() -> None:
    deltas = {"simulated": (1e-9, 1000), "actual": (0.1, 50), "third": (None, 1)}
    (note,) = closing_notes("user", deltas, None, None)
    assert note.startswith("The actual delta 0.1 is not below one over the population (0.02)")
