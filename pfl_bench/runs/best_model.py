"""The model of the evaluation that a metric chose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.metrics import MetricDirections


class BestModel:
    """Keeps the model that was best by a metric so far; nothing where the metric is None."""

    def __init__(self, metric: str | None, model: FlatModel, directions: MetricDirections) -> None:
        self._metric = metric
        self._model = model
        # Makes the larger value the better one.
        self._sign = -1.0 if metric and directions.lower_is_better(metric) else 1.0
        self._kept: dict[str, Any] | None = None

    @property
    def index(self) -> int | None:
        """After which step the kept model was looked at; None without one."""
        return None if self._kept is None else int(self._kept["index"])

    def look(self, index: int, scalars: Mapping[str, float]) -> None:
        """Keep the model that is in memory, if it is better; NaN never is."""
        if self._metric is None:
            return
        value = self._sign * scalars[self._metric]
        if not math.isnan(value) and (self._kept is None or value > self._kept["value"]):
            self._kept = self._now() | {"value": value, "index": index}

    def _now(self) -> dict[str, Any]:
        vector = self._model.vector.detach().cpu().clone()
        return {"value": 0.0, "index": 0, "vector": vector, "buffers": self._model.buffers()}

    def load(self) -> None:
        """Put the kept model into memory, if there is one."""
        if self._kept is not None:
            self._model.vector.copy_(self._kept["vector"])
            self._model.load_buffers(self._kept["buffers"])

    def to_json_dict(self) -> dict[str, Any] | None:
        """By which metric the model was chosen, its value there, and when it was."""
        if self._kept is None:
            return None
        value = self._sign * self._kept["value"]
        return {"metric": self._metric, "value": value, "index": self._kept["index"]}

    def state_dict(self) -> dict[str, Any] | None:
        """The kept model and its metric."""
        return self._kept

    def form_of(self, state: Any) -> dict[str, Any] | None:
        """The form that a saved state must have."""
        return None if state is None else self._now()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore what ``state_dict`` gave."""
        self._kept = state
