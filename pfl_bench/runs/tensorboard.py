"""TensorBoard files in ``tensorboard/`` of the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch.utils.tensorboard

from pfl_bench.runs.tracking import Tracked, Tracker, flatten, is_number, markdown, scalar

_FLUSH_SECONDS = 10


class TensorboardTracker(Tracker):
    """Writes event files; each resumption adds one, before which later rounds are purged.

    Args:
        tracked: The run.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    title = "TensorBoard"

    def __init__(self, tracked: Tracked) -> None:
        self._folder = tracked.folder / "tensorboard"
        purge = tracked.done + 1 if tracked.done else None
        self._writer = torch.utils.tensorboard.SummaryWriter(
            str(self._folder), purge_step=purge, flush_secs=_FLUSH_SECONDS
        )
        self._round = tracked.done
        self._text("configuration", _as_code(tracked.config))
        self._text("labels", ", ".join(tracked.labels))

    def log(self, metrics: Mapping[str, Any], round: int) -> None:
        """Log the round's scalars."""
        self._round = round
        for name, value in metrics.items():
            self._scalar(name, scalar(value))
        # A killed run keeps its rounds.
        self._writer.flush()

    def statement(self, statement: Mapping[str, Any]) -> None:
        """The statement as text; its numbers as scalars below "statement/"."""
        self._text("privacy statement", _as_code(statement))
        for name, value in flatten(statement, "statement").items():
            self._scalar(name, value)

    def table_row(self, row: Mapping[str, Any]) -> None:
        """The line's numbers as scalars below "row/"; all of it as text."""
        self._text("row", _as_code(row))
        for name, value in flatten(row, "row").items():
            self._scalar(name, value)

    def table(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """The comparison as a table in a text."""
        self._text("table", markdown(lines))

    def finish(self) -> str:
        """Close the file."""
        self._writer.close()
        return f"TensorBoard: to see this run: tensorboard --logdir {self._folder}"

    def _scalar(self, name: str, value: Any) -> None:
        if is_number(value):
            self._writer.add_scalar(name, value, self._round)

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(name, text, self._round)


def _as_code(value: Mapping[str, Any]) -> str:
    """As Markdown shows JSON."""
    return "```\n" + json.dumps(value, indent=1, default=str) + "\n```"
