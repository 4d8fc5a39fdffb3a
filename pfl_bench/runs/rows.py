"""Rows of a table: what is published beside what was measured, over seeds.

Pure functions over the summaries of finished runs; nothing is read or written here.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pfl_bench.config.row_differences import settings_digest
from pfl_bench.metrics import MetricDirections
from pfl_bench.runs.divergence import describe_divergence
from pfl_bench.runs.equivalence import Comparison, Published, equivalence
from pfl_bench.types import ExpectedResult, RunSummary, as_float, describe_choice, step_unit

FAILED = ("differs", "diverged")
# Of a number of a paper, and of one of this toolkit.
_AGREES = ("reproduced", "as measured before")
# What a comparison of numbers comes to; the others are said of a run without one.
JUDGED = (*_AGREES, "differs", "undecided", "says nothing")
BEST = "best_over_rounds"


@dataclass(frozen=True)
class RowResult:
    """One line of a table: a metric of a row, over all its seeds.

    Attributes:
        setting: "central", "federated", "private_federated" or "central_dp".
        variant: Variant of the data; several are joined by ", ".
        metric: Full name of the metric, such as "test/accuracy"; followed by what is taken of it,
            where that is not its last value.
        published: None where nothing is published.
        source: Where it is published: paper, table, cell.
        measured: One value a run, in the order of the seeds.
        status: "reproduced", "as measured before", "differs", "undecided", "says nothing",
            "diverged", "edited", "not the row", "not comparable" or "nothing published".
        epsilon_simulated: Epsilon of the simulated deployment, largest over seeds; may be inf.
        epsilon_actual: Epsilon of the run itself, largest over seeds; may be inf.
        note: What a reader must know to read the line; may be empty.
        published_sd: Over ``published_seeds`` seeds; None where that is not published.
        margin: Largest absolute difference that does not matter; None where nothing is published.
        measured_here: Whether the published value is one of this toolkit.
        chance: What guessing gives; None where nothing says it.
        interval: The interval of the difference beside the margin, in words; empty where nothing is
            compared.
        more_seeds: How many more seeds are expected to decide; None where that is not known.
        num_seeds: How many seeds ``measured`` is of; None for as many as it has values.
        seeds: The seed of each value of ``measured``; empty where no two are of one seed.
    """

    name: str
    setting: str
    variant: str
    metric: str
    published: float | None
    source: str | None
    measured: tuple[float, ...]
    status: str
    epsilon_simulated: float | None
    epsilon_actual: float | None
    delta_simulated: float | None
    note: str
    delta_actual: float | None = None
    published_sd: float | None = None
    published_seeds: int | None = None
    margin: float | None = None
    measured_here: bool = False
    chance: float | None = None
    interval: str = ""
    more_seeds: int | None = None
    num_seeds: int | None = None
    seeds: tuple[int, ...] = ()

    @property
    def is_near(self) -> bool:
        """Whether the measured values agree with the expected number."""
        return self.status in _AGREES

    @property
    def is_judged(self) -> bool:
        """Whether the measured values were compared with the expected number."""
        return self.status in JUDGED

    @property
    def is_failure(self) -> bool:
        """Whether the line is a reason for exit code 1."""
        return self.status in FAILED

    @property
    def mean(self) -> float | None:
        """Mean over seeds, of each the mean of its runs; None without a measurement."""
        found = self._by_seed()
        return math.fsum(found) / len(found) if found else None

    @property
    def sd(self) -> float | None:
        """Standard deviation over seeds with ``ddof=1``; None below two seeds."""
        found = self._by_seed()
        if len(found) < 2:
            return None
        return statistics.stdev(found) if all(map(math.isfinite, found)) else math.nan

    @property
    def difference(self) -> float | None:
        """Mean minus published; None where one of them is missing."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published

    def judged(self) -> RowResult:
        """The line with the verdict that its own numbers give by today's rule."""
        if not self.is_judged or self.published is None or not self.measured:
            return self
        published = Published(
            self.published, self.margin or 0.0, self.published_sd, self.published_seeds, self.chance
        )
        status, found = judge(self._by_seed(), published, self.measured_here)
        return replace(self, status=status, interval=found.text, more_seeds=found.more_seeds)

    def _by_seed(self) -> list[float]:
        # Runs of one seed share its data and initial model, and are no independent seeds.
        by_seed = defaultdict[int, list[float]](list)
        for place, value in enumerate(self.measured):
            by_seed[self.seeds[place] if self.seeds else place].append(value)
        return [math.fsum(values) / len(values) for values in by_seed.values()]


def judge(
    measured: Sequence[float], published: Published, measured_here: bool
) -> tuple[str, Comparison]:
    """Compare what one seed or more measured with an expected number: verdict and comparison.

    An agreement with a number of this toolkit is "as measured before".
    """
    found = equivalence(measured, published)
    status: str = found.outcome
    return _AGREES[measured_here] if status == "reproduced" else status, found


def rows_from_summaries(documents: Sequence[Mapping[str, Any]]) -> list[RowResult]:
    """The lines of the contents of ``summary.json`` files, as ``rows_of`` makes them.

    RunFolderError if one lacks what a line needs.
    """
    return rows_of([RunSummary.of(document, index) for index, document in enumerate(documents)])


def rows_of(summaries: Iterable[RunSummary]) -> list[RowResult]:
    """Group runs by row over seeds, and compare rows with what is published.

    Runs of one name and of other settings are no seeds of one row. A row with k expected values
    gives k lines, a row without gives one: that of its headline metric. Rows come in the order in
    which they first occur.
    """
    groups = defaultdict[tuple[Any, ...], list[RunSummary]](list)
    for summary in summaries:
        groups[summary.name, summary.settings_sha256].append(summary)
    rows: list[RowResult] = []
    for runs in groups.values():
        runs.sort(key=lambda run: run.seed)
        expected = [entry for run in runs for entry in run.expected]
        wanted = dict.fromkeys((entry.metric, entry.statistic) for entry in expected)
        wanted = wanted or {(metric, "last"): None for metric in headline_metrics(runs[0])}
        rows += [_row(runs, metric, statistic) for metric, statistic in wanted]
    return rows


def mark_edited(summary: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Take the outcome from a run whose ``config.yaml`` is not that of its summary.

    Where the digest of the settings or the seed is another, the reason is added as "edited" and as
    that of each verdict.
    """
    found = {key: value for key, value in summary.items() if key != "edited"}
    now = (settings_digest(config), config.get("seed"))
    if now == (summary.get("settings_sha256"), summary.get("seed")):
        return found
    why = (
        "config.yaml is not the configuration that summary.json was written for (settings_sha256, "
        "seed): restore the files, or run the row again"
    )
    expected = [{**entry, "verdict": "edited", "why": why} for entry in summary["expected"]]
    return {**found, "edited": why, "expected": expected}


def results_key(run: RunSummary) -> str:
    """Text of a run's seed and results: equal for two runs of a row if one is the other's copy."""
    return repr((run.seed, run.variant, run.metrics, run.best, run.model_sha256, run.edited))


def headline_metrics(summary: RunSummary) -> list[str]:
    """Name the metric that speaks for a run without expected values; none without any metric.

    It is of the test split, else of any: the first that the families of metrics name, of clients'
    own models where they have some beside the central one, else the first.
    """
    names = [name for name in summary.metrics if name.startswith("test/")] or list(summary.metrics)
    for wanted in MetricDirections.of_recorded(summary.metric_directions).headlines:
        for own in (f"personal_{wanted}", wanted):
            if named := [name for name in names if name.rsplit("/", 1)[-1] == own]:
                return named[:1]
    return names[:1]


def _row(runs: Sequence[RunSummary], metric: str, statistic: str) -> RowResult:
    """Make one line out of the runs of one row."""
    entries_by_run = [
        [one for one in run.expected if (one.metric, one.statistic) == (metric, statistic)]
        for run in runs
    ]
    entries = [entry for of_run in entries_by_run for entry in of_run]
    values = []
    for run, of_run in zip(runs, entries_by_run, strict=True):
        value = measured_value(run, metric, statistic)
        values.append(of_run[0].measured if value is None and of_run else value)
    measured = tuple(value for value in values if value is not None)
    seeds = tuple(r.seed for r, value in zip(runs, values, strict=True) if value is not None)
    num_seeds = len(set(seeds))
    first = entries[0] if entries else ExpectedResult.of({"metric": metric})
    variants = _distinct(run.variant for run in runs)
    epsilon_simulated, delta_simulated = _largest_epsilon(runs, "simulated")
    epsilon_actual, delta_actual = _largest_epsilon(runs, "actual")
    status, why = _status(entries, measured)
    diverged = _distinct(filter(None, (describe_divergence(run.diverged) for run in runs)))
    if status != "diverged":
        why = [*why, *diverged]
    if diverged and not entries:
        status = "diverged"
    edited = _distinct(run.edited for run in runs if run.edited)
    if edited:
        status, why = "edited", _distinct([*edited, *why])
    return RowResult(
        name=runs[0].name,
        setting=runs[0].setting,
        variant=", ".join(variants),
        metric=f"{metric} (best over rounds)" if statistic == BEST else metric,
        published=first.published,
        source=first.source,
        measured=measured,
        status=status,
        epsilon_simulated=epsilon_simulated,
        epsilon_actual=epsilon_actual,
        delta_simulated=delta_simulated,
        note="; ".join([*why, *_notes(runs, metric, values)]),
        delta_actual=delta_actual,
        published_sd=first.sd,
        published_seeds=first.seeds,
        margin=first.tolerance,
        measured_here=first.measured_here,
        chance=first.chance,
        num_seeds=num_seeds,
        seeds=seeds if num_seeds < len(seeds) else (),
    ).judged()


def runs_of_seeds(num_runs: int, num_seeds: int | None = None) -> str:
    """Say of how many seeds runs are, such as "4 runs of 2 seeds"; None for one each."""
    number = num_runs if num_seeds is None else num_seeds
    text = f"{number} seed{'s' * (number != 1)}"
    return text if number == num_runs else f"{num_runs} runs of {text}"


def measured_value(summary: RunSummary, metric: str, statistic: str) -> float | None:
    """A run's number of a metric: its final value, or the best over rounds."""
    return (summary.best if statistic == BEST else summary.metrics).get(metric)


def _status(
    entries: Sequence[ExpectedResult], measured: tuple[float, ...]
) -> tuple[str, list[str]]:
    """Statement that numbers are compared, or why they are not, with the reasons of the runs."""
    if not entries or entries[0].published is None:
        return "nothing published", []
    for status in ("edited", "diverged", "not the row", "not comparable"):
        of_it = [entry for entry in entries if entry.verdict == status]
        if of_it:
            return status, _distinct(entry.why for entry in of_it if entry.why)
    if not measured:
        return "not comparable", ["nothing was measured"]
    return "undecided", []


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _notes(runs: Sequence[RunSummary], metric: str, values: Sequence[float | None]) -> list[str]:
    """Say what sets these runs apart from one clean row."""
    notes = _distinct(filter(None, (describe_choice(r.selected_by, metric) for r in runs)))
    variants = _distinct(run.variant for run in runs)
    contents = _distinct(str(run.data.get("checksum") or "")[:15] for run in runs)
    data = variants if len(variants) > 1 else list(filter(None, contents))
    if len(data) > 1:
        notes.append("the seeds saw different data: " + ", ".join(data))
    seeds = [run.seed for run in runs]
    if note := seeds_note(seeds):
        notes.append(note)
    if any("selection" in (run.privacy or {}) for run in runs):
        notes.append("epsilon is that of the best of a random number of trials")
    if any(run.pinned_nonce for run in runs):
        notes.append("private draws of a pinned nonce")
    if any(run.fine_tuned for run in runs):
        notes.append("each client's model was fine-tuned on its own examples before it was tested")
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if which := ", ".join(map(str, repeated)):
        notes.append(f"{runs_of_seeds(len(seeds), len(set(seeds)))}, several of seed {which}")
    if missing := [str(r.seed) for r, value in zip(runs, values, strict=True) if value is None]:
        notes.append("not measured by seed " + ", ".join(missing))
    stopped = [run for run in runs if run.status == "budget_exhausted"]
    if stopped:
        rounds = ", ".join(sorted({str(run.rounds or "?") for run in stopped}))
        noun = step_unit(stopped[0].setting) + "s" * (rounds != "1")
        notes.append(f"stopped by the privacy budget after {rounds} {noun}")
    notes += [
        f"the seeds differ in their {side} epsilon, the largest is shown"
        for side in ("simulated", "actual")
        if len({epsilon_of(run.privacy or {}, side) for run in runs}) > 1
    ]
    return notes


def seeds_note(seeds: Sequence[int | None]) -> str:
    """Name the seeds, where they are not the first ones; empty else."""
    if set(seeds) == set(range(len(set(seeds)))):
        return ""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def epsilon_of(statement: Mapping[str, Any], side: str) -> tuple[float | None, float | None]:
    """Epsilon and delta of one side of a privacy statement; those of its selection, if it has one.

    What is published of a selected run is the run and that it was chosen: it costs more.
    """
    claim, selection = statement.get(side) or {}, statement.get("selection")
    if selection is not None:
        claim = {key: selection.get(key, {}).get(side, "inf") for key in ("epsilon", "delta")}
    return as_float(claim.get("epsilon")), as_float(claim.get("delta"))


def _largest_epsilon(runs: Sequence[RunSummary], side: str) -> tuple[float | None, float | None]:
    """The claim that holds for every run: the largest epsilon, with its delta."""
    claims = [epsilon_of(run.privacy or {}, side) for run in runs]
    private = [claim for claim in claims if claim[0] is not None]
    return max(private, key=lambda claim: claim[0] or 0.0, default=(None, None))
