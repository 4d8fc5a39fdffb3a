"""Notes that a statement of either unit ends with: pinned noise, selection, a large delta."""

from __future__ import annotations

import pytest

from privacy.plan.budget import Budget
from privacy.plan.example_level import ExampleLevelRequest, make_example_level_plan
from privacy.statement.statement import nonce_note, selection_note


def notes(noise: float = 1.0, delta: float = 1e-5, **options: str | None) -> tuple[str, ...]:
    request = ExampleLevelRequest(
        1000, 10, 5, 1.0, Budget(None, noise, delta, "rdp"), 50, **options
    )
    return make_example_level_plan(request).statement(5, "planned").notes


@pytest.mark.parametrize("nonce", [None, "pinned"])
@pytest.mark.parametrize("selected_by", [None, "val/accuracy"])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_each_is_there_where_it_applies(
    nonce: str | None, selected_by: str | None, delta: float
) -> None:
    told = notes(delta=delta, nonce=nonce, selected_by=selected_by)
    assert (nonce_note("pinned") in told) == (nonce is not None)
    assert (selection_note("val/accuracy") in told) == (selected_by is not None)
    large = [note for note in told if "is not below one over the number of examples" in note]
    assert len(large) == (delta == 1e-3)


def test_steps_without_noise_say_so() -> None:
    assert any("there is no guarantee" in note for note in notes(noise=0.0))
    assert not any("there is no guarantee" in note for note in notes())
