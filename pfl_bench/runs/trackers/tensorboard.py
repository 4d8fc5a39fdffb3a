"""TensorBoard files in ``tensorboard/`` of the run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pfl_bench.config.sections import TensorboardOptions as Options
from pfl_bench.runs.tracker import Json, Notice, Tracked, Tracker, flatten, is_number, markdown

_FLUSH_SECONDS = 10


class TensorboardTracker(Tracker):
    """Writes event files; each resumption adds one, before which later rounds are purged.

    Numbers of statement and row are scalars below "statement/" and "row/"; both are texts, too.
    """

    def __init__(self, options: Options, tracked: Tracked, notice: Notice) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = tracked.folder / "tensorboard"
        purge = tracked.done + 1 if tracked.done else None
        self._writer = SummaryWriter(str(self._folder), purge_step=purge, flush_secs=_FLUSH_SECONDS)
        self._round = tracked.done
        self._text("configuration", _as_code(tracked.config))
        self._text("labels", ", ".join(tracked.labels))

    def log(self, metrics: Json, round: int) -> None:
        """Log the round's scalars."""
        self._round = round
        self._scalars(metrics)
        # A killed run keeps its rounds.
        self._writer.flush()

    def conclude(self, statement: Json | None, row: Json, table: Sequence[Json]) -> None:
        """Log what a run ends with."""
        if statement is not None:
            self._text("privacy statement", _as_code(statement))
        self._text("row", _as_code(row))
        self._scalars(flatten({"statement": statement, "row": row}))
        if table:
            self._text("table", markdown(table))

    def finish(self) -> str:
        """Close the file."""
        self._writer.close()
        return f"TensorBoard: to see this run: tensorboard --logdir {self._folder}"

    def _scalars(self, values: Json) -> None:
        for name, value in values.items():
            if is_number(value):
                self._writer.add_scalar(name, value, self._round)

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(name, text, self._round)


def build(options: Options, tracked: Tracked, notice: Notice) -> TensorboardTracker | None:
    """Begin to log, if the options ask for it."""
    return TensorboardTracker(options, tracked, notice) if options.enabled else None


def _as_code(value: Json) -> str:
    """As Markdown shows JSON."""
    return "```\n" + json.dumps(value, indent=1, default=str) + "\n```"
