"""The words of Speech Commands, version 0.02, and how their clips come."""

from __future__ import annotations

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
