"""The statistics of the features that a model normalises by, released before its first step.

Guarantee: that of ``privacy.noise.feature_statistics``. The model is given what is released and
nothing else. What the ledger keeps of the noise is measured by sums apart from those that are
released.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.sections import PrivacyOptions
from pfl_bench.types import ConfigError, FederatedSplit, NormalizesByStatistics
from privacy.noise.feature_statistics import FeatureStatistics, StatisticsSums, StatisticsWatch

_BLOCK = 1024
_OF_A_VECTOR = {"count": 0, "sum_squares": 0.0}
# Of what ``release_statistics`` gives.
RECORD_FORM = {"release_sha256": "", "mean": _OF_A_VECTOR, "square": _OF_A_VECTOR}


def requested_statistics(
    model: FlatModel, privacy: PrivacyOptions | None
) -> FeatureStatistics | None:
    """Statistics of the features to be released; None where there are none.

    ConfigError if something is to be released that the model has no use for.
    """
    options = None if privacy is None else privacy.statistics
    if options is None:
        return None
    if not isinstance(model.module, NormalizesByStatistics):
        raise ConfigError(
            "privacy.statistics: the model has no statistics of features; remove it, or choose "
            "one that normalises by such, as scatter_linear and scatter_cnn without model.groups do"
        )
    return FeatureStatistics(**options.model_dump())


def release_statistics(
    request: FeatureStatistics,
    model: FlatModel,
    split: FederatedSplit,
    forward: Forward,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Release the statistics of the training split's features into the model's module.

    ``rng`` is the source of the noise, of a stream of its own. Gives what the ledger keeps of it.
    """
    module = model.module
    assert isinstance(module, NormalizesByStatistics)  # asked by requested_statistics
    sums, watch = StatisticsSums(request), StatisticsWatch(request)
    reading = np.random.default_rng(0)  # of what the training split never has: no draws are made
    with torch.no_grad():
        for start in range(0, split.num_examples, _BLOCK):
            block = np.arange(start, min(start + _BLOCK, split.num_examples), dtype=np.int64)
            examples = split.read_examples(block, reading)
            features = forward.prepare(examples.inputs.to(model.device), None)
            moments = [part.double().cpu().numpy() for part in module.moments(features)]
            sums.add(*moments)
            watch.add(*moments)
    released = sums.release(split.num_examples, rng)
    module.set_statistics(*map(torch.from_numpy, (released.mean, released.variance)))
    return watch.record(released, split.num_examples)
