"""Benchmarks' results as Markdown: the tables of docs/performance.md.

    python scripts/bench.py page softmax.json reddit.json                             # print them
    python scripts/bench.py page docs/results/speed/*.json --into docs/performance.md

Each section of the page has two marks of its own. In that of rounds, the first table has a row per
workload: the fastest of our sides beside the fastest of each peer's. One table per file follows,
with all sides. Other subjects have a section each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import spread

OURS = "pfl-bench"
PEERS = ("bare", "pfl", "Flower")
# Subjects whose module makes its section's table of a report; all others are of rounds.
WITH_SECTION = ("audit", "defaults", "flair", "metrics", "scale")
ROUNDS = "rounds"
# Packages whose versions decide a speed; a record has those of all.
TIMED = ("torch", "numpy", "scikit-learn", "pfl", "flwr", "ray")


def _family(side: str) -> str:
    return side.partition(",")[0]


def fastest(result: Mapping[str, Any], family: str) -> str | None:
    """The side of a family with the least median seconds; None if it has none."""
    sides = [name for name in result["sides"] if _family(name) == family]
    return min(sides, key=lambda n: statistics.median(result["sides"][n]["seconds"]), default=None)


def speed(
    result: Mapping[str, Any], side: str, other: str | None, clock: str = "seconds"
) -> dict[str, float] | None:
    """Speed of a side in multiples of another's, round by round; None where it cannot be told."""
    sides = result["sides"]
    if other is None or clock not in sides[side] or clock not in sides[other]:
        return None
    pairs = zip(sides[side][clock], sides[other][clock], strict=True)
    return spread([their / own for own, their in pairs])


def _shown(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{value['median']:.2f} ({value['min']:.2f}-{value['max']:.2f})"


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def what(result: Mapping[str, Any]) -> str:
    """The workload of a result, whether it is private, and its precision."""
    private = "private" if result["private"] else "not private"
    return f"{result['workload']}, {private}, {result['precision']}"


def summary(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A row per workload: speeds of our fastest side, of each peer's fastest, as 1."""
    rows = []
    for result in results:
        ours = fastest(result, OURS)
        assert ours is not None
        seconds = statistics.median(result["sides"][ours]["seconds"])
        cells = [what(result), ours, f"{seconds:.3f}"]
        for peer in PEERS:
            side = fastest(result, peer)
            text = _shown(speed(result, ours, side))
            # Which of a peer's sides, where it is not its plain one.
            cells.append(text if side in (None, peer) else f"{text}; {side}")
        rows.append(cells)
    peers = [f"times {peer}'s speed" for peer in PEERS]
    return _rows(["workload", "our fastest", "s per round", *peers], rows)


def details(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A row per side: seconds per round, and its speed beside the bare loop's and pfl's."""
    results = list(results)
    header = ["workload", "side", "s per round", "times bare's speed", "times pfl's"]
    rows = []
    for result in results:
        bare, pfl = fastest(result, "bare"), fastest(result, "pfl")
        named = what(result)
        for name, side in result["sides"].items():
            times = spread(side["seconds"])
            cells = [
                named,
                name,
                f"{times['median']:.3f} ({times['min']:.3f}-{times['max']:.3f})",
                _shown(speed(result, name, bare)),
                _shown(speed(result, name, pfl)),
                _shown(speed(result, name, pfl, "processor_seconds")),
            ]
            rows.append(cells)
            named = ""
    # No other process's processor time is known.
    if all(row[-1] == "-" for row in rows):
        return _rows(header, [row[:-1] for row in rows])
    return _rows([*header, "the same, processor time"], rows)


def _machine(report: Mapping[str, Any]) -> str:
    """Command, machine and how busy it was, commit, and versions of what was timed."""
    machine = report["machine"]
    threads, cores = machine["omp_num_threads"], machine["cores"]
    command = shlex.join(machine["command"])
    if threads:
        command = f"OMP_NUM_THREADS={threads} {command}"
    commit = (machine.get("checkout") or {}).get("commit", "none")[:9]
    known = machine["versions"]
    versions = ", ".join(f"{name} {known[name]}" for name in TIMED if name in known)
    return (
        f"`{command}`: {cores} {'core' if cores == 1 else 'cores'} of {machine['processor']} "
        f"({', '.join(machine['units'])}); load average {machine['load_before']} before, "
        f"{machine['load_after']} after; commit {commit}; {versions}."
    )


def _notes(report: Mapping[str, Any]) -> list[str]:
    """Machine, and that the sides agreed."""
    results = report["results"]
    found = [side for result in results for side in result["agreement"].values()]
    norms = [side["norm_difference"] for side in found if "norm_difference" in side]
    losses = [side["loss_difference"] for side in found if "loss_difference" in side]
    step = max(side["step_difference"] for side in found if "step_difference" in side)
    rounds = [str(len(r["sides"][fastest(r, OURS)]["seconds"])) for r in results]
    largest = f"{step:.1e} of the step" + (
        f", {100 * max(norms):.1f} % of its norm" if norms else ""
    )
    lines = [
        f"{_machine(report)} Rounds timed: {', '.join(rounds)}. Largest difference from the bare "
        f"loop after the first round: {largest}"
        + (f", {100 * max(losses):.2f} % of the loss." if losses else "."),
    ]
    started = {n: s for result in results for n, s in result["startup_seconds"].items()}
    if started:
        each = "; ".join(f"{name} {seconds:.1f}" for name, seconds in started.items())
        lines += ["", f"Seconds to start, in no round: {each}."]
    return lines


def markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """All reports of rounds: the summary, then each one's details."""
    results = [result for report in reports for result in report["results"]]
    lines = [*summary(results), ""]
    for report in reports:
        subjects = dict.fromkeys(f"{r['workload']}, {r['precision']}" for r in report["results"])
        lines += [f"### {'; '.join(subjects)}", "", *details(report["results"]), ""]
        lines += [*_notes(report), ""]
    return "\n".join(lines)


def sections(reports: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The text of each section that the reports fill, by its name."""
    texts = {}
    rounds = [report for report in reports if report["subject"] not in WITH_SECTION]
    if rounds:
        texts[ROUNDS] = markdown(rounds)
    for report in reports:
        if (name := report["subject"]) in WITH_SECTION:
            table = importlib.import_module(f"benchmarks.{name}").table(report)
            texts[name] = f"{table}\n\n{_machine(report)}"
    return texts


def marks(name: str) -> tuple[str, str]:
    """The lines of the page before and after a section."""
    begin, end = (f"<!-- scripts/bench.py page, {name}: {edge} -->" for edge in ("begin", "end"))
    return begin, end


def main() -> None:
    """Print the sections, or put them where they belong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="of --json")
    parser.add_argument("--into", type=Path, help="a page with two marks for each section")
    options = parser.parse_args()
    found = sections([json.loads(path.read_text(encoding="utf-8")) for path in options.files])
    if options.into is None:
        print("\n\n".join(found.values()))
        return
    page = options.into.read_text(encoding="utf-8")
    for name, text in found.items():
        begin, end = marks(name)
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise SystemExit(
                f"{options.into}: the lines '{begin}' and '{end}' must be there once each"
            )
        page = f"{page.split(begin)[0]}{begin}\n{text}\n{end}{page.split(end)[1]}"
    options.into.write_text(page, encoding="utf-8")
