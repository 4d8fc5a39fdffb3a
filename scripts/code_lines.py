"""The lines of code of each capability, and their budget, as CONTRIBUTING.md has them.

    python scripts/code_lines.py            # the table
    python scripts/code_lines.py --write    # put it into CONTRIBUTING.md

A line of code is neither blank, nor a comment, nor of a docstring. A budget is the count when it
was written, rounded up to 25: a test refuses code beyond it, so that growth is a decision.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "CONTRIBUTING.md"
START = "<!-- code lines: python scripts/code_lines.py --write -->\n"
END = "<!-- end of code lines -->\n"
PACKAGES = ("pfl_bench", "privacy", "tasks")
_STEP = 25
# Paths below the checkout; of two that begin a file's path, the longer one has it.
CAPABILITIES = {
    "accountants, plan, calibration and statement": (
        "privacy/", "pfl_bench/federated/accounting.py", "pfl_bench/federated/privacy_session.py",
    ),
    "mechanisms, noise, clipping and sampling schemes": (
        "privacy/mechanism", "privacy/noise/", "privacy/schemes/", "privacy/sampling_scheme.py",
        "privacy/clipping.py", "privacy/aggregate.py", "privacy/description.py",
    ),
    "audit: records, ledger, recomputation": (
        "privacy/audit/", "privacy/recording/", "privacy/reference/", "privacy/ledger.py",
        "privacy/json_text.py",
        "pfl_bench/runs/audit", "pfl_bench/report/audit.py", "pfl_bench/cli/audit",
    ),
    "attacks on privacy: canaries, membership, inversion": (
        "privacy/empirical/", "pfl_bench/runs/membership", "pfl_bench/runs/gradient_inversion.py",
        "pfl_bench/cli/attack",
    ),
    "the federated round, algorithms, aggregation and compression": ("pfl_bench/federated/",),
    "processes: workers and launchers": (
        "pfl_bench/federated/workers/", "pfl_bench/runs/launchers/", "pfl_bench/runs/jobs/",
    ),
    "local training: engines, layers in slots, precision, optimizers": (
        "pfl_bench/client/", "pfl_bench/federated/autotune.py",
        "pfl_bench/federated/engine_times.py",
    ),
    "other settings: central, DP-SGD, local models, Mocha": ("pfl_bench/trainers/",),
    "simulated devices, selection and attacks of clients": ("pfl_bench/simulation/",),
    "evaluation and metrics": ("pfl_bench/evaluation/", "pfl_bench/metrics/"),
    "configuration, sweeps and plug-ins": (
        "pfl_bench/config/", "pfl_bench/plugins.py", "pfl_bench/cli/sweep", "pfl_bench/cli/new",
        "pfl_bench/cli/check_plugin.py",
    ),
    "data: stores, downloads, splits": ("pfl_bench/data/", "pfl_bench/cli/data"),
    "runs: folders, checkpoints, logs, trackers": ("pfl_bench/runs/",),
    "reports, tables and leaderboard": ("pfl_bench/report/",),
    "command line and Python interface": ("pfl_bench/",),
    "tasks: what they share": ("tasks/common/", "tasks/__init__.py", "tasks/in_memory/"),
    "tasks: FLAIR": ("tasks/flair/",),
    "tasks: LEAF (FEMNIST, CelebA, Reddit, Sent140, Shakespeare, synthetic)": (
        "tasks/femnist/", "tasks/celeba/", "tasks/reddit/", "tasks/sent140/", "tasks/shakespeare/",
        "tasks/synthetic/",
    ),
    "tasks: FedScale": (
        "tasks/common/fedscale/", "tasks/google_speech/", "tasks/amazon_review/",
        "tasks/openimage/", "tasks/reddit_albert/",
    ),
    "tasks: all others": ("tasks/",),
}  # fmt: skip


def code_lines(source: str) -> int:
    """Number of lines of Python code in a module's text."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def capability_of(path: str) -> str:
    """Capability that a file belongs to, by its path below the checkout."""
    found = [
        (len(prefix), name)
        for name, prefixes in CAPABILITIES.items()
        for prefix in prefixes
        if path.startswith(prefix)
    ]
    return max(found)[1]


def count(checkout: Path = CHECKOUT) -> Counter[str]:
    """Lines of code of each capability, of the files that git knows."""
    command = ["git", "ls-files", *PACKAGES]
    listed = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    counts: Counter[str] = Counter(dict.fromkeys(CAPABILITIES, 0))
    for path in listed.stdout.splitlines():
        if path.endswith(".py") and (checkout / path).exists():
            text = (checkout / path).read_text(encoding="utf-8")
            counts[capability_of(path)] += code_lines(text)
    return counts


def table(counts: Counter[str]) -> str:
    """The table in Markdown; a budget is the count, rounded up."""
    budgets = {name: -(-lines // _STEP) * _STEP for name, lines in counts.items()}
    rows = [f"| {name} | {lines:,} |" for name, lines in budgets.items()]
    total = f"| **all** | **{sum(budgets.values()):,}** |"
    return "\n".join(["| capability | lines of code, at most |", "|---|---:|", *rows, total, ""])


def budgets_of(page: str) -> dict[str, int]:
    """Budgets that CONTRIBUTING.md, as text, has."""
    rows = page.partition(START)[2].partition(END)[0].splitlines()[2:-1]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {name: int(lines.replace(",", "")) for name, lines in cells}


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description="Lines of code of each capability.")
    parser.add_argument("--write", action="store_true", help="put it into CONTRIBUTING.md")
    made = table(count())
    if not parser.parse_args(arguments).write:
        sys.stdout.write(made)
        return 0
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + made + END + rest.partition(END)[2], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
