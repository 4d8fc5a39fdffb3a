"""``pfl-bench data``: prepare, download, generate and describe data."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.progress import Progress, TaskID

from pfl_bench import plugins
from pfl_bench.cli.arguments import check_new
from pfl_bench.cli.speech import answer, answer_json, print_table, say, write
from pfl_bench.config.loading import validate_options
from pfl_bench.data.temporary import locked
from pfl_bench.types import ConfigError, DataError, HubDataset, RemoteFile


def main(arguments: argparse.Namespace) -> int:
    """Run the action that was asked for."""
    actions = {
        "prepare": _prepare,
        "download": _download,
        "generate": _generate,
        "stats": _stats,
        "list": _list,
        "traces": _traces,
    }
    return actions[arguments.action](arguments)


def _prepare(arguments: argparse.Namespace) -> int:
    module = plugins.load(plugins.PREPARE, arguments.task)
    where = f"pfl-bench data prepare {arguments.task}"
    options = validate_options(module.Options, arguments.overrides, where)
    source, out = Path(arguments.source), Path(arguments.out)
    if not source.is_dir():
        raise DataError(f"--source {source}: no such folder; give the folder of the raw files")
    with _alone(out), _progress_shown() as progress:
        check_new(out, arguments.force)
        facts = module.prepare(source, out, options, progress)
    _print_facts(facts)
    say(f"store: {out}")
    return 0


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other commands from preparing a store; where none can be, its writer says so."""
    if out.is_dir() or not out.parent.is_dir():
        yield
        return
    refusal = (
        f"--out {out}: another pfl-bench data prepare is writing this store; wait for it, or give "
        "another name"
    )
    with locked(out.with_name(f".{out.name}.lock"), refusal):
        yield


def _download(arguments: argparse.Namespace) -> int:
    from pfl_bench.data.download import download

    task = arguments.task
    module = plugins.load(plugins.PREPARE, task)
    where = f"pfl-bench data download {task}"
    if hasattr(module, "Download"):
        named = validate_options(module.Download, arguments.overrides, where).dataset_on_hub()
        return _download_from_hub(arguments, named, named.repository.replace("/", "-"))
    if arguments.overrides:
        raise ConfigError(f"{where}: {arguments.overrides[0]}: this task's files need no options")
    if arguments.origin == "hub":
        return _download_from_hub(arguments, getattr(module, "HUB", None), f"{task}-hub")
    files: tuple[RemoteFile, ...] = getattr(module, "FILES", ())
    prepare = f"pfl-bench data prepare {task} --source DIR --out FILE.h5"
    if not files:
        raise DataError(
            f"pfl-bench data download {task}: this task has no download; its README "
            f"(tasks/{task}/README.md) says where its files are published. With the files: "
            f"{prepare}"
        )
    target = Path(arguments.out or Path("data") / task)
    advice = (
        f"Without network: put the files ({', '.join(file.name for file in files)}) into a folder "
        f"DIR yourself and call {prepare}"
    )
    note = getattr(module, "FILES_NOTE", f"These are the files of {task}.")
    return _fetch(task, target, note, partial(download, files), advice)


def _download_from_hub(
    arguments: argparse.Namespace, dataset: HubDataset | None, folder: str
) -> int:
    from pfl_bench.data.hub import download_from_hub

    task = arguments.task
    if dataset is None:
        raise DataError(
            f"pfl-bench data download {task} --from hub: this task names no copy on the Hugging "
            "Face Hub; leave --from out, or see its README"
        )
    target = Path(arguments.out or Path("data") / folder)
    advice = (
        f"Without network: put {dataset.pattern} of https://huggingface.co/datasets/"
        f"{dataset.repository} into a folder DIR and call pfl-bench data prepare {task} "
        "--source DIR --out FILE.h5"
    )
    return _fetch(task, target, dataset.note, partial(download_from_hub, dataset), advice)


def _fetch(
    task: str, target: Path, note: str, fetch: Callable[..., list[Path]], advice: str
) -> int:
    """Download into a folder and say what is next; of an interrupted download, that it is kept."""
    try:
        with _progress_shown() as progress:
            paths = fetch(target, progress, advice)
    except KeyboardInterrupt:
        say(f"What has come is kept in {target}: the same command goes on from there.")
        raise
    say(f"downloaded and verified: {len(paths)} files in {target}")
    write(note)
    source = shlex.quote(str(target))
    write(f"next: pfl-bench data prepare {task} --source {source} --out {task}.h5")
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    module = plugins.load(plugins.GENERATE, arguments.task)
    where = f"pfl-bench data generate {arguments.task}"
    options = validate_options(module.Options, arguments.overrides, where)
    out = Path(arguments.out)
    with _progress_shown() as progress:
        facts = module.generate(out, options, progress)
    options_given = facts.pop("prepare_options")
    _print_facts(facts)
    if options_given is None:
        return 0
    given = "".join(f" {text}" for text in options_given)
    prepare = f"pfl-bench data prepare {arguments.task} --source {shlex.quote(str(out))}"
    write(f"next: {prepare} --out {arguments.task}-mini.h5{given}")
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    from pfl_bench.data import Store
    from pfl_bench.report.statistics import format_statistics, store_statistics

    folder = None if arguments.plots is None else Path(arguments.plots)
    with Store(Path(arguments.file)) as store:
        module = _statistics_module(store.task, arguments.overrides)
        if module is not None:
            where = f"pfl-bench data stats {arguments.file}"
            options = validate_options(module.Options, arguments.overrides, where)
        if folder is not None:
            # Before the work, so that a wrong DIR is told at once.
            from pfl_bench.report.statistics.figures import make_folder

            make_folder(folder)
        if arguments.verify:
            store.verify()
            say(f"verified: the content has SHA-256 {store.attributes['content_sha256']}")
        statistics = store_statistics(store)
        text = format_statistics(statistics)
        if module is not None:
            with _progress_shown() as progress:
                own = module.statistics(store, options, progress)
            statistics["task_statistics"] = own
            text = f"{text}\n\n{module.format_statistics(own)}"
    if folder is not None:
        statistics["plots"] = _plot(statistics, module, folder)
    if arguments.json:
        answer_json(statistics)
    else:
        answer(text)
    for path in statistics.get("plots", ()):
        say(f"plot: {path}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from pfl_bench.report.table import Table

    listed = [
        asdict(found)
        for family in plugins.available(plugins.CATALOGUE)
        for found in plugins.load(plugins.CATALOGUE, family).DATA_SETS
    ]
    if arguments.json:
        answer_json({"data_sets": listed})
        return 0
    heads = ("name", "domain", "clients", "samples", "tasks", "archive", "licence", "source")
    counted = ("clients", "samples")
    rows = []
    for found in listed:
        texts = {**found, "tasks": ", ".join(found["tasks"]) or "-"}
        rows.append([f"{texts[head]:,}" if head in counted else texts[head] for head in heads])
    to_left = [place for place, head in enumerate(heads) if head not in counted]
    table = Table.of(heads, rows, to_left)
    print_table(table, None if sys.stdout.isatty() else f"{table.to_text()}\n")
    return 0


def _statistics_module(task: str, overrides: Sequence[str]) -> ModuleType | None:
    if task in plugins.available(plugins.STATISTICS):
        return plugins.load(plugins.STATISTICS, task)
    if overrides:
        raise ConfigError(
            f"pfl-bench data stats: {' '.join(overrides)}: task {task!r} has no statistics of its "
            "own, so there is nothing to set; leave key=value out"
        )
    return None


def _plot(statistics: dict[str, Any], module: ModuleType | None, folder: Path) -> list[str]:
    from pfl_bench.report.canvas import picture_style
    from pfl_bench.report.statistics import figures

    facts, task, notice = statistics["facts"], statistics["task"], None
    with picture_style():
        drawn = figures.store_figures(statistics)
        if module is not None:
            drawn |= module.figures(statistics["task_statistics"])
            notice = statistics["task_statistics"]["notice"]
    heading = f"{task} ({facts['variant']}): {facts['source']}"
    return [str(path) for path in figures.write_pictures(drawn, folder, heading, notice)]


def _traces(arguments: argparse.Namespace) -> int:
    from pfl_bench.simulation.device_sources.fedscale import LeftOut
    from pfl_bench.simulation.devices.trace_file import check_target, write_trace_file

    where = f"pfl-bench data traces {arguments.source}"
    module = plugins.load(plugins.DEVICES, arguments.source)
    source = validate_options(module.Options, arguments.overrides, where)
    if getattr(source, "num_devices", 1) is None:
        raise ConfigError(f"{where}: give num_devices=N, how many to make up")
    if arguments.leave_out_bad and arguments.source != "fedscale":
        raise ConfigError(
            f"{where}: --leave-out-bad is for the source fedscale alone; leave it out, and mend "
            "what is wrong"
        )
    out = None if arguments.out is None else Path(arguments.out)
    if out is not None:
        check_target(out)
    left_out = LeftOut() if arguments.leave_out_bad else None
    devices = module.build(source, 1, *([] if left_out is None else [left_out]))
    if out is not None:
        write_trace_file(out, devices)
    facts = devices.facts()
    if left_out is not None:
        facts["left_out"] = {str(path): number for path, number in left_out.counts.items()}
        facts["first_left_out"] = left_out.first
    if arguments.json:
        answer_json(facts)
    else:
        _print_facts(facts)
    if out is not None:
        say(f"devices: {out}")
    return 0


def _print_facts(facts: dict[str, Any]) -> None:
    for key, value in facts.items():
        shown = json.dumps(value) if isinstance(value, (dict, list)) else value
        write(f"{key}: {shown}")


@contextlib.contextmanager
def _progress_shown() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function of (what, done, total): a bar on a terminal, else a plain line each ten seconds.

    A total of None is unknown.
    """
    bars = Progress() if sys.stderr.isatty() else None
    tasks: dict[str, TaskID] = {}
    last = time.monotonic()

    def show(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if bars is not None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)
        elif time.monotonic() - last > 10.0:
            last = time.monotonic()
            of = "" if total is None else f"/{total}"
            say(f"{what}: {done}{of}")

    with bars or contextlib.nullcontext():
        yield show
