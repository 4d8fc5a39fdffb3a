"""The parser of all commands; the standard library alone is imported here."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import (
    Commands,
    add_columns,
    add_out,
    add_output,
    add_plugins,
    path_text,
)
from pfl_bench.cli.data_parser import add_data
from pfl_bench.cli.examples import add_examples
from pfl_bench.cli.privacy_parser import add_privacy


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="pfl-bench",
        description="Benchmarks for differentially private federated learning: one command a row "
        "of a published table, epsilons that can be audited.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_run(commands)
    _add_table(commands)
    _add_sweep(commands)
    _add_list(commands)
    _add_show(commands)
    _add_new(commands)
    _add_check_plugin(commands)
    _add_completion(commands)
    add_data(commands)
    add_privacy(commands)
    _add_audit(commands)
    _add_attack(commands)
    _add_report(commands)
    _add_leaderboard(commands)
    add_examples(parser)
    return parser


def _add_run(commands: Commands) -> None:
    run = commands.add_parser("run", help="run one row")
    run.add_argument("config", metavar="CONFIG.yaml", help="file, or a bundled demo/<row>.yaml")
    run.add_argument("overrides", nargs="*", metavar="key=value", help="wins over the file")
    add_out(run, "run folder (default: runs/NAME/seed-N)")
    run.add_argument("--resume", action="store_true", help="go on with an unfinished run")
    run.add_argument("--seed", type=int, metavar="N", help="same as seed=N")
    run.add_argument("--profile", action="store_true", help="write where the time goes")
    run.add_argument(
        "--dry-run", action="store_true", help="check up to the first round, and write nothing"
    )
    add_output(run)
    add_plugins(run)
    run.set_defaults(module="run")


def _add_table(commands: Commands) -> None:
    table = commands.add_parser("table", help="run every row of a folder; done rows are skipped")
    table.add_argument(
        "folder", metavar="FOLDER", help="folder of rows or a view, or a bundled one"
    )
    table.add_argument(
        "overrides", nargs="*", metavar="key=value", help="for every row that has the section"
    )
    table.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds a row (default 1)")
    table.add_argument("--only", metavar="ROW", help="run this row alone")
    _add_format(table)
    add_out(table, "folder of the runs (default: runs/FOLDER)")
    add_output(table)
    _add_launcher(table)
    add_plugins(table)
    table.set_defaults(module="table")


def _add_sweep(commands: Commands) -> None:
    sweep = commands.add_parser(
        "sweep", help="one row with every combination of some settings, best on val first"
    )
    sweep.add_argument("sweep", metavar="SWEEP.yaml", help="row, metric and grid of values")
    sweep.add_argument("overrides", nargs="*", metavar="key=value", help="applied to every run")
    sweep.add_argument("--only", type=int, metavar="N", help="run the Nth combination alone")
    _add_format(sweep)
    add_out(sweep, "folder of the runs (default: runs/SWEEP)")
    _add_launcher(sweep)
    add_plugins(sweep)
    sweep.set_defaults(module="sweep")


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format",
        choices=("md", "csv", "latex"),
        help="default: md; a terminal gets a table of its width",
    )
    add_columns(command)


def _add_launcher(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        help="each run a job: a process here, or a job of a Slurm cluster (default: no jobs)",
    )
    command.add_argument(
        "--jobs", type=int, metavar="K", help="at most K jobs at once (local: as the cores allow)"
    )
    command.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the Slurm jobs, such as time=60 or partition=gpu; repeat for more",
    )
    command.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="submit to Slurm and end; the same command shows the table later",
    )


def _add_list(commands: Commands) -> None:
    listing = commands.add_parser("list", help="tasks, rows, tables and methods, a line each")
    listing.add_argument(
        "what",
        nargs="?",
        choices=(
            *("tasks", "rows", "tables", "algorithms", "mechanisms", "metrics", "selectors"),
            *("devices", "aggregations", "compressions", "attacks", "engines", "trackers"),
        ),
    )
    listing.add_argument("below", nargs="?", metavar="FOLDER", help="rows: of this folder alone")
    listing.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugins(listing)
    listing.set_defaults(module="list")
    copy = commands.add_parser("copy", help="write a bundled row to a file of your own")
    copy.add_argument("row", metavar="ROW", help="such as demo/federated.yaml")
    copy.add_argument("file", metavar="FILE.yaml", type=path_text)
    copy.add_argument("--force", action="store_true", help="replace FILE.yaml if it exists")
    copy.set_defaults(module="list")


def _add_audit(commands: Commands) -> None:
    audit = commands.add_parser("audit", help="derive every privacy claim of a run anew")
    audit.add_argument("run", metavar="RUN_DIR")
    audit.add_argument(
        "--tuned-runs",
        type=int,
        default=10,
        metavar="K",
        help="also bound epsilon of a search over K such runs (default 10)",
    )
    audit.add_argument("--data", metavar="FILE", help="the data, where they have moved")
    audit.add_argument(
        "--recompute",
        choices=("none", "first", "sample", "all"),
        default="sample",
        help="rounds that are computed again by a plain loop: the first, as many as "
        "--recompute-seconds allows (default), all, or none",
    )
    audit.add_argument(
        "--recompute-seconds",
        type=float,
        default=8.0,
        metavar="S",
        help="time that a sample of rounds may take (default 8)",
    )
    audit.add_argument(
        "--live", action="store_true", help="watch a run that runs, and stop it at a violation"
    )
    audit.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="--live: seconds between two looks"
    )
    audit.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugins(audit)
    audit.set_defaults(module="audit")


def _add_report(commands: Commands) -> None:
    report = commands.add_parser("report", help="one self-contained page of run folders")
    report.add_argument(
        "runs", nargs="+", metavar="RUN_DIR", help="run folders, or folders of such"
    )
    add_out(report, None, "FILE.html", default="report.html")
    report.add_argument(
        "--figures", metavar="DIR", type=path_text, help="also each figure for a paper: SVG and PDF"
    )
    report.add_argument("--force", action="store_true", help="replace FILE.html if it exists")
    report.set_defaults(module="report")


def _add_leaderboard(commands: Commands) -> None:
    board = commands.add_parser("leaderboard", help="all rows of run folders by data, ranked")
    board.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="run folders, or folders of such"
    )
    add_out(
        board,
        "the page; FILE.json beside it has all its numbers",
        "FILE.html",
        default="leaderboard.html",
    )
    board.add_argument(
        "--audit", action="store_true", help="audit private runs that have no audit yet"
    )
    board.add_argument("--json", action="store_true", help="one JSON object on stdout")
    board.add_argument("--force", action="store_true", help="replace the files if they exist")
    add_plugins(board)
    board.set_defaults(module="leaderboard")


def _add_attack(commands: Commands) -> None:
    attack = commands.add_parser(
        "attack", help="attack the users of a row: who was in, or what an update shows"
    )
    attack.add_argument("target", metavar="RUN_DIR|ROW")
    attack.add_argument("overrides", nargs="*", metavar="key=value", help="wins over the file")
    attack.add_argument(
        "--kind",
        choices=("lira", "rmia", "loss", "gradient"),
        default="lira",
        help="membership by likelihood ratios, relative ratios, or the loss; or the inversion of a "
        "client's update (default lira)",
    )
    attack.add_argument(
        "--shadows", type=int, default=16, metavar="K", help="shadow runs (default 16)"
    )
    attack.add_argument(
        "--confidence",
        type=float,
        default=0.99,
        metavar="P",
        help="of the verdict: a true claim fails with probability 1 - P at most (default 0.99)",
    )
    attack.add_argument(
        "--user", type=int, metavar="N", help="gradient: this training user (default: the smallest)"
    )
    add_out(attack, "default: attack in the run's or row's folder")
    add_plugins(attack)
    _add_launcher(attack)
    attack.set_defaults(module="attack")


def _add_show(commands: Commands) -> None:
    show = commands.add_parser("show", help="a row before it is run: settings, privacy, cost")
    show.add_argument("row", metavar="ROW", help="file, or a bundled demo/<row>.yaml")
    show.add_argument("overrides", nargs="*", metavar="key=value", help="wins over the file")
    show.add_argument("--all", action="store_true", help="every setting, defaults too")
    show.add_argument(
        "--no-estimate", action="store_true", help="measure nothing, and estimate no time"
    )
    show.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugins(show)
    show.set_defaults(module="show")


def _add_new(commands: Commands) -> None:
    new = commands.add_parser("new", help="a plug-in of your own to start from, with its test")
    kinds = ("task", "algorithm", "mechanism", "metric", "selector", "attack")
    new.add_argument("kind", choices=(*kinds, "aggregation", "compression", "tracker"))
    new.add_argument("name", metavar="NAME", help="what rows will call it, such as my_method")
    add_out(new, "folder, which may be there (default: NAME)")
    new.set_defaults(module="new")


def _add_check_plugin(commands: Commands) -> None:
    check = commands.add_parser(
        "check-plugin", help="run, kill, resume, audit and report your plug-ins"
    )
    check.add_argument(
        "folder", metavar="DIR", type=path_text, help="folder of plug-ins, or an installed package"
    )
    check.add_argument("--json", action="store_true", help="one JSON object on stdout")
    check.set_defaults(module="check_plugin")


def _add_completion(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion", help="a shell's script that completes commands, options and names"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(module="completion")
