"""Turn the text of Shakespeare's plays, or LEAF's JSON of it, into a store of windows.

Roles are split in the order of the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError, Progress
from tasks.common.leaf.gathering import (
    UNSPLIT,
    Gathering,
    Partition,
    PartitionOptions,
    write_partition,
)
from tasks.common.leaf.json_files import LOOKED_FOR as JSON_LOOKED_FOR
from tasks.common.leaf.json_files import LeafUser, find_files, read_splits
from tasks.common.leaf.table1 import SHAKESPEARE, compare
from tasks.common.sources import Form, choose_form
from tasks.shakespeare import works

MIN_LINES = 3  # LEAF passes over roles with fewer
NO_PLAY = "unknown"
_BINS = np.arange(0, 20_001, 2000)


class Options(PartitionOptions):
    """Options of preparing Shakespeare, beside those of partitioning.

    A split by example follows the text: a role's earliest windows are train, the next val, the
    last test; no seed has to do with it.

    Attributes:
        remove_overlap: Whether the windows of val and test that share a character with a window of
            a split before them are left out: the first 80 of each. False keeps them, and then test
            is easier than it looks: their letters have been seen in training.
    """

    remove_overlap: bool = True


@dataclass(slots=True)
class Reading:
    """Contents of a source, and what became of them while they were gathered.

    Attributes:
        variant: Machine name of the variant.
        source: One line for a human.
        published: Whether the publisher split the data.
        options: How to split what is not split.
        plays: Number of each play, by its title.
        sizes: Windows of each user, all splits together, before anything is dropped.
        users_dropped: Users with fewer windows than ``min_examples``; 0 if partitioning does.
        out_of_order: Users left out because their windows are not in the order of a text.
        overlapping: Windows left out by split, because they share characters with others.
        other_characters: Characters that are none of LEAF's 80.
        notes: Further facts.
    """

    variant: str
    source: str
    published: bool
    options: Options
    plays: dict[str, int] = field(default_factory=dict)
    sizes: Counter[str] = field(default_factory=Counter)
    users_dropped: int = 0
    out_of_order: int = 0
    overlapping: Counter[str] = field(default_factory=Counter)
    other_characters: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def splits_here(self) -> bool:
        """Whether each user's windows are split while they are gathered."""
        return not self.published and self.options.split_by == "example"

    def facts(self) -> dict[str, Any]:
        """For the store, and for printing."""
        facts: dict[str, Any] = {
            **self.notes,
            **describe(self.sizes.values()),
            "plays": len(self.plays),
            "other_characters": self.other_characters,
        }
        if self.other_characters:
            facts["other_characters_as"] = works.CHARACTERS[works.OTHER]
        if self.splits_here:
            facts["users_dropped"] = self.users_dropped
            facts["windows_left_out_for_overlap_before_sampling"] = dict(self.overlapping)
            facts["users_left_out_as_out_of_order"] = self.out_of_order
        return facts


def describe(sizes: Collection[int]) -> dict[str, Any]:
    """Compare windows of each user with LEAF's table 1, and describe them as its stats tool does.

    "table1" has beside ``compare``'s facts "sd_over_mean", "skewness" (population; None if all
    users are alike), and "histogram": users with 0 to 1,999 windows, 2,000 to 3,999, ... 18,000 to
    20,000 (larger users are in no bin, as in LEAF's).
    """
    facts = compare(sizes, SHAKESPEARE, "windows of all roles, overlapping ones too")
    mean, sd = facts["table1"]["mean"], facts["table1"]["sd"]
    own = np.array(list(sizes), dtype=np.int64)
    facts["table1"] |= {
        "sd_over_mean": sd / mean,
        "skewness": float((((own - mean) / sd) ** 3).mean()) if sd > 0 else None,
        "histogram": {"edges": _BINS.tolist(), "users": np.histogram(own, _BINS)[0].tolist()},
    }
    return facts


def read_plays(path: Path, gathering: Gathering, options: Options, progress: Progress) -> Reading:
    """Gather the roles of Gutenberg's text, plain, gzipped or zipped."""
    text, digest = works.read_text(path)
    plays = works.parse(text, str(path))
    known = digest == works.EDITION_MD5
    edition = "January 1994" if known else "another edition"
    reading = Reading(
        "shakespeare-gutenberg" if known else "shakespeare-gutenberg-other",
        f"Project Gutenberg's complete works of William Shakespeare (etext 100, {edition})",
        False,
        options,
    )
    few_lines = short = 0
    for done, play in enumerate(plays, start=1):
        for role, lines in play.roles.items():
            numbers, outside = works.encode(works.join_lines(lines))
            if len(lines) < MIN_LINES:
                few_lines += 1
                continue
            if len(numbers) <= works.LENGTH:
                short += 1
                continue
            reading.other_characters += outside
            name = works.client_name(play.title, role)
            number = reading.plays.setdefault(play.title, len(reading.plays))
            inputs, targets = works.cut(numbers)
            _gather(reading, gathering, name, inputs, targets, number, np.arange(len(targets)))
        progress("reading plays", done, len(plays))
    reading.notes = {
        "text": {"file": path.name, "md5": digest, "edition": edition},
        "roles_with_fewer_lines_than_3": few_lines,
        "roles_with_at_most_80_characters": short,
    }
    if not known:
        reading.notes["warning"] = (
            f"md5 {digest} is not that of the edition of January 1994 "
            f"({works.EDITION_MD5}), for which LEAF's rules are made: {len(plays)} plays were "
            f"found where it has {works.EDITION_PLAYS}; where titles or indents differ, plays "
            "run into one another and roles are lost"
        )
    return reading


def read_leaf_json(
    source: Path,
    files: dict[str, list[Path]],
    gathering: Gathering,
    options: Options,
    progress: Progress,
) -> Reading:
    """Gather the users of LEAF's JSON files, and split them if they are not split."""
    published = UNSPLIT not in files
    reading = Reading(
        "shakespeare-leaf-json",
        "Shakespeare (LEAF JSON" + (", split as published)" if published else ")"),
        published,
        options,
    )
    for split, user, where in read_splits(source, files, progress):
        inputs, targets, outside = _windows(user, where)
        reading.other_characters += outside
        number = reading.plays.setdefault(user.hierarchy or NO_PLAY, len(reading.plays))
        if published:
            play = np.full(len(targets), number, dtype=np.uint16)
            gathering.append(split, user.user, inputs=inputs, targets=targets, play=play)
            reading.sizes[user.user] += len(targets)
            continue
        if user.user in reading.sizes:
            raise DataError(
                f"{where}: has come in another file already; a role's windows must be together to "
                "be split in the order of the text: give one file with all of them"
            )
        places = works.positions(inputs, targets)
        _gather(reading, gathering, user.user, inputs, targets, number, places)
    if published:
        reading.notes["overlap"] = "as published: not checked, nothing left out"
    return reading


def _gather(
    reading: Reading,
    gathering: Gathering,
    name: str,
    inputs: NDArray[np.uint8],
    targets: NDArray[np.uint8],
    number: int,
    places: NDArray[np.int64],
) -> None:
    """Gather a user's windows: by split if they are split here, else as they are."""
    options = reading.options
    reading.sizes[name] = len(targets)
    parts = {UNSPLIT: slice(0, len(targets))}
    if reading.splits_here:
        if len(targets) < options.min_examples:
            reading.users_dropped += 1
            return
        if options.remove_overlap and not works.in_order(places):
            reading.out_of_order += 1
            return
        fractions = options.train_fraction, options.val_fraction
        parts = works.split_in_order(places, *fractions, options.remove_overlap)
        whole = works.split_in_order(places, *fractions, False)
        for split, part in whole.items():
            kept = parts.get(split, slice(0, 0))
            lost = (part.stop - part.start) - (kept.stop - kept.start)
            if split != "train":
                reading.overlapping[split] += lost
    for split, part in parts.items():
        play = np.full(part.stop - part.start, number, dtype=np.uint16)
        gathering.append(split, name, inputs=inputs[part], targets=targets[part], play=play)


def _windows(user: LeafUser, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
    """A user's windows as numbers, and how many characters are none of the 80."""
    for example, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        if not (
            isinstance(x, str) and isinstance(y, str) and len(x) == works.LENGTH and len(y) == 1
        ):
            raise DataError(
                f"{where}: example {example} has x of {_told(x)} and y of {_told(y)}; Shakespeare "
                f"has strings of {works.LENGTH} characters and of 1: is this another data set?"
            )
    numbers, outside = works.encode("".join(user.x) + "".join(user.y))
    size = len(user.y) * works.LENGTH
    return numbers[:size].reshape(-1, works.LENGTH), numbers[size:], outside


def _told(value: Any) -> str:
    return f"{len(value)} characters" if isinstance(value, str) else f"type {type(value).__name__}"


__all__ = ["FIELDS", "Options", "prepare"]

FIELDS = {
    "inputs": FieldSpec("uint8", (works.LENGTH,)),
    "targets": FieldSpec("uint8"),
    "play": FieldSpec("uint16"),
}
FORMS = (
    Form("gutenberg", works.LOOKED_FOR, lambda source: bool(works.find_texts(source))),
    Form("leaf-json", JSON_LOOKED_FOR, lambda source: bool(find_files(source))),
)


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder with the text or with LEAF's JSON and write a store; see ``tasks``.

    Memory is bounded by the text (5.5 MB) or the largest user of the JSON files, not by the
    windows; beside ``out`` it needs temporary space of about the store's size.
    """
    form = choose_form(source, "Shakespeare", FORMS, options).name
    texts = works.find_texts(source)
    if len(texts) > 1:
        names = ", ".join(path.name for path in texts)
        raise DataError(f"{source} holds several texts: {names}; give a folder with one")
    with Gathering(out, FIELDS) as gathering:
        if form == "gutenberg":
            reading = read_plays(texts[0], gathering, options, progress)
        else:
            reading = read_leaf_json(source, find_files(source), gathering, options, progress)
        partition = _partition(gathering, reading, options)
        plays = sorted(reading.plays)
        places = np.array([plays.index(play) for play in reading.plays], dtype=np.uint16)

        def name_plays(arrays: dict[str, Any]) -> dict[str, Any]:
            return {**arrays, "play": places[arrays["play"]]}

        return write_partition(
            out,
            partition,
            progress,
            name_plays,
            task="shakespeare",
            variant=reading.variant,
            source=reading.source,
            num_classes=len(works.CHARACTERS),
            input_shape=(works.LENGTH,),
            fields=FIELDS,
            extra=reading.facts(),
            names={"play": plays, "characters": list(works.CHARACTERS)},
        )


def _partition(gathering: Gathering, reading: Reading, options: Options) -> Partition:
    """Partition what was gathered; roles are split in the order of the text by now."""
    if not gathering.splits:
        why, mend = [], []
        if reading.users_dropped:
            why.append(f"min_examples = {options.min_examples} drops {reading.users_dropped}")
            mend.append("choose a smaller number")
        if reading.out_of_order:
            why.append(f"the windows of {reading.out_of_order} are in no order")
            mend.append("give a source in the order of the text, or remove_overlap=false")
        if not why:
            raise DataError("the files of --source hold no role with an example; get them anew")
        raise DataError(f"no role is left: {', and '.join(why)}; {'; '.join(mend)}")
    if not reading.splits_here:
        return gathering.partition(options)
    # Split while read, when the order was known; roles too short for a test are in train alone.
    partition = gathering.partition_divided(options, "place in the text", 0)
    partition.facts["split"]["remove_overlap"] = options.remove_overlap
    partition.facts["min_examples"] = options.min_examples
    return partition
