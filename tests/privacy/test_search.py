"""The search finds the last whole number within the budget, whatever the curve."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from privacy.search import last_within


@settings(max_examples=200, derandomize=True)
@given(
    power=st.floats(min_value=0.2, max_value=6.0),
    last=st.integers(min_value=0, max_value=10**6),
    guess=st.integers(min_value=-5, max_value=10**7),
    falling=st.booleans(),
)
def test_it_is_the_last_one_in_few_steps(
    power: float, last: int, guess: int, falling: bool
) -> None:
    limit, tried = 10**6, []

    def epsilon_of(number: int) -> float:
        tried.append(number)
        assert 0 < number <= limit
        return float(((limit + 1 - number) if falling else number) ** power)

    good, bad = (limit + 1, 0) if falling else (0, limit + 1)
    target = float(max(last, 0.5) ** power)
    answer = last_within(epsilon_of, target, guess, good, bad)
    assert answer == (limit + 1 - last if falling else last)
    assert len(tried) < 60


@pytest.mark.parametrize("guess", [1, 40, 100])
def test_a_step_from_nothing_to_infinity(guess: int) -> None:
    # As RDP's bound has one: 0 up to some number of users, and far above it beyond.
    def epsilon_of(number: int) -> float:
        return 0.0 if number <= 40 else math.inf

    assert last_within(epsilon_of, 1.0, guess, 0, 101) == 40


def test_the_ends_are_returned_untried() -> None:
    assert last_within(lambda _: 2.0, 1.0, 5, 0, 11) == 0
    assert last_within(lambda _: 1.0, 1.0, 5, 0, 11) == 10
    assert last_within(lambda _: 1.0, 1.0, 5, 3, 4) == 3
