"""Figures of FLAIR's statistics: the paper's figures 2, right, and 3, and users by label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_KINDS = {
    "equal_size": "random users of equal size",
    "real_sizes": "random users of the real sizes",
    "actual": "the real users",
}
_CHANNELS = {"rgb": "mean of red, green and blue", "luminance": "luminance"}


def figures(statistics: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw figures of ``statistics``, by name; "pixel_distances" if there are distances."""
    figures = {
        "coarse_labels": _draw_coarse(statistics),
        "fine_labels": _draw_fine(statistics["fine"]),
        "users_per_label": _draw_users(statistics),
    }
    if statistics["emd"]:
        figures["pixel_distances"] = _draw_distances(statistics["emd"])
    return figures


def _draw_coarse(statistics: Mapping[str, Any]) -> Figure:
    counts = statistics["coarse"]["counts"]
    figure = Figure(figsize=(6.4, 0.9 + 0.26 * len(counts)))
    axes = figure.add_subplot()
    _draw_bars(axes, counts, ",", "C0")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title("Coarse labels")
    axes.set_xlabel(f"images that have the label, of {statistics['images']:,}")
    return figure


def _draw_bars(axes: Axes, values: Mapping[str, float], written: str, color: str) -> None:
    """Draw a bar a name, the first on top, with its value in the format ``written``."""
    bars = axes.barh(range(len(values)), list(values.values()), color=color)
    axes.bar_label(bars, [format(v, written) for v in values.values()], padding=3, fontsize=8)
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12, y=0.02)


def _draw_fine(fine: Mapping[str, Any]) -> Figure:
    names = list(fine["counts"])
    counts = [count for count in fine["counts"].values() if count]
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.add_subplot()
    axes.semilogy(range(1, len(counts) + 1), counts, "o", markersize=3)
    for place in sorted({0, len(counts) // 8, len(counts) // 3, len(counts) - 1}):
        # The dots fall: to the right it is free above them, to the left below them.
        last = place == len(counts) - 1
        axes.annotate(
            f"{names[place]} ({counts[place]:,})",
            (place + 1, counts[place]),
            xytext=(0, -6) if last else (5, 3),
            textcoords="offset points",
            ha="right" if last else "left",
            va="top" if last else "bottom",
            fontsize=8,
        )
    axes.margins(y=0.12)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title(f"Fine labels: {len(counts):,} that occur, of {len(names):,}")
    axes.set_xlabel("rank of the label, the commonest first")
    axes.set_ylabel("images that have the label")
    return figure


def _draw_users(statistics: Mapping[str, Any]) -> Figure:
    coarse, fine = statistics["coarse"]["share_of_users"], statistics["fine"]["share_of_users"]
    figure = Figure(figsize=(9.6, 4.8))
    left, right = figure.subplots(1, 2)
    _draw_bars(left, dict(sorted(coarse.items(), key=lambda item: -item[1])), ".1%", "C2")
    left.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    left.set_title("Users who have a coarse label")
    left.set_xlabel(f"share of the {statistics['users']:,} users")
    ranked = sorted((share for share in fine.values() if share), reverse=True)
    right.semilogy(range(1, len(ranked) + 1), ranked, "o", markersize=3, color="C2")
    right.axhline(0.001, color="#777777", linewidth=1, linestyle="dashed")
    # At the right edge, where the dots are below the line already.
    right.text(
        0.99,
        0.00105,
        f"0.1% of users: {statistics['fine']['rare']:,} of {len(fine):,} labels are below",
        transform=right.get_yaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=8,
    )
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    right.set_title("Users who have a fine label")
    right.set_xlabel("rank of the label, the most widespread first")
    right.set_ylabel(f"share of the {statistics['users']:,} users")
    return figure


def _draw_distances(emd: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(6.8, 4.4))
    axes = figure.add_subplot()
    edges = emd["edges"]
    width = edges[1] - edges[0]
    for number, (kind, label) in enumerate(_KINDS.items()):
        values = emd["partitions"][kind]
        density = [share / width for share in values["share"]]
        color = ("C0", "C2", "C3")[number]
        axes.stairs(
            density, edges, color=color, linewidth=1.7, label=f"{label}: mean {values['mean']:.1f}"
        )
        axes.axvline(values["mean"], color=color, linewidth=1, linestyle="dotted")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.set_title(
        f"Pixel histograms of {emd['users']:,} users: distance from the average one\n"
        f"({emd['images']:,} images with {emd['label']}; {_CHANNELS[emd['histogram']]})"
    )
    axes.set_xlabel("earth mover's distance (grey levels, 0 to 255)")
    axes.set_ylabel("density of users (per grey level)")
    axes.legend(loc="upper right")
    return figure
