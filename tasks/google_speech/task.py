"""The Google Speech task: which of 35 words is said, one client a speaker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, open_store
from pfl_bench.types import Examples
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.google_speech.prepare import INPUT_SHAPE, SAMPLE_RATE

WINDOW, HOP = 2048, 512
# Frames centred on each multiple of HOP, the first on 0: 1 + SAMPLE_RATE // HOP of them.
_, NUM_MELS, NUM_FRAMES = INPUT_SHAPE
# Power below this counts as this; decibels reach at most so far below the loudest.
_LEAST_POWER, _RANGE_DB = 1e-10, 80.0
# Slaney's mel scale: 15 mels to 1,000 Hz in equal steps, then 27 to each factor of 6.4.
_LINEAR_HZ, _LINEAR_MELS, _LOG_STEP = 1000.0, 15.0, np.log(6.4) / 27.0
# Augmentation: each with probability 1/2.
_SPEED_SPREAD, _SHIFT_FRAMES, _SPEED_UNIT = 0.2, 8, 1_000_000


def mel_frequencies(count: int, highest: float) -> NDArray[np.float64]:
    """Frequencies in Hz, 0 to ``highest`` > 1,000, evenly on Slaney's mel scale; shape (count,).

    Source: Slaney 1998, Auditory Toolbox.
    """
    top = _LINEAR_MELS + np.log(highest / _LINEAR_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top, count)
    linear = mels * (_LINEAR_HZ / _LINEAR_MELS)
    return np.where(
        mels < _LINEAR_MELS, linear, _LINEAR_HZ * np.exp((mels - _LINEAR_MELS) * _LOG_STEP)
    )


def mel_filters() -> NDArray[np.float64]:
    """Triangles of equal area over the bins of the spectrum: shape (NUM_MELS, WINDOW // 2 + 1).

    Each rises from the centre of the one before it and falls to that of the one behind it.
    """
    edges = mel_frequencies(NUM_MELS + 2, SAMPLE_RATE / 2)
    bins = np.linspace(0.0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise, fall = (bins - low) / (centre - low), (high - bins) / (high - centre)
    triangles: NDArray[np.float64] = np.maximum(0.0, np.minimum(rise, fall)) * 2.0 / (high - low)
    return triangles


class LogMel:
    """Log-mel spectrograms, of training clips after changes of speed and shifts in time.

    FedScale's code also stretches clips by a phase vocoder and mixes background noise in; these are
    left out. It also changes the amplitude, which decibels below the loudest do not show. With
    ``augment``, training changes speed (by up to a fifth) and shifts (by up to 8 frames), each with
    probability 1/2.

    Source: FedScale's repository, dataloaders/transforms_wav.py and transforms_stft.py: 32 mels of
        a spectrum of 2,048 samples each 512, in decibels below the loudest.
    """

    def __init__(self, augment: bool) -> None:
        self.augment = augment
        self._filters = torch.from_numpy(mel_filters()).float()
        self._window = torch.hann_window(WINDOW, periodic=True)

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw speeds in millionths and frames to move by, to the left: shape (count, 2), int64.

        The client's stream is untouched without augmentation.
        """
        draws = np.zeros((count, 2), dtype=np.int64)
        draws[:, 0] = _SPEED_UNIT
        if self.augment:
            applied = rng.random((count, 2)) < 0.5
            speeds = _SPEED_UNIT / (1.0 + rng.uniform(-_SPEED_SPREAD, _SPEED_SPREAD, count))
            shifts = rng.integers(-_SHIFT_FRAMES, _SHIFT_FRAMES + 1, count)
            draws[:, 0] = np.where(applied[:, 0], np.rint(speeds), _SPEED_UNIT)
            draws[:, 1] = np.where(applied[:, 1], shifts, 0)
        return torch.from_numpy(draws)

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Transform a batch of shape (n, SAMPLE_RATE), int16; ``draws`` are None for evaluation.

        Returns shape (n, 1, NUM_MELS, NUM_FRAMES), float32, in decibels, -80 to 0.
        """
        self._filters = self._filters.to(inputs.device)
        self._window = self._window.to(inputs.device)
        sound = inputs.float().mul_(1.0 / 32768.0)
        if not self.augment:
            draws = None
        if draws is not None:
            sound = _at_speed(sound, draws[:, 0].float() / _SPEED_UNIT)
        spectrum = torch.stft(
            functional.pad(sound, (WINDOW // 2, WINDOW // 2)),
            n_fft=WINDOW,
            hop_length=HOP,
            window=self._window,
            center=False,
            return_complex=True,
        )
        power = self._filters @ (spectrum.real.square() + spectrum.imag.square())
        if draws is not None:
            power = _moved(power, draws[:, 1])
        decibels = power.clamp_min(_LEAST_POWER).log10().mul(10.0)
        loudest = decibels.amax(dim=(1, 2), keepdim=True)
        return (decibels - loudest).clamp_min(-_RANGE_DB).unsqueeze(1)


def _at_speed(sound: Tensor, speed: Tensor) -> Tensor:
    """Play clips of shape (n, t) at speeds of shape (n,), with silence behind the end."""
    last = sound.shape[1] - 1
    places = torch.arange(last + 1, device=sound.device) * speed[:, None]
    before = places.floor().long().clamp_max(last)
    after = (before + 1).clamp_max(last)
    share = places - places.floor()
    mixed = sound.gather(1, before) * (1.0 - share) + sound.gather(1, after) * share
    return mixed.where(places <= last, 0.0)


def _moved(power: Tensor, shift: Tensor) -> Tensor:
    """Move frames of shape (n, m, t) to the left by shifts of shape (n,), with silence behind."""
    last = power.shape[2] - 1
    places = torch.arange(last + 1, device=power.device) + shift[:, None]
    inside = (places >= 0) & (places <= last)
    index = places.clamp(0, last)[:, None, :].expand(power.shape)
    return power.gather(2, index).where(inside[:, None, :], 0.0)


TASK_NAME = "google_speech"


class Options(TaskOptions):
    """Options of the Google Speech task, beside those of all tasks on FedScale's layout.

    Attributes:
        augment: Whether training changes the speed of clips and shifts them in time.
    """

    augment: bool = True


class GoogleSpeechTask(LabelledTask):
    """One word a clip, cross entropy; spectrograms are computed by the batch."""

    def __init__(self, store: Store, options: Options) -> None:
        self.transform = LogMel(options.augment)
        fields = ("audio", "targets")
        super().__init__(store, fields, _to_examples, options, input_shape=INPUT_SHAPE)


def _to_examples(fields: Mapping[str, Any]) -> Examples:
    """Pad with silence, or cut, to a second: int16, shape (n, SAMPLE_RATE)."""
    clips = np.zeros((len(fields["audio"]), SAMPLE_RATE), dtype=np.int16)
    for place, samples in enumerate(fields["audio"]):
        clips[place, : min(len(samples), SAMPLE_RATE)] = samples[:SAMPLE_RATE]
    targets = fields["targets"].astype(np.int64)
    return Examples(torch.from_numpy(clips), torch.from_numpy(targets))


def build(options: Options) -> GoogleSpeechTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return GoogleSpeechTask(open_store(options.data, TASK_NAME), options)
