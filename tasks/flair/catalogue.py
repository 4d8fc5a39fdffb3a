"""All that FLAIR's metadata say, checked and in compact arrays: no list of 429,078 objects."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.flair.published import (
    NUM_COARSE,
    NUM_FINE,
    SPLIT_OF_PARTITION,
    SPLITS,
    Labels,
    Relationship,
    make_labels,
)

FIELDS = ("user_id", "image_id", "labels", "fine_grained_labels", "partition")
NO_USER = -1
# What JSON readers put for a lone surrogate: yajl a question mark. No id of FLAIR has either.
REPLACEMENTS = "\ufffd?"
SHOWN = 10

_MEND = "get the metadata anew, or mend that entry"


class LabelLists:
    """A list of labels an entry, first by order of appearance, in the end by sorted names."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.names: dict[str, int] = {}
        self._items = array("i")
        self._ends = array("q", [0])

    def append(self, labels: list[str]) -> None:
        """Add the next entry's labels, none twice."""
        for label in labels:
            self._items.append(self.names.setdefault(label, len(self.names)))
        self._ends.append(len(self._items))

    def freeze(self, names: list[str]) -> None:
        """Turn to indices into ``names``, which holds all labels that were seen."""
        place = {name: index for index, name in enumerate(names)}
        self._map = np.array([place[name] for name in self.names] or [0], dtype=self.dtype)

    def of(self, entry: int) -> NDArray[Any]:
        """Indices of an entry's n labels, ascending; shape (n,)."""
        items = self._items[self._ends[entry] : self._ends[entry + 1]]
        return np.sort(self._map[np.array(items, dtype=np.int64)])


class Catalogue:
    """Entries of the metadata: image, user, split and labels of each.

    ``add`` takes them one after another, ``finish`` checks what needs all of them.

    ``relationship`` is the published join of the labels, None where the source has none; ``where``
    is the source of the entries, for messages.
    """

    def __init__(self, relationship: Relationship | None, where: str) -> None:
        self.entries: dict[str, int] = {}
        self.notes: Counter[str] = Counter()
        self.without_user: list[str] = []
        self.coarse = LabelLists("uint8")
        self.fine = LabelLists("uint16")
        self._relationship = relationship
        self._where = where
        self._users: dict[str, int] = {}
        self._user_split = array("b")
        self._entry_user = array("i")
        self._in_several: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: Any, where: str) -> None:
        """Take in the next entry, a mapping with ``FIELDS``; ``where`` says its file and place."""
        image, user, split = _checked(entry, where)
        where = f"{where} (image {image!r})"
        if image in self.entries:
            raise DataError(
                f"{where}: the same image is entry {self.entries[image] + 1} already; every image "
                f"has one entry: {_MEND}"
            )
        coarse = self._unique(entry["labels"])
        fine = self._unique(entry["fine_grained_labels"])
        self._check_labels(coarse, fine, where)
        self.coarse.append(coarse)
        self.fine.append(fine)
        if not coarse or not fine:
            self.notes["without_labels"] += 1
        self.entries[image] = len(self.entries)
        self._entry_user.append(self._user(user, split) if user else NO_USER)
        if not user:
            self.without_user.append(image)

    def _user(self, user: str, split: int) -> int:
        number = self._users.setdefault(user, len(self._users))
        if number == len(self._user_split):
            self._user_split.append(split)
        elif self._user_split[number] != split:
            both = {SPLITS[self._user_split[number]], SPLITS[split]}
            self._in_several.setdefault(user, set()).update(both)
        return number

    def _unique(self, labels: list[str]) -> list[str]:
        unique = list(dict.fromkeys(labels))
        if len(unique) != len(labels):
            self.notes["repeated_labels"] += 1
        return unique

    def _check_labels(self, coarse: list[str], fine: list[str], where: str) -> None:
        if self._relationship is None:
            return
        known = self._relationship
        for label in coarse:
            if label not in known.coarse:
                raise DataError(
                    f"{where}: the coarse label {label!r} is not in the relationship file, whose "
                    f"second column has {sorted(known.coarse)[:SHOWN]}...; the two files do not "
                    "belong together, or one is damaged: get both anew"
                )
        parents = []
        for label in fine:
            parents.append(known.of(label))
            if not parents[-1]:
                raise DataError(
                    f"{where}: the fine label {label!r} is not in the relationship file; the two "
                    "files do not belong together, or one is damaged: get both anew"
                )
            if label not in known.coarse_of:
                self.notes["coarse_name_as_fine_label"] += 1
        given = set(coarse)
        possible = {name for names in parents for name in names}
        if not given <= possible or any(given.isdisjoint(names) for names in parents):
            self.notes["coarse_not_from_fine"] += 1

    def finish(self) -> Labels:
        """Check what needs all entries, and fix the labels' indices.

        With a relationship file the lists are the file's, so that a part of the data has the
        indices of the whole. Labels that no image has are left out where the others are as many
        as published: they are no classes of FLAIR.
        """
        if not self.entries:
            raise DataError(f"{self._where}: describes no image; get the metadata anew")
        if self._in_several:
            several = [f"{u!r} ({', '.join(sorted(s))})" for u, s in self._in_several.items()]
            raise DataError(
                f"{self._where}: {len(several)} users are in several partitions: "
                f"{'; '.join(several[:SHOWN])}. Every user belongs to one: get the metadata anew"
            )
        fine, coarse = set(self.fine.names), set(self.coarse.names)
        if self._relationship is not None:
            self.notes["fine_with_several_coarse"] = sum(
                len(names) > 1 for names in self._relationship.coarse_of.values()
            )
            fine = self._listed(fine, set(self._relationship.coarse_of), NUM_FINE)
            coarse = self._listed(coarse, set(self._relationship.coarse), NUM_COARSE)
        if len(coarse) > 256 or len(fine) > 65_536:
            raise DataError(
                f"{self._where}: {len(coarse)} coarse and {len(fine)} fine labels; a store holds "
                "at most 256 and 65,536: is this another data set?"
            )
        labels = make_labels(coarse, fine, self._relationship)
        self.coarse.freeze(labels.coarse)
        self.fine.freeze(labels.fine)
        return labels

    def _listed(self, used: set[str], listed: set[str], published: int) -> set[str]:
        if len(used) == published:
            self.notes["labels_without_image"] += len(listed - used)
            return used
        return used | listed

    def users(self) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
        """Give split, user and entries, shape (n,); users by split and name, entries by image id.

        The order does not depend on that of the metadata, so all public forms of the same images
        give the same store.
        """
        owners = np.array(self._entry_user, dtype=np.int64)
        images = np.array(sorted(self.entries), dtype=object)
        by_image = np.array([self.entries[image] for image in images], dtype=np.int64)
        by_user = by_image[np.argsort(owners[by_image], kind="stable")]
        starts = np.searchsorted(owners[by_user], np.arange(len(self._users) + 1))
        for split, name in enumerate(SPLITS):
            there = (
                user for user, number in self._users.items() if self._user_split[number] == split
            )
            for user in sorted(there):
                number = self._users[user]
                yield name, user, by_user[starts[number] : starts[number + 1]]


def _checked(entry: Any, where: str) -> tuple[str, str, int]:
    """Image, user ("" if it has none) and number of the split of an entry."""
    if not isinstance(entry, dict):
        raise DataError(f"{where}: is {_shown(entry)}, not an object with {', '.join(FIELDS)}")
    missing = [name for name in FIELDS if name not in entry]
    if missing:
        raise DataError(
            f"{where} (image {_shown(entry.get('image_id'))}): has no field {missing[0]!r}; every "
            f"entry has {', '.join(FIELDS)}: {_MEND}"
        )
    image, user = _as_text(entry["image_id"]), _as_text(entry["user_id"])
    if not _is_plain_name(image):
        must = "a text that can be a file's name, or a whole number"
        raise _wrong("image_id", image, must, where)
    _check_readable(image, "image_id", where)
    where = f"{where} (image {image!r})"
    if user is not None and (not isinstance(user, str) or "\0" in user or _has_surrogate(user)):
        raise _wrong("user_id", user, "a text or a whole number", where)
    _check_readable(user or "", "user_id", where)
    for name in ("labels", "fine_grained_labels"):
        labels = entry[name]
        if not isinstance(labels, list) or not all(isinstance(x, str) and x for x in labels):
            raise _wrong(name, labels, "a list of label names", where)
    partition = entry["partition"]
    if not isinstance(partition, str) or partition not in SPLIT_OF_PARTITION:
        must = f"one of {', '.join(SPLIT_OF_PARTITION)} (dev means val)"
        raise _wrong("partition", partition, must, where)
    return image, user or "", SPLITS.index(SPLIT_OF_PARTITION[partition])


def _wrong(field: str, value: Any, must: str, where: str) -> DataError:
    return DataError(f"{where}: the field {field!r} is {_shown(value)}; it must be {must}: {_MEND}")


def _as_text(value: Any) -> Any:
    """A whole number as text: the parquet files have numbers where the JSON has strings."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_readable(text: str, field: str, where: str) -> None:
    """Refuse an id of which a reader has replaced a part: two such ids may look the same."""
    if any(sign in text for sign in REPLACEMENTS):
        raise DataError(
            f"{where}: the field {field!r} is {_shown(text)}, with '?' or U+FFFD, which stand "
            "where a character could not be read (a lone surrogate such as \\ud800), so that "
            f"different ids may look the same; an id has neither: {_MEND}"
        )


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _is_plain_name(image: Any) -> bool:
    if not isinstance(image, str) or image in ("", ".", ".."):
        return False
    return not _has_surrogate(image) and not any(sign in image for sign in "/\\\0")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
