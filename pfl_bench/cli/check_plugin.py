"""``pfl-bench check-plugin``: one's own plug-ins, run, killed, resumed, audited and reported.

``check_folder`` is for one's own tests: every check of what it gives must not be "failed".
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel

from pfl_bench import plugins
from pfl_bench.cli.list import LISTED
from pfl_bench.cli.main import explain
from pfl_bench.cli.plugin_checks import SkippedError, module_checks
from pfl_bench.cli.speech import answer_json, write
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_files import rows_below
from pfl_bench.config.schema import TRAINERS
from pfl_bench.evaluation.evaluator import families_of
from pfl_bench.evaluation.splits import measure
from pfl_bench.federated.parts import build_run, build_task
from pfl_bench.metrics import build_metrics
from pfl_bench.profiling import Profile
from pfl_bench.report.page import write_report
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.divergence import describe_divergence
from pfl_bench.runs.preview import changed
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, PluginError, UserInputError
from privacy.errors import LedgerError

Outcome = Literal["passed", "failed", "skipped"]
# Rounds of a run that is checked, and the one before which it is killed: past a checkpoint.
_ROUNDS, _KILLED, _EVERY = 6, 4, 2
_SMALL_BATCH = 7
_TOLERANCE = 1e-4
_IN_ROWS = {*LISTED.values()} - {plugins.ENGINE, plugins.LAUNCHER}


@dataclass(frozen=True)
class Checked:
    """Result of a check: of a plug-in or a row, and what was found, or why not."""

    subject: str
    check: str
    outcome: Outcome
    evidence: str


def main(arguments: argparse.Namespace) -> int:
    """Check a folder and print a line a check; 1 if one fails."""
    found = []
    for checked in check_folder(arguments.folder):
        found.append(checked)
        if not arguments.json:
            write(f"{checked.outcome:7}  {checked.subject}: {checked.check}: {checked.evidence}")
    outcomes = [checked.outcome for checked in found]
    failed = "failed" in outcomes
    if arguments.json:
        checks = [asdict(checked) for checked in found]
        answer_json({"verdict": "failed" if failed else "passed", "checks": checks})
    else:
        write(", ".join(f"{outcomes.count(one)} {one}" for one in get_args(Outcome)))
    return 1 if failed else 0


def check_folder(place: str | Path) -> Iterator[Checked]:
    """Check all plug-ins of a folder, or of an installed package, and the rows that use them.

    Args:
        place: A folder of plug-ins, a folder that has one beside its rows and tests, or the name
            of an installed package.

    Raises:
        ConfigError: There are no plug-ins.
    """
    home, folder = _folders_of(str(place))
    plugins.add_folder(folder)
    found = [(kind, name) for kind in plugins.KINDS for name in plugins.in_folder(kind, folder)]
    if not found:
        raise ConfigError(f"{place}: there is no plug-in in {folder}; `pfl-bench new` writes one")
    named = _options_of_rows(home)
    for kind, name in found:
        for check, make in module_checks(kind, name, named.get((kind, name))):
            yield _made(f"{kind.word} {name}", check, make)
    used: set[tuple[plugins.PluginKind, str]] = set()
    for name, path in rows_below(home).items():
        with TemporaryDirectory() as temporary:
            row = _Row(path, Path(temporary), found)
            for check, make in row.checks():
                yield _made(f"row {name}", check, make)
            used |= row.uses
    for kind, name in found:
        if kind in _IN_ROWS and (kind, name) not in used:
            why = f"no row below {home} uses it; put one there, such as rows/{name}.yaml"
            yield Checked(f"{kind.word} {name}", "row", "skipped", why)


def _options_of_rows(home: Path) -> dict[tuple[plugins.PluginKind, str], BaseModel]:
    """Options of tasks and mechanisms as rows have them; wrong rows have a check of their own."""
    options: dict[tuple[plugins.PluginKind, str], BaseModel] = {}
    for path in rows_below(home).values():
        with contextlib.suppress(UserInputError):
            row = load_config(path)
            options.setdefault((plugins.TASK, row.tree["task"]["name"]), row.task_options)
            if row.mechanism_options is not None:
                name = row.tree["privacy"]["mechanism"]["name"]
                options.setdefault((plugins.MECHANISM, name), row.mechanism_options)
    return options


def _folders_of(place: str) -> tuple[Path, Path]:
    """The folder whose rows are looked at, and the one folder of plug-ins."""
    home = Path(place)
    if not home.is_dir() and place.replace(".", "_").isidentifier():
        spec = importlib.util.find_spec(place.partition(".")[0]) and importlib.util.find_spec(place)
        places = [] if spec is None else list(spec.submodule_search_locations or [])
        home = Path(places[0]) if places else home
    if not home.is_dir():
        raise ConfigError(
            f"{place}: is neither a folder nor an installed package; give the folder of your "
            "plug-ins, such as one that `pfl-bench new algorithm my_method` writes"
        )
    candidates = [home, *sorted(path for path in home.iterdir() if path.is_dir())]
    own = [path for path in candidates if any((path / group).is_dir() for group in plugins.GROUPS)]
    if not own or (len(own) > 1 and own[0] != home):
        what = f"has several ({', '.join(map(str, own))})" if own else "has none"
        raise ConfigError(
            f"{place}: one folder of plug-ins is checked, but it {what}: a folder of plug-ins has "
            f"subfolders such as {', '.join(plugins.GROUPS)}"
        )
    return home, own[0]


def _made(subject: str, check: str, make: Callable[[], str]) -> Checked:
    """Make a check; whatever is raised is an outcome."""
    outcome: Outcome = "failed"
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            evidence, outcome = make(), "passed"
    except SkippedError as error:
        evidence, outcome = str(error), "skipped"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        evidence = explain(error, can_go_on=False) or ours
    return Checked(subject, check, outcome, " ".join(evidence.split()))


class _KilledError(BaseException):
    """Ends a run as a kill does: nothing catches it."""


class _Killer(Profile):
    """Ends a run before one of its rounds."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def begin_step(self, step: int) -> None:
        if step == self._index:
            raise _KilledError
        super().begin_step(step)


class _Row:
    """A row of the user's, cut short; it ``uses`` some of the plug-ins that were found."""

    def __init__(
        self, path: Path, folder: Path, found: list[tuple[plugins.PluginKind, str]]
    ) -> None:
        self._path, self._folder, self._found = path, folder, found
        self.uses: set[tuple[plugins.PluginKind, str]] = set()
        self._summary: dict[str, Any] = {}

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Its checks, in an order in which each finds what it needs."""
        yield "configuration", self._read
        if not self.uses:
            return
        yield "run", self._run
        if not self._summary:
            return
        yield "kill and resume", self._resume
        if any(kind is plugins.METRIC for kind, _ in self.uses):
            yield "batches", self._batches
            yield "merge", self._merge
        if any(kind is plugins.TRACKER for kind, _ in self.uses):
            yield "trackers", self._trackers
        yield "audit", self._audit
        yield "report", self._report

    def _read(self) -> str:
        resolved = load_config(self._path)
        tree = resolved.tree
        task = build_task(resolved, torch.device("cpu"))
        families = {(plugins.METRIC, name) for name in families_of(task, resolved.config)}
        named = resolved.used_plugins | families
        self.uses = {one for one in self._found if one in named}
        if not self.uses:
            raise SkippedError("uses none of these plug-ins")
        section, key = _length_of(tree)
        total = min(_ROUNDS, tree[section][key])
        every = _EVERY if total >= _KILLED else 1
        overrides = [f"{section}.{key}={total}", f"checkpoint.every={every}", "expected=[]"]
        self._short = changed(resolved, [*overrides, f"evaluation.every={every}"])
        return ", ".join(f"{kind.word} {name}" for kind, name in sorted(self.uses, key=str))

    def _run(self) -> str:
        summary = run(self._short, self._folder / "whole")
        if summary["diverged"]:
            raise PluginError(describe_divergence(summary["diverged"]))
        self._summary = summary
        return f"{summary['rounds']} rounds, {len(summary['metrics'])} metrics"

    def _resume(self) -> str:
        section, key = _length_of(self._short.tree)
        total: int = self._short.tree[section][key]
        if total < 2:
            raise SkippedError("one round cannot be killed past a checkpoint")
        index, folder = min(_KILLED, total), self._folder / "killed"
        with contextlib.suppress(_KilledError):
            run(self._short, folder, profile=_Killer(index))
        try:
            summary = run(self._short, folder, resume=True)
        except LedgerError as error:
            raise PluginError(
                "a round that is run again after the kill is another: something changes from round "
                "to round and is not in state_dict(), or is drawn from a generator that no stream "
                f"of the run seeds, such as np.random ({error})"
            ) from error
        whole, resumed = (_weights(self._folder / name) for name in ("whole", "killed"))
        if not torch.equal(whole, resumed):
            raise PluginError(
                "the resumed run ends with other weights than the uninterrupted one: something "
                "changes from round to round and is not in state_dict()"
            )
        differing = [
            name
            for name, value in summary["metrics"].items()
            if repr(value) != repr(self._summary["metrics"].get(name))
        ]
        if differing:
            raise PluginError(f"the resumed run measures others: {', '.join(differing)}")
        ledgers = [self._folder / name / "ledger.jsonl" for name in ("whole", "killed")]
        if ledgers[0].exists() and ledgers[0].read_bytes() != ledgers[1].read_bytes():
            raise PluginError("the resumed run's ledger is another than the uninterrupted one's")
        return f"killed before round {index}: the same weights and metrics"

    def _batches(self) -> str:
        """Metrics do not depend on how examples are divided into batches."""
        small = changed(self._short, [f"evaluation.batch_size={_SMALL_BATCH}"])
        measured = run(small, self._folder / "batches")["metrics"]
        mend = "sum over examples in update(), and divide in compute()"
        _compare(self._summary["metrics"], measured, f"with batches of {_SMALL_BATCH}", mend)
        return f"the same metrics with batches of {_SMALL_BATCH}"

    def _merge(self) -> str:
        """Two processes' metrics, merged, are those of one that evaluates everything."""
        parts, options = build_run(self._short), self._short.config.evaluation
        families, names = families_of(parts.task, self._short.config), []
        # Of a model that has not learned, all examples may have the same loss.
        parts.model.vector.copy_(_weights(self._folder / "whole"))
        for name in dict.fromkeys([*options.splits, *options.final_splits]):
            split = parts.task.split(name)
            if split.num_examples < 2:
                continue
            whole, first, second = (
                measure(
                    parts.forward,
                    split,
                    build_metrics(parts.task, families),
                    options.batch_size,
                    part=part,
                )
                for part in ((0, 1), (0, 2), (1, 2))
            )
            first.merge(second)
            wanted, merged = (one.result(split, is_personal=False) for one in (whole, first))
            mend = "take in merge() all that update() of the other instance has summed"
            _compare(wanted, merged, "where two halves are merged", mend)
            names.append(name)
        if not names:
            raise SkippedError("no split that the row evaluates has two examples")
        return f"the same metrics of {', '.join(names)} where two halves are merged"

    def _trackers(self) -> str:
        """No tracker was left out of a run, which goes on without it."""
        logs = (self._folder / name / "run.log" for name in ("whole", "killed"))
        lines = [line for log in logs for line in log.read_text("utf-8").splitlines()]
        wrong = [line for line in lines if "the tracker '" in line]
        if wrong:
            raise PluginError("; ".join(wrong))
        return "told of the whole run and of the resumed one"

    def _audit(self) -> str:
        if not self._short.config.is_private:
            raise SkippedError("the row claims no privacy")
        done = audit_run(self._folder / "killed", 1)
        wrong = [check for check in done.checks if check.outcome in ("failed", "incomplete")]
        if wrong:
            raise PluginError("; ".join(f"{check.name}: {check.evidence}" for check in wrong))
        outcomes = [check.outcome for check in done.checks]
        return f"{outcomes.count('passed')} checks passed, {outcomes.count('skipped')} skipped"

    def _report(self) -> str:
        page = write_report([self._folder / "whole"], self._folder / "report.html")
        if self._short.config.name not in page.read_text(encoding="utf-8"):
            raise PluginError("the report does not name the row")
        return f"{page.stat().st_size // 1024} kB"


def _compare(
    wanted: Mapping[str, float], found: Mapping[str, float], where: str, mend: str
) -> None:
    """Refuse metrics, by name, that are not what is wanted of them."""
    for name, value in wanted.items():
        other = found.get(name, math.nan)
        is_same = abs(other - value) <= _TOLERANCE * max(1.0, abs(value))
        if not is_same and repr(other) != repr(value):
            raise PluginError(f"{name} is {value:g}, but {other:g} {where}: {mend}")


def _length_of(tree: dict[str, Any]) -> tuple[str, str]:
    """Section and key of the number of rounds."""
    return next((section, key) for section, key in TRAINERS.items() if tree.get(section))


def _weights(folder: Path) -> torch.Tensor:
    state = load_latest(folder / "checkpoints")
    assert state is not None
    vector: torch.Tensor = state["trainer"]["central"]
    return vector
