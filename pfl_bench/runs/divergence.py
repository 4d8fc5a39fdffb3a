"""Diverged training: a loss that is not finite, or that is far beyond what it was at the start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A model that is confident and wrong has some ten times the loss of one that knows nothing.
FACTOR = 1e3
# Of the training steps or an evaluation; of local models, of the clients' own judgement.
_LOSSES = frozenset({"loss", "train_loss", "val_loss"})
# What a finding has, and what a watch saves.
_FOUND = {"metric": "", "round": 0, "unit": "", "value": 0.0, "start": 0.0}
STATE_FORM = {"start": 0.0, "found": _FOUND}
# Of each setting.
USUAL_MENDS = {
    "federated": "a lower federated.local_learning_rate or federated.central_learning_rate",
    "private_federated": (
        "a lower federated.local_learning_rate or federated.central_learning_rate, or less noise "
        "beside the updates (a larger federated.cohort_size, a lower clip_norm)"
    ),
    "central": "a lower central.learning_rate",
    "central_dp": "a lower central.learning_rate, or a larger central.batch_size",
    "local": "lower local.learning_rates",
    "multitask": "a larger multitask.regularization",
}


class DivergenceWatch:
    """Notes the first loss by which training has diverged from the initial model's, ``start``.

    It looks at what is recorded anyway. In a private run that is outside the guarantee, and so is
    what is noted here. ``found`` is None, or the "metric", its "value", the "round" (the "unit"
    says of what kind) and the loss at the "start".
    """

    def __init__(self, start: float, unit: str = "round") -> None:
        self._start = start
        self._unit = unit
        self.found: dict[str, Any] | None = None

    def look(self, index: int, scalars: Mapping[str, float]) -> bool:
        """Whether training has diverged by the losses of a round or evaluation, and had not before.

        A round in which clients lost their updates and none was left has no training loss, and
        counts as one whose loss is not finite.
        """
        if self.found is not None:
            return False
        losses = {k: v for k, v in scalars.items() if k.rpartition("/")[2] in _LOSSES}
        if scalars.get("train/num_nonfinite", 0.0) > 0:
            losses.setdefault("train/loss", math.nan)
        # A start of 0 or below, which a task's own loss may have, is no measure of size.
        limit = FACTOR * self._start if self._start > 0 else math.inf
        for name, value in losses.items():
            if not math.isfinite(value) or value > limit:
                self.found = {"metric": name, "round": index, "unit": self._unit}
                self.found |= {"value": value, "start": self._start}
                return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """The finding, and the start that it was measured by."""
        return {"start": self._start, "found": self.found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave; KeyError or TypeError of another state."""
        found = state["found"]
        if found is not None:
            found = {key: found[key] for key in _FOUND}
        self._start, self.found = float(state["start"]), found


def describe_divergence(found: Mapping[str, Any] | None) -> str:
    """Say what a ``DivergenceWatch`` found, as it is or as JSON has it; empty for nothing."""
    if not found:
        return ""
    # Non-finite numbers are texts in JSON.
    value, start = (float(found.get(key, "nan")) for key in ("value", "start"))
    what = f"{value:.4g}" if math.isfinite(value) else f"not finite ({value})"
    return (
        f"training diverged in {found['unit']} {found['round']}: {found['metric']} is {what}, and "
        f"was {start:.4g} at the start"
    )
