"""The table of planted bugs in ``docs/planted_bugs.md``: ``python -m tests.sabotage.table``.

Plants every bug, audits each run, and writes what came of it between the two marks; takes a minute.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

from tests.helpers import REPOSITORY
from tests.sabotage.bugs import BUGS, UNSEEN
from tests.sabotage.planting import Bug
from tests.sabotage.running import Caught, remembering, run_planted

DOCUMENT = REPOSITORY / "docs" / "planted_bugs.md"
BEGIN, END = "<!-- planted bugs: begin -->", "<!-- planted bugs: end -->"
_HEAD = ("| Bug | Planted by | Caught by | Evidence |", "|---|---|---|---|")
_LONGEST = 120


def listed(document: str) -> dict[str, tuple[str, ...]]:
    """What the document's table says: by each bug's name, what caught it.

    Raises:
        ValueError: The marks are missing, or a bug is listed twice.
    """
    table = document[document.index(BEGIN) : document.index(END)]
    rows = re.findall(r"^\| `(\w+)`:[^|]*\|[^|]*\| ([^|]*) \|", table, flags=re.MULTILINE)
    found = {name: tuple(caught.split(", ")) for name, caught in rows}
    if len(found) != len(rows):
        raise ValueError("a bug is listed twice")
    return found


def _line(text: str) -> str:
    """One short cell of one line, cut at a word."""
    text = " ".join(text.replace("|", "/").split())
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rsplit(" ", 1)[0] + " ..."


def _row(bug: Bug, caught: Caught, folder: Path) -> str:
    by, evidence = _catch(bug, caught)
    shown = evidence if bug.unseen else _line(evidence.replace(f"{folder}/", ""))
    return f"| `{bug.name}`: {bug.description} | {bug.planted} | {by} | {shown} |"


def _catch(bug: Bug, caught: Caught) -> tuple[str, str]:
    """By what a bug was caught, and the evidence."""
    if bug.words and caught.refused is not None and bug.words in caught.refused:
        return "refused", caught.refused
    if bug.unseen and caught.refused is None and not caught.failed:
        return "unseen", bug.unseen
    if bug.lacks and not caught.failed and caught.incomplete == set(bug.lacks):
        return f"incomplete: {', '.join(bug.lacks)}", caught.checks[bug.lacks[0]].evidence
    if bug.expects and set(bug.expects) <= caught.failed:
        evidence = caught.checks[bug.expects[0]].evidence
        return ", ".join(bug.expects), evidence.partition(". Looked at:")[0]
    print(f"{bug.name}: not as it must be", file=sys.stderr)
    found = caught.refused or f"failed: {', '.join(sorted(caught.failed)) or 'nothing'}"
    return "**not as it must be**", found


def make_table() -> str:
    """Plant every bug and tell what came of it; shape of a Markdown table."""
    rows = []
    with tempfile.TemporaryDirectory() as place, remembering():
        for bug in (*BUGS, *UNSEEN):
            folder = Path(place) / bug.name
            with contextlib.redirect_stderr(io.StringIO()):  # The run's log.
                caught = run_planted(bug, folder)
            rows.append(_row(bug, caught, folder))
    return "\n".join((*_HEAD, *rows))


def main() -> None:
    """Write the table into the document."""
    document = DOCUMENT.read_text(encoding="utf-8")
    before, after = document.partition(BEGIN)[0], document.partition(END)[2]
    if not after:
        sys.exit(f"{DOCUMENT.name} lacks the marks {BEGIN} and {END}")
    DOCUMENT.write_text(f"{before}{BEGIN}\n{make_table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
