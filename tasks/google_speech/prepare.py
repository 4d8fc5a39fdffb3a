"""Turn Google Speech Commands into a store, from FedScale's layout or as Google publishes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError
from tasks.common.fedscale.client_data_map import find_map, open_map
from tasks.common.fedscale.layout import FOLDER
from tasks.common.fedscale.streaming import Counts, Options, describe, open_layout, write_store
from tasks.common.fedscale.survey import Labels
from tasks.common.generated import is_generated
from tasks.common.progress import Progress
from tasks.google_speech.release import ARCHIVE, FILES, is_release, open_release
from tasks.google_speech.wav import INPUT_SHAPE, WORDS, read_wav

__all__ = ["FILES", "FILES_NOTE", "Options", "prepare"]

# Source: Lai et al. 2022 (FedScale), table 5; Warden 2018 counts 105,829 clips of 2,618 speakers.
PUBLISHED = Counts(clients=2_618, samples=105_000, rounding=2_000)
FILES_NOTE = (
    "Speech Commands 0.02 as Google publishes it (CC BY 4.0), with Google's split of the speakers, "
    "not FedScale's."
)


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder and write a store; see ``tasks``.

    Samples stay as published, int16. Memory does not grow with them. ``source`` is a folder in
    FedScale's layout, with Google's archive, or with what is in that.
    """
    source = Path(source)
    pickled = find_map(source)
    mapped, released = pickled is not None or (source / FOLDER).is_dir(), is_release(source)
    if mapped and released:
        raise DataError(
            f"{source} holds both FedScale's {FOLDER}/ and Google's release; give a folder with one"
        )
    if not mapped and not released:
        raise DataError(
            f"{source} holds no Google Speech: neither FedScale's {FOLDER}/train.csv with WAV "
            f"files in train/, nor Google's {ARCHIVE}, nor that unpacked (validation_list.txt, "
            "testing_list.txt and a folder a word)"
        )
    if pickled is not None:
        found = open_map(source, pickled, _read_name, WORDS, progress)
    elif mapped:
        found = open_layout(source, Labels(WORDS), options, progress)
    else:
        found = open_release(source, options, progress)
    told = "clients as FedScale publishes them" if mapped else "speakers and split as published"
    description = describe(
        source,
        found,
        PUBLISHED,
        {"audio": FieldSpec("int16", ragged=True)},
        task="google_speech",
        variant="google-speech" if mapped or is_generated(source) else "speech-commands",
        origin=f"Google Speech Commands 0.02, {told}",
        made_up="generated tones in FedScale's layout",
        input_shape=INPUT_SHAPE,
    )
    return write_store(Path(out), found, options, read_wav, description, progress)


def _read_name(name: str) -> tuple[str, str] | None:
    """Of WORD_SPEAKER_nohash_N.wav, or whatever comes behind the word: the name and the word."""
    word, found, _ = name.partition("_")
    return (name, word) if found and name.endswith(".wav") else None
