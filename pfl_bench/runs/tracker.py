"""Base of trackers, which show a run elsewhere: plug-ins that the section ``logging`` names.

Guarantee: of a private run, a user's tracker is given only what the run releases, and what the
evaluation measures on users outside of training (``pfl_bench.runs.events``, which says why). No
tracker is given a client's update, and none sees a model but the released one. So what it computes
is post-processing, which costs no privacy. Unit, adjacency and sampling are those of the run's
statement. The bundled trackers show the run folder's ``metrics.jsonl``, which also has what the
statement does not cover: losses, realised cohorts, times. So has the run folder, and the guarantee
is no protection against code that reads it or searches the process.

A tracker decides nothing: what it is given are copies, and it cannot stop the run, whose length
would then tell of metrics that are not released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Json: TypeAlias = Mapping[str, Any]
"""A JSON object."""
Notice: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Tracked:
    """Description of a run, which a tracker is given as the run starts.

    Attributes:
        folder: The run folder; a tracker writes below it, if anywhere on this machine.
        name: Name of the row, and the run's seed.
        config: The resolved configuration, JSON-serialisable.
        table: The row's table, such as "flair/table1".
        row: The row's file without its ending; runs of one row, such as its seeds, share it.
        labels: Table, task and setting of the row.
        done: Rounds that a resumed run has behind it; later ones of an interrupted run come again.
        model: Gives copies of the central model's parameters and buffers by name, on the CPU: after
            the round in ``log``, the selected ones in ``conclude``. Empty in the settings without
            one (local, multitask). RuntimeError outside of ``build``, ``log`` and ``conclude``.
    """

    folder: Path
    name: str
    config: Json
    table: str
    row: str
    labels: tuple[str, ...]
    done: int
    model: Callable[[], dict[str, Tensor]] = dict


class Tracker:
    """One place where a run is logged. Methods may raise anything: it is left out from then on.

    The plug-in's ``build(options, tracked, notice)`` gives one, or None if its options turn it off.
    ``notice`` is told in one sentence what is not as asked.

    Attributes:
        after_failure: What a person can still do when logging has stopped; "" for nothing.
    """

    after_failure = ""

    def log(self, metrics: dict[str, Any], round: int) -> None:
        """Log the scalars of a round (central training: epoch), from 1, as soon as it is over."""

    def conclude(self, statement: Json | None, row: Json, table: Sequence[Json]) -> None:
        """Log what a run ends with; arguments as of ``Trackers.conclude``."""

    def finish(self) -> str | None:
        """End; gives what a person should be told, such as how to see the log."""
        return None


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested objects and lists into scalars named "prefix/key/index", without nulls."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {} if value is None else {prefix: scalar(value)}
    return {
        name: found
        for key, item in items
        for name, found in flatten(item, f"{prefix}/{key}" if prefix else key).items()
    }


def scalar(value: Any) -> Any:
    """Turn the run folder's texts for non-finite numbers back into numbers."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def is_number(value: Any) -> bool:
    """Whether it is a number to plot; truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def markdown(lines: Sequence[Json]) -> str:
    """A table of mappings with equal keys."""
    heads = list(lines[0])
    rows = [heads, ["---"] * len(heads), *([_cell(line[head]) for head in heads] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: Any) -> str:
    if is_number(value) and math.isfinite(value):
        return f"{value:.6g}"
    return "-" if value is None else str(value).replace("|", "/").replace("\n", " ")


def one_line(error: BaseException) -> str:
    """The error in at most 200 characters on one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    return text if len(text) <= 200 else text[:197] + "..."
