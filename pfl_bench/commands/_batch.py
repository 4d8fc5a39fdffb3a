"""What commands that run several rows share: finding them, running one, printing a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pfl_bench.cli import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, explain
from pfl_bench.config_file import ResolvedConfig, load_config
from pfl_bench.types import ConfigError


def choose(names: Mapping[str, Path], only: str, folder: Path) -> tuple[str, Path]:
    """The one row that ``--only`` means, by its name in the folder or its file's.

    Raises:
        ConfigError: It is no row, or several.
    """
    wanted = only.removesuffix(".yaml")
    chosen = [(name, row) for name, row in names.items() if wanted in (name, row.stem)]
    if len(chosen) != 1:
        near = get_close_matches(wanted, names, n=1, cutoff=0.4)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        problem = "is several rows" if chosen else "is no row"
        raise ConfigError(f"--only {only}: {problem} of {folder}{hint} Rows: {', '.join(names)}")
    return chosen[0]


def short_name(path: Path) -> Path:
    """The path of a folder or file under the configs, else its last part."""
    parts = path.resolve().parts
    for marker in ("configs", "bundled_configs"):
        if marker in parts and parts[-1] != marker:
            return Path(*parts[parts.index(marker) + 1 :])
    return Path(path.resolve().name)


def check_seeds(seeds: int) -> None:
    """Check the number of seeds a row.

    Raises:
        ConfigError: It is not positive.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give 1 or more")


def with_seeds(row: Path, arguments: argparse.Namespace) -> list[ResolvedConfig]:
    """A row's configuration, once for each of its seeds."""
    first = load_config(row, arguments.overrides)
    more = range(first.config.seed + 1, first.config.seed + arguments.seeds)
    return [first, *(load_config(row, [*arguments.overrides, f"seed={s}"]) for s in more)]


def run_one(run_folder: Path, resolved: ResolvedConfig) -> dict[str, Any] | None:
    """Run or resume one run and write its page; None, with the reason printed, if it is refused.

    Rows fail by the user's input alone; other errors are ours and are raised.
    """
    from pfl_bench.files import read_json
    from pfl_bench.report.page import write_report
    from pfl_bench.runner import run

    try:
        finished = read_json(run_folder / "summary.json") is not None
        summary = run(resolved, run_folder, resume=True)
        if finished:
            print(f"{run_folder}: finished before; not run again", file=sys.stderr)
        else:
            write_report([run_folder], run_folder / "report.html")
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        place = "" if message.startswith(str(run_folder)) else f"{run_folder}: "
        print(f"pfl-bench: {place}{message}", file=sys.stderr)
        return None
    return summary


def exit_code(failed: list[Path], some_done: bool) -> int:
    """Name the runs that failed, and give the status that they leave."""
    for run_folder in failed:
        print(f"failed: {run_folder} (see above)", file=sys.stderr)
    if failed and not some_done:
        return EXIT_INPUT
    return EXIT_FAILED if failed else EXIT_DONE


def save_table(out: Path, text: str, fmt: str) -> None:
    """Print a table and save it as OUT/table.FORMAT."""
    from pfl_bench.files import write_atomically

    print(text, end="")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"table.{'tex' if fmt == 'latex' else fmt}", text)
