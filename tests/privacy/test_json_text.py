"""JSON that can be read in one way alone."""

from __future__ import annotations

import time

import pytest

from privacy.json_text import parse


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"epsilon": 0.1, "epsilon": 4.0}', "the key 'epsilon' is there twice"),
        ('[{"a": {"b": 1, "c": 2, "b": 1}}]', "the key 'b' is there twice"),
        ('{"epsilon": NaN}', "NaN is no JSON number"),
        ('{"epsilon": -Infinity}', "-Infinity is no JSON number"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_key_may_be_in_several_objects() -> None:
    assert parse(b'[{"a": 1, "b": {"a": 2}}, {"a": 3}]') == [{"a": 1, "b": {"a": 2}}, {"a": 3}]


def test_a_key_that_is_there_twice_among_many_is_found_at_once() -> None:
    keys = ", ".join(f'"{number}": 0' for number in range(30_000))
    started = time.process_time()
    with pytest.raises(ValueError, match="the key 'last' is there twice"):
        parse(f'{{{keys}, "last": 1, "last": 2}}')
    assert time.process_time() - started < 2  # ten to hundred times what one pass takes
