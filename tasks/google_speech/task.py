"""The Google Speech task: which of 35 words is said, one client a speaker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pfl_bench.data import Store, open_store
from pfl_bench.types import Examples
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.google_speech.features import LogMel
from tasks.google_speech.wav import INPUT_SHAPE, SAMPLE_RATE

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
