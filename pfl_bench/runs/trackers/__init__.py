"""Trackers: places beside the run folder where a run is logged, as its section ``logging`` asks.

The files under the run folder remain the record; a tracker shows them elsewhere. A run never
depends on one: a tracker that cannot start, fails or loses its network is left out from then on,
which is said once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_bench.config.bundled_rows import bundled_configs
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.logging import LoggingOptions
from pfl_bench.runs.trackers.tracker import Notice, Tracked, Tracker, one_line, scalar


class Trackers:
    """Tells all trackers; one that fails is left out from then on, and said once."""

    def __init__(self, started: Sequence[Tracker], notice: Notice) -> None:
        self._active = list(started)
        self._notice = notice

    @classmethod
    def start(cls, options: LoggingOptions, tracked: Tracked, notice: Notice) -> Trackers:
        """Start those that the configuration asks for; of others, nothing is imported.

        ``notice`` is told in one sentence what is not as asked.
        """
        asked = {
            "wandb": ("W&B", options.wandb.mode != "disabled"),
            "tensorboard": ("TensorBoard", options.tensorboard.enabled),
            "mlflow": ("MLflow", options.mlflow.enabled),
        }
        started: list[Tracker] = []
        for module, title in ((module, title) for module, (title, is_on) in asked.items() if is_on):
            try:
                started.append(_begin(module, options, tracked, notice))
            except Exception as error:
                missing = isinstance(error, ImportError)
                install = f"; install it by `pip install 'pfl-bench[{module}]'`" if missing else ""
                notice(f"{title} logging is off for this run: {one_line(error)}{install}")
        return cls(started, notice)

    def log(self, metrics: Mapping[str, Any], round: int) -> None:
        """Log the scalars of one round, a line of ``metrics.jsonl``."""
        numbers = {name: scalar(value) for name, value in metrics.items()}
        self._each(lambda tracker: tracker.log(numbers, round))

    def conclude(
        self,
        statement: Mapping[str, Any] | None,
        row: Mapping[str, Any],
        table: Sequence[Mapping[str, Any]],
    ) -> None:
        """Log what a run ends with, and end.

        Args:
            statement: Contents of ``privacy.json``; None without one.
            row: The row's final line: nested objects and lists of scalars.
            table: Published numbers beside measured ones, lines of equal keys; may be empty.
        """
        self._each(lambda tracker: tracker.conclude(statement, row, table))
        self.finish()

    def finish(self) -> None:
        """End all. May be called twice."""

        def end(tracker: Tracker) -> None:
            said = tracker.finish()
            if said:
                self._notice(said)

        self._each(end)
        self._active = []

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._active):
            try:
                action(tracker)
            except Exception as error:
                self._active.remove(tracker)
                self._notice(
                    f"{tracker.title} logging stopped ({one_line(error)}); the run goes on"
                    f"{tracker.after_failure}"
                )


def _begin(module: str, options: LoggingOptions, tracked: Tracked, notice: Notice) -> Tracker:
    if module == "wandb":
        from pfl_bench.runs.trackers.wandb import WandbTracker

        return WandbTracker(options.wandb, tracked, notice)
    if module == "tensorboard":
        from pfl_bench.runs.trackers.tensorboard import TensorboardTracker

        return TensorboardTracker(options.tensorboard, tracked, notice)
    from pfl_bench.runs.trackers.mlflow import MlflowTracker

    return MlflowTracker(options.mlflow, tracked, notice)


def tracked_of(resolved: ResolvedConfig, folder: Path, done: int) -> Tracked:
    """Description of a run for trackers."""
    source = resolved.source.resolve()
    home = bundled_configs().resolve()
    inside = source.is_relative_to(home)
    table = source.parent.relative_to(home).as_posix() if inside else source.parent.name
    config = resolved.config
    labels = (table, resolved.tree["task"]["name"], config.setting)
    return Tracked(
        folder, config.name, resolved.tree, table, source.stem, tuple(dict.fromkeys(labels)), done
    )
