"""MLflow: a run in a tracking store, by default the file ``mlflow.db`` of the run folder."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pfl_bench.config.logging import MlflowOptions
from pfl_bench.files import read_json, write_json
from pfl_bench.runs.tracking import Tracked, Tracker, flatten, is_number, markdown, scalar

# A server that does not answer must not hold the run; MLflow's own are 7 retries of 120 seconds.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_LONGEST_VALUE = 5000
_BATCH = 100
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowTracker(Tracker):
    """Logs to a store of MLflow, by its client alone: no state of MLflow's in this process.

    The id of the run is kept in ``mlflow.json`` of the run folder, so that a resumed run continues
    it.

    Args:
        options: What the configuration says.
        tracked: The run.

    Raises:
        ImportError: MLflow is not installed.
        Exception: The store cannot be reached or written.
    """

    title = "MLflow"

    def __init__(self, options: MlflowOptions, tracked: Tracked) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("mlflow", "alembic"):
            # Else each table of a new store is a line on the terminal.
            logging.getLogger(name).setLevel(logging.WARNING)
        import mlflow
        from mlflow.entities import Metric, Param, RunTag

        self._metric, self._param, self._tag = Metric, Param, RunTag
        self._uri = options.uri or f"sqlite:///{(tracked.folder / 'mlflow.db').resolve()}"
        self._client = mlflow.MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)
        self._round = tracked.done
        self._run = self._continued(tracked) or self._started(options, tracked)

    def _continued(self, tracked: Tracked) -> str | None:
        """The run that a resumed run has begun in this store; None without one."""
        stored = read_json(tracked.folder / "mlflow.json") or {}
        if not tracked.done or stored.get("uri") != self._uri:
            return None
        run = str(stored["run"])
        self._client.update_run(run, status="RUNNING")
        return run

    def _started(self, options: MlflowOptions, tracked: Tracked) -> str:
        experiment = self._client.get_experiment_by_name(options.experiment)
        identifier = (
            self._client.create_experiment(
                options.experiment, artifact_location=str(tracked.folder.resolve() / "mlflow")
            )
            if experiment is None
            else experiment.experiment_id
        )
        labels = dict(zip(("table", "task", "setting"), tracked.labels, strict=False))
        tags = {**labels, "row": tracked.row, "run_folder": str(tracked.folder)}
        run = self._client.create_run(identifier, run_name=tracked.name, tags=tags)
        write_json(tracked.folder / "mlflow.json", {"uri": self._uri, "run": run.info.run_id})
        self._run = str(run.info.run_id)
        config = flatten(tracked.config, "")
        params = [self._param(_name(key), _text(value)) for key, value in config.items()]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self._run, params=params[start : start + _BATCH])
        return self._run

    def log(self, metrics: Mapping[str, Any], round: int) -> None:
        """Log the round's scalars."""
        self._round = round
        self._write({name: scalar(value) for name, value in metrics.items()})

    def statement(self, statement: Mapping[str, Any]) -> None:
        """Numbers of the statement as metrics below "statement/", texts as tags."""
        self._write(flatten(statement, "statement"))

    def table_row(self, row: Mapping[str, Any]) -> None:
        """Numbers of the line as metrics below "row/", texts as tags."""
        self._write(flatten(row, "row"))

    def table(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """The comparison in the run's description."""
        self._client.set_tag(self._run, "mlflow.note.content", markdown(lines))
        self._client.set_tag(self._run, "table_lines", _text(json.dumps(list(lines), default=str)))

    def finish(self) -> str:
        """Mark the run as finished."""
        self._client.set_terminated(self._run, "FINISHED")
        return f"MLflow: to see this run: mlflow ui --backend-store-uri {self._uri}"

    def _write(self, values: Mapping[str, Any]) -> None:
        now = int(time.time() * 1000)
        numbers = [
            self._metric(_name(key), float(value), now, self._round)
            for key, value in values.items()
            if is_number(value)
        ]
        tags = [
            self._tag(_name(key), _text(value))
            for key, value in values.items()
            if not is_number(value)
        ]
        for start in range(0, len(numbers), _BATCH):
            self._client.log_batch(self._run, metrics=numbers[start : start + _BATCH])
        for start in range(0, len(tags), _BATCH):
            self._client.log_batch(self._run, tags=tags[start : start + _BATCH])


def _name(name: str) -> str:
    """A name that MLflow allows."""
    return _NOT_IN_NAMES.sub("_", name)


def _text(value: Any) -> str:
    return str(value)[:_LONGEST_VALUE]
