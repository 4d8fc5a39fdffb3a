"""Generates a mini FLAIR: drawn pictures in files of exactly the published format.

The labels' proportions, the skew between users and the files' form are FLAIR's; the pictures are
drawn (``drawing.py``), the users are made up, and ``GENERATED.txt`` in the folder says so.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import tarfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pfl_bench.data import new_folder
from pfl_bench.data.threads import map_in_order
from pfl_bench.types import DataError, Progress, importing_nothing_here
from tasks.common.options import StrictOptions
from tasks.common.sources import settings, write_mark
from tasks.flair import published
from tasks.flair.drawing import DRAWING, FINE_TO_COARSE, GLYPHS, Camera, draw_picture
from tasks.flair.reading import METADATA

PICTURES_A_BATCH = 256
# Fewer are drawn before another process has begun.
FEWEST_FOR_PROCESSES = 2000


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures to draw, from number ``first`` on: fine labels and number of the user of each."""

    seed: int
    first: int
    labels: Sequence[Sequence[str]]
    owners: Sequence[int]
    side: int


def draw_batch(batch: Batch) -> list[bytes]:
    """Draw pictures, each by a generator of its own, as the bytes of JPEGs."""
    return [
        draw_picture(
            labels,
            _camera(batch.seed, owner),
            np.random.default_rng([batch.seed, 2, number]),
            batch.side,
        )
        for number, (labels, owner) in enumerate(
            zip(batch.labels, batch.owners, strict=True), batch.first
        )
    ]


@lru_cache(maxsize=1 << 14)
def _camera(seed: int, user: int) -> Camera:
    return Camera.draw(np.random.default_rng([seed, 1, user]))


def choose_processes(wanted: int | None, num_images: int) -> int:
    """Number of processes that draw: as wanted, or one a usable core if there is enough to do."""
    if wanted is not None:
        return wanted
    if num_images < FEWEST_FOR_PROCESSES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def draw_in_order(batches: Iterator[Batch], processes: int) -> Generator[bytes, None, None]:
    """Draw batches, a few of them at a time; gives the bytes of the JPEGs in order.

    With one process, this one draws.
    """
    if processes == 1:
        for batch in batches:
            yield from draw_batch(batch)
        return
    with importing_nothing_here():
        pool = ProcessPoolExecutor(processes, get_context("spawn"), _leave_interrupts_to_the_parent)
    try:
        drawing = map_in_order(draw_batch, batches, pool, 2 * processes)
        with importing_nothing_here(), closing(drawing) as drawn:
            for _, pictures in drawn:
                yield from pictures
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {processes} processes that draw has ended, killed or out of memory; run the "
            "command again, with a smaller num_processes if memory is short"
        ) from error


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


Booleans = NDArray[np.bool_]

COARSE = tuple(sorted(published.COARSE_IMAGES))
FINE = tuple(sorted(GLYPHS))
# The seven rarest labels are raised to this share of the images: at their published 0.2 to 2.6 %, a
# split of a few hundred images would hold one or two, and their average precision would be noise.
RAREST_SHARE = 0.03
# Each split has each coarse label in at least this share of its images, and each fine label once.
SPLIT_SHARE = 0.02
# Chance of one, two and three fine labels for a coarse label: 1.66, as 4.61 / 2.79 published.
FINE_CHANCES = (0.5, 0.34, 0.16)
# A user's own share of a label is drawn from Beta(c p, c (1 - p)): of mean p, and the more unlike
# others' the smaller c.
TASTE_CONCENTRATION = 2.0
# Images a user are log-normal, which gives the published median of 2 beside a mean of 8.3.
SIZE_SKEW = 1.69
SPLITS_OF_TEN = ("train",) * 8 + ("val", "test")


class Options(StrictOptions):
    """Options of generating a mini FLAIR.

    Attributes:
        num_users: Users of all splits together; eight, one and one tenth go to train, val and test.
        num_images: Images of all users together.
        seed: Seed of everything that is drawn.
        num_tarballs: Tarballs that hold the images.
        image_size: Width and height of the images in pixels; FLAIR's are 256.
        num_processes: How many processes draw, which changes no byte; None for one a usable core.
    """

    num_users: int = Field(default=600, ge=10, le=100_000)
    num_images: int = Field(default=4800, ge=10, le=1_000_000)
    seed: int = Field(default=0, ge=0)
    num_tarballs: int = Field(default=3, ge=1, le=100)
    image_size: int = Field(default=published.IMAGE_SIDE, ge=32, le=1024)
    num_processes: int | None = Field(default=None, ge=1, le=256)

    @model_validator(mode="after")
    def _everyone_has_one(self) -> Self:
        if self.num_images < self.num_users:
            raise ValueError(
                f"num_images = {self.num_images} is fewer than num_users = {self.num_users}, and "
                "every user has at least one; raise num_images or lower num_users"
            )
        if self.num_images < self.num_tarballs:
            raise ValueError(
                f"num_tarballs = {self.num_tarballs} is more than num_images = {self.num_images}; "
                "every tarball holds at least one"
            )
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """Labels of each user, before anything is drawn.

    Attributes:
        owners: Shape (n,), int64, the user of each image.
        coarse: Shape (n, 17), the columns in the order of ``COARSE``.
        fine: Shape (n, 51), the columns in the order of ``FINE``.
        user_ids: The users' published form of identifier.
        image_ids: The images' identifiers, ascending as text.
    """

    splits: Sequence[str]
    owners: NDArray[np.int64]
    coarse: Booleans
    fine: Booleans
    user_ids: Sequence[str]
    image_ids: Sequence[str]


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write a mini FLAIR, whole or not at all.

    The same options give byte for byte the same files, under the same versions of numpy and Pillow.

    See ``tasks`` for arguments, facts and refusals. The facts have the images of each coarse label,
    too. Refused also when a process that draws has ended.
    """
    with new_folder(out, "pictures") as folder:
        plan = make_plan(options)
        _write_texts(folder, plan, options)
        _write_tarballs(folder, plan, options, progress)
    return _facts(plan, options)


def make_plan(options: Options) -> Plan:
    """Draw users, their tastes and their images' labels."""
    rng = np.random.default_rng([options.seed, 0])
    counts = image_counts(options.num_users, options.num_images)
    # Users are assigned in tens of like size, so that no split is left without large ones.
    tens = [rng.permutation(10) for _ in range(0, options.num_users, 10)]
    places = np.concatenate(tens)[: options.num_users]
    owners = rng.permutation(np.repeat(np.arange(options.num_users), counts))
    splits = [SPLITS_OF_TEN[place] for place in places]
    coarse, fine = _draw_labels(owners, options.num_users, rng)
    _fill_in(coarse, fine, np.array(splits)[owners], rng)
    numbers = rng.choice(9 * 10**9, options.num_images, replace=False) + 10**9
    users = rng.choice(9 * 10**6, options.num_users, replace=False) + 10**6
    return Plan(
        splits=splits,
        owners=owners,
        coarse=coarse,
        fine=fine,
        # FLAIR's end in @N and two digits; these cannot be taken for a person's.
        user_ids=[f"{number}@GENERATED" for number in users],
        image_ids=sorted(str(number) for number in numbers),
    )


def image_counts(num_users: int, num_images: int) -> NDArray[np.int64]:
    """Images of each user, from the most to the fewest: quantiles of a log-normal, at least one.

    Shape (num_users,), int64; their sum is ``num_images``, which is ``num_users`` or more.
    """
    normal = NormalDist(sigma=SIZE_SKEW)
    levels = [(user + 0.5) / num_users for user in reversed(range(num_users))]
    weights = np.exp([normal.inv_cdf(level) for level in levels])
    more = (num_images - num_users) * weights / weights.sum()
    counts: NDArray[np.int64] = 1 + np.floor(more).astype(np.int64)
    counts[: num_images - int(counts.sum())] += 1
    return counts


def _draw_labels(
    owners: NDArray[np.int64], num_users: int, rng: np.random.Generator
) -> tuple[Booleans, Booleans]:
    """Draw each image's labels by its user's taste; every image has at least one."""
    found = np.array([published.COARSE_IMAGES[name] for name in COARSE]) / sum(
        published.IMAGES.values()
    )
    shares = np.maximum(found, RAREST_SHARE)
    likes, dislikes = TASTE_CONCENTRATION * shares, TASTE_CONCENTRATION * (1 - shares)
    tastes = rng.beta(likes, dislikes, (num_users, len(COARSE)))
    coarse = rng.random((len(owners), len(COARSE))) < tastes[owners]
    bare = np.flatnonzero(~coarse.any(axis=1))
    coarse[bare, rng.choice(len(COARSE), len(bare), p=shares / shares.sum())] = True
    # An image takes the best k fine labels of each of its coarse ones, by the user's liking and
    # chance: Gumbel's trick for drawing without replacement.
    liking = np.log(rng.gamma(1.0, 1.0, (num_users, len(FINE))) + 1e-3)
    scores = liking[owners] + rng.gumbel(size=(len(owners), len(FINE)))
    amounts = rng.choice([1, 2, 3], coarse.shape, p=FINE_CHANCES)
    fine = np.zeros(scores.shape, dtype=np.bool_)
    for column, label in enumerate(COARSE):
        children = [index for index, name in enumerate(FINE) if FINE_TO_COARSE[name] == label]
        ranks = (-scores[:, children]).argsort(axis=1).argsort(axis=1)
        fine[:, children] = coarse[:, [column]] & (ranks < amounts[:, [column]])
    return coarse, fine


def _fill_in(
    coarse: Booleans, fine: Booleans, split_of: NDArray[np.str_], rng: np.random.Generator
) -> None:
    """Give labels that a split has too rarely to random images of it, in place."""
    for split in published.SPLITS:
        images = np.flatnonzero(split_of == split)
        least = int(np.ceil(SPLIT_SHARE * len(images)))
        for position, name in enumerate(FINE):
            column, is_own = COARSE.index(FINE_TO_COARSE[name]), name in published.COARSE_IMAGES
            lacking = least - int(coarse[images, column].sum()) if is_own else 0
            lacking = max(lacking, 1 - int(fine[images, position].sum()))
            without = images[~fine[images, position]]
            chosen = rng.choice(without, min(max(lacking, 0), len(without)), replace=False)
            coarse[chosen, column] = fine[chosen, position] = True


def _write_texts(folder: Path, plan: Plan, options: Options) -> None:
    pairs = [f"{fine} -> {FINE_TO_COARSE[fine]}\n" for fine in FINE]
    write_mark(
        folder,
        "These files are not FLAIR. They have its format, but the pictures are drawn shapes and "
        "the users are made up,\nby pfl-bench data generate flair "
        f"({settings(options, without={'num_processes'})}).\n{published.drawing_line(DRAWING)}\n",
    )
    (folder / published.RELATIONSHIP).write_text("".join(pairs), encoding="utf-8")
    with (folder / METADATA).open("w", encoding="utf-8") as file:
        for image, user in enumerate(plan.owners.tolist()):
            entry = {
                "user_id": plan.user_ids[user],
                "image_id": plan.image_ids[image],
                "labels": [COARSE[label] for label in np.flatnonzero(plan.coarse[image])],
                "fine_grained_labels": _fine_labels(plan, image),
                "partition": plan.splits[user],
            }
            # An image a line: at FLAIR's size, all entries at once take gigabytes.
            file.write(",\n" if image else "[\n")
            file.write(json.dumps(entry))
        file.write("\n]\n")


def _fine_labels(plan: Plan, image: int) -> list[str]:
    return [FINE[label] for label in np.flatnonzero(plan.fine[image])]


def _batches(plan: Plan, options: Options) -> Iterator[Batch]:
    for first in range(0, options.num_images, PICTURES_A_BATCH):
        images = range(first, min(first + PICTURES_A_BATCH, options.num_images))
        labels = [_fine_labels(plan, image) for image in images]
        owners = plan.owners[images.start : images.stop].tolist()
        yield Batch(options.seed, first, labels, owners, options.image_size)


def _write_tarballs(folder: Path, plan: Plan, options: Options, progress: Progress) -> None:
    parts = np.array_split(np.arange(options.num_images), options.num_tarballs)
    processes = choose_processes(options.num_processes, options.num_images)
    with closing(draw_in_order(_batches(plan, options), processes)) as pictures:
        for number, part in enumerate(parts):
            path = folder / f"small_images-{number:02d}.tar.gz"
            # JPEGs do not compress further; without name and time the same content is the same
            # file.
            with (
                path.open("wb") as file,
                gzip.GzipFile("", "wb", compresslevel=0, fileobj=file, mtime=0) as packed,
                tarfile.open(mode="w|", fileobj=packed, format=tarfile.USTAR_FORMAT) as tarball,
            ):
                for image in part.tolist():
                    content = next(pictures)
                    member = tarfile.TarInfo(f"small_images/{plan.image_ids[image]}.jpg")
                    member.size = len(content)
                    tarball.addfile(member, io.BytesIO(content))
                    progress("drawing pictures", image + 1, options.num_images)


def _facts(plan: Plan, options: Options) -> dict[str, Any]:
    size = options.image_size
    counts = np.bincount(plan.owners, minlength=options.num_users)
    split_of = np.array(plan.splits)
    coarse_counts = dict(zip(COARSE, (int(n) for n in plan.coarse.sum(axis=0)), strict=True))
    return {
        "what": "drawn pictures in FLAIR's format, not FLAIR",
        "users": {name: int((split_of == name).sum()) for name in published.SPLITS},
        "images": {name: int(counts[split_of == name].sum()) for name in published.SPLITS},
        "images_a_user": {"median": median(counts.tolist()), "max": int(counts.max())},
        "coarse_labels_an_image": round(float(plan.coarse.sum(axis=1).mean()), 2),
        "fine_labels_an_image": round(float(plan.fine.sum(axis=1).mean()), 2),
        "images_of_coarse_label": coarse_counts,
        "fine_labels": len(FINE),
        "prepare_options": [] if size == published.IMAGE_SIDE else [f"image_size={size}"],
    }
