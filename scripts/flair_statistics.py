#!/usr/bin/env python
"""FLAIR's own statistics, of a prepared store: the paper's section 4.2 and figures 2 and 3.

    python scripts/flair_statistics.py flair.h5 --plots plots
    python scripts/flair_statistics.py flair.h5 --json --no-emd

They come after those of ``pfl-bench data stats flair.h5``: as text, as "task_statistics" of the
JSON object, and as further pictures. They are counts of coarse and fine labels, users by label, and
the earth mover's distance of users' pixel histograms beside those of random partitions, for which
every image of one label is decoded (``scripts/flair/distances.py`` has the definition). A store
that holds all of FLAIR is compared with the published numbers.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flair import figures
from flair.distances import compare_partitions, find_images, pixel_histograms, summarise
from flair.labels import (
    DESCRIPTION,
    LabelCounts,
    compare,
    count_labels,
    describe,
)

from pfl_bench.cli.arguments import add, add_json
from pfl_bench.cli.speech import answer, answer_json, say
from pfl_bench.data import Store
from pfl_bench.report import statistics as general
from pfl_bench.report.canvas import picture_style
from pfl_bench.report.statistics.figures import make_folder, store_figures, write_pictures
from pfl_bench.report.statistics.store import quantity_skew
from pfl_bench.types import ConfigError, DataError, UserInputError

NOTICE = "generated pictures, not FLAIR"
# Variants that hold all of FLAIR's metadata; "flair-pixels" has its images encoded anew.
_WHOLE = ("flair", "flair-pixels")
_FIELDS = ("image", "coarse", "fine", "image_id")
_SHOWN_FINE = 20


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for that of the process."""
    parser = argparse.ArgumentParser(description="FLAIR's own statistics of a prepared store.")
    add(parser, "file FILE.h5", "what pfl-bench data prepare flair wrote", type=Path)
    add_json(parser)
    add(parser, "--plots DIR", "also draw them, as PNG files in DIR", type=Path)
    add(
        parser,
        "--no-emd",
        "decode no image: no earth mover's distances",
        dest="emd",
        action="store_false",
    )
    add(parser, "--emd-label NAME", "coarse label of the images (default: the commonest)")
    add(
        parser,
        "--emd-histogram",
        "a histogram a channel and the mean of three distances (default), or one of the luminance",
        choices=("rgb", "luminance"),
        default="rgb",
    )
    add(
        parser,
        "--emd-users N",
        "so many users alone, drawn at random, with all their images",
        type=_whole(1),
    )
    add(
        parser,
        "--emd-partitions N",
        "random partitions of each kind to compare with (default: 5)",
        type=_whole(1, 1000),
        default=5,
    )
    add(parser, "--seed N", "draws users and partitions (default: 0)", type=_whole(0), default=0)
    add(
        parser,
        "--threads N",
        "threads that decode (default: as many as there are processors)",
        type=_whole(1, 256),
    )
    return parser.parse_args(arguments)


def _whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """A type of argparse: whole numbers of a range."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            allowed = f"{least} to {most}" if most < math.inf else f"at least {least}"
            raise argparse.ArgumentTypeError(f"{value} is not allowed: {allowed}")
        return value

    return number


def statistics(store: Store, given: argparse.Namespace) -> dict[str, Any]:
    """Compute FLAIR's own statistics over all splits together, JSON-serialisable.

    ``given`` is what ``parse`` gives.

    Returns:
        - "notice": what must be said wherever the data are shown; None for FLAIR itself;
        - "images", "users";
        - "coarse", "fine": as ``LabelCounts.as_json``;
        - "described": ``describe`` of the labels of an image, the images of a user and the
          distinct labels of a user;
        - "largest_share": that of ``quantity_skew``;
        - "emd": None without images, else as ``summarise`` with "label", "histogram", "images",
          "users", "draws" and "seed";
        - "published": rows of ``compare`` if the store holds all of FLAIR, else None.

    Raises:
        DataError: The store is no FLAIR store, is damaged, or an image cannot be decoded.
        ConfigError: ``--emd-label`` is not a coarse label of the store.
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
    if given.emd_label is not None and given.emd_label not in names:
        raise ConfigError(
            f"--emd-label {given.emd_label}: {store.path} has no such coarse label; there are: "
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
        "largest_share": quantity_skew(sizes)["largest_share"],
        "emd": _distances(store, coarse, given) if given.emd else None,
    }
    whole = store.facts.variant in _WHOLE and not extra.get("generated")
    return {**result, "published": compare(result) if whole else None}


def _distances(
    store: Store, coarse: LabelCounts, given: argparse.Namespace
) -> dict[str, Any] | None:
    names: list[str] = store.facts.extra["coarse_labels"]
    label = int(coarse.images.argmax())
    if given.emd_label is not None:
        label = names.index(given.emd_label)
    if not coarse.images[label]:
        return None
    rng = np.random.default_rng(given.seed)
    images = find_images([store.split(name) for name in store.split_names], label)
    if given.emd_users is not None:
        images = images.some_users(given.emd_users, rng)
    pixels = pixel_histograms(images, given.emd_histogram, given.threads)
    compared = compare_partitions(pixels, images.bounds, given.emd_partitions, rng)
    return {
        "label": names[label],
        "histogram": given.emd_histogram,
        "images": len(images.places),
        "users": len(images.bounds) - 1,
        "draws": given.emd_partitions,
        "seed": given.seed,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, or write as JSON, what is in the store; draw it, if a folder is given."""
    given = parse(arguments)
    try:
        with Store(given.file) as store:
            if given.plots is not None:
                # Before the work, so that a wrong DIR is told at once.
                make_folder(given.plots)
            result = general.store_statistics(store)
            result["task_statistics"] = own = statistics(store, given)
        if given.plots is not None:
            result["plots"] = [str(path) for path in _plot(result, given.plots)]
    except UserInputError as error:
        say(f"flair_statistics: {error}")
        return 2
    if given.json:
        answer_json(result)
    else:
        answer(f"{general.format_statistics(result)}\n\n{format_statistics(own)}")
    for path in result.get("plots", ()):
        say(f"plot: {path}")
    return 0


def _plot(result: Mapping[str, Any], folder: Path) -> list[Path]:
    facts, own = result["facts"], result["task_statistics"]
    with picture_style():
        drawn = store_figures(result) | figures.figures(own)
    heading = f"{result['task']} ({facts['variant']}): {facts['source']}"
    return write_pictures(drawn, folder, heading, own["notice"])


if __name__ == "__main__":
    sys.exit(main())
