"""Results of runs from Python: numbers, tables, the model, and what a notebook shows of them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pfl_bench.cli.python_calls import add_folders, in_python
from pfl_bench.config.loading import load_config
from pfl_bench.files import given_path, read_json, read_metrics
from pfl_bench.types import ConfigError, RunFolderError, RunSummary
from privacy.statement.statement import PrivacyStatement, round_up

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from pfl_bench.report.table import Table

# Colours of pictures, which take them from their page, and a notebook's page has none.
_COLORS = "--s0:#0072b2;--grid:#8884"
_MOST_PICTURES = 6


@dataclass(frozen=True)
class RunResult:
    """A finished run, read from its folder.

    Attributes:
        folder: The run folder.
        summary: Content of ``summary.json``.
    """

    folder: Path
    summary: Mapping[str, Any]

    def __repr__(self) -> str:
        """Row, seed, headline metric and epsilons, in a line."""
        return f"RunResult({', '.join(f'{name} {value}' for name, value in self._about())})"

    def _repr_html_(self) -> str:
        """The same as a table, and the run's curves, for notebooks."""
        cells = [f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in self._about()]
        boxes = (
            f'<div style="width:24rem">{escape(t)}<br>{svg}</div>' for t, svg in self._curves()
        )
        style = f"display:flex;flex-wrap:wrap;gap:1rem;{_COLORS}"
        return f'<table>{"".join(cells)}</table><div style="{style}">{"".join(boxes)}</div>'

    def _curves(self) -> Iterator[tuple[str, str]]:
        from pfl_bench.report.panels import learning_panels
        from pfl_bench.report.run_folder import read_run

        run = read_run(self.folder)
        for learning in learning_panels({run.name: [run]}).values():
            for panel in learning.panels[:_MOST_PICTURES]:
                # No two pictures of a notebook have the same ids.
                own = f"p{crc32(bytes(self.folder)):x}-{panel.picture.identifier}"
                yield panel.title, replace(panel.picture, identifier=own).svg

    def _about(self) -> Iterator[tuple[str, str]]:
        from pfl_bench.report.words import selection_words
        from pfl_bench.runs.rows import headline_metrics

        yield "row", str(self.summary["name"])
        yield "seed", str(self.summary["seed"])
        for metric in headline_metrics(RunSummary.of(self.summary)):
            yield metric, f"{self.metrics[metric]:.4g}"
        statement = self.statement
        if statement is not None and statement.unit != "none":
            yield "epsilon (simulated)", round_up(statement.simulated.epsilon, 4)
            yield "epsilon (actual)", round_up(statement.actual.epsilon, 4)
        if choice := selection_words(read_json(self.folder / "selection.json")):
            yield "epsilon with the choice among trials", choice
        yield "folder", str(self.folder)

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics by name, such as "test/accuracy"; numbers that are not finite too."""
        return {name: float(value) for name, value in self.summary["metrics"].items()}

    @property
    def expected(self) -> list[dict[str, Any]]:
        """Published numbers beside measured ones: metric, published, measured, verdict, source."""
        return list(self.summary["expected"])

    @property
    def statement(self) -> PrivacyStatement | None:
        """The privacy statement; None for a run that claims nothing."""
        stated = self.summary["privacy"]
        return None if stated is None else PrivacyStatement.from_json_dict(stated)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Scalars of each round (central training: epoch), in order."""
        return read_metrics(self.folder / "metrics.jsonl")

    def history_frame(self) -> pd.DataFrame:
        """The history as a table, a row a round, a column a scalar.

        Raises:
            ConfigError: pandas is not installed.
        """
        return _pandas().DataFrame(self.history).set_index("round")

    def expected_frame(self) -> pd.DataFrame:
        """Published numbers beside measured ones as a table, a row each, by metric.

        Raises:
            ConfigError: pandas is not installed.
        """
        words = "metric published measured difference tolerance verdict source"
        return _pandas().DataFrame(self.expected, columns=words.split()).set_index("metric")

    def ledger_frame(self) -> pd.DataFrame:
        """The ledger of a private run as a table, a row a round.

        Columns hold what the ledger holds: beside the release, statistics of the round before
        noise, which a deployment would not publish.

        Raises:
            ConfigError: pandas is not installed.
            RunFolderError: The run has no ledger.
            privacy.errors.LedgerError: The ledger is damaged.
        """
        from privacy.ledger import read_ledger

        path = self.folder / "ledger.jsonl"
        if not path.exists():
            raise RunFolderError(f"{self.folder}: has no ledger; only a private run has one")
        return _pandas().DataFrame(read_ledger(path)).set_index("round")

    def state_dict(self, plugins: Sequence[str | Path] = ()) -> dict[str, Tensor]:
        """The final model's parameters and buffers by name, on the CPU; see ``model``.

        They load into the module that the row's task builds, shape by shape.
        """
        module = self.model(plugins)
        return {name: value.detach().clone() for name, value in module.state_dict().items()}

    @in_python()
    def model(self, plugins: Sequence[str | Path] = ()) -> nn.Module:
        """The final model, on the CPU, in evaluation mode.

        It is the one that was evaluated at the end: the selected one where
        ``evaluation.select_best`` selects. Of a task in memory, this process has to have the task.

        Args:
            plugins: As ``audit`` takes them.

        Raises:
            ConfigError: The run used plug-ins that were not given.
            RunFolderError: The folder has no checkpoint.
            DataError: The row's data, which say how large the model is, are not there.
        """
        import torch

        from pfl_bench.federated.parts import build_model, build_task
        from pfl_bench.runs.shadows import released_model

        add_folders(plugins)
        vector, buffers = released_model(self.folder)
        resolved = load_config(self.folder / "config.yaml")
        cpu = torch.device("cpu")
        model = build_model(resolved, build_task(resolved, cpu), cpu)
        model.vector.copy_(vector)
        if buffers is not None:
            model.load_buffers(buffers)
        return model.module.eval()


class TableResult(list[RunResult]):
    """Results of a folder of rows: a list, row by row, seed by seed."""

    def frame(self) -> pd.DataFrame:
        """Published numbers beside measured ones: a line for each metric of each row.

        Columns are those of ``pfl-bench table --format csv``: "row", "metric", "published",
        "mean", "sd", "seeds", "difference", "verdict", "epsilon (simulated)" and others.

        Raises:
            ConfigError: pandas is not installed.
        """
        frame: pd.DataFrame = _pandas().read_csv(io.StringIO(self._table().to_csv()))
        return frame

    def __repr__(self) -> str:
        """The table as text, as ``pfl-bench table`` prints it."""
        return self._table().to_text() if self else "TableResult()"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        table = self._table()
        notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
        style = "<style>.pfl-bench small {display: block}</style>"
        return f'<div class="pfl-bench">{style}{table.to_html()}<ol>{notes}</ol></div>'

    def _table(self) -> Table:
        from pfl_bench.report.results import results_table
        from pfl_bench.runs.rows import results_key, rows_of

        # A run that is in the list twice is one run.
        runs = [RunSummary.of(one.summary) for one in self]
        distinct = {(run.name, run.settings_sha256, results_key(run)): run for run in runs}
        return results_table(rows_of(distinct.values()))


class SweepResult(list[dict[str, Any]]):
    """Runs of a sweep: a list of what each came to, the best first.

    Attributes:
        words: Text below the table of ``pfl-bench sweep``: the best, and the price of all.
    """

    words = ""

    def __repr__(self) -> str:
        """The list, and the text: a run's epsilons are not what the choice costs."""
        return f"{super().__repr__()}\n\n{self.words}".strip()

    def frame(self) -> pd.DataFrame:
        """The same as a table, one row per run; ConfigError if pandas is not installed."""
        frame: pd.DataFrame = _pandas().DataFrame(self)
        return frame


@in_python()
def load_run(folder: str | Path) -> RunResult:
    """Read a finished run.

    Raises:
        RunFolderError: The folder holds no finished run.
    """
    path = given_path(folder, "folder")
    summary = read_json(path / "summary.json")
    if not isinstance(summary, dict):
        raise RunFolderError(
            f"{path}: holds no finished run (there is no summary.json); run a row there first, or "
            "go on with it by resume=True"
        )
    return RunResult(path, summary)


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "pandas is not installed, which tables of a run need; install it by "
            "`pip install 'pfl-bench[pandas]'`, or use the attributes of the result"
        ) from None
    return pd
