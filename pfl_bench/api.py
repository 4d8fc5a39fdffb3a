"""Rows and runs from Python; ``pfl_bench`` has these names too, loaded when first used.

    import pfl_bench

    row = pfl_bench.load_row("demo/private_federated.yaml", federated__num_rounds=10)
    result = pfl_bench.run_row(row, out="runs/mine")
    print(result.metrics["test/accuracy"], result.statement.actual.epsilon)
    assert pfl_bench.audit("runs/mine").verdict == "passed"

``epsilon`` and ``calibrate`` account without a run. ``FederatedTrainer`` gives the rounds of a run
one by one, to a loop or to callbacks.

Nothing is printed unless ``show_progress`` asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakValueDictionary

from pfl_bench.cli.python_calls import (
    add_folders,
    exclusively,
    folders_of,
    held,
    in_python,
    override_texts,
    task_texts,
)
from pfl_bench.cli.run_many import short_name, with_seeds
from pfl_bench.cli.run_result import RunResult, TableResult, load_run
from pfl_bench.config.loading import ResolvedConfig, load_config
from pfl_bench.config.row_files import locate, locate_row, rows_below
from pfl_bench.config.sweep_file import MOST_RUNS
from pfl_bench.federated.accounting import calibrate as calibrate
from pfl_bench.federated.accounting import epsilon as epsilon
from pfl_bench.files import given_path
from pfl_bench.types import RunFolderError, UserInputError

if TYPE_CHECKING:
    from pfl_bench.data.held_task import HeldTask
    from pfl_bench.runs.audit import RunAudit
    from pfl_bench.runs.events import OnEvaluation, OnRoundEnd, RoundEnd


@in_python()
def load_row(
    name: str | Path,
    /,
    *,
    plugins: Sequence[str | Path] = (),
    task: HeldTask | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> ResolvedConfig:
    """Read a row: a file, or a bundled one such as "demo/central.yaml".

    Args:
        name: Path of the row.
        plugins: Folders of plug-ins of one's own.
        task: What ``in_memory_task`` gives: data and model in place of the row's. Published
            numbers are left out, and what the row evaluates or chooses the model by that the task
            lacks. A dict is an override as any.
        **overrides: Settings that win over the file, by dotted key with ``__`` for the dot, such
            as ``federated__num_rounds=10``; numpy's and torch's scalars and arrays are numbers, and
            paths are texts.

    Raises:
        ConfigError: There is no such row, or it is wrong.
        UserInputError: ``name`` or a folder of ``plugins`` is no path.
    """
    path = locate_row(str(given_path(name, "name")))
    folders = [str(folder) for folder in folders_of(plugins)]
    given = {"plugins": folders, **overrides} if folders else overrides
    return load_config(path, [*task_texts(task, path), *override_texts(given)])


@in_python()
def run_row(
    row: ResolvedConfig | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    show_progress: bool = False,
    task: HeldTask | None = None,
) -> RunResult:
    """Run a row, or give what a finished run in that folder has left.

    Args:
        row: What ``load_row`` gives, or its name.
        out: The run folder; None for runs/NAME/seed-N, as on the command line.
        resume: Go on with an unfinished run of the same row.
        task: As ``load_row`` takes it, beside the name of a row.
        show_progress: Write progress to standard error.

    Raises:
        UserInputError: Row, data or folder do not fit; the message says how to mend it.
        privacy.errors.PrivacyError: The privacy claim could not be made truthfully.
    """
    from pfl_bench.report.page import write_report
    from pfl_bench.runs.runner import run

    resolved, folder = _placed(row, out, task)
    FederatedTrainer._close_open(folder)
    with exclusively(show_progress):
        run(resolved, folder, resume)
        write_report([folder], folder / "report.html")
    return load_run(folder)


class FederatedTrainer:
    """Trains a row of federated training, one round after another.

    The rounds are an iterator, for a loop of one's own. ``fit`` runs those that are left. Either
    way the run is that of ``run_row``: the same bits, ledger and folder. A run that is left before
    its last round is unfinished; ``resume=True`` goes on with it. A later trainer or ``run_row`` of
    the same folder closes the first, so that a notebook's cell can be run again.

    Guarantee: of a private run, callbacks and loop are given only what the run releases, and what
    the evaluation measures on users outside of training (``pfl_bench.runs.events``).

    Args:
        row: What ``load_row`` gives, or its name.
        out: The run folder; None for runs/NAME/seed-N, as on the command line.
        resume: Go on with an unfinished run of the same row.
        on_round_end: Called with a ``RoundEnd`` after each round.
        on_evaluation: Called with an ``Evaluation`` after each evaluation.
        show_progress: Write progress to standard error.
        task: As ``load_row`` takes it, beside the name of a row.

    Raises:
        ConfigError: The row is not federated.
    """

    # A notebook's cell that is run again makes a trainer of a folder that its last one holds.
    _open: ClassVar[WeakValueDictionary[Path, FederatedTrainer]] = WeakValueDictionary()

    @in_python()
    def __init__(
        self,
        row: ResolvedConfig | str | Path,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        on_round_end: OnRoundEnd | None = None,
        on_evaluation: OnEvaluation | None = None,
        show_progress: bool = False,
        task: HeldTask | None = None,
    ) -> None:
        from pfl_bench.runs.events import Callbacks
        from pfl_bench.runs.runner import rounds

        resolved, self.folder = _placed(row, out, task)
        self._is_closed = False
        callbacks = Callbacks(resolved.config, on_round_end, on_evaluation)
        self._show_progress = show_progress
        self._rounds: Generator[RoundEnd | None, None, dict[str, Any]] = rounds(
            resolved, self.folder, resume, callbacks=callbacks
        )
        self._close_open(self.folder)
        self._open[self.folder.resolve()] = self

    @classmethod
    def _close_open(cls, folder: Path) -> None:
        before = cls._open.get(folder.resolve())
        if before is not None:
            before.close()

    def __iter__(self) -> Iterator[RoundEnd]:
        """The rounds; of a finished run there are none.

        Raises:
            UserInputError: Row, data or folder do not fit; the message says how to mend it.
            privacy.errors.PrivacyError: The privacy claim could not be made truthfully.
        """
        return self

    def __next__(self) -> RoundEnd:
        """Run a round; after the last one, the run's final evaluation."""
        if self._is_closed:
            raise RunFolderError(
                f"{self.folder}: this trainer was closed, by itself or by a later one of the same "
                "folder; make another one with resume=True"
            )
        with exclusively(self._show_progress), in_python():
            try:
                end = next(self._rounds)
            except StopIteration:
                raise
            except BaseException:  # no rounds are left then, which is not to look like their end
                self._is_closed = True
                raise
        assert end is not None  # there are callbacks
        return end

    def fit(self) -> RunResult:
        """Run the rounds that are left.

        Raises:
            UserInputError: Row, data or folder do not fit; the message says how to mend it.
            privacy.errors.PrivacyError: The privacy claim could not be made truthfully.
        """
        for _ in self:
            pass
        return load_run(self.folder)

    def close(self) -> None:
        """Leave the run; the folder is no longer locked."""
        self._is_closed = True
        with exclusively(self._show_progress):
            self._rounds.close()

    def __enter__(self) -> FederatedTrainer:
        """Use as a context, which closes the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


@in_python()
def run_table(
    folder: str | Path,
    seeds: int = 1,
    *,
    out: str | Path | None = None,
    resume: bool = True,
    show_progress: bool = False,
    task: HeldTask | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> TableResult:
    """Run every row of a folder with seeds of its own; finished runs are read.

    Args:
        folder: Folder of rows, or a bundled one such as "demo".
        seeds: Runs a row, at most 10,000, of the row's own seed and those that follow.
        out: Where run folders are made, ROW/seed-N; None for runs/FOLDER, as on the command line.
        resume: Go on with unfinished runs.
        show_progress: Write progress to standard error.
        task: As ``load_row`` takes it, for each row.
        **overrides: As ``load_row`` takes them, for each row; those of a section ``federated``,
            ``central``, ``local`` or ``multitask`` for the rows that have it.

    Returns:
        A list of the results, row by row, seed by seed, with ``frame``: published beside measured.

    Raises:
        UserInputError: Folder, seeds or a row do not fit; the message says how to mend it.
    """
    path = locate(str(given_path(folder, "folder")), folder=True)
    home = Path("runs") / short_name(path) if out is None else given_path(out, "out")
    if not isinstance(seeds, int) or not 1 <= seeds <= MOST_RUNS:
        raise UserInputError(
            f"seeds: {seeds!r:.60} is no whole number from 1 to {MOST_RUNS}, of runs a row"
        )
    rows = rows_below(path)
    with exclusively(show_progress):
        texts, of_row = override_texts(overrides), functools.partial(task_texts, task)
        configurations = with_seeds(rows.values(), texts, seeds, of_row)
    return TableResult(
        run_row(
            resolved,
            home / name / f"seed-{resolved.config.seed}",
            resume=resume,
            show_progress=show_progress,
        )
        for name, row in rows.items()
        for resolved in configurations[row]
    )


@in_python()
def audit(
    folder: str | Path,
    *,
    plugins: Sequence[str | Path] = (),
    recompute: Literal["none", "first", "sample", "all"] = "sample",
    task: HeldTask | None = None,
) -> RunAudit:
    """Derive every privacy claim of a run anew from its record, as ``pfl-bench audit`` does.

    Args:
        folder: The run's.
        recompute: Which rounds are computed again; "none" for an audit of the records alone.
        plugins: Folders of the plug-ins that the run used, by the names that it recorded: they are
            code, and none is imported that a run folder names.
        task: Of a run on a task in memory, the task, made again if need be. Without it the audit
            rests on the records alone.

    Raises:
        UserInputError: The folder holds no private run, or it used plug-ins that were not given.
    """
    from pfl_bench.runs.audit import audit_run
    from pfl_bench.runs.auditing.recompute import MODES

    if recompute not in MODES:
        raise UserInputError(f"recompute: {recompute!r:.60} is none of {', '.join(MODES)}")
    add_folders(plugins)
    path = given_path(folder, "folder")
    if task is not None:
        recorded = held(task).section()
        used = load_config(path / "config.yaml").tree["task"]
        other = [key for key in ("content", "code") if used.get(key) != recorded[key]]
        if other:
            what = {"content": "examples or users", "code": "model or loss"}
            named = " and ".join(what[key] for key in other)
            raise UserInputError(
                f"task: is not that of {path}: it has other {named}; make it from what the run used"
            )
    with exclusively(True):
        return audit_run(path, recompute=recompute)


def _placed(
    row: ResolvedConfig | str | Path, out: str | Path | None, task: HeldTask | None
) -> tuple[ResolvedConfig, Path]:
    """The configuration of a row, and its run folder."""
    if not isinstance(row, ResolvedConfig):
        row = load_row(given_path(row, "row"), task=task)
    elif task is not None:
        raise UserInputError(
            "task: a row that is read has its task already; give it to load_row(NAME, task=task)"
        )
    config = row.config
    if out is None:
        return row, Path("runs") / config.name / f"seed-{config.seed}"
    return row, given_path(out, "out")
