"""Does the audit find faults that nobody thought of? Edits of the code, drawn at random.

    python -m tests.sabotage.drawn_edits OUTCOMES.jsonl [--count 300] [--seed 0]

The code as it is makes small private runs, three of each mechanism, of settings that are drawn as
in ``sound_runs``. An edit (``edits``) is drawn from the lines of the trainer and of ``privacy``
that these runs execute, and the edited code makes one of them again. The run stops, or leaves the
same record, or another one, which the code as it is audits by the defaults of ``pfl-bench audit``.
Prints the outcomes and how many there are of each; an interrupted call goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.sabotage.edits import edited, lines_of_edits

# This process must not import what is edited: each of its forks does, from one of two folders.
_FORK = multiprocessing.get_context("fork")
HOME = Path(__file__).resolve().parents[2]
_PACKAGES = ("pfl_bench", "privacy", "tasks")
_EDITED = (
    "privacy/",
    *(f"pfl_bench/{name}/" for name in ("client", "federated", "simulation", "trainers")),
    "pfl_bench/rng.py",
)
_LATER = (
    "dp_accounting.pld",
    "h5py",
    "opacus",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.datasets",
)
# Mechanisms of ``sound_runs``, and runs of each.
_MECHANISMS, _RUNS_OF_EACH = 11, 3

# Of a run folder: what is recorded where, numbers as text and tensors as digests.
Record = dict[str, str]


class Sound(NamedTuple):
    """A run by the code as it is.

    Attributes:
        setting, changes: Of ``make_config``.
        record: What it has written.
        varies: Places where a second run has something else: times, and digests of the code.
        lines: Those that it executes, by file.
    """

    setting: str
    changes: dict[str, Any]
    record: Record
    varies: frozenset[str]
    lines: dict[str, list[int]]


def in_fork(packages: Path, action: Callable[..., Any], *given: Any, seconds: float = 300.0) -> Any:
    """What an action gives where the packages are those of a folder; None if it fails or hangs."""
    receiver, sender = _FORK.Pipe(duplex=False)

    def work() -> None:
        os.chdir(packages)
        sys.path.insert(0, str(packages))
        os.environ["PYTHONPATH"] = str(packages)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sender.send(action(*given))

    process = _FORK.Process(target=work)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(seconds) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def make(setting: str, changes: dict[str, Any], folder: Path) -> Record:
    """Make a run, and read its record."""
    from pfl_bench.runs.runner import run
    from tests.helpers import make_config

    shutil.rmtree(folder, ignore_errors=True)
    run(make_config(setting, **changes), folder)
    return record_of(folder)


def make_traced(setting: str, changes: dict[str, Any], folder: Path) -> Any:
    """Make a run; also give the lines executed, by file."""
    root, seen = f"{Path.cwd()}{os.sep}", dict[str, set[int]]()

    def trace(frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(root):
            return None
        if event == "line":
            seen.setdefault(name, set()).add(frame.f_lineno)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    record = make(setting, changes, folder)
    sys.settrace(None)
    return record, {name.removeprefix(root): sorted(lines) for name, lines in seen.items()}


def record_of(folder: Path) -> Record:
    """What a run has written, by file and place."""
    found = Record()

    def add(place: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                add(f"{place}.{key}", part)
        elif isinstance(value, list | tuple):
            for number, part in enumerate(value):
                add(f"{place}[{number}]", part)
        elif isinstance(value, torch.Tensor):
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            digest = hashlib.sha256(data)
            found[place] = f"{tuple(value.shape)} {value.dtype} {digest.hexdigest()}"
        else:
            found[place] = repr(value)

    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            add(path.name, json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".jsonl":
            text = path.read_text(encoding="utf-8")
            add(path.name, [json.loads(line) for line in text.splitlines()])
        elif path.suffix == ".pt":
            add(path.name, torch.load(path, weights_only=False))
    return found


def others(one: Record, two: Record) -> set[str]:
    """Places where two records differ."""
    return {place for place in {**one, **two} if one.get(place) != two.get(place)}


def audit(folder: Path) -> tuple[str, list[str]]:
    """The verdict of an audit in words, and the checks that failed."""
    from pfl_bench.runs.audit import audit_run

    done = audit_run(folder, recompute="sample")
    return done.words, [check.name for check in done.checks if check.outcome == "failed"]


def accepted(number: int, seed: int, work: Path) -> list[tuple[str, dict[str, Any]]]:
    """Draw settings of one mechanism that its plan does not refuse."""
    from pfl_bench.runs.runner import run
    from pfl_bench.types import UserInputError
    from privacy.errors import PrivacyError
    from tests.helpers import make_config
    from tests.sabotage import sound_runs

    store, found = work / "digits.h5", list[tuple[str, dict[str, Any]]]()
    if not store.exists():
        sound_runs.write_digits(store)
    for draw in itertools.count():
        rng = np.random.default_rng([seed, number, draw])
        setting, changes = sound_runs.drawn(rng, sound_runs.MECHANISMS[number], store)
        shutil.rmtree(work / "run", ignore_errors=True)
        try:
            run(make_config(setting, **changes), work / "run")
        except (PrivacyError, UserInputError):
            continue
        found.append((setting, changes))
        if len(found) == _RUNS_OF_EACH:
            return found
    raise AssertionError


def copy_code(work: Path) -> None:
    """Copy the packages to where they are edited, and to where their digest alone is another."""
    for name in _PACKAGES:
        for home in ("code", "other"):
            shutil.copytree(HOME / name, work / home / name)
    with (work / "other" / "privacy" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("# Another digest.\n")


def sound_run(setting: str, changes: dict[str, Any], work: Path) -> Sound | None:
    """Make a run by the code as it is, twice; None if the setting is refused."""
    changes = {**changes, "precision": "float32", "privacy__nonce": "drawn"}
    made = in_fork(work / "code", make_traced, setting, changes, work / "run")
    if made is None:
        return None
    record, lines = made
    again = in_fork(work / "other", make, setting, changes, work / "run")
    if again is None:
        raise AssertionError(f"a second run of {setting} with {changes} has failed")
    return Sound(setting, changes, record, frozenset(others(record, again)), lines)


def sound_runs_of(seed: int, work: Path) -> Iterator[Sound]:
    """Runs of each mechanism."""
    for number in range(_MECHANISMS):
        for setting, changes in in_fork(HOME, accepted, number, seed, work, seconds=7200.0):
            sound = sound_run(setting, changes, work)
            if sound is not None:
                yield sound


def outcome_of(path: Path, number: int, sound: Sound, work: Path) -> dict[str, Any]:
    """Make a run by edited code, and have it audited if its record is another one."""
    source = path.read_text(encoding="utf-8")
    edit = edited(source, number)
    path.write_text(edit.source, encoding="utf-8")
    try:
        record = in_fork(work / "code", make, sound.setting, sound.changes, work / "run")
    finally:
        path.write_text(source, encoding="utf-8")
    if record is None:
        return {"edit": edit.words, "outcome": "stopped"}
    places = sorted(others(sound.record, record) - sound.varies)
    if not places:
        return {"edit": edit.words, "outcome": "same"}
    words, failed = in_fork(HOME, audit, work / "run") or ("failed", ["ends with an error"])
    verdict = words.partition(":")[0].split()[0]
    said = {"words": words, "failed": failed, "differs": places[:20]}
    return {"edit": edit.words, "outcome": verdict, **said}


def drawn(found: list[Sound], code: Path, seed: int) -> list[tuple[str, int, int, Sound]]:
    """Edits of lines that runs execute: file, number, line, one of these runs; in any order."""
    rng = random.Random(seed)
    by_line: dict[tuple[str, int], list[Sound]] = {}
    for sound in found:
        for name, lines in sound.lines.items():
            for line in lines if name.startswith(_EDITED) else ():
                by_line.setdefault((name, line), []).append(sound)
    edits = [
        (name, number, line, rng.choice(by_line[name, line]))
        for name in sorted({name for name, _ in by_line})
        for number, line in enumerate(lines_of_edits((code / name).read_text(encoding="utf-8")))
        if (name, line) in by_line
    ]
    rng.shuffle(edits)
    return edits


def main() -> None:
    """Draw, measure, and print the outcomes."""
    parser = argparse.ArgumentParser(description="Audits of runs by code with drawn edits.")
    parser.add_argument("outcomes", metavar="OUTCOMES.jsonl", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # An edit may leave the length of a file as it is, and its time too.
    sys.dont_write_bytecode = True
    os.environ |= {"PFL_BENCH_CACHE": "off", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in _LATER:
        importlib.import_module(name)
    text = given.outcomes.read_text(encoding="utf-8") if given.outcomes.exists() else ""
    outcomes = [json.loads(line) for line in text.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        copy_code(work)
        runs = []
        for sound in sound_runs_of(given.seed, work):
            runs.append(sound)
            print(f"run {len(runs)}", flush=True)
        edits = drawn(runs, work / "code", given.seed)
        print(f"{len(edits)} edits of what {len(runs)} runs execute", flush=True)
        for name, number, line, sound in edits[len(outcomes) : given.count]:
            found = outcome_of(work / "code" / name, number, sound, work)
            outcomes.append({"file": name, "line": line, **found})
            with given.outcomes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(outcomes[-1]) + "\n")
            print(len(outcomes), found["outcome"], name, line, found["edit"], flush=True)
    for outcome, count in Counter(one["outcome"] for one in outcomes).most_common():
        print(f"{count:5} {outcome}")


if __name__ == "__main__":
    main()
