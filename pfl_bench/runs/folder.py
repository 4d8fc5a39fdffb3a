"""The folder of a run: who may write it, whether it is fresh, unfinished or done."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pfl_bench.client import machine
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.row_differences import tree_differences, with_defaults
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.files import (
    is_running,
    mode_for_others,
    read_json,
    read_metrics,
    to_json_value,
    write_atomically,
    write_json,
)
from pfl_bench.runs.audit_file import LEDGER_FILE
from pfl_bench.runs.checkpoint import newest
from pfl_bench.runs.published import with_comparison
from pfl_bench.runs.rows import mark_edited
from pfl_bench.types import ConfigError, RunFolderError
from privacy.errors import LedgerError

SUMMARY_VERSION = 1
# What may differ between a run and its resumption. Device, threads, processes and engine may be
# *named* otherwise; check_environment compares what they come to.
NOT_COMPARED = (
    "logging", "expected", "num_threads", "device",
    "federated.workers", "federated.engine", "federated.engine_lanes",
)  # fmt: skip
# What decides the last bits of a sum: a private run goes on with it unchanged, others say it.
_ARITHMETIC = (
    ("packages", "torch", "install torch {}"),
    ("packages", "numpy", "install numpy {}"),
    ("packages", "torchvision", "install torchvision {}"),
    ("packages", "opacus", "install opacus {}"),
    ("", "python", "run it by Python {}"),
    ("hardware", "machine", "resume on a machine of kind {}"),
    (
        "hardware",
        "cpu_capability",
        "resume on a processor whose instructions torch uses as {} (ATEN_CPU_CAPABILITY lowers it)",
    ),
    ("hardware", "accelerator", "resume on a machine with {}"),
    ("hardware", "cuda", "install a torch built for CUDA {}"),
)
_OF_FILES = (FileNotFoundError, RunFolderError, LedgerError)
# Others on the machine must not read a private run's seed and ledger.
_OWNER_ONLY = 0o700
# What no run goes on without.
_BEGINNING = (
    ("data", "checksum", "Restore the data file that it began with"),
    ("model", "initial_digest", "Restore the file of weights that it began with"),
    ("hardware", "device", "Resume with device={}"),
    ("hardware", "torch_threads", "Resume with num_threads={}"),
    ("engine", "name", "Resume with {}"),
)
_MEND_RECORD = "Restore the file from a copy, or start in a new folder with --out"
# What a killed writer of these leaves; readers of a folder write the other two without its lock.
_PARTIAL = re.compile(r"^\.(?!report\.html\.|audit\.json\.).+\.(\d+)\.partial$")


class RunFolder:
    """One run's folder, made when missing and locked while the context is open.

    RunFolderError on entry if another process holds it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)
        self._is_made_here = False
        self._is_private = False
        self._is_recorded = False

    def __enter__(self) -> RunFolder:
        """Make and lock the folder."""
        # Set by multiprocessing while a new process imports the main module of its parent.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise ConfigError(
                "this worker process imports the script that started it, and the script starts "
                "the run again; put the calls of the script below a line "
                "`if __name__ == '__main__':`, or set federated.workers=1"
            )
        try:
            self._is_made_here = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"{self.path}: another process is writing this run; wait for it, or give another "
                "folder with --out"
            ) from None
        except OSError as error:
            taken = isinstance(error, FileExistsError | NotADirectoryError)
            why = "a file has this name, or part of it" if taken else str(error).rpartition("] ")[2]
            other = "a shorter name" if error.errno == errno.ENAMETOOLONG else "another"
            raise RunFolderError(
                f"{self.path}: this run folder cannot be written ({why}); give {other} with --out"
            ) from None
        self._remove_leftovers()
        return self

    def _remove_leftovers(self) -> None:
        """Remove what killed writers left: all of them held the lock, which is ours now."""
        for folder in (self.path, self.checkpoints):
            for path in folder.iterdir() if folder.is_dir() else ():
                found = _PARTIAL.match(path.name)
                if found and path.is_file() and not is_running(int(found[1])):
                    path.unlink(missing_ok=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Release the folder; what was made for a run that was refused is removed."""
        # Only now nobody else has it: filelock takes an unlinked file for no lock.
        with suppress(OSError):  # of a folder that is read-only by now, which is not what ended it
            (self.path / ".lock").unlink()
        self._lock.release()
        recorded = self.path / "config.yaml"
        if self._is_recorded and isinstance(error, _OF_FILES) and not recorded.exists():
            raise RunFolderError(
                f"{self.path}: this run folder was removed or moved while the run wrote to it, and "
                "what it had saved with it; move it back and go on with --resume, or run again"
            ) from None
        if error is not None and self._is_made_here:
            with suppress(OSError):  # it holds something, or somebody has removed it
                self.path.rmdir()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def prepare(self, resolved: ResolvedConfig, resume: bool) -> dict[str, Any] | None:
        """Decide whether a configuration may start here: the summary if it is finished, else None.

        RunFolderError if the folder holds something else, or an unfinished run without ``resume``.
        """
        summary = self.look(resolved, resume)
        return None if summary is None else self._compared_anew(summary, resolved)

    def look(self, resolved: ResolvedConfig, resume: bool) -> dict[str, Any] | None:
        """Decide it as ``prepare`` does, and write nothing: the summary is as it was written."""
        self._is_private = resolved.config.is_private
        recorded = self.path / "config.yaml"
        if not recorded.exists():
            foreign = [p.name for p in self.path.iterdir() if not p.name.startswith(".")]
            if foreign:
                raise RunFolderError(
                    f"{self.path}: holds files but no run (found: {', '.join(sorted(foreign)[:5])})"
                    "; give an empty or new folder with --out"
                )
            return None
        differing = self._differences(recorded, resolved)
        if differing:
            raise RunFolderError(
                f"{self.path}: holds a run of another configuration; these differ: "
                f"{', '.join(differing)}. Give another folder with --out, or undo the difference"
            )
        summary = read_json(self.path / "summary.json")
        if summary is None and not resume:
            raise RunFolderError(
                f"{self.path}: holds an unfinished run of this configuration; add --resume to go "
                "on with it, or give another folder with --out"
            )
        kept = ("privacy.json", LEDGER_FILE) if self._is_private and summary is not None else ()
        if lost := [name for name in kept if not (self.path / name).exists()]:
            raise RunFolderError(
                f"{self.path}: a finished private run without {' and '.join(lost)}, by which its "
                "epsilon is checked; restore it, or run again in another folder with --out"
            )
        return summary

    def _compared_anew(self, summary: dict[str, Any], resolved: ResolvedConfig) -> dict[str, Any]:
        """Compare a finished run with what the row publishes now, as today's rules have it."""
        try:
            compared = with_comparison(summary, resolved)
        except RunFolderError as error:
            raise RunFolderError(f"{self.path / 'summary.json'}: {error}") from None
        marked = mark_edited(to_json_value(compared), read_yaml(self.path / "config.yaml"))
        if marked != summary:
            write_json(self.path / "summary.json", marked)
        return marked

    def record(self, resolved: ResolvedConfig) -> list[str]:
        """Write the configuration, which makes this the folder of that run.

        Gives what a person must know: whether others could read a private run's folder until now.
        """
        self._is_private = resolved.config.is_private
        notices = self._close_to_others() if self._is_private else []
        recorded = self.path / "config.yaml"
        if not recorded.exists():
            write_atomically(recorded, resolved.to_yaml())
        self._is_recorded = True
        return notices

    def _close_to_others(self) -> list[str]:
        """Let only the owner into the folder: its ledger and seed undo the noise."""
        before = mode_for_others(self.path)
        if not before:
            return []
        with suppress(OSError):  # another's folder, or a file system that has no modes
            self.path.chmod(_OWNER_ONLY)
        if after := mode_for_others(self.path):
            return [
                f"{self.path}: its mode stays {after}: others on this machine can read the "
                "private run's ledger and configuration, whose seed tells the noise; give a folder "
                "of your own with --out"
            ]
        if self._is_made_here:
            return []
        has_run = (self.path / "config.yaml").exists()  # A start that was killed leaves none.
        reading = "that mode let others on this machine read them" if has_run else "it had neither"
        return [
            f"{self.path}: its mode was {before} and is {_OWNER_ONLY:04o} now: the seed and the "
            f"ledger of a private run are for its owner alone; until now {reading}"
        ]

    def _differences(self, recorded: Path, resolved: ResolvedConfig) -> list[str]:
        found = tree_differences(with_defaults(read_yaml(recorded)), resolved.tree, NOT_COMPARED)
        return [f"{key} ({old!r} -> {new!r})" for key, old, new in found]

    def check_environment(self, now: dict[str, Any]) -> list[str]:
        """Check that an unfinished run goes on with the data and the arithmetic it began with.

        Rounds of a private run that are computed anew must come out the same: its versions and
        instructions must be those that it began with. ``now`` is what ``environment`` gives today;
        what has changed otherwise is returned for a person. RunFolderError if that is refused, or
        if the record is missing or damaged.
        """
        recorded = self._recorded_environment()
        if recorded is None:
            return []
        for section, key, mend in _BEGINNING:
            before, today = recorded[section][key], now[section][key]
            if before != today:
                what, wanted = key, before
                if section == "engine":
                    # Only now: whoever but reads a folder needs none of what trains.
                    from pfl_bench.federated.engine_times import Candidate

                    engine = Candidate.of(str(before))
                    what, wanted = section, engine.overrides if engine else before
                raise RunFolderError(
                    f"{self.path}: this run began with {what} {before}, and would go on with "
                    f"{today}: its results would not be those of one run. "
                    f"{mend.format(wanted)}, or start in a new folder with --out"
                )
        changed = []
        for section, key, mend in _ARITHMETIC:
            today = (now[section] if section else now).get(key)
            # An older folder may lack it.
            before = (recorded.get(section, {}) if section else recorded).get(key, today)
            if before != today:
                changed.append((f"{key} {before} -> {today}", mend.format(before)))
        plugins = recorded.get("plugins")
        if not self._is_private and isinstance(plugins, dict) and plugins != now["plugins"]:
            # A private run's are in its seed.
            named = ", ".join(machine.differences(plugins, now["plugins"]))
            changed.append((f"plug-ins: {named}", "restore the plug-ins"))
        if not changed:
            return self._check_private_seed(recorded, now)
        what = ", ".join(text for text, _ in changed)
        if self._is_private:
            raise RunFolderError(
                f"{self.path}: this private run would go on under another environment than it "
                f"began with ({what}): a round that is computed anew could come out otherwise "
                "under the same noise, and two such sums differ without any noise. To mend it: "
                f"{'; '.join(mend for _, mend in changed)}. Or start in a new folder with --out"
            )
        return [
            f"goes on under another environment than it began with ({what}): the results are of "
            "both; environment.json lists each under 'resumptions'"
        ]

    def _check_private_seed(self, recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
        before, today = recorded.get("private_seed"), now.get("private_seed")
        if before is None or today is None:
            return []
        changed = machine.differences(before["parts"], today["parts"])
        what = "; ".join(changed) or "the recorded seed does not follow from its parts"
        if before["value"] == today["value"]:
            # Pinned by a nonce.
            return [f"goes on by other parts than it began with ({what})"] if changed else []
        commit = (recorded.get("git") or {}).get("commit")
        where = f" (commit {commit} of the code)" if commit else ""
        raise RunFolderError(
            f"{self.path}: this private run began with other code, versions, processor or settings "
            f"({what}). It would go on with other cohorts and other noise; resume under what it "
            f"began with{where}, or start in a new folder with --out"
        )

    def _recorded_environment(self) -> dict[str, Any] | None:
        """Environment in which the run began; None for a run that has not begun."""
        path = self.path / "environment.json"
        recorded = read_json(path)
        if recorded is None:
            ledger = self.path / LEDGER_FILE
            if newest(self.checkpoints) or (ledger.exists() and ledger.stat().st_size):
                raise RunFolderError(
                    f"{path}: missing, though the run has begun: nothing tells with which data and "
                    f"versions. {_MEND_RECORD}"
                )
            return None
        # No run can go on without these.
        needed = [("packages", "torch"), *((section, key) for section, key, _ in _BEGINNING)]
        needed += [("private_seed", key) for key in ("value", "parts") if self._is_private]
        lacking = [f"{a}.{b}" for a, b in needed if b not in recorded.get(a, {})]
        if lacking:
            raise RunFolderError(f"{path}: damaged: it lacks {', '.join(lacking)}. {_MEND_RECORD}")
        return recorded

    def check_metrics(self, done: int) -> None:
        """Refuse (RunFolderError) a ``metrics.jsonl`` without a line of each of ``done`` rounds."""
        path = self.path / "metrics.jsonl"
        rounds = {row["round"] for row in read_metrics(path)}
        lacking = next((index for index in range(1, done + 1) if index not in rounds), None)
        if lacking is not None:
            what = f"has no line of round {lacking}" if path.exists() else "is missing"
            mend = f"delete the checkpoints after round {lacking - 1} to go on from there, "
            raise RunFolderError(
                f"{path} {what}, but the checkpoint has {done} rounds behind it: restore the file "
                f"from a copy, {mend if lacking > 1 else ''}or start in a new folder with --out"
            )

    def flush_metrics(self) -> None:
        """Have ``metrics.jsonl`` on the disk, before the checkpoint that goes on from its lines."""
        with (self.path / "metrics.jsonl").open("rb") as file:
            os.fsync(file.fileno())

    def write_environment(self, now: dict[str, Any], done: int) -> None:
        """Record this start of the run, after ``done`` rounds (central training: epochs).

        What the run began with stays; each resumption is added under "resumptions".
        """
        content = self._recorded_environment() or now
        if content is not now:
            content["resumptions"] = [*content.get("resumptions", []), {"after": done, **now}]
        write_json(self.path / "environment.json", content)
