"""Turn one of the public forms of FEMNIST, or of QMNIST, into a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfl_bench.store import FieldSpec, StoreWriter
from pfl_bench.types import ConfigError, DataError, RemoteFile, SplitBy
from tasks.femnist import leaf_json, nist, qmnist, tff
from tasks.femnist.forms import SIDE, Form, Progress, Reading
from tasks.femnist.splitting import Part, divide
from tasks.femnist.spool import ExampleSpool

FORMS: tuple[Form, ...] = (*leaf_json.FORMS, *tff.FORMS, *nist.FORMS, *qmnist.FORMS)
SPLIT_OPTIONS = ("split_by", "train_fraction", "val_fraction", "split_seed")
FIELDS = {"inputs": FieldSpec("uint8", (SIDE, SIDE)), "targets": FieldSpec("uint8")}
NAMES_SHOWN = 10

_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
# Digests: torchvision's classes MNIST and QMNIST.
FILES = (
    RemoteFile(
        "train-images-idx3-ubyte.gz",
        tuple(f"{mirror}train-images-idx3-ubyte.gz" for mirror in _MNIST),
        None,
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    RemoteFile(
        "qmnist-train-labels-idx2-int.gz",
        (f"{_QMNIST}qmnist-train-labels-idx2-int.gz",),
        463_024,
        "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
    ),
    RemoteFile(
        "qmnist-test-images-idx3-ubyte.gz",
        (f"{_QMNIST}qmnist-test-images-idx3-ubyte.gz",),
        None,
        "md5:1394631089c404de565df7b7aeaf9412",
    ),
    RemoteFile(
        "qmnist-test-labels-idx2-int.gz",
        (f"{_QMNIST}qmnist-test-labels-idx2-int.gz",),
        526_800,
        "md5:5b5b05890a5e13444e108efe57b788aa",
    ),
)
FILES_NOTE = (
    "These are MNIST/QMNIST digits with their real writers (variant qmnist-digits, 120,000 digits "
    "of 10 classes), not FEMNIST: report results on them as MNIST/QMNIST."
)


class Options(BaseModel):
    """Options of preparing FEMNIST.

    Attributes:
        variant: Which form to read; None takes the one that is there.
        split_by: "example" divides each writer's examples, "user" deals whole writers.
        train_fraction: Fraction for train, above 0 to 1; every writer keeps at least one example.
        val_fraction: Fraction for val, 0 or more; what both leave is test.
        split_seed: Seed of the split.
        min_examples: Writers with fewer examples, over all splits, are dropped and counted.

    The four options of the split are for data that are not split as published; given for others
    they are refused.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    variant: Literal["leaf-json", "tff", "tff-digits", "nist", "qmnist-digits"] | None = None
    split_by: SplitBy = "example"
    train_fraction: float = Field(default=0.8, gt=0, le=1)
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    split_seed: int = Field(default=0, ge=0)
    min_examples: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _fractions_fit(self) -> Self:
        if self.train_fraction + self.val_fraction > 1 + 1e-9:
            raise ValueError(
                f"train_fraction {self.train_fraction} and val_fraction {self.val_fraction} sum to "
                "more than 1; what they leave is the test split"
            )
        return self


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store, whole or not at all.

    Memory is bounded by the largest writer of one file, not by the data; beside ``out`` it needs
    temporary space of about twice the store's size.

    Args:
        source: Folder in one of the forms of the README.
        out: The store to write; an existing one is replaced when all has gone well.
        options: How to split, and what to drop.
        progress: Called with what is being done, how much is done, and of how much if known.

    Returns:
        Facts for printing: variant, source, splits with their counts, and what was dropped.

    Raises:
        DataError: The folder holds none of the forms or several, or a file is damaged; the
            message names file and user.
        ConfigError: Options of the split were given for data that are split as published.
    """
    source, out = Path(source), Path(out)
    if out.is_dir():
        raise DataError(f"{out} is a folder; --out names the file to write, such as femnist.h5")
    form = choose_form(source, options.variant)
    with ExampleSpool(out.absolute().parent) as spool:
        reading = form.read(source, spool, progress)
        given = [name for name in SPLIT_OPTIONS if name in options.model_fields_set]
        if reading.split_by is not None and given:
            raise ConfigError(
                f"{', '.join(given)}: {source} ({form.variant}) is split by its publisher, by "
                f"{reading.split_by}; leave these options out, or give data that are not split"
            )
        num_dropped = spool.drop_small(options.min_examples)
        if not spool.splits:
            raise DataError(
                f"{source}: min_examples = {options.min_examples} drops all {num_dropped} writers; "
                "choose a smaller number"
            )
        extra = _facts(reading, options, num_dropped)
        counts = _write(out, form, reading, options, spool, extra, progress)
    return {"variant": form.variant, "source": reading.source, "splits": counts, **extra}


def choose_form(source: Path, variant: str | None) -> Form:
    """Recognise the form of a folder.

    Args:
        source: The folder.
        variant: The form that is asked for; None to take the only one that is there.

    Raises:
        DataError: There is no such folder, it holds none of the forms, or more than one and
            ``variant`` does not say which.
    """
    if not source.is_dir():
        what = "is a file" if source.exists() else "does not exist"
        raise DataError(f"{source} {what}; --source takes the folder that holds the public files")
    there = [form for form in FORMS if variant in (None, form.variant) and form.is_there(source)]
    if len(there) == 1:
        return there[0]
    if there:
        several = ", ".join(form.variant for form in there)
        raise DataError(
            f"{source} holds several forms: {several}; say which by variant=NAME, or give a folder "
            "with one"
        )
    wanted = [form.looked_for for form in FORMS if variant in (None, form.variant)]
    names = sorted(path.name for path in source.iterdir())
    found = ", ".join(names[:NAMES_SHOWN]) or "nothing"
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    looked_for = "".join(f"\n  - {line}" for line in wanted)
    raise DataError(
        f"{source} holds no public form of FEMNIST. Looked for:{looked_for}\nFound: {found}{more}."
    )


def _facts(reading: Reading, options: Options, num_dropped: int) -> dict[str, Any]:
    split: dict[str, Any] = {"by": reading.split_by, "as": "published"}
    if reading.split_by is None:
        split = {"by": options.split_by, "as": "prepared here"}
        split |= {name: getattr(options, name) for name in SPLIT_OPTIONS[1:]}
    dropped = {"min_examples": options.min_examples, "users_dropped": num_dropped}
    return {"split": split, **dropped, **reading.extra}


def _parts(reading: Reading, options: Options, spool: ExampleSpool) -> Iterator[Part]:
    if reading.split_by is None:
        yield from divide(
            spool,
            options.split_by,
            options.train_fraction,
            options.val_fraction,
            options.split_seed,
        )
        return
    for split in spool.splits:
        for user in spool.clients(split):
            yield (split, user, *spool.read(split, user))


def _write(
    out: Path,
    form: Form,
    reading: Reading,
    options: Options,
    spool: ExampleSpool,
    extra: dict[str, Any],
    progress: Progress,
) -> dict[str, dict[str, int]]:
    """Write the store; returns the number of users and examples of each split."""
    counts: dict[str, dict[str, int]] = {}
    total = sum(len(spool.clients(split)) for split in spool.splits)
    users: set[tuple[str, str]] = set()
    with StoreWriter(
        out,
        task="femnist",
        variant=form.variant,
        source=reading.source,
        split_by=reading.split_by or options.split_by,
        num_classes=reading.num_classes,
        input_shape=(SIDE, SIDE),
        fields=FIELDS,
        extra=extra,
    ) as writer:
        for split, user, images, labels in _parts(reading, options, spool):
            writer.append(split, user, inputs=images, targets=labels)
            count = counts.setdefault(split, {"users": 0, "examples": 0})
            count["users"] += 1
            count["examples"] += len(labels)
            users.add((user, split if reading.split_by else ""))
            progress("writing the store (users)", len(users), total)
    return counts
