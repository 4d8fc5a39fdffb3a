"""Is every private row's run audited as it should be? Each is cut down, run and computed again.

    python -m tests.contracts.audited_rows OUTCOMES.jsonl [PART OF A ROW'S NAME]

Of each private row under configs/: two rounds (of DP-SGD one epoch) on the small data of the tests,
and an audit that computes all of them again. Prints what each comes to; an interrupted call goes on
where it was.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from pfl_bench.config.loading import load_config
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from tests.contracts.small_rows import CONFIGS, ROWS, shortened, write_small_files


def main() -> None:
    """Run, audit and print."""
    parser = argparse.ArgumentParser(description="Audits of short runs of all private rows.")
    parser.add_argument("outcomes", metavar="OUTCOMES.jsonl", type=Path)
    parser.add_argument("part", nargs="?", default="", help="rows with this in their names alone")
    given = parser.parse_args()
    text = given.outcomes.read_text(encoding="utf-8") if given.outcomes.exists() else ""
    done = {json.loads(line)["row"] for line in text.splitlines()}
    with tempfile.TemporaryDirectory() as folder, given.outcomes.open("a") as outcomes:
        small = write_small_files(Path(folder))
        for row in ROWS:
            name, as_it_is = row.relative_to(CONFIGS).as_posix(), load_config(row)
            if not as_it_is.config.is_private or name in done or given.part not in name:
                continue
            overrides = shortened(as_it_is.tree, small)
            if as_it_is.config.federated is not None:
                overrides.append("federated.num_rounds=2")
            with tempfile.TemporaryDirectory() as out:
                run(load_config(row, overrides), Path(out) / "run")
                audit = audit_run(Path(out) / "run", recompute="all")
            failed = {one.name: one.evidence for one in audit.checks if one.outcome == "failed"}
            found = {"row": name, "words": audit.words, "failed": failed}
            outcomes.write(json.dumps(found) + "\n")
            outcomes.flush()
            print(name, audit.words, *failed, flush=True)


if __name__ == "__main__":
    main()
