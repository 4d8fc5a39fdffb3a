"""The parser of ``pfl-bench privacy``; the standard library alone is imported here."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import Commands, add_columns, add_plugins


def add_privacy(commands: Commands) -> None:
    """Add the command to the parser of all."""
    privacy = commands.add_parser("privacy", help="privacy calculations without a run")
    actions = privacy.add_subparsers(dest="action", metavar="ACTION", required=True)
    calibrate = actions.add_parser("calibrate", help="noise multiplier for an epsilon")
    calibrate.add_argument("--epsilon", type=float, required=True, metavar="E")
    epsilon = actions.add_parser("epsilon", help="epsilon of a noise multiplier")
    epsilon.add_argument("--noise-multiplier", type=float, required=True, metavar="Z")
    solve = actions.add_parser(
        "solve", help="any one of epsilon, noise, rounds, cohort, population: leave it out"
    )
    solve.add_argument("--epsilon", type=float, metavar="E")
    solve.add_argument("--noise-multiplier", type=float, metavar="Z")
    table = actions.add_parser("table", help="epsilon of several rounds, by each accountant")
    table.add_argument("--noise-multiplier", type=float, required=True, nargs="+", metavar="Z")
    table.add_argument("--rounds", type=int, required=True, nargs="+", metavar="T")
    table.add_argument(
        "--accountant", choices=("rdp", "pld", "prv"), nargs="+", help="default: all three"
    )
    table.add_argument("--format", choices=("md", "csv", "latex", "json"))
    add_columns(table)
    table.add_argument("--plot", metavar="FILE.png|svg", help="draw epsilon against rounds")
    for action in (calibrate, epsilon, solve, table):
        required = action is not solve
        action.add_argument("--population", type=int, required=required, metavar="N")
        action.add_argument("--cohort", type=int, required=required, metavar="C")
        if action is not table:
            action.add_argument("--rounds", type=int, required=required, metavar="T")
            action.add_argument("--accountant", choices=("rdp", "pld", "prv"), default="rdp")
            action.add_argument(
                "--explain", action="store_true", help="the guarantee in plain words, too"
            )
            action.add_argument("--json", action="store_true")
        _add_privacy_setting(action)
    _add_tuning(actions)
    explain = actions.add_parser("explain", help="a run's or a row's guarantee in plain words")
    explain.add_argument("run", metavar="RUN_DIR|ROW")
    explain.add_argument("--json", action="store_true")
    add_plugins(explain)
    privacy.set_defaults(module="privacy")


def _add_privacy_setting(action: argparse.ArgumentParser) -> None:
    from privacy.sampling_scheme import scheme_names

    action.add_argument("--delta", type=float, metavar="D", help="default: N^-1.1")
    action.add_argument(
        "--sampling",
        choices=scheme_names(),
        default="poisson",
        help="how a round's users are drawn (default poisson; selected: by devices and a selector; "
        "shuffled: batches of a shuffled order, of central training)",
    )
    action.add_argument(
        "--separation",
        type=int,
        default=1,
        metavar="B",
        help="rounds between two of one user (cyclic_poisson, selected)",
    )
    action.add_argument(
        "--max-participations", type=int, metavar="K", help="rounds of one user at most (selected)"
    )
    action.add_argument(
        "--noise-cohort",
        type=int,
        metavar="C_LG",
        help="cohort whose noise is simulated: the epsilons of both, labelled",
    )
    action.add_argument(
        "--users", type=int, metavar="U", help="users of the run itself (default: N)"
    )
    action.add_argument("--mechanism", metavar="NAME", help="default: gaussian")
    action.add_argument("overrides", nargs="*", metavar="key=value", help="options of --mechanism")


def _add_tuning(actions: Commands) -> None:
    tuning = actions.add_parser("tuning", help="the price of choosing the best of several runs")
    tuning.add_argument(
        "--row", metavar="ROW", help="a private row; key=value changes its settings"
    )
    tuning.add_argument(
        "--trials",
        choices=("poisson", "geometric", "truncated_negative_binomial"),
        help="law of the number of runs (default: several of them)",
    )
    tuning.add_argument("--mean", type=float, metavar="N", help="expected number of runs")
    tuning.add_argument(
        "--eta", type=float, metavar="H", help="shape of truncated_negative_binomial, above -1"
    )
    tuning.add_argument(
        "--gamma", type=float, metavar="G", help="instead of --mean: probability of stopping"
    )
    tuning.add_argument(
        "--epsilon", type=float, metavar="E", help="of the selection: solve for the noise"
    )
    tuning.add_argument("--noise-multiplier", type=float, metavar="Z", help="of each run")
    tuning.add_argument("--population", type=int, metavar="N")
    tuning.add_argument("--cohort", type=int, metavar="C")
    tuning.add_argument("--rounds", type=int, metavar="T")
    tuning.add_argument("--json", action="store_true")
    _add_privacy_setting(tuning)
