"""Clips of Speech Commands, version 0.02: their words, and WAV files of one word each."""

from __future__ import annotations

import io
import wave

import numpy as np
from numpy.typing import NDArray

from tasks.common.fedscale.streaming import SampleError

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
