"""Two examples for each command, with which its help ends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

# By the words of the command; "" is the program alone.
EXAMPLES: dict[str, tuple[str, str]] = {
    "": ("show demo/federated", "run demo/federated --out runs/mine"),
    "run": (
        "run demo/private_federated federated.num_rounds=30 --seed 1 --out runs/mine",
        "run demo/federated --dry-run",
    ),
    "table": ("table demo --seeds 5 --format latex", "table leaf/table2 --only synthetic-fedavg"),
    "sweep": (
        "sweep flair/sweeps/federated_imagenet_coarse.yaml",
        "sweep mine/sweep.yaml federated.num_rounds=30 --launcher local --jobs 2",
    ),
    "show": ("show demo/private_federated", "show flair/table1/federated_imagenet_coarse --all"),
    "list": ("list rows demo", "list algorithms --plugins mine/mine_plugins"),
    "copy": ("copy demo/federated mine.yaml", "copy demo/central mine.yaml --force"),
    "new": ("new algorithm my_method", "new metric my_metric --out mine"),
    "check-plugin": ("check-plugin my_method", "check-plugin my_method --json"),
    "completion": ("completion bash >> ~/.bashrc", "completion fish"),
    "data": ("data generate flair --out raw", "data stats flair.h5"),
    "data prepare": (
        "data prepare femnist --source raw --out femnist.h5",
        "data prepare femnist --help",
    ),
    "data download": ("data download femnist --out raw", "data download flair"),
    "data generate": ("data generate flair --out raw num_users=700", "data generate reddit --help"),
    "data stats": ("data stats femnist.h5 --json", "data stats flair.h5 --plots plots"),
    "data traces": (
        "data traces generated num_devices=1000 --out devices.npz",
        "data traces file path=devices.npz --json",
    ),
    "data list": ("data list", "data list --json"),
    "privacy": (
        "privacy calibrate --epsilon 2 --population 41131 --cohort 5000 --rounds 5000",
        "privacy explain demo/private_federated",
    ),
    "privacy calibrate": (
        "privacy calibrate --epsilon 2 --population 41131 --cohort 5000 --rounds 5000",
        "privacy calibrate --epsilon 4 --population 300 --cohort 60 --rounds 60 --accountant pld",
    ),
    "privacy epsilon": (
        "privacy epsilon --noise-multiplier 1.4 --population 300 --cohort 60 --rounds 60",
        "privacy epsilon --noise-multiplier 18.7 --population 41131 --cohort 200 "
        "--noise-cohort 5000 --rounds 5000",
    ),
    "privacy solve": (
        "privacy solve --epsilon 2 --noise-multiplier 18.7 --population 41131 --cohort 5000",
        "privacy solve --epsilon 4 --noise-multiplier 1.4 --population 300 --rounds 60",
    ),
    "privacy table": (
        "privacy table --population 41131 --cohort 5000 --noise-multiplier 18.7 --rounds 1000 5000",
        "privacy table --population 300 --cohort 60 --noise-multiplier 1 2 --rounds 60",
    ),
    "privacy tuning": (
        "privacy tuning --row demo/private_federated --mean 20",
        "privacy tuning --epsilon 2 --trials geometric --mean 20 --population 41131 --cohort 5000 "
        "--rounds 5000",
    ),
    "privacy explain": (
        "privacy explain runs/demo/private_federated/seed-0",
        "privacy explain demo/private_federated",
    ),
    "audit": ("audit runs/demo/private_federated/seed-0", "audit runs/mine --tuned-runs 50 --json"),
    "attack": (
        "attack runs/demo/private_federated/seed-0 --kind lira --shadows 32",
        "attack demo/federated --kind gradient --out runs/inversion",
    ),
    "leaderboard": (
        "leaderboard runs/demo --audit",
        "leaderboard runs results --out board.html --force",
    ),
    "report": ("report runs/mine", "report runs/one runs/other --out both.html --force"),
}


def add_examples(parser: argparse.ArgumentParser) -> None:
    """End the help of a program, and of each of its commands, with their examples."""
    for words, command in commands_of(parser):
        examples = EXAMPLES.get(words, ())
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        lines = [f"  {parser.prog} {example}" for example in examples]
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
