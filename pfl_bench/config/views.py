"""Views: tables and figures of the runs of a folder's rows, without a second training.

A view is a file ``view.yaml``. It names the folder whose rows are run (its own, or another's), some
of those rows, what is published of each, and the figures that their runs are drawn as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pfl_bench.config.loading import read_typed
from pfl_bench.config.row_files import VIEW_NAME, bundled_configs, rows_below
from pfl_bench.config.schema import Expected, RunConfig
from pfl_bench.config.training import Distinct, Strict, first_twice
from pfl_bench.types import ConfigError, did_you_mean

# What lines of ``metrics.jsonl`` have beside the evaluation.
_IN_EACH_RUN = ("train", "privacy", "systems", "time")


class ViewRow(Strict):
    """One row of a view.

    Attributes:
        row: Name of a row of the viewed folder: its file without the suffix.
        expected: The cells that the view shows; empty for a row that is in figures alone.
        label: What the table and the figures call the row, such as the paper's "C-R"; null for its
            name.
    """

    row: str
    expected: list[Expected] = Field(default_factory=list)
    label: Annotated[str, Field(min_length=1)] | None = None

    @property
    def shown_as(self) -> str:
        """The label, or the name of a row without one."""
        return self.label or self.row


class Figure(Strict):
    """A figure that comes out of the rows' runs.

    Attributes:
        kind: "curves": scalars of ``metrics.jsonl`` over rounds, a line a row; "boxes": a final
            metric's distribution over clients, a box a row; "budgets": what it cost each row to
            reach a value of a metric, in FLOPs, in bytes sent and in simulated time.
        title: What stands above it.
        metrics: For curves: a picture each, such as [train/loss, test/accuracy]. For boxes and
            budgets: one metric, such as [test/accuracy].
        target: For budgets: the value that is to be reached, as in the rows' own
            ``evaluation.budgets``.
        x: For curves: "round", or "simulated_time" of rows with the section ``systems``.
        rows: Rows of the view that it shows, in its order; empty for all.
    """

    kind: Literal["curves", "boxes", "budgets"]
    title: Annotated[str, Field(min_length=1)]
    metrics: Annotated[Distinct[str], Field(min_length=1)]
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    x: Literal["round", "simulated_time"] = "round"
    rows: Distinct[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Figure:
        if self.kind != "curves" and len(self.metrics) != 1:
            raise ValueError(f"metrics: a figure of {self.kind} is of one metric, not of several")
        if (self.target is not None) != (self.kind == "budgets"):
            raise ValueError(
                "target: give the value to reach for a figure of budgets, and for no other"
            )
        if self.x != "round" and self.kind != "curves":
            raise ValueError(
                f"x: a figure of {self.kind} has no such axis; remove x, or draw curves"
            )
        return self


class View(Strict):
    """A view as its file has it.

    Attributes:
        version: Version of the configuration format.
        view_of: The folder whose rows are run, from the folder of the view's file ("." for it); or
            a bundled folder, such as demo.
        rows: The rows that the table shows, in its order.
        figures: Figures, in their order.
    """

    version: int
    view_of: str
    rows: Annotated[list[ViewRow], Field(min_length=1)]
    figures: list[Figure] = Field(default_factory=list)

    @model_validator(mode="after")
    def _shows_something(self) -> View:
        bare = [row.row for row in self.rows if not row.expected]
        if bare and not self.figures:
            raise ValueError(
                f"rows: '{bare[0]}' shows nothing; give cells under its key 'expected', or figures"
            )
        return self


@dataclass(frozen=True)
class LoadedView:
    """A view whose rows were found, with the folder and the files that are run."""

    path: Path
    folder: Path
    rows: tuple[tuple[ViewRow, Path], ...]
    figures: tuple[Figure, ...] = ()


def load_view(path: Path) -> LoadedView:
    """Read a file ``view.yaml`` and find its rows."""
    view = read_typed(path, View)
    folder = (path.parent / view.view_of).resolve()
    if not folder.is_dir() and (bundled_configs() / view.view_of).is_dir():
        folder = (bundled_configs() / view.view_of).resolve()
    rows = rows_below(folder) if folder.is_dir() else {}
    if not rows:
        raise ConfigError(
            f"{path}: view_of: '{view.view_of}' is no folder of rows; give the folder's place as "
            f"seen from the view's own, such as ../table1 (looked in {folder})"
        )
    for index, row in enumerate(view.rows):
        _check_name(row.row, list(rows), f"{path}: rows.{index}.row", f"row of {folder}")
    for what, texts in (
        ("row", [row.row for row in view.rows]),
        ("label", [row.shown_as for row in view.rows]),
    ):
        if twice := first_twice(texts):
            raise ConfigError(f"{path}: rows: the {what} '{twice}' stands twice; give it once")
    for index, row in enumerate(view.rows):
        cells = [(one.metric, one.statistic) for one in row.expected]
        if cell := first_twice(cells):
            raise ConfigError(f"{path}: rows.{index}.expected: '{cell[0]}' stands twice")
    for index, figure in enumerate(view.figures):
        where, known = f"{path}: figures.{index}.rows", [row.row for row in view.rows]
        for name in figure.rows:
            _check_name(name, known, where, "row of this view")
    return LoadedView(
        path, folder, tuple((row, rows[row.row]) for row in view.rows), tuple(view.figures)
    )


def _check_name(name: str, known: Sequence[str], where: str, what: str) -> None:
    if name in known:
        return
    hint = did_you_mean(name, known, cutoff=0.4)
    raise ConfigError(f"{where}: '{name}' is no {what}{hint} Rows: {', '.join(known)}")


def check_measured(view: LoadedView, row: ViewRow, config: RunConfig) -> None:
    """Check, before anything runs, that a row measures what the view shows of it."""
    place, evaluation = f"{view.path}: row '{row.row}'", config.evaluation
    # The metric, the key of the splits that have to have its own, and for what it is wanted.
    wanted = [
        (entry.metric, "final_splits", "")
        if entry.statistic == "last"
        else (entry.metric, "splits", ", whose best over rounds is wanted,")
        for entry in row.expected
    ]
    for figure in view.figures:
        if figure.rows and row.row not in figure.rows:
            continue
        of_it = f" of the figure '{figure.title}'"
        if figure.kind == "boxes":
            wanted += [(metric, "final_splits", of_it) for metric in figure.metrics]
        if figure.kind == "curves":
            wanted += [
                (metric, "splits", of_it)
                for metric in figure.metrics
                if metric.partition("/")[0] not in _IN_EACH_RUN
            ]
        if figure.kind == "budgets":
            budgets = {(target.metric, target.value) for target in evaluation.budgets}
            if (figure.metrics[0], figure.target) not in budgets:
                raise ConfigError(
                    f"{place}: the figure '{figure.title}' shows what it cost to reach "
                    f"{figure.metrics[0]} {figure.target:g}, which is not in the row's "
                    "evaluation.budgets; add it there"
                )
        if figure.x == "simulated_time" and config.systems is None:
            raise ConfigError(
                f"{place}: the figure '{figure.title}' is over simulated time, which a row without "
                "the section 'systems' does not have; leave the row out of the figure's rows"
            )
    for metric, key, why in wanted:
        splits = getattr(evaluation, key)
        if metric.partition("/")[0] not in splits:
            raise ConfigError(
                f"{place}: metric '{metric}'{why} is not of a split in the row's evaluation.{key}: "
                f"{splits}"
            )


def view_in(folder: Path) -> Path | None:
    """The view of a folder; None for a folder without one."""
    path = folder / VIEW_NAME
    return path if path.is_file() else None
