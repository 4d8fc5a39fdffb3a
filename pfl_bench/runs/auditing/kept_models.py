"""Holds what checkpoints of DP-SGD keep, models, buffers and moments, against its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.files import to_json_value
from pfl_bench.runs.auditing.kept_state import other_optimizer
from pfl_bench.runs.checkpoint import load, restoring
from privacy.audit.inputs import json_equal
from privacy.audit.recomputed_noise import recorded_number
from privacy.audit.rounding import is_same_sketch, of_moment
from privacy.reference.central import Optimizer

Array = NDArray[np.float64]
# Relative: noise is recorded as the released sum less that of the data, in float64.
_OF_NOISE = 1e-6


def kept_problems(
    model: FlatModel,
    sketches: Array,
    sketch: Callable[[], Array],
    saved: Mapping[int, Path],
    statistics: Any,
) -> Iterator[str]:
    """Differences of the checkpoints ``saved``, by epoch, from the record, in words.

    The ledger has the ``sketches`` of the parameters after each epoch, shape (E, k), by which the
    steps are followed, and of which a digest says nothing. ``sketch`` gives that of the parameters
    that the model has, shape (k,); they are the same afterwards. No step moves buffers. Each
    checkpoint repeats what the ledger has of released ``statistics``, None for none.
    """
    own, before = dict(model.module.named_buffers()), model.vector.clone()
    for epoch, path in saved.items():
        state = load(path)
        best = state.get("best") or {}
        if not json_equal(to_json_value(state["trainer"].get("statistics")), statistics):
            yield f"the checkpoint of epoch {epoch} has other statistics than the ledger"
        for number, holder, key in (
            (epoch, state["trainer"], "central"),
            (best.get("index", 0), best, "vector"),
        ):
            vector = holder.get(key)
            if vector is not None and number in range(1, 1 + len(sketches)):
                model.vector.copy_(vector)
                now = sketch()
                if not is_same_sketch(sketches[number - 1], now, float(now[0])):
                    yield (
                        f"the checkpoint of epoch {epoch} holds another model than the steps of "
                        f"epoch {number} end with"
                    )
            for name, buffer in holder.get("buffers", {}).items():
                known = own.get(name)
                same = known is not None and buffer.shape == known.shape
                if known is not None and same:
                    near = 1e-4 if known.is_floating_point() else 0.0
                    same = torch.allclose(buffer, known, rtol=near, atol=near / 1e3)
                if not same:
                    yield (
                        f"the checkpoint of epoch {epoch} has another buffer '{name}' than the "
                        "model (or its released statistics)"
                    )
    model.vector.copy_(before)


def statistics_problems(recorded: Any, own: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Numbers ``recorded`` of the noise of released statistics that are not its own, in words."""
    for name, numbers in own.items():
        found = recorded.get(name) if isinstance(recorded, Mapping) else None
        part = found if isinstance(found, Mapping) else {}
        for key, number in numbers.items():
            what = f"noise of the {name} of statistics: its {key.replace('_', ' of ')}"
            yield from recorded_number(what, part, key, number, _OF_NOISE * number)


def kept_moments(path: Path, optimizer: Optimizer, disturbed: Optimizer) -> Iterator[str]:
    """Moments of a checkpoint that are not those of the ``optimizer`` after the same steps.

    ``disturbed`` has taken them from where rounding may have led.
    """
    with restoring(path, {"trainer": {}}, {}):
        saved = load(path)["trainer"]["optimizer"]
        yield from other_optimizer(optimizer, saved, partial(of_moment, disturbed))
