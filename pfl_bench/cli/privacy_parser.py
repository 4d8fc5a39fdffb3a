"""The parser of ``pfl-bench privacy``; the standard library alone is imported here."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import Commands, add, add_columns, add_overrides, add_plugins

_ACCOUNTANTS = ("rdp", "pld", "prv")


def add_privacy(commands: Commands) -> None:
    """Add the command to the parser of all."""
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
    add(table, "--plot FILE.png|svg", "draw epsilon against rounds")
    for action in (calibrate, epsilon, solve, table):
        required = action is not solve
        add(action, "--population N", type=int, required=required)
        add(action, "--cohort C", type=int, required=required)
        if action is not table:
            add(action, "--rounds T", type=int, required=required)
            add(action, "--accountant", choices=_ACCOUNTANTS, default="rdp")
            add(action, "--explain", "the guarantee in plain words, too")
            add(action, "--json")
        _add_privacy_setting(action)
    tuning = actions.add_parser("tuning", help="the price of choosing the best of several runs")
    add(tuning, "--row ROW", "a private row; key=value changes its settings")
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
    add(explain, "run RUN_DIR|ROW")
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
