"""Parsers of the commands for rows that are not run yet, for plug-ins, and for attacks."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import add_plugins, path_text


def add_own_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser of all."""
    _add_show(commands)
    _add_new(commands)
    _add_check_plugin(commands)
    _add_completion(commands)


def add_attack(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the command ``attack``, without the options of launchers; give its parser back."""
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
    attack.add_argument(
        "--out", metavar="DIR", type=path_text, help="default: attack in the run's or row's folder"
    )
    add_plugins(attack)
    attack.set_defaults(module="attack")
    return attack


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_new(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    new = commands.add_parser("new", help="a plug-in of your own to start from, with its test")
    kinds = ("task", "algorithm", "mechanism", "metric", "selector", "attack")
    new.add_argument("kind", choices=(*kinds, "aggregation", "compression"))
    new.add_argument("name", metavar="NAME", help="what rows will call it, such as my_method")
    new.add_argument(
        "--out", metavar="DIR", type=path_text, help="folder, which may be there (default: NAME)"
    )
    new.set_defaults(module="new")


def _add_check_plugin(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check-plugin", help="run, kill, resume, audit and report your plug-ins"
    )
    check.add_argument(
        "folder", metavar="DIR", type=path_text, help="folder of plug-ins, or an installed package"
    )
    check.add_argument("--json", action="store_true", help="one JSON object on stdout")
    check.set_defaults(module="check_plugin")


def _add_completion(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    completion = commands.add_parser(
        "completion", help="a shell's script that completes commands, options and names"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(module="completion")
