"""The report of one or more runs: one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.files import whole_folder, write_atomically
from pfl_bench.report import curves, panels
from pfl_bench.report.audit import audits
from pfl_bench.report.costs import budget_table, clock_table, cost_table
from pfl_bench.report.grid import make_grid
from pfl_bench.report.records import told_apart
from pfl_bench.report.results import results_table
from pfl_bench.report.run_facts import count, progress, run_facts, run_table, strata_tables
from pfl_bench.report.run_folder import RunRecord, each_run_once, read_run
from pfl_bench.report.series import numbers
from pfl_bench.report.systems import system_panels
from pfl_bench.report.words import describe
from pfl_bench.runs.rows import RowResult, rows_of
from pfl_bench.types import ExpectedResult, RunFolderError

if TYPE_CHECKING:
    from jinja2 import Environment


def write_report(run_dirs: Sequence[Path], out: Path, save_to: Path | None = None) -> Path:
    """Write the page of run folders, finished or not; seeds of one row have the same name."""
    if not run_dirs:
        raise RunFolderError("there is no run folder to report on; name at least one")
    return write_page([read_run(path) for path in run_dirs], out, save_to=save_to)


def write_page(
    runs: Sequence[RunRecord],
    out: Path,
    labels: Mapping[str, str] | None = None,
    figures: Sequence[panels.DrawnFigure] = (),
    save_to: Path | None = None,
) -> Path:
    """Write the page of runs that were read, at least one, and return ``out``.

    ``labels`` makes the table a grid of metrics by rows; it says what each row's name is called
    there. A view's ``figures`` come before the learning curves. In the folder ``save_to`` each
    picture is an SVG and a PDF.
    """
    if out.is_dir():
        raise RunFolderError(
            f"{out} is a folder; name the HTML file to write, as {out}/report.html"
        )
    groups: dict[str, list[RunRecord]] = {}
    for run in told_apart(runs):
        groups.setdefault(run.name, []).append(run)
    groups = {name: each_run_once(group) for name, group in groups.items()}
    rows = _rows(groups)
    results = results_table(rows, has_epsilons=any(run.is_private for run in runs))
    results, alike = results.split_constants() if labels is None else (make_grid(rows, labels), [])
    every = [run for group in groups.values() for run in group]
    learning, clients = panels.learning_panels(groups), panels.client_panels(groups)
    boxes, devices = panels.box_panels(groups), system_panels(groups)
    page = fill(
        "page.html",
        title=_title(runs),
        subtitle=_subtitle(groups),
        drawn=figures,
        results=results,
        alike="; ".join(f"{heading} {text}" for heading, text in alike),
        is_grid=labels is not None,
        legend=panels.legend(groups),
        learning=learning,
        clients=clients,
        boxes=boxes,
        strata=[one for group in groups.values() for one in strata_tables(group)],
        costs=cost_table(groups),
        budgets=budget_table(
            {
                name: (group[0].setting, [run.summary.budgets for run in group])
                for name, group in groups.items()
            }
        ),
        clock=clock_table(groups),
        devices=devices,
        statements=_statements(groups),
        audits=audits(groups),
        run_table=run_table(every),
        runs=run_facts(every),
        numbers=numbers(groups, _of_bands(clients)),
        library=_asset("vendor/uPlot.iife.min.js"),
        licence=_asset("vendor/LICENSE-uPlot.txt"),
    )
    # Of pictures of one title, what tells them apart.
    parts: list[tuple[str, Sequence[curves.Panel]]] = [("", one.panels) for one in figures]
    units = {unit: f" by {unit}" if len(learning) > 1 else "" for unit in learning}
    parts += [(units[unit], part.panels) for unit, part in learning.items()]
    parts += [("", clients), ("", boxes)]
    parts += [(heading.partition(":")[2], part) for heading, part in devices]
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(save_to):
        if save_to is not None:
            _save_figures([(panel, kind) for kind, part in parts for panel in part], save_to)
        write_atomically(out, page)
    return out


def fill(template: str, **values: Any) -> str:
    """Fill in a template of this package; it has the styles and the script of all pages."""
    styles = _asset("vendor/uPlot.min.css") + _asset("report.css")
    shown = _environment().get_template(template)
    return shown.render(styles=styles, script=_asset("report.js"), **values)


@cache
def _environment() -> Environment:
    """jinja2's, which keeps the templates that it has compiled."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("pfl_bench.report", package_path=""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _asset(name: str) -> str:
    return resources.files("pfl_bench.report").joinpath(name).read_text(encoding="utf-8")


def _of_bands(shown: Sequence[curves.Panel]) -> list[str]:
    """Scalars over clients that charts draw."""
    charts = [panel.chart for panel in shown if panel.chart is not None]
    keys = [(chart.y, *(chart.band or ())) for chart in charts]
    return list(dict.fromkeys(key for group in keys for key in group))


def _save_figures(shown: Sequence[tuple[curves.Panel, str]], folder: Path) -> None:
    """Write each picture for a paper, numbered in the page's order, with its title and kind."""
    for number, (panel, kind) in enumerate(shown, start=1):
        # A row's differences from another of its name are far from the beginning.
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{panel.title[:150]}{kind[:60]}").strip("-.")
        # A page has the title above; bands name their row in it.
        chart = panel.chart
        label = chart.y if chart is not None and chart.band else panel.title.partition("; ")[0]
        panel.picture.save(folder / f"{number:02d}-{words}", label if chart is not None else "")


def _title(runs: Sequence[RunRecord]) -> str:
    names = {run.name for run in runs}
    if len(names) == 1:
        return runs[0].name
    tasks = [task for task in dict.fromkeys(run.task for run in runs) if task]
    return f"{', '.join(tasks)}: {len(names)} rows" if tasks else f"{len(names)} rows"


def _subtitle(groups: Mapping[str, Sequence[RunRecord]]) -> str:
    runs = [run for group in groups.values() for run in group]
    unfinished = sum(not run.is_finished for run in runs)
    rest = f", {unfinished} unfinished" if unfinished else ""
    return f"{count(len(groups), 'row')}, {count(len(runs), 'run')}{rest}"


def _rows(groups: Mapping[str, Sequence[RunRecord]]) -> list[RowResult]:
    """Make the table's lines; a row without a finished run is listed as unfinished."""
    rows: list[RowResult] = []
    for group in groups.values():
        summaries = [run.summary for run in group if run.is_finished]
        waiting = [run for run in group if not run.is_finished]
        if not summaries:
            rows += _unfinished_rows(group)
            continue
        note = f"{len(waiting)} of {len(group)} seeds unfinished and left out" if waiting else ""
        rows += [
            replace(row, note="; ".join(filter(None, (row.note, note))))
            for row in rows_of(summaries)
        ]
    return rows


def _unfinished_rows(group: Sequence[RunRecord]) -> list[RowResult]:
    """Show what is published for a row of which no run has finished."""
    run = group[0]
    note = "; ".join(f"{progress(one)} so far" for one in group)
    if run.is_private:
        note += "; the epsilons are those of the whole run"
    expected = run.summary.expected or (ExpectedResult.of({"metric": "-"}),)
    planned = replace(run.summary, seed=0, expected=expected)
    return [replace(row, status="unfinished", note=note) for row in rows_of([planned])]


def _statements(groups: Mapping[str, Sequence[RunRecord]]) -> list[dict[str, Any]]:
    """Put each private run's statement into words; equal ones of a row are said once."""
    statements = []
    for name, group in groups.items():
        distinct: dict[str, list[RunRecord]] = {}
        for run in group:
            if run.is_private:
                key = json.dumps([run.statement, run.is_finished], sort_keys=True)
                distinct.setdefault(key, []).append(run)
        for runs in distinct.values():
            seeds = ", ".join(str(run.seed) for run in runs)
            title = name if len(distinct) == 1 else f"{name}, seed {seeds}"
            run = runs[0]
            statements.append(describe(run.statement or {}, title, not run.is_finished))
    return statements
