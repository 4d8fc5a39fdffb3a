"""Parsers of the commands for rows that are not run yet, and for plug-ins of one's own."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import add_plugins, path_text


def add_own_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser of all."""
    _add_show(commands)
    _add_new(commands)
    _add_check_plugin(commands)


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
    new.add_argument("kind", choices=("task", "algorithm", "mechanism", "metric", "selector"))
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
