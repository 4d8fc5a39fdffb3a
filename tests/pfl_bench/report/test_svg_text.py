"""Pictures in few bytes have the same points, texts and titles."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.report.svg_text import relative_path, shorten

NUMBERS = st.floats(-900, 900, allow_nan=False)
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8)


def points_of(path: str) -> list[tuple[float, float]]:
    """Ends of the segments of a path of M, l, q, c and z, as a browser follows them."""
    here = start = (0.0, 0.0)
    found = []
    for command, text in re.findall(r"([Mlqcz])([^Mlqcz]*)", path):
        if command == "z":
            here = start
            continue
        values = [float(number) for number in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", text)]
        pairs = list(zip(values[::2], values[1::2], strict=True))
        if command == "M":
            here = start = pairs.pop()
            found.append(here)
        for pair in pairs[
            {"l": 1, "q": 2, "c": 3}.get(command, 1) - 1 :: {"q": 2, "c": 3}.get(command, 1)
        ]:
            here = (here[0] + pair[0], here[1] + pair[1])
            found.append(here)
    return found


@given(st.lists(st.tuples(POINTS, st.booleans(), st.sampled_from("LQC")), min_size=1, max_size=4))
def test_a_relative_path_has_the_points_of_the_absolute_one(
    parts: list[tuple[list[tuple[float, float]], bool, str]],
) -> None:
    path, ends = "", []
    for points, closes, command in parts:
        repeated = {"L": 1, "Q": 2, "C": 3}[command]
        for place, (x, y) in enumerate(points):
            # Control points lie on the end here.
            text = f"{x:.6f} {y:.6f} " * (repeated if place else 1)
            path += f"{command if place else 'M'} {text}\n"
            ends.append((x, y))
        path += "z\n" if closes else ""
    found = points_of(relative_path(path))
    assert len(found) == len(ends)
    for (x, y), (wanted_x, wanted_y) in zip(found, ends, strict=True):
        assert abs(x - wanted_x) < 0.0501
        assert abs(y - wanted_y) < 0.0501


def test_what_a_reader_sees_is_kept() -> None:
    text = shorten(
        '<svg><g id="a"><path d="M 0 9 L 5 9 z" style="fill: none"/></g><g id="used"><g><title>one'
        '</title><path d="M 1 2 \nL 3 4 \nL 3.06 4 "/></g></g><use href="#used" x="1.2345"/>'
        '<text style="s" x="1" transform="rotate(-0 1 2)">a b</text> <text style="s">c</text>'
        '<text style="s" transform="rotate(-90 1 2)">up</text></svg>'
    )
    assert text == (
        '<svg><g id="used"><g><title>one</title><path d="M1 2l2 2 .1 0"/></g></g>'
        '<use href="#used" x="1.2"/><g style="s"><text x="1">a b</text><text>c</text>'
        '<text transform="rotate(-90 1 2)">up</text></g></svg>'
    )


def test_lines_of_the_grid_are_one_path() -> None:
    line = '<path d="{}" clip-path="url(#c)" style="stroke: var(--grid)"/>'
    text = shorten(line.format("M 0 9 L 5 9") + "<text>a</text>" + line.format("M 0 3 L 5 3"))
    assert text == line.format("M0 9l5 0M0 3l5 0") + "<text>a</text>"
