"""Weights & Biases: a run of W&B, on its server or offline below the run folder."""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfl_bench.config.sections import WandbOptions as Options
from pfl_bench.files import parse_json, read_text, write_json
from pfl_bench.runs.tracker import Json, Notice, Tracked, Tracker, flatten, is_number, one_line

# W&B refuses longer ones.
_LONGEST_TAG = 64
_LONGEST_GROUP = 128
_PROBE_SECONDS = 5.0
_SETTINGS: dict[str, Any] = {
    # Quiet.
    **dict.fromkeys(("silent", "quiet", "disable_git", "disable_code", "label_disable"), True),
    **dict.fromkeys(("show_info", "show_warnings", "show_errors", "save_code", "symlink"), False),
    "console": "off",
    # Nothing of the machine.
    **dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info"), True),
    "x_save_requirements": False,
    "host": "",
    # Quick.
    "init_timeout": 10.0,
    "finish_timeout": 30.0,
    "finish_timeout_raises": True,
    # wandb's own 15 seconds are what a killed run would lose of its offline log.
    "x_transaction_log_flush_interval": 1.0,
}


class WandbTracker(Tracker):
    """Logs one run to W&B; wandb writes only below the ``wandb`` folder of the run folder.

    The id of the W&B run is kept in ``wandb.json`` of the run folder, so that a resumed run
    continues it. Online mode that does not start in ten seconds becomes offline mode. The group,
    where not configured, is table and row; the row's labels are tags beside those configured.
    """

    def __init__(self, options: Options, tracked: Tracked, notice: Notice) -> None:
        folder = tracked.folder / "wandb"
        sync = f"wandb sync {shlex.quote(str(folder))}/"
        self._upload = f"{sync}offline-run-*"
        self.after_failure = f". What was logged lies in {folder}; to upload it: {sync}*run-*"
        # Crash reports would carry stack frames of the user's code to a third party.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Else wandb writes below HOME too, which is read-only on some clusters.
        os.environ["WANDB_CACHE_DIR"] = os.environ["WANDB_DATA_DIR"] = str(folder.absolute())
        import wandb

        self._table = wandb.Table
        # Releases of wandb differ in their settings, and an unknown one is an error.
        known = wandb.Settings.model_fields
        settings = wandb.Settings(**{key: _SETTINGS[key] for key in _SETTINGS if key in known})
        tags = dict.fromkeys((*options.tags, *tracked.labels))
        begin = functools.partial(
            wandb.init,
            project=options.project,
            entity=options.entity,
            group=(options.group or f"{tracked.table}/{tracked.row}")[:_LONGEST_GROUP],
            tags=[tag[:_LONGEST_TAG] for tag in tags if tag] or None,
            name=tracked.name,
            config=dict(tracked.config),
            dir=str(tracked.folder),
            id=_run_identifier(tracked.folder / "wandb.json", options, notice),
            resume="allow",
            settings=settings,
        )
        # Messages about the login follow the session's settings, not those of the run.
        session = wandb.setup(settings)
        self._run: Any = None
        if options.mode == "online":
            try:
                _require_server(session.settings.base_url)
                self._run = begin(mode="online")
            except Exception as error:
                notice(
                    f"W&B could not start online ({one_line(error)}); this run is logged offline. "
                    f"To upload it: `wandb login` once, then {self._upload}"
                )
                # The failed attempt keeps the run's id busy until its service has ended.
                wandb.teardown()
                wandb.setup(settings)
        self._run = self._run or begin(mode="offline")
        # Without this W&B plots over its own step, which restarts differently after a kill.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, metrics: Json, round: int) -> None:
        """Log the round's scalars; the round is also the W&B step."""
        # Without commit wandb holds the row back until the next round, and a kill would lose it.
        self._run.log({**metrics, "round": round}, step=round, commit=True)

    def conclude(self, statement: Json | None, row: Json, table: Sequence[Json]) -> None:
        """Log scalars and table in the summary, and the whole statement in the config."""
        if statement is not None:
            self._run.config.update({"privacy_statement": dict(statement)}, allow_val_change=True)
        self._run.summary.update(flatten({"statement": statement, "row": row}))
        if table:
            data = [[_cell(value) for value in line.values()] for line in table]
            self._run.summary["table"] = self._table(columns=list(table[0]), data=data)

    def finish(self) -> str | None:
        """Finish the W&B run; waits at most half a minute for uploads."""
        is_offline = getattr(self._run, "offline", False)
        self._run.finish()
        shown = f"W&B: this run was logged offline; to upload it: {self._upload}"
        return shown if is_offline else None


def build(options: Options, tracked: Tracked, notice: Notice) -> WandbTracker | None:
    """Begin to log, if the options ask for it."""
    return WandbTracker(options, tracked, notice) if options.mode != "disabled" else None


def _cell(value: Any) -> Any:
    """A cell of a table: W&B wants one type a column, or nothing."""
    if is_number(value):
        return float(value)
    return None if value is None else str(value)


def _require_server(url: str) -> None:
    """Raise OSError unless the W&B server answers, with whatever status, in a few seconds."""
    # wandb itself retries an unreachable server until its timeout, and some releases for ever.
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        error.close()


def _run_identifier(path: Path, options: Options, notice: Notice) -> str:
    """Read the W&B run's id from ``wandb.json``, or write a new one there."""
    place = {"project": options.project, "entity": options.entity}
    if path.exists():
        try:
            stored = parse_json(read_text(path))
            identifier = stored["id"]
            if not isinstance(identifier, str) or not identifier:
                raise ValueError(f"its id is {identifier!r}, not a text")
            if {key: stored.get(key) for key in place} == place:
                return identifier
            notice(f"{path} is of another W&B project or entity; a new W&B run is started")
        except (ValueError, KeyError, TypeError) as error:
            notice(f"{path} is damaged ({one_line(error)}); a new W&B run is started")
    identifier = secrets.token_hex(4)
    write_json(path, {"format_version": 1, "id": identifier, **place})
    return identifier
