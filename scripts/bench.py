#!/usr/bin/env python
"""Times pfl-bench beside what one would write by hand, and beside its fastest peers.

All sides do the same work, in turn, in one process; the result is a ratio, and sides that are to
compute the same thing are compared.

    python scripts/bench.py femnist                  # a round of small models
    python scripts/bench.py femnist --only softmax --private yes --repeats 9
    python scripts/bench.py defaults                 # the command itself, nothing set by hand
    python scripts/bench.py flair                    # a round of ResNet-18, JPEGs decoded
    python scripts/bench.py flair --device cuda --precision bfloat16
    python scripts/bench.py reddit                   # a round of LEAF's LSTM for words
    python scripts/bench.py shakespeare              # a round of LEAF's LSTM for characters
    python scripts/bench.py reddit-scale             # a store of 1.66 million clients
    python scripts/bench.py metrics                  # average precision on FLAIR's fine labels
    python scripts/bench.py scale                    # time and memory against the cohort
    python scripts/bench.py audit                    # an audit that computes rounds again
    python scripts/bench.py systems                  # clock and selection, 500,000 devices
    python scripts/bench.py page *.json              # the tables of docs/performance.md

The peers are optional: docs/performance.md says how to install them.
"""

from __future__ import annotations

import argparse
import sys

# What is timed; each has a module of that name (- is _) in the folder benchmarks.
SUBJECTS = {
    "audit": "audits that compute rounds again, beside the runs",
    "defaults": "`pfl-bench run` with its defaults beside hand-set engine, slots and workers",
    "femnist": "a federated round of FEMNIST's models",
    "flair": "a federated round of FLAIR's ResNet-18",
    "metrics": "multi-label metrics on FLAIR's test set's size",
    "page": "Markdown of what --json wrote",
    "reddit": "a federated round of Reddit's LSTM",
    "reddit-scale": "opening and sampling a store of Reddit's size",
    "scale": "time and peak memory of a round against the cohort",
    "shakespeare": "a federated round of Shakespeare's LSTM",
    "systems": "virtual clock and selection among 500,000 users",
}


def main() -> None:
    """Hand the command line to the subject's own."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="; ".join(f"{name}: {text}" for name, text in SUBJECTS.items()),
    )
    parser.add_argument("what", choices=SUBJECTS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see `bench.py WHAT --help`")
    arguments = parser.parse_args()
    sys.argv = [f"{sys.argv[0]} {arguments.what}", *arguments.options]
    # Imported here: the memory of one subject is not to hold the libraries of another.
    if arguments.what == "audit":
        from benchmarks import audit as subject
    elif arguments.what == "defaults":
        from benchmarks import defaults as subject
    elif arguments.what == "femnist":
        from benchmarks import femnist as subject
    elif arguments.what == "flair":
        from benchmarks import flair as subject
    elif arguments.what == "page":
        from benchmarks import page as subject
    elif arguments.what == "reddit":
        from benchmarks import reddit as subject
    elif arguments.what == "reddit-scale":
        from benchmarks import reddit_scale as subject
    elif arguments.what == "scale":
        from benchmarks import scale as subject
    elif arguments.what == "shakespeare":
        from benchmarks import shakespeare as subject
    elif arguments.what == "systems":
        from benchmarks import systems as subject
    else:
        from benchmarks import metrics as subject
    subject.main()


if __name__ == "__main__":
    main()
