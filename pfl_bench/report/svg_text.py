"""SVG in few bytes that looks the same: tenths of a point, relative paths, no idle marks."""

from __future__ import annotations

import re

# Coordinates, in points, of which no screen shows a hundredth.
_ATTRIBUTE = re.compile(r'\s(?:x|y|x1|x2|y1|y2|width|height|points|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"(\d\.\d)\d+")
_PATH = re.compile(r'(?<=\sd=")[^"]*(?=")')
_SEGMENT = re.compile(r"([A-Za-z])([^A-Za-z]*)")
_POINTS_OF = {"M": 1, "L": 1, "Q": 2, "C": 3}
_GRID = re.compile(r'<path d="([^"]*)"( [^<>]*stroke: var\(--grid\)[^<>]*/>)')
_TEXTS = re.compile(
    r'(?:<text style="([^"]*)"[^<>]*>[^<>]*</text>)(?:<text style="\1"[^<>]*>[^<>]*</text>)+'
)
_TAG = re.compile(r"<(/?)([a-zA-Z]+)([^<>]*?)(/?)>(?=(<title>)?)")


def shorten(svg: str) -> str:
    """Write a picture of matplotlib's in few bytes.

    Args:
        svg: One ``svg`` element.
    """
    svg = _ATTRIBUTE.sub(lambda found: _LONG_NUMBER.sub(r"\1", found[0]), svg)
    svg = re.sub(r' transform="rotate\(-?0(\.0)? [^"]*\)"', "", svg)
    svg = _PATH.sub(lambda found: relative_path(found[0]), svg)
    # What has neither line nor area.
    svg = re.sub(r'<path d="[^"]*" style="fill: none"/>\s*', "", svg)
    svg = _without_idle_names(svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = _without_bare_groups(svg)
    svg = _with_one_grid(svg)
    return _TEXTS.sub(_share_style, svg)


def relative_path(path: str) -> str:
    """Write a path by differences in tenths, which do not add up to an error.

    Args:
        path: Of the commands M, L, Q, C and z, absolute.
    """
    written: list[str] = []
    here = start = (0, 0)
    before = ""
    for command, text in _SEGMENT.findall(path):
        if command in "zZ":
            written.append("z")
            here, before = start, ""
            continue
        tenths = [round(10 * float(number)) for number in text.split()]
        points = list(zip(tenths[::2], tenths[1::2], strict=True))
        assert len(points) == _POINTS_OF[command], "matplotlib repeats the command"
        if command == "M":
            # Absolute, so that a path may follow another one.
            here = start = points[0]
            written.append("M" + "".join(map(_number, here)).removeprefix(" "))
            before = ""
            continue
        moved = "".join(_number(p[axis] - here[axis]) for p in points for axis in (0, 1))
        here = points[-1]
        # Numbers that follow a command repeat it.
        repeats = command == before
        written.append(moved if repeats else command.lower() + moved.removeprefix(" "))
        before = command
    return "".join(written)


def _number(tenths: int) -> str:
    """A number with what keeps it apart from the one before."""
    whole, rest = divmod(abs(tenths), 10)
    digits = f"{whole or ''}.{rest}" if rest else str(whole)
    return ("-" if tenths < 0 else " ") + digits


def _without_idle_names(svg: str) -> str:
    """Leave out names that nothing refers to, and empty groups."""
    used = set(re.findall(r"#([^\s\"')]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    return re.sub(r"<g/>\n?", "", svg)


def _without_bare_groups(svg: str) -> str:
    """Leave out groups that neither say nor change anything, and keep what is in them."""
    bare: list[bool] = []

    def keep(found: re.Match[str]) -> str:
        closes, name, attributes, is_empty, title = found.groups()
        if name != "g" or is_empty:
            return found[0]
        if not closes:
            bare.append(not attributes.strip() and not title)
            return "" if bare[-1] else found[0]
        return "" if bare.pop() else found[0]

    return _TAG.sub(keep, svg)


def _with_one_grid(svg: str) -> str:
    """Make one path of the grid's lines; they lie below all else."""
    lines: dict[str, list[str]] = {}
    for path, rest in _GRID.findall(svg):
        lines.setdefault(rest, []).append(path)

    def join(found: re.Match[str]) -> str:
        paths = lines.pop(found[2], None)
        return "" if paths is None else f'<path d="{"".join(paths)}"{found[2]}'

    return _GRID.sub(join, svg)


def _share_style(found: re.Match[str]) -> str:
    texts = found[0].replace(f'<text style="{found[1]}"', "<text")
    return f'<g style="{found[1]}">{texts}</g>'
