"""Optional logging of a run to Weights & Biases; a run never depends on it.

A missing login, a lost network or an exception out of wandb costs the logging, never the run, and
is said once. The files under the run folder remain the record; W&B is a view of them.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_bench.config.logging import WandbOptions
from pfl_bench.files import parse_json, read_text, write_json
from pfl_bench.runs.tracking import Notice, Tracked, Tracker, flatten, is_number, one_line, scalar

# W&B refuses longer ones.
_LONGEST_TAG = 64
_LONGEST_GROUP = 128
_INIT_SECONDS = 10.0
_FINISH_SECONDS = 30.0
_PROBE_SECONDS = 5.0


class WandbLogger(Tracker):
    """Logs one run; every method returns quietly when logging is off."""

    title = "W&B"

    def __init__(self, run: Any, run_dir: Path, on_notice: Notice) -> None:
        """Wrap a started W&B run; call ``start`` instead.

        Args:
            run: The W&B run, None when logging is off.
            run_dir: The run folder.
            on_notice: Is told, at most once, that logging has stopped.
        """
        self._run = run
        self._run_dir = run_dir
        self._on_notice = on_notice

    @classmethod
    def start(
        cls,
        options: WandbOptions,
        tracked: Tracked,
        on_notice: Notice,
    ) -> WandbLogger:
        """Start or resume logging.

        The id of the W&B run is kept in ``wandb.json`` of the run folder, so that a resumed run
        continues it. Online mode that does not start in ten seconds becomes offline mode.

        Args:
            options: What the configuration says.
            tracked: The run; wandb writes only below the ``wandb`` folder of its folder. Group and
                tags that the configuration does not set are its table and row, and its labels.
            on_notice: Is told in one sentence what is not as asked.

        Returns:
            The logger, which does nothing if wandb could not be started.
        """
        run_dir = tracked.folder
        if options.mode == "disabled":
            return cls(None, run_dir, on_notice)
        try:
            identifier = _run_identifier(run_dir, options, on_notice)
            run = _start_run(_labelled(options, tracked), tracked, identifier, on_notice)
            # Without this W&B plots over its own step, which restarts differently after a kill.
            run.define_metric("round")
            run.define_metric("*", step_metric="round")
        except ImportError:
            raise
        except Exception as error:
            on_notice(f"W&B logging is off for this run: {one_line(error)}")
            return cls(None, run_dir, on_notice)
        return cls(run, run_dir, on_notice)

    @property
    def is_active(self) -> bool:
        """Whether anything is logged."""
        return self._run is not None

    def log(self, metrics: Mapping[str, Any], round: int) -> None:
        """Log the scalars of one round, once a round.

        Args:
            metrics: A line of ``metrics.jsonl``; "nan", "inf" and "-inf" count as numbers.
            round: The round (central training: epoch), which is also the W&B step.
        """
        row = {**{key: scalar(value) for key, value in metrics.items()}, "round": round}
        # Without commit wandb holds the row back until the next round, and a kill would lose it.
        self._attempt(lambda run: run.log(row, step=round, commit=True))

    def statement(self, statement: Mapping[str, Any]) -> None:
        """Log the privacy statement: whole in the config, its scalars in the summary.

        Args:
            statement: Contents of ``privacy.json``.
        """

        def action(run: Any) -> None:
            run.config.update({"privacy_statement": dict(statement)}, allow_val_change=True)
            run.summary.update(flatten(statement, "statement"))

        self._attempt(action)

    def table_row(self, row: Mapping[str, Any]) -> None:
        """Log the row's final line: its scalars in the summary, below "row/".

        Args:
            row: Columns of the table, JSON-serialisable; nested objects and lists are flattened.
        """
        self._attempt(lambda run: run.summary.update(flatten(row, "row")))

    def table(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log the comparison with published numbers as a W&B table in the summary, "table"."""

        def action(run: Any) -> None:
            import wandb

            data = [[_cell(value) for value in line.values()] for line in lines]
            run.summary["table"] = wandb.Table(columns=list(lines[0]), data=data)

        self._attempt(action)

    def finish(self) -> str | None:
        """Finish the W&B run; waits at most half a minute for uploads. May be called twice.

        Returns:
            How to upload a run that was logged offline.
        """
        is_offline = self._run is not None and bool(getattr(self._run, "offline", False))
        self._attempt(lambda run: run.finish())
        is_finished, self._run = self._run is not None, None
        if not (is_offline and is_finished):
            return None
        command = _sync_command(self._run_dir, "offline-run-*")
        return f"W&B: this run was logged offline; to upload it: {command}"

    def _attempt(self, action: Callable[[Any], None]) -> None:
        """Do something with the run; an exception ends the logging, not the training."""
        if self._run is None:
            return
        try:
            action(self._run)
        except Exception as error:
            self._run = None
            command = _sync_command(self._run_dir, "*run-*")
            self._on_notice(
                f"W&B logging stopped ({one_line(error)}); the run goes on. What was logged lies "
                f"in {self._run_dir / 'wandb'}; to upload it: {command}"
            )


def _start_run(
    options: WandbOptions,
    tracked: Tracked,
    identifier: str,
    on_notice: Notice,
) -> Any:
    """Call ``wandb.init``, falling back from online to offline."""
    # Crash reports would carry stack frames of the user's code to a third party.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    settings, run_dir = _settings(wandb), tracked.folder
    arguments: dict[str, Any] = {
        "project": options.project,
        "entity": options.entity,
        "group": options.group,
        "tags": list(options.tags) or None,
        "name": tracked.name,
        "config": dict(tracked.config),
        "dir": str(run_dir),
        "id": identifier,
        "resume": "allow",
        "settings": settings,
    }
    # Messages about the login follow the session's settings, not those of the run.
    session = wandb.setup(settings)
    if options.mode == "online":
        try:
            _require_server(session.settings.base_url)
            return wandb.init(mode="online", **arguments)
        except Exception as error:
            on_notice(
                f"W&B could not start online ({one_line(error)}); this run is logged offline. "
                f"To upload it: `wandb login` once, then {_sync_command(run_dir, 'offline-run-*')}"
            )
            # The failed attempt keeps the run's id busy until its service has ended.
            wandb.teardown()
            wandb.setup(settings)
    return wandb.init(mode="offline", **arguments)


def _labelled(options: WandbOptions, tracked: Tracked) -> WandbOptions:
    """The options, with group and tags of the row."""
    tags = tuple(dict.fromkeys((*options.tags, *tracked.labels)))
    return options.model_copy(
        update={
            "group": (options.group or f"{tracked.table}/{tracked.row}")[:_LONGEST_GROUP],
            "tags": tuple(tag[:_LONGEST_TAG] for tag in tags if tag),
        }
    )


def _cell(value: Any) -> Any:
    """A cell of a table: W&B wants one type a column, or nothing."""
    if is_number(value):
        return float(value)
    return None if value is None else str(value)


def _require_server(url: str) -> None:
    """Raise OSError unless the W&B server answers, with whatever status, in a few seconds."""
    import urllib.error
    import urllib.request

    # wandb itself retries an unreachable server until its timeout, and some releases for ever.
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        error.close()


def _settings(wandb: Any) -> Any:
    """Settings that keep wandb quiet, quick and away from the user's code."""
    wanted: dict[str, Any] = {
        "silent": True,
        "quiet": True,
        "show_info": False,
        "show_warnings": False,
        "show_errors": False,
        "console": "off",
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "label_disable": True,
        "symlink": False,
        "init_timeout": _INIT_SECONDS,
        "finish_timeout": _FINISH_SECONDS,
        "finish_timeout_raises": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        # wandb's own 15 seconds are what a killed run would lose of its offline log.
        "x_transaction_log_flush_interval": 1.0,
    }
    # Releases of wandb differ in their settings, and an unknown one is an error.
    known = wandb.Settings.model_fields
    return wandb.Settings(**{key: value for key, value in wanted.items() if key in known})


def _run_identifier(run_dir: Path, options: WandbOptions, on_notice: Notice) -> str:
    """Read the W&B run's id from ``wandb.json``, or write a new one there."""
    path = run_dir / "wandb.json"
    place = {"project": options.project, "entity": options.entity}
    if path.exists():
        try:
            stored = parse_json(read_text(path))
            identifier = stored["id"]
            if not isinstance(identifier, str) or not identifier:
                raise ValueError(f"its id is {identifier!r}, not a text")
            if {key: stored.get(key) for key in place} == place:
                return identifier
            on_notice(f"{path} is of another W&B project or entity; a new W&B run is started")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            on_notice(f"{path} is damaged ({one_line(error)}); a new W&B run is started")
    identifier = secrets.token_hex(4)
    write_json(path, {"format_version": 1, "id": identifier, **place})
    return identifier


def _sync_command(run_dir: Path, pattern: str) -> str:
    """The command that uploads every part of the run that a shell pattern finds."""
    return f"wandb sync {shlex.quote(str(run_dir / 'wandb'))}/{pattern}"
