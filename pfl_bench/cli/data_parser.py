"""The parser of ``pfl-bench data``."""

from __future__ import annotations

import argparse

from pfl_bench.cli.arguments import path_text


def add_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of all."""
    data = commands.add_parser("data", help="prepare, download, generate and describe data")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="raw public files -> store")
    prepare.add_argument("task", metavar="TASK")
    prepare.add_argument("overrides", nargs="*", metavar="key=value", help="the task's options")
    prepare.add_argument("--source", required=True, metavar="DIR")
    prepare.add_argument("--out", required=True, metavar="FILE.h5", type=path_text)
    prepare.add_argument("--force", action="store_true", help="replace FILE.h5 if it exists")
    download = actions.add_parser("download", help="fetch the published files")
    download.add_argument("task", metavar="TASK")
    download.add_argument(
        "--out", metavar="DIR", type=path_text, help="target folder (default: data/TASK)"
    )
    generate = actions.add_parser("generate", help="made-up data in a task's published format")
    generate.add_argument("task", metavar="TASK")
    generate.add_argument("overrides", nargs="*", metavar="key=value", help="the task's options")
    generate.add_argument(
        "--out", required=True, metavar="DIR", type=path_text, help="folder to make"
    )
    stats = actions.add_parser("stats", help="users, examples, skew of a store")
    stats.add_argument("file", metavar="FILE.h5")
    stats.add_argument("overrides", nargs="*", metavar="key=value", help="the task's options")
    stats.add_argument("--json", action="store_true")
    stats.add_argument("--plots", metavar="DIR", help="also draw them, as PNG files in DIR")
    traces = actions.add_parser("traces", help="devices of clients -> one file that opens fast")
    traces.add_argument("source", choices=("generated", "fedscale", "csv", "file"))
    traces.add_argument("overrides", nargs="*", metavar="key=value", help="the source's options")
    traces.add_argument(
        "--out", metavar="FILE.npz", type=path_text, help="file to write (default: only describe)"
    )
    traces.add_argument(
        "--leave-out-bad", action="store_true", help="leave bad clients of FedScale's files out"
    )
    traces.add_argument("--json", action="store_true", help="one JSON object on stdout")
    listing = actions.add_parser("list", help="FedScale's 20 data sets: size, source, licence")
    listing.add_argument("--json", action="store_true", help="one JSON object on stdout")
    data.set_defaults(module="data")
