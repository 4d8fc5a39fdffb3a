"""Base of the options of tasks, and models and data that fit each other."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pfl_bench.types import ConfigError, DataFacts


class StrictOptions(BaseModel):
    """Options that take no unknown name and no value of another type, and do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def changed(self, *names: str) -> list[str]:
        """Those of some options that have another value than their default.

        A run's recorded configuration gives every option, so what is given tells less.
        """
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].get_default()]

    def given(self, *names: str) -> list[str]:
        """Those of some options that the caller gave, perhaps with the value of their default."""
        return [name for name in names if name in self.model_fields_set]


def refuse(names: list[str], why: str) -> None:
    """Refuse options that would have no effect, if there are any; ``why`` says how to mend it."""
    if names:
        raise ConfigError(f"{', '.join(names)}: {why}")


class StoredOptions(StrictOptions):
    """Options of a task on a store.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare`` wrote.
        max_examples_per_user: A user with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.
    """

    data: str
    max_examples_per_user: int | None = Field(default=None, ge=1)


def check_inputs(fits: bool, task: str, model: str, takes: str, facts: DataFacts) -> None:
    """Refuse data that a model does not take.

    ``takes`` is what it takes: "inputs of shape (3, size, size)", say.
    """
    if not fits:
        raise ConfigError(
            f"model {model!r} of task {task} takes {takes}, but the data ({facts.variant}) have "
            f"inputs of shape {tuple(facts.input_shape)}; use {task} data"
        )
