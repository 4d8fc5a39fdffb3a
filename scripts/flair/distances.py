"""Earth mover's distance of users' pixel histograms: FLAIR's figure 2, right.

Neither the paper nor the published notebooks say what exactly a pixel histogram is, so this is our
definition. An image's histogram has 256 bins a channel and sums to one a channel, so that every
image weighs the same whatever its size. A user's histogram is the mean of those of the user's
images, the population's that of all images. The distance of a user is that of the two
distributions over 0..255 in one dimension, sum over v of |F_user(v) - F_population(v)| with F the
cumulated histogram, in grey levels; with three channels it is the mean of the three.
Only images with one coarse label count, as in the paper.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from flair.labels import blocks_of_users
from pfl_bench.data import StoreSplit
from pfl_bench.types import DataError
from tasks.common.vision.pictures import PictureError, opened

Channels = Literal["rgb", "luminance"]

LEVELS = 256
# Rec. ITU-R BT.601: what JPEG calls luminance.
_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_DECODED_AT_ONCE = 64
_SUMMED_AT_ONCE = 1 << 12
_READ_EXAMPLES = 1 << 15


@dataclass(frozen=True)
class LabelledImages:
    """The images of one label, user by user.

    Attributes:
        splits: Where they are.
        places: Shape (n, 2), int64: split and example within the split, in ascending order.
        bounds: Shape (U + 1,): user u owns the images ``bounds[u]:bounds[u + 1]``, at least one;
            users without an image of the label are left out.
    """

    splits: tuple[StoreSplit, ...]
    places: NDArray[np.int64]
    bounds: NDArray[np.int64]

    def some_users(self, count: int, rng: np.random.Generator) -> LabelledImages:
        """Keep ``count`` random users with all their images; everyone if there are fewer."""
        users = len(self.bounds) - 1
        if count >= users:
            return self
        chosen = np.sort(rng.choice(users, count, replace=False))
        sizes = np.diff(self.bounds)
        kept = np.repeat(np.isin(np.arange(users), chosen), sizes)
        return LabelledImages(self.splits, self.places[kept], bounds_of(sizes[chosen]))


def bounds_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Beginnings and ends of users of these sizes, shape (U + 1,)."""
    return np.concatenate([[0], np.cumsum(sizes)])


def find_images(splits: Sequence[StoreSplit], label: int) -> LabelledImages:
    """Find the images that have a coarse label, in splits of different users."""
    places, sizes = [], []
    for number, split in enumerate(splits):
        has = np.concatenate(
            [
                [label in labels for labels in split.read("coarse", start, stop)]
                for start, stop in _ranges(split.num_examples, _READ_EXAMPLES)
            ]
        )
        found = np.flatnonzero(has)
        places.append(np.stack([np.full_like(found, number), found], axis=1))
        owners = np.searchsorted(split.offsets, found, side="right") - 1
        sizes.append(np.unique(owners, return_counts=True)[1])
    return LabelledImages(tuple(splits), np.concatenate(places), bounds_of(np.concatenate(sizes)))


def _ranges(count: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def pixel_histograms(
    images: LabelledImages, channels: Channels, threads: int | None
) -> NDArray[np.float32]:
    """Decode the images, once each, and count their pixels.

    ``images`` are n; "luminance" is 0.299 R + 0.587 G + 0.114 B; ``threads`` decode, None for as
    many as there are processors.

    Returns:
        Shape (n, C, 256), float32, each of the C histograms sums to one: 3 kB an image of "rgb",
        704 MB for the 228,923 images of FLAIR's commonest label.
    """
    count = len(images.places)
    result = np.empty((count, 3 if channels == "rgb" else 1, LEVELS), dtype=np.float32)

    def fill(bounds: tuple[int, int]) -> None:
        _fill(images, channels, bounds[0], result[slice(*bounds)])

    blocks = _ranges(count, _DECODED_AT_ONCE)
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for _ in _shown(pool.map(fill, blocks), "decoding images", len(blocks)):
            pass
    return result


def _shown(steps: Iterable[Any], what: str, total: int) -> Iterator[Any]:
    """Pass on steps of long work, with a bar where standard error is a terminal."""
    console = Console(stderr=True)
    yield from track(steps, what, total, console=console, disable=not sys.stderr.isatty())


def _fill(images: LabelledImages, channels: Channels, first: int, out: NDArray[np.float32]) -> None:
    places = images.places[first : first + len(out)]
    # One read a run of neighbours: images without the label in between are not read.
    steps = np.diff(places, axis=0)
    cuts = np.flatnonzero((steps[:, 0] != 0) | (steps[:, 1] != 1)) + 1
    row = 0
    for run in np.split(places, cuts):
        split, start = images.splits[run[0, 0]], int(run[0, 1])
        for example, encoded in enumerate(split.read("image", start, start + len(run)), start):
            pixels = _decode(encoded, split, example)
            if channels == "luminance":
                grey = np.rint(np.tensordot(_LUMINANCE, pixels.astype(np.float32), axes=1))
                pixels = grey.astype(np.uint8)[None]
            for channel, values in enumerate(pixels):
                counts = np.bincount(values.ravel(), minlength=LEVELS)
                out[row, channel] = counts / values.size
            row += 1


def _decode(encoded: NDArray[np.uint8], split: StoreSplit, example: int) -> NDArray[np.uint8]:
    """Decode an image: shape (3, height, width)."""
    try:
        with opened(encoded.tobytes()) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except PictureError as error:
        (name,) = split.read("image_id", example, example + 1)
        raise DataError(
            f"split {split.name!r}, image {bytes(name).decode(errors='replace')} (example "
            f"{example}) cannot be decoded ({error}). The store is damaged: copy it again or "
            "prepare it again, or leave the distances out with --no-emd."
        ) from error


def distances(
    histograms: NDArray[np.float32],
    bounds: NDArray[np.int64],
    order: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Distance of each user's mean histogram from the mean of all images: shape (U,), 0 to 255.

    ``histograms`` have shape (n, C, 256) and sum to one each. User u owns the images
    ``bounds[u]:bounds[u + 1]``, at least one: of those in place, or of ``order``, shape (n,).
    """
    population = np.cumsum(histograms.mean(axis=0, dtype=np.float64), axis=-1)
    result = np.empty(len(bounds) - 1)
    # Whole users, so that memory is bounded by a block or by the largest user.
    for first, last in blocks_of_users(bounds, _SUMMED_AT_ONCE):
        block = slice(bounds[first], bounds[last])
        rows = histograms[block] if order is None else histograms[order[block]]
        starts = bounds[first:last] - bounds[first]
        sums = np.add.reduceat(rows, starts, axis=0, dtype=np.float64)
        means = sums / np.diff(bounds[first : last + 1])[:, None, None]
        apart = np.abs(np.cumsum(means, axis=-1) - population)
        result[first:last] = apart.sum(axis=-1).mean(axis=-1)
    return result


def compare_partitions(
    histograms: NDArray[np.float32],
    bounds: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
) -> dict[str, NDArray[np.float64]]:
    """Distances under the real partition and under random ones.

    ``histograms`` have shape (n, C, 256), the real users' ``bounds`` shape (U + 1,); of each kind
    there are ``draws`` random partitions, D.

    Returns:
        "actual", shape (1, U): the real users. "equal_size", shape (D, U): the images assigned at
        random to as many users of equal size (within one image). "real_sizes", shape (D, U):
        assigned at random to users of the real sizes.
    """
    users, images = len(bounds) - 1, len(histograms)
    equal = np.arange(users + 1) * images // users
    result = {"actual": distances(histograms, bounds)[None]}
    for kind, own in (("equal_size", equal), ("real_sizes", bounds)):
        drawn = _shown(range(draws), f"random partitions ({kind})", draws)
        result[kind] = np.stack(
            [distances(histograms, own, rng.permutation(images)) for _ in drawn]
        )
    return result


def summarise(compared: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Means, percentiles and histograms of distances.

    ``compared`` is what ``compare_partitions`` gives, of shapes (D, U); a kind's draws are pooled.

    Returns:
        "partitions": by kind "mean", "sd" (population), "percentiles" (5, 25, 50, 75, 95),
        "mean_of_draw" (a mean for each random partition) and "share": of the users in each bin;
        "edges": of the bins, in grey levels. The last bin ends at the 99.5th percentile of
        the most scattered kind; "beyond" is the share of the users who are farther away.
    """
    end = max(float(np.percentile(values, 99.5)) for values in compared.values()) or 1.0
    bins = int(np.clip(np.sqrt(compared["actual"].size), 10, 60))
    edges = np.linspace(0.0, end, bins + 1)
    return {
        "edges": edges.tolist(),
        "partitions": {
            kind: {
                "mean": float(values.mean()),
                "sd": float(values.std()),
                "percentiles": {
                    str(rank): float(np.percentile(values, rank)) for rank in (5, 25, 50, 75, 95)
                },
                "mean_of_draw": values.mean(axis=1).tolist(),
                "share": (np.histogram(values, edges)[0] / values.size).tolist(),
                "beyond": float((values > end).mean()),
            }
            for kind, values in compared.items()
        },
    }
