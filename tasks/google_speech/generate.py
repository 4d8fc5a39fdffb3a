"""Generates a mini Google Speech: words of gliding tones, in FedScale's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import Progress
from tasks.common.fedscale import generating
from tasks.common.fedscale.generating import Options
from tasks.google_speech.prepare import SAMPLE_RATE, WORDS, write_wav

__all__ = ["Options", "generate"]

_PARTS, _PARTIALS, _LOUDEST = 3, 4, 9000.0


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write generated words in FedScale's layout; see ``tasks``.

    A word is three gliding tones; a speaker has a pitch, a pace and a hiss of its own.
    """
    words = WORDS[: options.num_labels]
    what = "generated tones in FedScale's layout, not Google Speech"

    def draw(label: int, own: np.random.Generator, rng: np.random.Generator) -> bytes:
        return write_wav(say(label, own, rng))

    return generating.write_layout(out, options, draw, words, ".wav", what, progress)


def say(label: int, own: np.random.Generator, rng: np.random.Generator) -> NDArray[np.int16]:
    """Say a word in 0.8 to 1 second, shape (n,); ``label`` fixes how its tones glide.

    ``own`` draws what all clips of the speaker share; ``rng`` when the word begins, how loud it is,
    and its noise.
    """
    # The same glides in every data set, whatever its seed: semitones above the speaker's pitch.
    glides = np.random.default_rng([1804, 3209, label]).integers(0, 19, _PARTS + 1)
    pitch, pace = own.uniform(160.0, 260.0), own.uniform(0.85, 1.15)
    hiss = own.uniform(0.002, 0.02)
    length = int(SAMPLE_RATE * rng.uniform(0.8, 1.0))
    spoken = int(0.6 * SAMPLE_RATE * pace)
    at = np.linspace(0.0, _PARTS, spoken)
    semitones = np.interp(at, np.arange(_PARTS + 1), glides) + rng.normal(0.0, 0.3)
    phase = 2 * np.pi * np.cumsum(pitch * 2.0 ** (semitones / 12.0)) / SAMPLE_RATE
    tone = sum(np.sin(n * phase) / n for n in range(1, _PARTIALS + 1))
    sound = rng.normal(0.0, hiss, length)
    start = int(rng.integers(0, length - spoken + 1))
    sound[start : start + spoken] += tone * np.sin(np.pi * at / _PARTS) * rng.uniform(0.3, 1.0)
    return np.clip(np.rint(sound * _LOUDEST), -32768, 32767).astype(np.int16)
