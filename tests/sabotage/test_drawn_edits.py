"""Edits are edits, and what a run by edited code leaves is told from what it left before."""

from __future__ import annotations

import ast
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sabotage.drawn_edits import HOME, copy_code, outcome_of, sound_run
from tests.sabotage.edits import edited, lines_of_edits

# Of a mechanism that this run has, and of one that it does not have.
MECHANISMS = ("gaussian", "laplace")
SCALE = "self._noise.noise_multiplier {} self._noise.ratio"
SOURCE = '''
def scaled(values: list[float], most: int = 3, *, is_all: bool = False) -> float:
    """The docstring -1 stays."""
    if not values or len(values) > most:
        raise ValueError(f"at most {most + 1}")
    values.sort()
    for one, two in zip(values, values, strict=True):
        most -= one * two**2 in values
    return min(values) / 2.5 if is_all else -most
'''


def test_each_edit_is_of_one_expression_that_runs() -> None:
    lines = lines_of_edits(SOURCE)
    edits = [edited(SOURCE, number) for number in range(len(lines))]
    assert len({edit.source for edit in edits}) == len(edits)
    words = {edit.words for edit in edits}
    assert {
        "len(values) > most -> len(values) >= most",
        "not values -> not not values",
        "values.sort() -> ...",
        "min(values) -> max(values)",
        "2.5 -> 3.75",
        "most -= one * two ** 2 in values -> most += one * two ** 2 in values",
        "one * two ** 2 -> one / two ** 2",
        "-most -> +most",
    } <= words
    # Not of the message, the type, the docstring, or the check that lengths are equal.
    assert 5 not in lines
    assert not any("strict=False" in edit.source or "-2 stays" in edit.source for edit in edits)
    for edit in edits:
        assert ast.dump(ast.parse(edit.source)) != ast.dump(ast.parse(SOURCE))


def show_outcomes(work: Path) -> None:
    """Print the outcomes of two edits of one run, in a process that has not imported the code."""
    copy_code(work)
    changes = {"privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5}}
    sound = sound_run("private_federated", changes, work)
    assert sound is not None
    assert "privacy/mechanisms/gaussian.py" in sound.lines
    assert "privacy/mechanisms/laplace.py" not in sound.lines
    for name in MECHANISMS:
        path = work / "code" / "privacy" / "mechanisms" / f"{name}.py"
        source = path.read_text(encoding="utf-8")
        edits = [edited(source, number).words for number in range(len(lines_of_edits(source)))]
        found = outcome_of(
            path, edits.index(f"{SCALE.format('*')} -> {SCALE.format('/')}"), sound, work
        )
        print(found["outcome"], *found.get("failed", ()))
        assert path.read_text(encoding="utf-8") == source


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="edited code runs in a fork"
)
def test_what_edited_code_leaves_is_audited_if_it_is_other(tmp_path: Path) -> None:
    call = f"import sys, {__name__} as tests_; tests_.show_outcomes(tests_.Path(sys.argv[1]))"
    command = [sys.executable, "-c", call, str(tmp_path)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True)
    assert done.stdout == "failed recomputation\nsame\n", done.stderr
