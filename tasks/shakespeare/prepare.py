"""Turn the text of Shakespeare's plays, or LEAF's JSON of it, into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError
from tasks.common.description import StoreDescription
from tasks.common.leaf.gathering import Gathering, Partition, write_partition
from tasks.common.leaf.json_files import LOOKED_FOR as JSON_LOOKED_FOR
from tasks.common.leaf.json_files import find_files
from tasks.common.progress import Progress
from tasks.shakespeare import gutenberg
from tasks.shakespeare.reading import Options, Reading, read_leaf_json, read_plays
from tasks.shakespeare.windows import CHARACTERS, LENGTH

__all__ = ["FIELDS", "Options", "prepare"]

FIELDS = {
    "inputs": FieldSpec("uint8", (LENGTH,)),
    "targets": FieldSpec("uint8"),
    "play": FieldSpec("uint16"),
}


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder, or file, with the text or with LEAF's JSON and write a store; see ``tasks``.

    Memory is bounded by the text (5.5 MB) or the largest user of the JSON files, not by the
    windows; beside ``out`` it needs temporary space of about the store's size.
    """
    source, out = Path(source), Path(out)
    texts, files = _find(source)
    with Gathering(out, FIELDS) as gathering:
        if texts:
            reading = read_plays(texts[0], gathering, options, progress)
        else:
            reading = read_leaf_json(source, files, gathering, options, progress)
        partition = _partition(gathering, reading, options)
        plays = sorted(reading.plays)
        places = np.array([plays.index(play) for play in reading.plays], dtype=np.uint16)

        def name_plays(arrays: dict[str, Any]) -> dict[str, Any]:
            return {**arrays, "play": places[arrays["play"]]}

        extra = {**partition.facts, **reading.facts()}
        description = StoreDescription(
            task="shakespeare",
            variant=reading.variant,
            source=reading.source,
            num_classes=len(CHARACTERS),
            input_shape=(LENGTH,),
            fields=FIELDS,
            extra=extra,
            names={"play": plays, "characters": list(CHARACTERS)},
        )
        splits = write_partition(out, partition, description, progress, name_plays)
    return {"variant": reading.variant, "source": reading.source, "splits": splits, **extra}


def _find(source: Path) -> tuple[list[Path], dict[str, list[Path]]]:
    """The text's file or the JSON files; one of the two is empty."""
    looked_for = f"Looked for:\n  - {gutenberg.LOOKED_FOR}\n  - {JSON_LOOKED_FOR}"
    if not source.exists():
        raise DataError(f"{source} does not exist; --source takes a folder. {looked_for}")
    texts = gutenberg.find_texts(source)
    files = {} if source.is_file() else find_files(source)
    if len(texts) + bool(files) == 1:
        return texts, files
    if not texts:
        raise DataError(f"{source} holds neither form of Shakespeare. {looked_for}")
    found = [path.name for path in texts] + (["LEAF JSON"] if files else [])
    raise DataError(
        f"{source} holds several: {', '.join(found)}; give a folder with one. {looked_for}"
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
