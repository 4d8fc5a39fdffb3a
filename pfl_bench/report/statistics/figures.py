"""Figures of what every store has: sizes of users, quantity skew, labels; and their PNG files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from pfl_bench.report.canvas import picture_style, write_figure
from pfl_bench.report.statistics.text import parts_of
from pfl_bench.types import DataError

_DOTS_PER_INCH = 150
_CHARACTERS_PER_INCH = 14
_MOST_BARS = 70
_ALL = "all splits"
_GREY = "#777777"
# Splits often lie on one another; a dash lets the lower line through.
_STYLES = ("solid", "dashed", "dotted", "dashdot")


def store_figures(statistics: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw "examples_per_user", "quantity_skew" and, of integer targets, "labels"."""
    parts = parts_of(statistics, _ALL)
    figures = {
        "examples_per_user": _examples_per_user(statistics["size_histogram"]),
        "quantity_skew": _quantity_skew(parts),
    }
    name = _ALL if _ALL in parts else next(iter(parts))
    if parts[name]["labels"] and parts[name]["labels"]["counts"]:
        figures["labels"] = _labels(parts[name]["labels"], name, statistics["facts"])
    return figures


def _examples_per_user(histogram: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(6.4, 4.0))
    axes = figure.add_subplot()
    edges = histogram["edges"]
    for number, (name, users) in enumerate(histogram["users"].items()):
        # Without a floor, a step down to no users would leave the picture on a logarithmic axis.
        heights, style = np.maximum(users, 0.5), _STYLES[number % len(_STYLES)]
        axes.stairs(heights, edges, baseline=0.5, label=name, linewidth=1.7, linestyle=style)
    if histogram["logarithmic"]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_whole_numbers())
    axes.set(yscale="log", ylim=(0.5, None), title="Examples per user", ylabel="users in the bin")
    axes.yaxis.set_major_formatter(_whole_numbers())
    growing = " (wider bins for larger users)" if histogram["logarithmic"] else ""
    axes.set_xlabel(f"examples of a user{growing}")
    axes.legend()
    return figure


def _whole_numbers() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 or not value else "")


def _quantity_skew(parts: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(5.4, 4.6))
    axes = figure.add_subplot()
    for name, part in parts.items():
        skew = part["quantity_skew"]
        label = f"{name}: the largest {skew['largest_share']:.1%} of users hold half"
        wide = 2.4 if name == _ALL else 1.4
        axes.plot(skew["curve"]["users"], skew["curve"]["examples"], label=label, linewidth=wide)
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle="dashed", label="no skew")
    axes.set(xlim=(0, 1), ylim=(0, 1.01), title="Quantity skew")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel="share of users, the largest first", ylabel="share of examples that they hold")
    axes.legend(loc="lower right")
    return figure


def _labels(labels: Mapping[str, Any], name: str, facts: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(8.0, 6.0))
    top, bottom = figure.subplots(2, 1, sharex=True)
    _bars_or_ranks(top, labels["counts"], facts)
    top.set(title=f"Labels ({name})", ylabel="occurrences")
    top.yaxis.set_major_formatter(_whole_numbers())
    _bars_or_ranks(bottom, labels["share_of_users"], facts)
    bottom.set_ylabel("share of users who have it")
    bottom.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    bars = facts["num_classes"] <= _MOST_BARS
    bottom.set_xlabel("class" if bars else "rank of the class, the commonest first")
    return figure


def _bars_or_ranks(axes: Axes, values: Mapping[str, float], facts: Mapping[str, Any]) -> None:
    """A bar a class, in the order of classes; with many classes values over ranks."""
    count = facts["num_classes"]
    if count > _MOST_BARS:
        ranked = sorted(values.values(), reverse=True)
        axes.semilogy(range(1, len(ranked) + 1), ranked, ".", markersize=3)
        return
    axes.bar(range(count), [values.get(str(label), 0) for label in range(count)])
    axes.set_xlim(-0.6, count - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=24, integer=True))
    names = facts.get("class_names")
    if names:
        axes.set_xticks(range(count), names, rotation=90)


def make_folder(folder: Path) -> None:
    """Make the folder of the pictures if it is not there; DataError if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataError(
            f"--plots {folder}: there is a file of that name or on the way to it; give the name of "
            "a folder, which is made if it is missing"
        ) from None
    except OSError as error:
        raise DataError(
            f"--plots {folder}: the folder cannot be made ({error.strerror or error}); give one "
            "where you may write"
        ) from None


def write_pictures(
    figures: Mapping[str, Figure], folder: Path, heading: str, notice: str | None
) -> list[Path]:
    """Write each figure to ``folder/NAME.png``, with a heading above and a notice in red below."""
    paths = []
    for name, figure in figures.items():
        width = int(figure.get_figwidth() * _CHARACTERS_PER_INCH)
        figure.suptitle(textwrap.fill(heading, width), fontsize=8, color="#555555")
        if notice:
            figure.supxlabel(textwrap.fill(notice, width), fontsize=10, color="#b00020")
        figure.set_layout_engine("constrained")
        paths.append(folder / f"{name}.png")
        with picture_style():
            about = {"Title": heading, "Description": notice or ""}
            write_figure(figure, paths[-1], dpi=_DOTS_PER_INCH, metadata=about)
    return paths
