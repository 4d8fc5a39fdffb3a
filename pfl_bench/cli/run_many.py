"""Shared by commands that run several rows: finding them, running one, printing a table."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench import plugins
from pfl_bench.cli.arguments import check_belongs
from pfl_bench.cli.main import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, attempt
from pfl_bench.cli.speech import answer_json, print_table, say
from pfl_bench.config.errors import Given
from pfl_bench.config.loading import ResolvedConfig, load_config, resolve
from pfl_bench.config.schema import TRAINERS
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.types import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pfl_bench.config.schema import RunConfig
    from pfl_bench.report.table import Table, TableFormat
    from pfl_bench.runs.jobs import Launcher


def choose(names: Mapping[str, Path], only: str, folder: Path) -> tuple[str, Path]:
    """The one row that ``--only`` means, by its name in the folder or its file's."""
    wanted = only.removesuffix(".yaml")
    chosen = [(name, row) for name, row in names.items() if wanted in (name, row.stem)]
    if len(chosen) != 1:
        hint = did_you_mean(wanted, names, ".", cutoff=0.4, most=5)
        problem = "is several rows" if chosen else "is no row"
        raise ConfigError(
            f"--only {only}: {problem} of {folder}{hint} `pfl-bench list rows "
            f"{shlex.quote(str(folder))}` shows all {len(names)}"
        )
    return chosen[0]


def short_name(path: Path) -> Path:
    """The path of a folder or file under the configs, else its last part."""
    parts = path.resolve().parts
    for marker in ("configs", "bundled_configs"):
        if marker in parts and parts[-1] != marker:
            return Path(*parts[parts.index(marker) + 1 :])
    return Path(path.resolve().name)


def with_seeds(
    rows: Iterable[Path],
    overrides: Sequence[str],
    seeds: int,
    of_row: Callable[[Path], Sequence[str]] = lambda _: (),
) -> dict[Path, list[ResolvedConfig]]:
    """The configurations of rows, once for each of so many seeds.

    Says which overrides are not applied to which rows (``fit_overrides``). ``of_row`` gives those
    that a row has to itself, over which the others win.
    """
    fitting, left_out = fit_overrides(rows, overrides)
    for text in left_out:
        say(text)
    found = {}
    for row, fits in fitting.items():
        own = [*of_row(row), *fits]
        first = load_config(row, own)
        more = range(first.config.seed + 1, first.config.seed + seeds)
        found[row] = [first, *(load_config(row, [*own, f"seed={seed}"]) for seed in more)]
    return found


def fit_overrides(
    rows: Iterable[Path], overrides: Sequence[str]
) -> tuple[dict[Path, list[str]], list[str]]:
    """Tell which overrides each of several rows takes.

    ``federated.num_rounds=2`` is for federated rows: a central row beside them stays as it is, as
    does one without privacy under ``privacy.epsilon=2``. An override that is for none of the rows
    is given to all, where it is refused.

    Returns:
        The overrides of each row; and, for a person, which are not applied to which rows.
    """
    trees = {row: read_yaml(row) for row in rows}
    fitting: dict[Path, list[str]] = {row: [] for row in trees}
    left_out = []
    for text in overrides:
        section = text.partition(".")[0].strip()
        is_optional = section in (*TRAINERS, "privacy")
        without = [row for row, tree in trees.items() if is_optional and tree.get(section) is None]
        if len(without) == len(trees):
            without = []
        for row in trees:
            if row not in without:
                fitting[row].append(text)
        if without:
            names = ", ".join(str(row) for row in without)
            left_out.append(f"{text}: not applied to rows without a section {section}: {names}")
    return fitting, left_out


def check_names(configurations: Iterable[ResolvedConfig]) -> None:
    """Check that no two rows have one name, under which their runs would be averaged."""
    files: dict[str, Path] = {}
    for resolved in configurations:
        name = resolved.config.name
        first = files.setdefault(name, resolved.source)
        if first != resolved.source:
            place = Given(resolved.source, resolved.overrides).blame("name")
            raise ConfigError(
                f"{place}'{name}' is the name of {first} and of {resolved.source}, so that their "
                "runs would be averaged as seeds of one row; give each row a name of its own"
            )


Plans = Sequence[tuple[Path, ResolvedConfig]]


@dataclass(frozen=True)
class Batch:
    """Outcome of several runs.

    Attributes:
        summaries: In the order of the runs; None for one that is not finished.
        failed: Why runs failed, by their folders.
        under_way: Folders of the runs whose jobs were not waited for.
        is_input: Whether the user's input was refused each time, and no job broke.
    """

    summaries: tuple[dict[str, Any] | None, ...]
    failed: Mapping[Path, str]
    under_way: tuple[Path, ...] = ()
    is_input: bool = True

    def exit_code(self) -> int:
        """Name the runs that failed, and give the status that they leave."""
        reasons: dict[str, list[str]] = {}
        for run_folder, reason in self.failed.items():
            reasons.setdefault(reason, []).append(str(run_folder))
        for folders in reasons.values():
            why = "see above" if len(folders) == 1 else "for one reason, see above"
            say(f"failed: {', '.join(folders)} ({why})")
        if self.failed and self.is_input and not (any(self.summaries) or self.under_way):
            return EXIT_INPUT
        return EXIT_FAILED if self.failed else EXIT_DONE


def run_all(plans: Plans, arguments: argparse.Namespace, out: Path) -> Batch:
    """Run what is not done: here, one after another, or as jobs where the command says so.

    The files of jobs are in the folder ``jobs`` of ``out``.
    """
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(
            f"{out}: no folder can be made here ({there} is a file); give another with --out"
        )
    if arguments.launcher is not None:
        return _run_as_jobs(plans, arguments, out / "jobs")
    check_belongs(
        "--launcher local or slurm",
        jobs=arguments.jobs is not None,
        slurm=bool(arguments.slurm),
        no_wait=not arguments.wait,
    )
    from pfl_bench.runs.log import finished_before, saying_once

    before = [run_folder for run_folder, _ in plans if (run_folder / "summary.json").exists()]
    summaries: list[dict[str, Any] | None] = []
    failed: dict[Path, str] = {}
    with saying_once():
        for place, (run_folder, resolved) in enumerate(plans, start=1):
            if len(plans) > 1 and run_folder not in before:
                seed = resolved.config.seed
                say(f"run {place} of {len(plans)}: {resolved.config.name}, seed {seed}")
            ended = attempt(_train, run_folder, resolved)
            if isinstance(ended, str):
                ended = ended.removeprefix(f"{run_folder}: ")
                # A reason that several runs have, such as data that are not there, is said once.
                if ended not in failed.values():
                    _print_failure(run_folder, ended)
                failed[run_folder] = ended
            summaries.append(None if isinstance(ended, str) else ended)
    for place, (run_folder, resolved) in enumerate(plans):
        if run_folder in failed:
            # Another process that was writing it may have finished it by now.
            found = attempt(_summary, run_folder, resolved)
            if isinstance(found, dict):
                summaries[place] = found
                del failed[run_folder]
    kept = [one for one, left in zip(plans, summaries, strict=True) if left and one[0] in before]
    if kept:
        say(finished_before([run_folder for run_folder, _ in kept]))
    return Batch(tuple(summaries), failed)


def _train(run_folder: Path, resolved: ResolvedConfig) -> dict[str, Any]:
    from pfl_bench.files import read_json
    from pfl_bench.report.page import write_report
    from pfl_bench.runs.runner import run

    finished = read_json(run_folder / "summary.json") is not None
    summary = run(resolved, run_folder, resume=True)
    if not finished:
        write_report([run_folder], run_folder / "report.html")
    return summary


def _print_failure(run_folder: Path, message: str) -> None:
    place = "" if message.startswith(str(run_folder)) else f"{run_folder}: "
    say(f"pfl-bench: {place}{message}")


def _run_as_jobs(plans: Plans, arguments: argparse.Namespace, jobs: Path) -> Batch:
    from pfl_bench.runs.jobs import Run, launch

    launcher = _launcher(plans, arguments, jobs)
    runs = []
    for folder, row in plans:
        # The tree, not the file, which may be edited before the job begins.
        given = (folder, row.tree, row.source, row.overrides, row.not_the_row)
        is_finished = partial(_is_finished, folder, row)
        runs.append(Run(folder, partial(train_in_job, *given), is_finished))
    ended = launch(runs, launcher, jobs, arguments.wait)
    failures = {folder: failure for folder, failure in ended.items() if failure is not None}
    for folder, failure in failures.items():
        log = "" if failure.log is None else f"\n  log of its job: {failure.log}"
        _print_failure(folder, f"{failure.reason}{log}")
    done = [folder in ended and folder not in failures for folder, _ in plans]
    return Batch(
        tuple(
            _summary(*plan) if is_done else None for plan, is_done in zip(plans, done, strict=True)
        ),
        {folder: failure.reason for folder, failure in failures.items()},
        tuple(folder for folder, _ in plans if folder not in ended),
        all(failure.is_input for failure in failures.values()),
    )


def _launcher(plans: Plans, arguments: argparse.Namespace, jobs: Path) -> Launcher:
    from pfl_bench.runs.jobs import Launcher, LaunchRequest

    name, configs = arguments.launcher, [resolved.config for _, resolved in plans]
    module = plugins.load(plugins.LAUNCHER, name)
    cores, devices = map(_cores_of, configs), (config.device for config in configs)
    request = LaunchRequest(
        jobs, arguments.jobs, arguments.slurm, arguments.wait, tuple(cores), tuple(devices)
    )
    return plugins.checked(module.build(request), Launcher, plugins.LAUNCHER, name)


def _cores_of(config: RunConfig) -> int | None:
    """Cores that a run is given where several go on at once; None for all."""
    if config.federated is None:
        return config.num_threads
    # Runs beside one another need no worker processes, whose number no result depends on.
    workers = 1 if config.federated.workers == "auto" else config.federated.workers
    return workers * (config.num_threads or 1)


def train_in_job(
    run_folder: Path,
    tree: dict[str, Any],
    source: Path,
    overrides: tuple[str, ...],
    not_the_row: tuple[str, ...] = (),
) -> str | None:
    """Run or resume in a job; return why the user's input is refused, else None."""

    def train() -> dict[str, Any]:
        resolved = replace(resolve(tree, source, overrides), not_the_row=not_the_row)
        return _train(run_folder, resolved)

    ended = attempt(train)
    if not isinstance(ended, str):
        return None
    say(f"pfl-bench: {ended}")
    return ended


def _is_finished(run_folder: Path, resolved: ResolvedConfig) -> bool:
    return _summary(run_folder, resolved) is not None


def _summary(run_folder: Path, resolved: ResolvedConfig) -> dict[str, Any] | None:
    """The summary of this very run, if its folder holds it finished."""
    from pfl_bench.runs.folder import RunFolder

    return RunFolder(run_folder).prepare(resolved, resume=True) if run_folder.exists() else None


def save_table(out: Path, table: Table, arguments: argparse.Namespace, title: str) -> None:
    """Print a table and save it as OUT/table.FORMAT.

    Of the command's arguments, "format" is Markdown when left out, but for a person at a terminal.
    """
    from pfl_bench.files import write_atomically

    fmt: TableFormat = arguments.format or "md"
    table = replace(table.with_columns(arguments.columns, fmt), title=title)
    text = table.write(fmt)
    if getattr(arguments, "json", False):
        answer_json({"rows": table.to_records()})
    else:
        print_table(table, text if arguments.format else None)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"table.{'tex' if fmt == 'latex' else fmt}", text)
