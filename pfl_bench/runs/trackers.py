"""The trackers of a run, as its section ``logging`` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_bench.config.bundled_rows import bundled_configs
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.logging import LoggingOptions
from pfl_bench.runs.tracking import Notice, Tracked, Tracker, one_line


class Trackers:
    """Tells all trackers; one that fails is left out from then on, and said once.

    Args:
        started: The trackers.
        notice: Is told of failures, and of what trackers say at the end.
    """

    def __init__(self, started: Sequence[Tracker], notice: Notice) -> None:
        self._active = list(started)
        self._notice = notice

    @classmethod
    def start(cls, resolved: ResolvedConfig, folder: Path, done: int, notice: Notice) -> Trackers:
        """Start those that the configuration asks for; of others, nothing is imported.

        Args:
            resolved: The configuration.
            folder: The run folder.
            done: Rounds that the run has behind it.
            notice: Is told in one sentence what is not as asked.
        """
        tracked = tracked_of(resolved, folder, done)
        started = []
        for title, extra, begin in _asked_for(resolved.config.logging, tracked, notice):
            try:
                started.append(begin())
            except ImportError as error:
                notice(
                    f"{title} logging is off for this run: {one_line(error)}; install it by "
                    f"`pip install 'pfl-bench[{extra}]'`"
                )
            except Exception as error:
                notice(f"{title} logging is off for this run: {one_line(error)}")
        return cls(started, notice)

    def log(self, metrics: Mapping[str, Any], round: int) -> None:
        """Log the scalars of one round."""
        self._each(lambda tracker: tracker.log(metrics, round))

    def conclude(
        self,
        statement: Mapping[str, Any] | None,
        row: Mapping[str, Any],
        table: Sequence[Mapping[str, Any]],
    ) -> None:
        """Log what a run ends with, and end.

        Args:
            statement: Contents of ``privacy.json``; None without one.
            row: The row's final line.
            table: Published numbers beside measured ones, a line each; may be empty.
        """
        if statement is not None:
            self._each(lambda tracker: tracker.statement(statement))
        self._each(lambda tracker: tracker.table_row(row))
        if table:
            self._each(lambda tracker: tracker.table(table))
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
                )


def tracked_of(resolved: ResolvedConfig, folder: Path, done: int) -> Tracked:
    """What trackers are told of a run."""
    source = resolved.source.resolve()
    home = bundled_configs().resolve()
    inside = source.is_relative_to(home)
    table = source.parent.relative_to(home).as_posix() if inside else source.parent.name
    config = resolved.config
    return Tracked(
        folder=folder,
        name=config.name,
        config=resolved.tree,
        table=table,
        row=source.stem,
        labels=tuple(dict.fromkeys((table, resolved.tree["task"]["name"], config.setting))),
        done=done,
    )


def _asked_for(
    options: LoggingOptions, tracked: Tracked, notice: Notice
) -> list[tuple[str, str, Callable[[], Tracker]]]:
    """Title, extra and start of each tracker that is asked for."""
    asked: list[tuple[str, str, Callable[[], Tracker]]] = []
    if options.wandb.mode != "disabled":

        def wandb() -> Tracker:
            from pfl_bench.runs.wandb import WandbLogger

            return WandbLogger.start(options.wandb, tracked, notice)

        asked.append(("W&B", "wandb", wandb))
    if options.tensorboard.enabled:

        def tensorboard() -> Tracker:
            from pfl_bench.runs.tensorboard import TensorboardTracker

            return TensorboardTracker(tracked)

        asked.append(("TensorBoard", "tensorboard", tensorboard))
    if options.mlflow.enabled:

        def mlflow() -> Tracker:
            from pfl_bench.runs.mlflow import MlflowTracker

            return MlflowTracker(options.mlflow, tracked)

        asked.append(("MLflow", "mlflow", mlflow))
    return asked
