"""Statistics of the FLAIR paper's section 4.2 and figures 2 and 3, of a prepared store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError
from tasks.common.options import StrictOptions
from tasks.common.progress import Progress
from tasks.flair.statistics_emd import (
    Channels,
    compare_partitions,
    find_images,
    pixel_histograms,
    summarise,
)
from tasks.flair.statistics_labels import (
    DESCRIPTION,
    LabelCounts,
    compare,
    count_labels,
    describe,
    largest_share,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTICE = "generated pictures, not FLAIR"
# Variants that hold all of FLAIR's metadata; "flair-pixels" has its images encoded anew.
_WHOLE = ("flair", "flair-pixels")
_FIELDS = ("image", "coarse", "fine", "image_id")
_SHOWN_FINE = 20
_KINDS = {
    "equal_size": "random users of equal size",
    "real_sizes": "random users of the real sizes",
    "actual": "the real users",
}
_CHANNELS = {"rgb": "mean of red, green and blue", "luminance": "luminance"}


class Options(StrictOptions):
    """Options of FLAIR's statistics.

    Attributes:
        emd: Whether to decode the images of one label and compute earth mover's distances.
        emd_label: Coarse label of these images; None for the commonest.
        emd_histogram: "rgb" takes a histogram a channel and the mean of three distances,
            "luminance" one of the images' luminance.
        emd_users: Take only so many users, drawn at random, with all their images; None for all.
        emd_partitions: Random partitions of each kind to compare with.
        seed: Draws users and partitions.
        threads: Threads that decode; None for as many as there are processors.
    """

    emd: bool = True
    emd_label: str | None = None
    emd_histogram: Channels = "rgb"
    emd_users: int | None = Field(default=None, ge=1)
    emd_partitions: int = Field(default=5, ge=1, le=1000)
    seed: int = Field(default=0, ge=0)
    threads: int | None = Field(default=None, ge=1, le=256)


def statistics(store: Store, options: Options, progress: Progress) -> dict[str, Any]:
    """Compute FLAIR's own statistics over all splits together, JSON-serialisable.

    Returns:
        - "notice": what must be said wherever the data are shown; None for FLAIR itself;
        - "images", "users";
        - "coarse", "fine": as ``LabelCounts.as_json``;
        - "described": ``describe`` of the labels of an image, the images of a user and the
          distinct labels of a user;
        - "largest_share": ``largest_share``;
        - "emd": None without images, else as ``summarise`` with "label", "histogram", "images",
          "users", "draws" and "seed";
        - "published": rows of ``compare`` if the store holds all of FLAIR, else None.

    Raises:
        DataError: The store is no FLAIR store, is damaged, or an image cannot be decoded.
        ConfigError: ``emd_label`` is not a coarse label of the store.
    """
    extra = store.facts.extra
    missing = [name for name in _FIELDS if name not in store.fields]
    missing += [name for name in ("coarse_labels", "fine_labels") if name not in extra]
    if missing:
        raise DataError(
            f"{store.path}: {', '.join(missing)} missing, so this is no store that "
            "`pfl-bench data prepare flair` wrote; prepare it again"
        )
    names: list[str] = extra["coarse_labels"]
    if options.emd_label is not None and options.emd_label not in names:
        raise ConfigError(
            f"emd_label={options.emd_label}: {store.path} has no such coarse label; there are: "
            f"{', '.join(names)}"
        )
    splits = [store.split(name) for name in store.split_names]
    sizes = np.concatenate([np.diff(split.offsets) for split in splits])
    coarse = count_labels(splits, "coarse", len(names))
    fine = count_labels(splits, "fine", len(extra["fine_labels"]))
    result = {
        "notice": NOTICE if extra.get("generated") else None,
        "images": int(sizes.sum()),
        "users": len(sizes),
        "coarse": coarse.as_json(names),
        "fine": fine.as_json(extra["fine_labels"]),
        "described": {
            "coarse labels of an image": describe(coarse.per_image),
            "fine labels of an image": describe(fine.per_image),
            "images of a user": describe(sizes),
            "distinct coarse labels of a user": describe(coarse.per_user),
            "distinct fine labels of a user": describe(fine.per_user),
        },
        "largest_share": largest_share(sizes),
        "emd": _distances(store, coarse, options, progress) if options.emd else None,
    }
    whole = store.facts.variant in _WHOLE and not extra.get("generated")
    return {**result, "published": compare(result) if whole else None}


def _distances(
    store: Store, coarse: LabelCounts, options: Options, progress: Progress
) -> dict[str, Any] | None:
    names: list[str] = store.facts.extra["coarse_labels"]
    label = int(coarse.images.argmax())
    if options.emd_label is not None:
        label = names.index(options.emd_label)
    if not coarse.images[label]:
        return None
    rng = np.random.default_rng(options.seed)
    images = find_images([store.split(name) for name in store.split_names], label)
    if options.emd_users is not None:
        images = images.some_users(options.emd_users, rng)
    pixels = pixel_histograms(images, options.emd_histogram, options.threads, progress)
    compared = compare_partitions(pixels, images.bounds, options.emd_partitions, rng, progress)
    return {
        "label": names[label],
        "histogram": options.emd_histogram,
        "images": len(images.places),
        "users": len(images.bounds) - 1,
        "draws": options.emd_partitions,
        "seed": options.seed,
        **summarise(compared),
    }


def format_statistics(statistics: Mapping[str, Any]) -> str:
    """Lay out what ``statistics`` gives as plain text, without a trailing newline."""
    coarse, fine = statistics["coarse"], statistics["fine"]
    lines = [statistics["notice"].upper()] if statistics["notice"] else []
    lines.append(f"{len(coarse['counts'])} coarse labels (images that have it, share of users)")
    lines += _label_lines(coarse, None)
    lines += [
        "",
        f"{len(fine['counts']):,} fine labels, {fine['rare']:,} of them on less than 0.1% of users",
        *_label_lines(fine, _SHOWN_FINE),
        "",
        f"{'':33}" + "".join(f"{part:>10}" for part in DESCRIPTION) + "  (std: sample)",
    ]
    for name, values in statistics["described"].items():
        shown = ("-" if values[part] is None else f"{values[part]:.6g}" for part in DESCRIPTION)
        lines.append(f"{name:33}" + "".join(f"{value:>10}" for value in shown))
    if statistics["emd"]:
        lines += ["", *_distance_lines(statistics["emd"])]
    if statistics["published"]:
        differ = [row for row in statistics["published"] if not row["agrees"]]
        total = len(statistics["published"])
        lines += ["", f"{total - len(differ)} of {total} published numbers agree"]
        lines += [
            f"  {row['quantity']}: {row['here']} here, {row['published']} published"
            for row in differ
        ]
    return "\n".join(lines)


def _label_lines(level: Mapping[str, Any], most: int | None) -> list[str]:
    counts = list(level["counts"].items())
    lines = [
        f"  {name:24} {count:>9,} {level['share_of_users'][name]:>8.2%}"
        for name, count in counts[:most]
    ]
    rest = len(counts) - len(lines)
    return lines + ([f"  and {rest:,} more"] if rest else [])


def _distance_lines(emd: Mapping[str, Any]) -> list[str]:
    kinds = emd["partitions"]
    lines = [
        "earth mover's distance of users' pixel histograms from the average one, grey levels",
        f"({emd['images']:,} images with {emd['label']} of {emd['users']:,} users, "
        f"{emd['histogram']}; random partitions drawn {emd['draws']} times, seed {emd['seed']})",
        f"{'partition':12}"
        + "".join(f"{name:>8}" for name in ("mean", "sd"))
        + "".join(f"{'p' + rank:>8}" for rank in kinds["actual"]["percentiles"]),
    ]
    for kind, values in kinds.items():
        numbers = (values["mean"], values["sd"], *values["percentiles"].values())
        lines.append(f"{kind:12}" + "".join(f"{number:>8.2f}" for number in numbers))
    return lines


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
    from matplotlib.figure import Figure

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
    from matplotlib.figure import Figure

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
    from matplotlib.figure import Figure

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
    from matplotlib.figure import Figure

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
