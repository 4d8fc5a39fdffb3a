"""Turn Google Speech Commands into a store, from FedScale's layout or as Google publishes it."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec, regular
from pfl_bench.types import DataError, Progress, RemoteFile
from tasks.common.fedscale.client_data_map import find_map, open_map
from tasks.common.fedscale.layout import FOLDER, Labels, Survey
from tasks.common.fedscale.streaming import (
    Counts,
    Options,
    Sample,
    SampleError,
    Source,
    open_layout,
    write_store,
)
from tasks.common.sources import Form, choose_form, is_generated, read_tar

# In alphabetical order, which is the order of the targets. Source: Warden 2018, section 5.1.
# fmt: off
WORDS = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four",
    "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right",
    "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
# fmt: on
SAMPLE_RATE = 16_000
# Of a spectrogram: channel, mels, frames.
INPUT_SHAPE = (1, 32, 32)
# A minute; published clips have at most a second.
_MAX_SAMPLES = 60 * SAMPLE_RATE


def read_wav(content: bytes) -> NDArray[np.int16]:
    """Read the samples of a WAV file, shape (n,), n at least 1: 16 kHz, one channel, 16 bits.

    Another file, or one that is cut, is a SampleError.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            found = (file.getframerate(), file.getnchannels(), 8 * file.getsampwidth())
            announced = file.getnframes()
            if found != (SAMPLE_RATE, 1, 16):
                raise SampleError(
                    f"{found[0]} Hz, {found[1]} channels, {found[2]} bits; it must be "
                    f"{SAMPLE_RATE} Hz, 1 channel, 16 bits"
                )
            if not 0 < announced <= _MAX_SAMPLES:
                raise SampleError(f"{announced} samples; it must have 1 to {_MAX_SAMPLES}")
            data = file.readframes(announced)
    except (wave.Error, EOFError) as error:
        raise SampleError(f"no WAV file: {error or 'it ends early'}") from error
    if len(data) != 2 * announced:
        raise SampleError(f"cut: {len(data) // 2} of {announced} samples")
    return np.frombuffer(data, dtype="<i2").astype(np.int16, copy=False)


def write_wav(samples: NDArray[np.int16]) -> bytes:
    """Write samples of shape (n,) as such a file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


__all__ = ["FILES", "FILES_NOTE", "Options", "prepare"]

ARCHIVE = "speech_commands_v0.02.tar.gz"
# Digest: as torchaudio and TensorFlow Datasets have it.
FILES = (
    RemoteFile(
        name=ARCHIVE,
        urls=(
            f"https://storage.googleapis.com/download.tensorflow.org/data/{ARCHIVE}",
            f"http://download.tensorflow.org/data/{ARCHIVE}",
        ),
        size=2_428_923_189,
        digest="sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
    ),
)
_MEND = "`pfl-bench data download google_speech` fetches it whole and checks it"
_LISTS = {"validation_list.txt": "val", "testing_list.txt": "test"}
# WORD/SPEAKER_nohash_NUMBER.wav
_CLIP = re.compile(r"(?P<word>[a-z]+)/(?P<speaker>[0-9a-f]+)_nohash_\d+\.wav")


def is_release(source: Path) -> bool:
    """Whether a folder holds the archive, or what is in it."""
    return (source / ARCHIVE).is_file() or all((source / name).is_file() for name in _LISTS)


def open_release(source: Path, options: Options, progress: Progress) -> Source:
    """Look at the names of all clips.

    The split is the publisher's, which keeps all clips of a speaker together: two lists name those
    of val and test, train is the rest. A client is a speaker. Listed clips that are missing are
    refused or left out, by the options.
    """
    split_of: dict[str, str] = {}
    lists: set[str] = set()
    clips: list[str] = []
    for name, content in _files(source):
        if name in _LISTS:
            lists.add(name)
            text = content if isinstance(content, bytes) else regular(content).read_bytes()
            listed = text.decode("ascii", "replace").split()
            split_of |= dict.fromkeys(listed, _LISTS[name])
        elif clip := _CLIP.fullmatch(name):
            if clip["word"] not in WORDS:
                raise DataError(
                    f"{_where(source)}: {name} is of the word {clip['word']!r}, which version 0.02 "
                    f"does not have; its words are: {', '.join(WORDS)}"
                )
            clips.append(name)
        progress("looking through Speech Commands (clips)", len(clips), None)
    absent = [name for name in _LISTS if name not in lists]
    if absent or not clips:
        what = f"no {absent[0]}" if absent else "no WORD/SPEAKER_nohash_N.wav"
        raise DataError(f"{_where(source)} has {what}; it is cut short or another release")
    lost = sorted(set(split_of).difference(clips))
    if lost and options.bad_samples == "refuse":
        raise DataError(
            f"{_where(source)}: {lost[0]} (and {len(lost) - 1} more) is listed and is not there; "
            "copy it again, or leave such clips out by bad_samples=leave_out"
        )
    surveys: dict[str, Survey] = {}
    for name in clips:
        speaker = name.partition("/")[2].partition("_")[0]
        surveys.setdefault(split_of.get(name, "train"), Survey()).add(speaker)
    if "train" not in surveys:
        raise DataError(
            f"{_where(source)}: all clips are listed for validation or testing, and none is left "
            "for train; get the release anew"
        )

    def samples() -> Iterator[Sample]:
        for name, content in _files(source):
            clip = _CLIP.fullmatch(name)
            if clip is None:
                continue
            split = split_of.get(name, "train")
            where = f"{_where(source)}: {name}"
            yield Sample(split, clip["speaker"], WORDS.index(clip["word"]), where, content)

    return Source(source, surveys, samples, list(WORDS))


def _where(source: Path) -> Path:
    return source / ARCHIVE if (source / ARCHIVE).is_file() else source


def _files(source: Path) -> Iterator[tuple[str, bytes | Path]]:
    """Names below the root, each with its content or where that is."""
    archive = source / ARCHIVE
    if not archive.is_file():
        folders = (path for path in sorted(source.iterdir()) if path.is_dir())
        yield from ((name, source / name) for name in _LISTS)
        for folder in folders:
            for path in sorted(folder.iterdir()):
                yield f"{folder.name}/{path.name}", path
        return
    yield from ((name.removeprefix("./"), content) for name, content in read_tar(archive, _MEND))


# Source: Lai et al. 2022 (FedScale), table 5; Warden 2018 counts 105,829 clips of 2,618 speakers.
PUBLISHED = Counts(clients=2_618, samples=105_000, rounding=2_000)
FILES_NOTE = (
    "Speech Commands 0.02 as Google publishes it (CC BY 4.0), with Google's split of the speakers, "
    "not FedScale's."
)


FORMS = (
    Form(
        "fedscale",
        f"FedScale's {FOLDER}/train.csv with WAV files in train/",
        lambda source: find_map(source) is not None or (source / FOLDER).is_dir(),
    ),
    Form(
        "release",
        f"Google's {ARCHIVE}, or that unpacked: validation_list.txt, testing_list.txt and a folder "
        "a word",
        is_release,
    ),
)


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder and write a store; see ``tasks``.

    Samples stay as published, int16. Memory does not grow with them. ``source`` is a folder in
    FedScale's layout, with Google's archive, or with what is in that.
    """
    pickled = find_map(source)
    mapped = choose_form(source, "Google Speech", FORMS, options).name == "fedscale"
    if pickled is not None:
        found = open_map(source, pickled, _read_name, WORDS, progress)
    elif mapped:
        found = open_layout(source, Labels(WORDS), options, progress)
    else:
        found = open_release(source, options, progress)
    told = "clients as FedScale publishes them" if mapped else "speakers and split as published"
    return write_store(
        out,
        found,
        PUBLISHED,
        read_wav,
        options,
        progress,
        value=("audio", FieldSpec("int16", ragged=True)),
        task="google_speech",
        variant="google-speech" if mapped or is_generated(source) else "speech-commands",
        origin=f"Google Speech Commands 0.02, {told}",
        made_up="generated tones in FedScale's layout",
        input_shape=INPUT_SHAPE,
    )


def _read_name(name: str) -> tuple[str, str] | None:
    """Of WORD_SPEAKER_nohash_N.wav, or whatever comes behind the word: the name and the word."""
    word, found, _ = name.partition("_")
    return (name, word) if found and name.endswith(".wav") else None
