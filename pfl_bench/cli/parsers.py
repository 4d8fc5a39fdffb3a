"""The parser of all commands; the standard library alone is imported here."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import (
    Commands,
    add,
    add_columns,
    add_json,
    add_out,
    add_output,
    add_overrides,
    add_plugins,
    path_text,
)
from pfl_bench.cli.data_parser import add_data
from pfl_bench.cli.examples import add_examples

_ACCOUNTANTS = ("rdp", "pld", "prv")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="pfl-bench",
        description="Benchmarks for differentially private federated learning: one command a row "
        "of a published table, epsilons that can be audited.",
    )
    add(parser, "--version", "print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_runs(commands)
    _add_rows(commands)
    _add_own(commands)
    add_data(commands)
    _add_privacy(commands)
    _add_checks(commands)
    _add_pages(commands)
    for name, command in commands.choices.items():
        command.set_defaults(module="list" if name == "copy" else name.replace("-", "_"))
    add_examples(parser)
    return parser


def _add_runs(commands: Commands) -> None:
    run = commands.add_parser("run", help="run one row")
    add(run, "config CONFIG.yaml", "file, or a bundled demo/<row>.yaml", type=path_text)
    add_overrides(run)
    add_out(run, "run folder (default: runs/NAME/seed-N)")
    add(run, "--resume", "go on with an unfinished run")
    add(run, "--seed N", "same as seed=N", type=int)
    add(run, "--profile", "write where the time goes")
    add(run, "--dry-run", "check up to the first round, and write nothing")
    add_output(run)
    add_plugins(run)
    # Not abbreviated: --seed 2 is no number of seeds.
    table = commands.add_parser(
        "table", help="run every row of a folder; done rows are skipped", allow_abbrev=False
    )
    add(table, "folder FOLDER", "folder of rows or a view, or a bundled one", type=path_text)
    add_overrides(table, "for every row that has the section")
    add(table, "--seeds K", "seeds a row (default 1)", type=int, default=1)
    add(table, "--only ROW", "run this row alone")
    _add_format(table)
    add_out(table, "folder of the runs (default: runs/FOLDER)")
    add_output(table)
    _add_launcher(table)
    add_plugins(table)
    sweep = commands.add_parser(
        "sweep", help="one row with every combination of some settings, best on val first"
    )
    add(sweep, "sweep SWEEP.yaml", "row, metric and grid of values", type=path_text)
    add_overrides(sweep, "applied to every run")
    add(sweep, "--only N", "run the Nth combination alone", type=int)
    _add_format(sweep)
    add_out(sweep, "folder of the runs (default: runs/SWEEP)")
    _add_launcher(sweep)
    add_plugins(sweep)


def _add_format(command: argparse.ArgumentParser) -> None:
    shown = "default: md; a terminal gets a table of its width"
    add(command, "--format", shown, choices=("md", "csv", "latex"))
    add_columns(command)


def _add_launcher(command: argparse.ArgumentParser) -> None:
    shown = "each run a job: local (a process here), slurm, or a plug-in (default: no jobs)"
    add(command, "--launcher NAME", shown)
    add(command, "--jobs K", "at most K jobs at once (local: as the cores allow)", type=int)
    shown = "option of the Slurm jobs, such as time=60 or partition=gpu; repeat for more"
    names = ("--slurm", "--launcher-option")
    command.add_argument(*names, metavar="KEY=VALUE", help=shown, action="append", default=[])
    shown = "submit to Slurm and end; the same command shows the table later"
    add(command, "--no-wait", shown, dest="wait", action="store_false")


def _add_rows(commands: Commands) -> None:
    listing = commands.add_parser("list", help="tasks, rows, tables and methods, a line each")
    names = (
        *("tasks", "rows", "tables", "algorithms", "mechanisms", "metrics", "selectors"),
        *("devices", "aggregations", "compressions", "attacks", "engines", "trackers", "launchers"),
    )
    add(listing, "what", nargs="?", choices=names)
    add(listing, "below FOLDER", "rows: of this folder alone", nargs="?", type=path_text)
    add_json(listing)
    add_plugins(listing)
    copy = commands.add_parser("copy", help="write a bundled row to a file of your own")
    add(copy, "row ROW", "such as demo/federated.yaml", type=path_text)
    add(copy, "file FILE.yaml", type=path_text)
    add(copy, "--force", "replace FILE.yaml if it exists")
    show = commands.add_parser("show", help="a row before it is run: settings, privacy, cost")
    add(show, "row ROW", "file, or a bundled demo/<row>.yaml", type=path_text)
    add_overrides(show)
    add(show, "--all", "every setting, defaults too")
    add(show, "--no-estimate", "measure nothing, and estimate no time")
    add_json(show)
    add_plugins(show)


def _add_own(commands: Commands) -> None:
    new = commands.add_parser("new", help="a plug-in of your own to start from, with its test")
    kinds = ("task", "algorithm", "mechanism", "metric", "selector", "attack")
    add(new, "kind", choices=(*kinds, "aggregation", "compression", "tracker"))
    add(new, "name NAME", "what rows will call it, such as my_method")
    add_out(new, "folder, which may be there (default: NAME)")
    check = commands.add_parser(
        "check-plugin", help="run, kill, resume, audit and report your plug-ins"
    )
    add(check, "folder DIR", "folder of plug-ins, or an installed package", type=path_text)
    add_json(check)
    completion = commands.add_parser(
        "completion", help="a shell's script that completes commands, options and names"
    )
    add(completion, "shell", choices=("bash", "zsh", "fish"))


def _add_privacy(commands: Commands) -> None:
    privacy = commands.add_parser("privacy", help="privacy calculations without a run")
    actions = privacy.add_subparsers(dest="action", metavar="ACTION", required=True)
    calibrate = actions.add_parser("calibrate", help="noise multiplier for an epsilon")
    add(calibrate, "--epsilon E", type=float, required=True)
    epsilon = actions.add_parser("epsilon", help="epsilon of a noise multiplier")
    add(epsilon, "--noise-multiplier Z", type=float, required=True)
    solve = actions.add_parser(
        "solve", help="any one of epsilon, noise, rounds, cohort, population: leave it out"
    )
    add(solve, "--epsilon E", type=float)
    add(solve, "--noise-multiplier Z", type=float)
    table = actions.add_parser("table", help="epsilon of several rounds, by each accountant")
    add(table, "--noise-multiplier Z", type=float, required=True, nargs="+")
    add(table, "--rounds T", type=int, required=True, nargs="+")
    add(table, "--accountant", "default: all three", choices=_ACCOUNTANTS, nargs="+")
    add(table, "--format", choices=("md", "csv", "latex", "json"))
    add_columns(table)
    for action in (calibrate, epsilon, solve, table):
        required = action is not solve
        shown = "users (of DP-SGD examples: C is then the batch, T the steps)"
        add(action, "--population N", shown, type=int, required=required)
        add(action, "--cohort C", type=int, required=required)
        if action is not table:
            add(action, "--rounds T", type=int, required=required)
            words = "default: rdp (pld is tighter), or the one that knows mechanism and sampling"
            add(action, "--accountant", words, choices=_ACCOUNTANTS)
            add(action, "--explain", "the guarantee in plain words, too")
            add(action, "--json")
        _add_privacy_setting(action)
    tuning = actions.add_parser("tuning", help="the price of choosing the best of several runs")
    shown = "a private row; key=value changes its settings"
    add(tuning, "--row ROW", shown, type=path_text)
    laws = ("poisson", "geometric", "truncated_negative_binomial")
    add(tuning, "--trials", "law of the number of runs (default: several of them)", choices=laws)
    add(tuning, "--mean N", "expected number of runs", type=float)
    add(tuning, "--eta H", "shape of truncated_negative_binomial, above -1", type=float)
    add(tuning, "--gamma G", "instead of --mean: probability of stopping", type=float)
    add(tuning, "--epsilon E", "of the selection: solve for the noise", type=float)
    add(tuning, "--noise-multiplier Z", "of each run", type=float)
    for words in ("--population N", "--cohort C", "--rounds T"):
        add(tuning, words, type=int)
    add(tuning, "--json")
    _add_privacy_setting(tuning)
    explain = actions.add_parser("explain", help="a run's or a row's guarantee in plain words")
    add(explain, "run RUN_DIR|ROW", type=path_text)
    add_overrides(explain, "wins over the row's file")
    add(explain, "--json")
    add_plugins(explain)


def _add_privacy_setting(action: argparse.ArgumentParser) -> None:
    from privacy.sampling_scheme import scheme_names

    add(action, "--delta D", "default: N^-1.1", type=float)
    add(
        action,
        "--sampling",
        "how a round's users are drawn (default poisson; selected: by devices and a selector; "
        "shuffled: batches of a shuffled order, of central training)",
        choices=scheme_names(),
        default="poisson",
    )
    shown = "rounds between two of one user (cyclic_poisson, selected)"
    add(action, "--separation B", shown, type=int, default=1)
    add(action, "--max-participations K", "rounds of one user at most (selected)", type=int)
    shown = "cohort whose noise is simulated: the epsilons of both, labelled"
    add(action, "--noise-cohort C_LG", shown, type=int)
    add(action, "--users U", "users of the run itself (default: N)", type=int)
    add(action, "--mechanism NAME", "default: gaussian")
    add_overrides(action, "options of --mechanism")
    add_plugins(action)


def _add_checks(commands: Commands) -> None:
    audit = commands.add_parser("audit", help="derive every privacy claim of a run anew")
    add(audit, "run RUN_DIR", type=path_text)
    shown = "also bound epsilon of a search over K such runs (default 10)"
    add(audit, "--tuned-runs K", shown, type=int, default=10)
    add(audit, "--data FILE", "the data, where they have moved", type=path_text)
    add(
        audit,
        "--recompute",
        "rounds that are computed again by a plain loop: the first, as many as "
        "--recompute-seconds allows (default), all, or none",
        choices=("none", "first", "sample", "all"),
        default="sample",
    )
    shown = "time that a sample of rounds may take (default 30)"
    add(audit, "--recompute-seconds S", shown, type=float, default=30.0)
    add(audit, "--live", "watch a run that runs, and stop it at a violation")
    add(audit, "--every S", "--live: seconds between two looks (default 5)", type=float)
    add_json(audit)
    add_plugins(audit)
    attack = commands.add_parser(
        "attack", help="attack the users of a row: who was in, or what an update shows"
    )
    add(attack, "target RUN_DIR|ROW", type=path_text)
    add_overrides(attack)
    add(
        attack,
        "--kind",
        "membership by likelihood ratios, relative ratios, or the loss; or the inversion of a "
        "client's update (default lira)",
        choices=("lira", "rmia", "loss", "gradient"),
        default="lira",
    )
    add(attack, "--shadows K", "shadow runs (default 16)", type=int)
    shown = "of the verdict: a true claim fails with probability 1 - P at most (default 0.99)"
    add(attack, "--confidence P", shown, type=float)
    add(attack, "--user N", "gradient: this training user (default: the smallest)", type=int)
    add_out(attack, "default: RUN_DIR/attack, of a row runs/ROW/attack")
    add_plugins(attack)
    _add_launcher(attack)


def _add_pages(commands: Commands) -> None:
    report = commands.add_parser("report", help="one self-contained page of run folders")
    add(report, "runs RUN_DIR", "run folders, or folders of such", nargs="+", type=path_text)
    add_out(report, "default: report.html", "FILE.html", default="report.html")
    add(report, "--figures DIR", "also each figure for a paper: SVG and PDF", type=path_text)
    add(report, "--force", "replace FILE.html if it exists")
    board = commands.add_parser("leaderboard", help="all rows of run folders by data, ranked")
    add(board, "folders FOLDER", "run folders, or folders of such", nargs="+", type=path_text)
    shown = "the page (default: leaderboard.html); FILE.json beside it has all its numbers"
    add_out(board, shown, "FILE.html", default="leaderboard.html")
    add(board, "--audit", "audit private runs here, whatever audits their folders hold")
    add_json(board)
    add(board, "--force", "replace the files if they exist")
    add_plugins(board)
