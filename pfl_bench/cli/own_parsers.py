"""Parsers of the commands for rows that are not run yet, and for plug-ins of one's own."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import add_plugins


def add_own_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser of all."""
    _add_show(commands)


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
