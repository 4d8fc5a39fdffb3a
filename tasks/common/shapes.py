"""Models and data that fit each other."""

from __future__ import annotations

from pfl_bench.types import ConfigError, DataFacts


def check_inputs(fits: bool, task: str, model: str, takes: str, facts: DataFacts) -> None:
    """Refuse data that a model does not take.

    ``takes`` is what it takes: "inputs of shape (3, size, size)", say.
    """
    if not fits:
        raise ConfigError(
            f"model {model!r} of task {task} takes {takes}, but the data ({facts.variant}) have "
            f"inputs of shape {tuple(facts.input_shape)}; use {task} data"
        )
