"""Turn the text of Shakespeare's plays, or LEAF's JSON of it, into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError
from tasks.common.description import StoreDescription
from tasks.common.forms import Form, choose_form
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
FORMS = (
    Form("gutenberg", gutenberg.LOOKED_FOR, lambda source: bool(gutenberg.find_texts(source))),
    Form("leaf-json", JSON_LOOKED_FOR, lambda source: bool(find_files(source))),
)


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder with the text or with LEAF's JSON and write a store; see ``tasks``.

    Memory is bounded by the text (5.5 MB) or the largest user of the JSON files, not by the
    windows; beside ``out`` it needs temporary space of about the store's size.
    """
    form = choose_form(source, "Shakespeare", FORMS, options).name
    texts = gutenberg.find_texts(source)
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

        description = StoreDescription(
            task="shakespeare",
            variant=reading.variant,
            source=reading.source,
            num_classes=len(CHARACTERS),
            input_shape=(LENGTH,),
            fields=FIELDS,
            extra=reading.facts(),
            names={"play": plays, "characters": list(CHARACTERS)},
        )
        return write_partition(out, partition, description, progress, name_plays)


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
