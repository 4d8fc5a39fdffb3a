"""What commands tell a person while they work. Only the standard library is imported here."""

from __future__ import annotations

import argparse
import os
import sys

# Commands that import for seconds, and the argument that names what they read.
_READS = {"run": "config", "table": "folder", "sweep": "sweep", "report": "runs"}


def say(text: str) -> None:
    """Tell a person what goes on, at once."""
    print(text, file=sys.stderr, flush=True)


def announce(arguments: argparse.Namespace) -> None:
    """Say what a command begins with, before its imports.

    Args:
        arguments: Those of the command.
    """
    # Of several processes the first speaks for all.
    if arguments.command not in _READS or os.environ.get("RANK", "0") != "0":
        return
    what = getattr(arguments, _READS[arguments.command])
    what = what if isinstance(what, str) else f"{len(what)} run{'s' * (len(what) > 1)}"
    say(f"pfl-bench {arguments.command}: reading {what}")
