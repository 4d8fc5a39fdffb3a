"""Trackers: places beside the run folder where a run is logged, as its section ``logging`` asks.

The files under the run folder remain the record; a tracker shows them elsewhere. A run never
depends on one: a tracker that cannot start, fails or loses its network is left out from then on,
which is said once.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from pfl_bench import plugins
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.row_files import bundled_configs
from pfl_bench.runs.events import RELEASED
from pfl_bench.runs.tracker import Json, Notice, Tracked, Tracker, one_line, scalar
from pfl_bench.types import ended_by_signal

if TYPE_CHECKING:
    from torch import Tensor


class Trackers:
    """Tells all trackers; one that fails is left out from then on, and said once."""

    def __init__(
        self,
        active: Mapping[str, Tracker],
        notice: Notice,
        splits: Collection[str] | None = None,
    ) -> None:
        self._active, self._notice, self._splits = dict(active), notice, splits
        self._limited: set[str] = set()
        self._is_calling = False

    @classmethod
    def start(
        cls,
        options: Mapping[str, BaseModel],
        tracked: Tracked,
        notice: Notice,
        splits: Collection[str] | None = None,
    ) -> Trackers:
        """Start those that the options ask for; of others, no library is imported.

        Args:
            options: Of each plug-in, by its name.
            tracked: Describes the run.
            notice: Is told in one sentence what is not as asked.
            splits: Splits whose metrics a user's tracker is given, beside ``RELEASED``; None for
                all that there is, as of a run without privacy.
        """
        trackers = cls({}, notice, splits)
        for name, own in options.items():
            run = replace(
                tracked,
                config=deepcopy(tracked.config),
                model=lambda: trackers._look(tracked.model),
            )
            with trackers._calling(name):
                built = plugins.build(plugins.TRACKER, name, own, run, notice)
                is_users = plugins.origin_of(plugins.TRACKER, name) is not None
                if built is None:
                    if is_users:
                        notice(f"the tracker '{name}' is off for this run: its build returns None")
                    continue
                if splits is not None and is_users:
                    trackers._limited.add(name)
                checked = plugins.checked(built, Tracker, plugins.TRACKER, name)
                trackers._active[name] = checked
        return trackers

    def log(self, metrics: Json, round: int, measured: Collection[str] = ()) -> None:
        """Log the scalars of one round, a line of ``metrics.jsonl``, some of them evaluated."""
        numbers = {name: scalar(value) for name, value in metrics.items()}
        released = RELEASED.union(filter(self._is_shown, measured))
        shown = {name: value for name, value in numbers.items() if name in released}
        self._each(lambda tracker, limited: tracker.log(dict(shown if limited else numbers), round))

    def conclude(self, statement: Json | None, row: Json, table: Sequence[Json]) -> None:
        """Log what a run ends with, and end.

        Args:
            statement: Contents of ``privacy.json``; None without one.
            row: The row's final line: nested objects and lists of scalars.
            table: Published numbers beside measured ones, lines of equal keys; may be empty.
        """
        named = {key: row[key] for key in row if key in ("name", "setting") or self._is_shown(key)}
        shown = [line for line in table if self._is_shown(line["metric"])]
        self._each(
            lambda tracker, limited: tracker.conclude(
                *deepcopy((statement, named, shown) if limited else (statement, row, table))
            )
        )
        self.finish()

    def finish(self) -> None:
        """End all. May be called twice."""

        def end(tracker: Tracker, _: bool) -> None:
            said = tracker.finish()
            if said:
                self._notice(said)

        self._each(end)
        self._active = {}

    def _each(self, action: Callable[[Tracker, bool], None]) -> None:
        for name, tracker in list(self._active.items()):
            with self._calling(name):
                action(tracker, name in self._limited)

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        """While a tracker is called: it may look at the model, and its error is said."""
        import torch

        self._is_calling = True
        try:
            # Put back as it was, where a tracker turns gradients off and not on again.
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                yield
        except (Exception, SystemExit) as error:
            if ended_by_signal(error):
                raise
            tracker, what = self._active.pop(name, None), one_line(error)
            if tracker is not None:
                what = f"stopped ({what}); the run goes on{tracker.after_failure}"
            else:
                what = f"is off for this run: {what}"
                if isinstance(error, ImportError) and not plugins.origin_of(plugins.TRACKER, name):
                    what += f"; install it by `pip install 'pfl-bench[{name}]'`"
            self._notice(f"the tracker '{name}' {what}{_place(name, error)}")
        finally:
            self._is_calling = False

    def _is_shown(self, metric: str) -> bool:
        return self._splits is not None and metric.partition("/")[0] in self._splits

    def _look(self, model: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        if not self._is_calling:
            # A client's model may be in its place.
            raise RuntimeError("the model can be asked for in build, log and conclude alone")
        return model()


def _place(name: str, error: BaseException) -> str:
    """File and, if it got so far, line where a user's tracker failed; "" of a bundled one."""
    if plugins.origin_of(plugins.TRACKER, name) is None:
        return ""
    file = plugins.spec_of(plugins.TRACKER, name).origin
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f", line {frame.lineno}" for frame in frames if frame.filename == file]
    return f" ({file}{''.join(lines[-1:])})"


def tracked_of(
    resolved: ResolvedConfig,
    folder: Path,
    done: int,
    model: Callable[[], dict[str, Tensor]] = dict,
) -> Tracked:
    """Description of a run for trackers; ``model`` gives tensors in the shapes of the model's."""
    source = resolved.source.resolve()
    home = bundled_configs().resolve()
    inside = source.is_relative_to(home)
    table = source.parent.relative_to(home).as_posix() if inside else source.parent.name
    config = resolved.config
    labels = tuple(dict.fromkeys((table, resolved.tree["task"]["name"], config.setting)))
    tree, name = resolved.tree, f"{config.name}, seed {config.seed}"
    return Tracked(folder, name, tree, table, source.stem, labels, done, model)
