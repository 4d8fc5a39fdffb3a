"""Two examples for each command, with which its help ends: ``examples.txt`` has them, a line each.

A bar ends the words of the command; those of the program alone have none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def examples() -> dict[str, list[str]]:
    """The examples by the words of their command, without the program's name."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").splitlines():
        words, rest = (part.strip() for part in line.split("|"))
        found.setdefault(words, []).append(f"{words} {rest}".strip())
    return found


def add_examples(parser: argparse.ArgumentParser) -> None:
    """End the help of a program, and of each of its commands, with their examples."""
    found = examples()
    for words, command in commands_of(parser):
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        lines = [f"  {parser.prog} {example}" for example in found.get(words, ())]
        command.epilog = "\n".join(["examples:", *lines]) if lines else None


def commands_of(
    parser: argparse.ArgumentParser, words: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its subcommands, by their words."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from commands_of(command, f"{words} {name}".strip())
