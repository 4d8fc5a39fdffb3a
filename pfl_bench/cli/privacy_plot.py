"""``pfl-bench privacy table --plot``: epsilon against rounds by each accountant, as one picture."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_bench.cli import privacy_settings as shared
from pfl_bench.federated.accounting import DEFAULT_MECHANISM
from pfl_bench.types import ConfigError
from privacy.errors import PlanError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privacy.amplification import MechanismComposition

FORMATS = (".png", ".svg")
# A curve's points beside the table's, even in the root of the rounds, which epsilon follows; what
# lies between is interpolated in it.
_KNOTS = 5
# PLD's grid there: coarser, which adds less than a line's width.
_COARSE = 10.0
_DOTS_PER_INCH = 150
_PANEL = (5.2, 3.6)
# Two accountants that agree to a line's width: the one below is wide enough to be seen.
_WIDTHS = {"rdp": 1.4, "pld": 2.8, "prv": 1.1}


def check_target(target: Path) -> None:
    """Check that a picture can be written to a path."""
    where = f"pfl-bench privacy table: --plot {target}"
    if target.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"{where}: the name ends in {target.suffix or 'nothing'!r}, but must end in "
            f"{' or '.join(FORMATS)}, which is the format that is written"
        )
    if target.is_dir():
        raise ConfigError(f"{where}: is a folder; give the name of a file")
    if not (nearest := next(path for path in target.parents if path.exists())).is_dir():
        raise ConfigError(f"{where}: {nearest} is no folder; give the name of a file in a folder")


def draw(
    arguments: argparse.Namespace,
    composition: MechanismComposition,
    accountants: Sequence[str],
    target: Path,
) -> None:
    """Draw epsilon against rounds, a panel for each of simulated and actual.

    ``accountants`` are those that can account the setting; ``check_target`` has accepted the path.
    """
    from matplotlib.figure import Figure

    from pfl_bench.report.canvas import DASHES, picture_style, write_figure

    noises = list(dict.fromkeys(arguments.noise_multiplier))
    if len(noises) > len(DASHES):
        raise ConfigError(
            f"pfl-bench privacy table: --plot tells {len(DASHES)} noise multipliers apart at most, "
            f"but {len(noises)} are given; plot fewer at once"
        )
    curves = {
        (noise, name): _curve(arguments, composition, noise, name)
        for noise in noises
        for name in accountants
    }
    sides = shared.sides(arguments)
    with picture_style("privacy"):
        figure = Figure(figsize=(_PANEL[0] * len(sides), _PANEL[1]), layout="constrained")
        panels = figure.subplots(1, len(sides), squeeze=False)[0]
        for axes, side in zip(panels, sides, strict=True):
            _paint(axes, arguments, curves, side)
        handles, labels = panels[0].get_legend_handles_labels()
        # A column a noise multiplier, beside one another where there is one alone.
        columns = len(noises) if len(noises) > 1 else len(labels)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
        mechanism = arguments.mechanism or DEFAULT_MECHANISM
        title = f"Epsilon against rounds: {mechanism}, {arguments.sampling} sampling"
        figure.suptitle(title, fontsize=10)
        about = {"Title": title} | ({"Date": None} if target.suffix.lower() == ".svg" else {})
        target.parent.mkdir(parents=True, exist_ok=True)
        write_figure(figure, target, dpi=_DOTS_PER_INCH, metadata=about)


def _curve(
    arguments: argparse.Namespace, composition: MechanismComposition, noise: float, accountant: str
) -> list[tuple[int, shared.Pair]]:
    """Both settings after some numbers of rounds; those that cannot be accounted are left out."""
    most = max(arguments.rounds)
    grids = dict.fromkeys(arguments.rounds, 1.0)
    for index in range(1, _KNOTS):
        rounds = max(1, round(most * (index / _KNOTS) ** 2))
        near = min(abs(math.sqrt(rounds) - math.sqrt(known)) for known in grids)
        if near > 0.3 * math.sqrt(most) / _KNOTS:
            grids[rounds] = _COARSE
    points = []
    for rounds, coarseness in sorted(grids.items()):
        try:
            pair = shared.make_pair(
                arguments, composition, noise, rounds, accountant, coarseness=coarseness
            )
        except PlanError:
            continue
        points.append((rounds, pair))
    return points


def _smooth(known: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Rounds and epsilons between the points, never above or below both neighbours."""
    from scipy.interpolate import PchipInterpolator

    if len(known) < 2:
        return [rounds for rounds, _ in known], [epsilon for _, epsilon in known]
    roots = [math.sqrt(rounds) for rounds, _ in known]
    curve = PchipInterpolator(roots, [epsilon for _, epsilon in known])
    steps = [roots[0] + (roots[-1] - roots[0]) * step / 100 for step in range(101)]
    return [root**2 for root in steps], [float(curve(root)) for root in steps]


def _paint(
    axes: Axes,
    arguments: argparse.Namespace,
    curves: dict[tuple[float, str], list[tuple[int, shared.Pair]]],
    side: str,
) -> None:
    from matplotlib.ticker import StrMethodFormatter

    from pfl_bench.report.canvas import DASHES, PALETTE
    from privacy.accountant import ACCOUNTANTS
    from privacy.statement.statement import small

    noises = list(dict.fromkeys(noise for noise, _ in curves))
    accounted, infinite = None, []
    for (noise, name), points in curves.items():
        settings = [getattr(pair, side) for _, pair in points]
        accounted = settings[0] if settings else accounted
        known = [
            (rounds, setting.epsilon)
            for (rounds, _), setting in zip(points, settings, strict=True)
            if math.isfinite(setting.epsilon)
        ]
        color = PALETTE[ACCOUNTANTS.index(name)]
        label = name if len(noises) == 1 else f"{name}, noise {noise:g}"
        axes.plot(
            *_smooth(known),
            color=color,
            dashes=DASHES[noises.index(noise)] or (None, None),
            linewidth=_WIDTHS[name],
            label=label,
        )
        if not known:
            infinite.append(label)
        for point in known:
            if point[0] in arguments.rounds:
                axes.plot(*point, "o", color=color, markersize=3, clip_on=False)
    axes.set(xlim=(0, max(arguments.rounds)), ylim=(0, None), xlabel="rounds")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    two = shared.simulates(arguments)
    axes.set_ylabel(f"epsilon ({side})" if two else "epsilon")
    if accounted is not None:
        text = (
            f"{accounted.cohort_size:,} of {accounted.population_size:,} users a round, delta "
            f"{small(accounted.delta)}"
        )
        if len(noises) == 1:
            text += f"\nnoise multiplier {accounted.noise_multiplier:.4g}"
        if infinite:
            text += f"\nno finite epsilon: {', '.join(infinite)}"
        axes.set_title(text, fontsize=8.5, color="#444444")
