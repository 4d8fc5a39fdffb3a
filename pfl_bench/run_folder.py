"""The folder of a run: who may write it, whether it is fresh, unfinished or done."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from pfl_bench import machine
from pfl_bench.config_file import ResolvedConfig
from pfl_bench.files import read_json, to_json_value, write_atomically, write_json
from pfl_bench.report.rows import check_summary
from pfl_bench.row_differences import tree_differences
from pfl_bench.types import DataFacts, RunFolderError
from pfl_bench.verdict import compare_finished

SUMMARY_VERSION = 1
PACKAGES = (
    "pfl-bench",
    "torch",
    "torchvision",
    "opacus",
    "dp-accounting",
    "numpy",
    "h5py",
    "scikit-learn",
    "pydantic",
    "wandb",
)
# What may differ between a run and its resumption. Device, threads, processes and engine may be
# *named* otherwise; check_environment compares what they come to.
NOT_COMPARED = (
    "logging",
    "expected",
    "num_threads",
    "device",
    "federated.workers",
    "federated.engine",
    "federated.engine_lanes",
)


class RunFolder:
    """One run's folder, locked while the context is open.

    Args:
        path: The folder; made when missing.

    Raises:
        RunFolderError: Another process holds it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)
        self._is_made_here = False

    def __enter__(self) -> RunFolder:
        """Make and lock the folder."""
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
            raise RunFolderError(
                f"{self.path}: this run folder cannot be made or written ({error.strerror}); give "
                "another with --out"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the folder; what was made for a run that was refused is removed."""
        self._lock.release()
        if error is not None and all(p.name == ".lock" for p in self.path.iterdir()):
            (self.path / ".lock").unlink(missing_ok=True)
            if self._is_made_here:
                self.path.rmdir()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    def prepare(self, resolved: ResolvedConfig, resume: bool) -> dict[str, Any] | None:
        """Decide whether the run may start here.

        Args:
            resolved: The configuration that is about to run.
            resume: Whether the user asked to go on with what is there.

        Returns:
            The summary of this very run, if the folder holds it finished; else None.

        Raises:
            RunFolderError: The folder holds something else, or an unfinished run without
                ``resume``.
        """
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
        return None if summary is None else self._compared_anew(summary, resolved)

    def _compared_anew(self, summary: dict[str, Any], resolved: ResolvedConfig) -> dict[str, Any]:
        """Compare a finished run with what the row publishes now, as today's rules have it."""
        try:
            check_summary(summary)
        except RunFolderError as error:
            raise RunFolderError(f"{self.path / 'summary.json'}: {error}") from None
        expected = to_json_value(compare_finished(resolved, summary))
        if expected != summary["expected"]:
            summary = {**summary, "expected": expected}
            write_json(self.path / "summary.json", summary)
        return summary

    def record(self, resolved: ResolvedConfig) -> None:
        """Write the configuration, which makes this the folder of that run."""
        recorded = self.path / "config.yaml"
        if not recorded.exists():
            write_atomically(recorded, resolved.to_yaml())

    def _differences(self, recorded: Path, resolved: ResolvedConfig) -> list[str]:
        try:
            before = yaml.safe_load(recorded.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{recorded}: damaged: {error}") from None
        return [
            f"{key} ({old!r} -> {new!r})"
            for key, old, new in tree_differences(before, resolved.tree, NOT_COMPARED)
        ]

    def check_environment(self, now: dict[str, Any]) -> None:
        """Check that an unfinished run goes on with the data and the arithmetic it began with.

        Args:
            now: What ``environment`` gives today.

        Raises:
            RunFolderError: Data, device or number of threads are others than recorded.
        """
        recorded = read_json(self.path / "environment.json")
        if recorded is None:
            return
        for section, key, mend in (
            ("data", "checksum", "restore the data file that it began with"),
            ("model", "initial_digest", "restore the file of weights that it began with"),
            ("hardware", "device", "resume with device={}"),
            ("hardware", "torch_threads", "resume with num_threads={}"),
            ("engine", "name", "resume by this engine (federated.engine, engine_lanes): {}"),
        ):
            today = now[section][key]
            # Folders older than the record of a section have nothing to compare.
            before = recorded.get(section, {key: today}).get(key)
            if before != today:
                raise RunFolderError(
                    f"{self.path}: this run began with {key} {before}, and would go on with "
                    f"{today}: its results would not be those of one run. "
                    f"{mend.format(before).capitalize()}, or start in a new folder with --out"
                )
        self._check_private_seed(recorded.get("private_seed"), now.get("private_seed"))

    def _check_private_seed(
        self, before: dict[str, Any] | None, now: dict[str, Any] | None
    ) -> None:
        if before is None or now is None or before["value"] == now["value"]:
            return
        changed = machine.differences(before["parts"], now["parts"])
        raise RunFolderError(
            f"{self.path}: this private run began with other code, versions, processor or settings "
            f"({'; '.join(changed)}). It would go on with other cohorts and other noise; resume "
            "under what it began with, or start in a new folder with --out"
        )

    def write_environment(self, now: dict[str, Any]) -> None:
        """Record versions, hardware, commit and data of this start of the run."""
        write_json(self.path / "environment.json", now)


def environment(
    facts: DataFacts,
    device: torch.device,
    initial_digest: str,
    engine: str | None,
    processes: str = "",
) -> dict[str, Any]:
    """Describe versions, hardware, commit and data.

    Args:
        facts: What is known of the data.
        device: Where the model lives.
        initial_digest: Digest of the model that the run begins with.
        engine: What trains clients; None where there are none.
        processes: What several processes are called; empty for one.
    """
    hardware: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": machine.processor_name(),
        "cpu_capability": machine.cpu_capability(),
        "logical_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        hardware["accelerator"] = torch.cuda.get_device_name(device)
        hardware["cuda"] = torch.version.cuda
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "hardware": hardware,
        "git": _git_state(),
        "data": {"source": facts.source, "variant": facts.variant, "checksum": facts.checksum},
        "model": {"initial_digest": initial_digest},
        "engine": {"name": engine},
        "processes": processes,
    }


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that can change a result; None for one that is absent."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _git_state() -> dict[str, Any] | None:
    """Commit of the checkout that this package runs from, or None for an installed package."""
    home = Path(__file__).resolve().parent.parent
    if not (home / ".git").exists():
        return None
    try:
        commit = _git(home, "rev-parse", "HEAD")
        changed = bool(_git(home, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "uncommitted_changes": changed}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
