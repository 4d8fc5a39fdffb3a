"""MLflow: a run in a tracking store, by default the file ``mlflow.db`` of the run folder."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from pfl_bench.config.sections import MlflowOptions as Options
from pfl_bench.files import read_json, write_json
from pfl_bench.runs.tracker import Json, Notice, Tracked, Tracker, flatten, is_number, markdown

# A server that does not answer must not hold the run; MLflow's own are 7 retries of 120 seconds.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_LONGEST_VALUE = 5000
_BATCH = 100
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowTracker(Tracker):
    """Logs to a store of MLflow, by its client alone: no state of MLflow's in this process.

    The id of the run is kept in ``mlflow.json`` of the run folder, so that a resumed run continues
    it. Numbers are metrics and texts are tags; those of statement and row are below "statement/"
    and "row/".
    """

    def __init__(self, options: Options, tracked: Tracked, notice: Notice) -> None:
        for name, value in (_PATIENCE | {"MLFLOW_DISABLE_TELEMETRY": "true"}).items():
            os.environ.setdefault(name, value)
        for name in ("mlflow", "alembic"):
            # Else each table of a new store is a line on the terminal.
            logging.getLogger(name).setLevel(logging.WARNING)
        import mlflow
        import mlflow.entities

        self._entities = mlflow.entities
        self._uri = options.uri or f"sqlite:///{(tracked.folder / 'mlflow.db').resolve()}"
        self._client = mlflow.MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)
        self._round = tracked.done
        stored = read_json(tracked.folder / "mlflow.json") or {}
        if tracked.done and stored.get("uri") == self._uri:
            self._run = str(stored["run"])
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._begin(options.experiment, tracked)

    def _begin(self, name: str, tracked: Tracked) -> None:
        experiment = self._client.get_experiment_by_name(name)
        artifacts = str(tracked.folder.resolve() / "mlflow")
        identifier = (
            self._client.create_experiment(name, artifact_location=artifacts)
            if experiment is None
            else experiment.experiment_id
        )
        labels = dict(zip(("table", "task", "setting"), tracked.labels, strict=False))
        tags = {**labels, "row": tracked.row, "run_folder": str(tracked.folder)}
        run = self._client.create_run(identifier, run_name=tracked.name, tags=tags)
        self._run = str(run.info.run_id)
        write_json(tracked.folder / "mlflow.json", {"uri": self._uri, "run": self._run})
        config = flatten(tracked.config)
        self._write(params=[self._entities.Param(_name(k), _text(v)) for k, v in config.items()])

    def log(self, metrics: Json, round: int) -> None:
        """Log the round's scalars."""
        self._round = round
        now = int(time.time() * 1000)
        numbers = {key: value for key, value in metrics.items() if is_number(value)}
        texts = {key: value for key, value in metrics.items() if key not in numbers}
        self._write(
            metrics=[
                self._entities.Metric(_name(key), float(value), now, round)
                for key, value in numbers.items()
            ],
            tags=[self._entities.RunTag(_name(key), _text(value)) for key, value in texts.items()],
        )

    def conclude(self, statement: Json | None, row: Json, table: Sequence[Json]) -> None:
        """Log what a run ends with; the comparison is in the run's description."""
        self.log(flatten({"statement": statement, "row": row}), self._round)
        if table:
            self._client.set_tag(self._run, "mlflow.note.content", markdown(table))
            lines = json.dumps(list(table), default=str)
            self._client.set_tag(self._run, "table_lines", _text(lines))

    def finish(self) -> str:
        """Mark the run as finished."""
        self._client.set_terminated(self._run, "FINISHED")
        return f"MLflow: to see this run: mlflow ui --backend-store-uri {self._uri}"

    def _write(self, **entities: Sequence[Any]) -> None:
        for kind, items in entities.items():
            for start in range(0, len(items), _BATCH):
                self._client.log_batch(self._run, **{kind: items[start : start + _BATCH]})


def build(options: Options, tracked: Tracked, notice: Notice) -> MlflowTracker | None:
    """Begin to log, if the options ask for it."""
    return MlflowTracker(options, tracked, notice) if options.enabled else None


def _name(name: str) -> str:
    """A name that MLflow allows."""
    return _NOT_IN_NAMES.sub("_", name)


def _text(value: Any) -> str:
    return str(value)[:_LONGEST_VALUE]
