"""Times of the tests: a table by file and folder, beside the committed one.

    python scripts/test_times.py [--write] [--read LOG] [PYTEST ARGUMENTS]

Runs pytest (``-n 2``; whole files) and prints the processor seconds of the slowest files (setup,
call, teardown), the slowest tests, and each folder beside its budget in ``tests/times.json``.
Processor seconds, those of child processes included, are the same on a busy machine; waiting is not
in them. ``--write`` puts what was measured into the table, from which ``scripts/test.sh --fast``
knows what to leave out; budgets are people's. ``--read`` takes the log of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = REPOSITORY / "tests/times.json"
PHASES = ("setup", "call", "teardown")
# A test (over all its parameters) that is kept in the table, and that ``--fast`` leaves out.
SLOW = 1.2
_LOG = "PFL_BENCH_TEST_TIMES"


def left_out() -> dict[str, float]:
    """Processor seconds of the tests that ``--fast`` leaves out, by ``file::function``."""
    slow: dict[str, float] = json.loads(TABLE.read_text(encoding="utf-8"))["slow"]
    return slow


def processor_seconds() -> float:
    """Of this process, its children that have ended, and those of its fork server."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    server: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server and (stat := Path(f"/proc/{server}/stat")).exists():
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


class _Clock:
    """The plug-in's state: when the phase of a test began."""

    start = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Start the clock."""
    _Clock.start = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Give the report what the phase took."""
    now = processor_seconds()
    item.user_properties.append((call.when, round(now - _Clock.start, 3)))
    _Clock.start = now
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a line for each test that ran, in the process that gathers the reports."""
    ran = report.when == "teardown" and "call" in dict(report.user_properties)
    if ran and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[_LOG]).open("a", encoding="utf-8") as log:
            log.write(json.dumps([report.nodeid, dict(report.user_properties)]) + "\n")


def measured(lines: Iterable[str]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Read a log.

    Returns:
        By file, its number of tests and the processor seconds of the phases; and, by
        ``file::function``, those of the slow tests, over all their parameters.
    """
    files: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    tests: dict[str, float] = defaultdict(float)
    for line in lines:
        name, phases = json.loads(line)[:2]
        seconds = [phases.get(phase, 0.0) for phase in PHASES]
        row = files[name.partition("::")[0]]
        row[:] = [row[0] + 1, *(a + b for a, b in zip(row[1:], seconds, strict=True))]
        tests[name.partition("[")[0]] += sum(seconds)
    return (
        {name: [row[0], *(round(s, 1) for s in row[1:])] for name, row in files.items()},
        {name: round(s, 1) for name, s in tests.items() if s >= SLOW},
    )


def merged(
    table: dict[str, Any], files: dict[str, list[float]], slow: dict[str, float]
) -> dict[str, Any]:
    """The table with what was measured in place of those files; a new folder gets a budget."""
    kept = {n: r for n, r in table["files"].items() if (REPOSITORY / n).exists()} | files
    tests = {n: s for n, s in table["slow"].items() if n.partition("::")[0] not in files}
    folders = _by_folder(kept)
    budgets = {n: table["budgets"].get(n, math.ceil(1.25 * s) + 1) for n, s in folders.items()}
    return {
        "budgets": dict(sorted(budgets.items())),
        "files": dict(sorted(kept.items())),
        "slow": dict(sorted((tests | slow).items())),
    }


def _by_folder(files: dict[str, list[float]]) -> dict[str, float]:
    folders: dict[str, float] = defaultdict(float)
    for name, row in files.items():
        folders[str(Path(name).parent)] += sum(row[1:])
    return folders


def show(
    table: dict[str, Any], files: dict[str, list[float]], slow: dict[str, float], top: int = 40
) -> None:
    """Print what was measured beside the table."""
    print(f"{'processor seconds by file':60} tests  setup   call  teardown    was")
    for name, row in sorted(files.items(), key=lambda item: -sum(item[1][1:]))[:top]:
        before = f"{sum(table['files'][name][1:]):6.1f}" if name in table["files"] else "     -"
        print(f"{name:60} {row[0]:5.0f} {row[1]:6.1f} {row[2]:6.1f} {row[3]:9.1f} {before}")
    print(f"\n{'by test, over its parameters':90}")
    for name, seconds in sorted(slow.items(), key=lambda item: -item[1])[:top]:
        print(f"{name:90} {seconds:6.1f}")
    print(f"\n{'by folder':60} budget")
    for name, seconds in sorted(_by_folder(files).items()):
        budget = table["budgets"].get(name, math.inf)
        print(f"{name:52} {seconds:7.1f} {budget:6}{'  over' if seconds > budget else ''}")
    print(f"{'all':52} {sum(sum(row[1:]) for row in files.values()):7.1f}")


def main(arguments: list[str]) -> int:
    """Measure, or read a log; print; write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put it into tests/times.json")
    parser.add_argument("--read", type=Path, metavar="LOG", help="the log of an earlier run")
    options, rest = parser.parse_known_args(arguments)
    code, log = 0, options.read
    if log is None:
        log = Path(tempfile.mkdtemp()) / "times.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
        environment = {**os.environ, _LOG: str(log)}
        code = subprocess.call(
            [*command, "-p", "scripts.test_times", *rest], cwd=REPOSITORY, env=environment
        )
        print(f"log: {log}")
    files, slow = measured(log.read_text(encoding="utf-8").splitlines())
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    show(table, files, slow)
    if options.write and code:
        print("not written: tests failed, and what they did not do took no time")
    elif options.write:
        text = json.dumps(merged(table, files, slow), indent=1)
        # One line a file: its numbers stand beside one another.
        lines = text.replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
        TABLE.write_text(lines + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
