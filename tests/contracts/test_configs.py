"""Every row under configs/ is built on small data, and one of each kind runs a round or epoch.

Views and sweeps are tried, too.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from pfl_bench import plugins
from pfl_bench.cli.main import main
from pfl_bench.client.costs import StepFlops, measure_step
from pfl_bench.config.loading import ResolvedConfig, load_config, resolve, validate_options
from pfl_bench.config.row_files import kind_of, rows_below
from pfl_bench.config.schema import Expected
from pfl_bench.config.sweeps import load_sweep
from pfl_bench.config.views import check_measured, load_view
from pfl_bench.files import read_json
from pfl_bench.runs import preparing
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.preparing import prepare
from pfl_bench.runs.published import compare
from pfl_bench.runs.runner import run
from pfl_bench.types import RunSummary
from tests.contracts.small_rows import CONFIGS, FILES, ROWS, write_small_files
from tests.contracts.small_rows import shortened as shortened_tree
from tests.helpers import REPOSITORY

VIEWS = [path for path in FILES if kind_of(path) == "view"]
SWEEPS = [path for path in FILES if kind_of(path) == "sweep"]
# What views show of each row.
VIEWED: dict[Path, list[Expected]] = {}
for _view in VIEWS:
    for _shown, _file in load_view(_view).rows:
        VIEWED.setdefault(CONFIGS / _file.relative_to(CONFIGS.resolve()), []).extend(
            _shown.expected
        )
# The row of each view that runs through the view.
RUN_BY_VIEWS = {
    view: CONFIGS / load_view(view).rows[0][1].relative_to(CONFIGS.resolve()) for view in VIEWS
}
# A row runs if it joins a value of one of these with a value of any setting as no row before it
# does; what a number is does not count.
LEADING = (
    "task.name",
    "model.name",
    "federated.algorithm.name",
    "federated.sampling",
    "privacy.mechanism.name",
)
# Settings that an accountant sees.
ACCOUNTED = ("privacy.mechanism.name", "federated.sampling")
Capture = pytest.CaptureFixture[str]
STEPS: dict[str, StepFlops] = {}
MODULES: dict[str, nn.Module] = {}
# Rows of one task and model are beside those of few others; a ResNet-18 has 45 MB.
KEPT_MODULES = 4


def name_of(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


@functools.cache
def as_it_is(row: Path) -> ResolvedConfig:
    """A row without overrides; reading YAML takes its time."""
    return load_config(row)


def shortened(row: Path, small: dict[str, Path]) -> list[str]:
    """Overrides that make a row one round long and fit for a dozen users."""
    return shortened_tree(as_it_is(row).tree, small)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small stores by task; "weights", random ones for ResNet-18; "words", vectors of two."""
    return write_small_files(tmp_path_factory.mktemp("small"))


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs that does not stay: a checkpoint of ResNet-18 has over 100 MB."""
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path)


def test_there_are_rows_views_and_sweeps() -> None:
    assert len(ROWS) >= 75
    assert len(VIEWS) >= 4
    assert len(SWEEPS) >= 8


def values_of(tree: dict[str, Any], below: str = "") -> dict[str, str]:
    """Settings by their dotted keys; all numbers are one value."""
    values = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            values |= values_of(value, f"{below}{key}.")
        else:
            values[below + key] = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "0", json.dumps(value))
    return values


@functools.cache
def joined(row: Path) -> set[tuple[str, str, str, str]]:
    """Pairs of values that a row joins, one of them of a leading setting."""
    values = values_of(as_it_is(row).tree)
    for key in ("name", "task.data", "model.weights", "model.embeddings"):
        values[key] = "null" if values.get(key, "null") == "null" else "given"
    return {
        (leading, values[leading], key, value)
        for leading in LEADING
        if leading in values
        for key, value in values.items()
        if not key.startswith("expected")
        # It sees nothing of a task, a model or an algorithm.
        and (key != "privacy.accountant" or leading in ACCOUNTED)
    }


def accounted(row: Path) -> tuple[str, ...] | None:
    """A row's accountant, and what that sees; None for a row without privacy."""
    values = values_of(as_it_is(row).tree)
    if "privacy.accountant" not in values:
        return None
    return tuple(values.get(key, "null") for key in ("privacy.accountant", *ACCOUNTED))


@functools.cache
def with_their_accountant() -> frozenset[Path]:
    """Few rows of ``kinds``, one for each accountant of each mechanism and sampling."""
    rows = sorted(kinds(), key=name_of)
    first = {accounted(row): row for row in reversed(rows)}
    return frozenset(row for found, row in first.items() if found is not None)


@functools.cache
def kinds() -> frozenset[Path]:
    """Few rows that join whatever any row joins; those that views run are among them."""
    chosen = set(RUN_BY_VIEWS.values())
    run_pairs = set().union(*map(joined, chosen))
    # What each row would join that no chosen one does.
    left = {row: joined(row) - run_pairs for row in ROWS}
    while any(left.values()):
        row = max(left, key=lambda row: len(left[row]))
        chosen.add(row)
        gained = left.pop(row)
        for others in left.values():
            others -= gained
    return frozenset(chosen)


def test_what_any_row_joins_is_run() -> None:
    """By the rows of ``kinds``: of each task, model, algorithm and mechanism there is one."""
    run_pairs = set().union(*map(joined, kinds()))
    assert run_pairs == set().union(*map(joined, ROWS))
    settings = {row: values_of(as_it_is(row).tree) for row in ROWS}
    for leading in LEADING:
        values = {found.get(leading) for found in settings.values()}
        assert values == {settings[row].get(leading) for row in kinds()}
    assert set(map(accounted, with_their_accountant())) == {*map(accounted, kinds())} - {None}
    # Rows that differ in numbers alone are of one kind.
    assert len(kinds()) < len(ROWS)


def check_summary(row: Path, resolved: ResolvedConfig, summary: dict[str, Any]) -> None:
    """Check what the one round of a shortened row came to."""
    assert summary["rounds"] == (2 if has_bands(resolved) else 1)
    splits = resolved.config.evaluation.final_splits
    assert {name.partition("/")[0] for name in summary["metrics"]} == set(splits)
    family = "c_ap" if resolved.tree["task"]["name"] == "flair" else "accuracy"
    assert 0 <= summary["metrics"][f"{splits[0]}/{family}"] <= 1
    # What is published must be measured, whatever the data.
    expected = compare(resolved.config, RunSummary.of(summary))
    assert all(entry.measured is not None for entry in expected)
    assert {entry.metric for entry in VIEWED.get(row, ())} <= set(summary["metrics"])


def measure_once(patch: pytest.MonkeyPatch, resolved: ResolvedConfig) -> None:
    """Measure no step anew of a task and model of another row: it costs the same in all of them."""
    key = json.dumps([resolved.tree["task"], resolved.tree["model"]])

    def measure(*arguments: Any) -> StepFlops:
        if key not in STEPS:
            STEPS[key] = measure_step(*arguments)
        return STEPS[key]

    patch.setattr(preparing, "measure_step", measure)


def build_once(patch: pytest.MonkeyPatch, resolved: ResolvedConfig) -> None:
    """Build no module anew of a task and model of one of the last rows: it is copied."""
    key = json.dumps([resolved.tree["task"], resolved.tree["model"]])
    build = plugins.build

    def copied(kind: plugins.PluginKind, *arguments: Any) -> Any:
        if kind is not plugins.MODEL:
            return build(kind, *arguments)
        module = MODULES.pop(key, None) or build(kind, *arguments)
        MODULES[key] = module
        while len(MODULES) > KEPT_MODULES:
            del MODULES[next(iter(MODULES))]
        return copy.deepcopy(module)

    patch.setattr(plugins, "build", copied)


def has_bands(resolved: ResolvedConfig) -> bool:
    """Whether a second round takes something back from the first."""
    privacy = resolved.tree["privacy"]
    return privacy is not None and "bands" in privacy["mechanism"]


def has_largest_delta(resolved: ResolvedConfig) -> bool:
    """Whether a row has the delta that one user published at random would satisfy."""
    privacy = resolved.config.privacy
    if privacy is None or privacy.delta is None or not isinstance(privacy.population_size, int):
        return False
    return privacy.delta == 1.0 / privacy.population_size


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row not in RUN_BY_VIEWS.values()], ids=name_of
)
def test_a_row_runs_one_round_or_is_built_up_to_it(
    row: Path, small: dict[str, Path], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = shortened(row, small)
    if as_it_is(row).tree["privacy"] is not None and row not in with_their_accountant():
        # Seconds less. Each accountant runs with each mechanism and sampling that a row joins it
        # to, in the rows of ``with_their_accountant``.
        overrides.append("privacy.accountant=rdp")
    resolved = load_config(row, overrides)
    measure_once(monkeypatch, resolved)
    if row in kinds():
        check_summary(row, resolved, run(resolved, out))
        if resolved.config.is_private:
            audit = audit_run(out, recompute="none")
            failed = {c.name: c.evidence for c in audit.checks if c.outcome == "failed"}
            assert set(failed) <= ({"delta"} if has_largest_delta(resolved) else set()), failed
        return
    build_once(monkeypatch, resolved)
    with ExitStack() as stack:
        # This refuses a published number whose metric will not be measured, as ``run`` does.
        prepared = prepare(resolved, out, None, stack, lambda text: None)
    assert prepared.parts.model.num_parameters > 0


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_names_its_launch_command_and_its_sources(row: Path) -> None:
    first = row.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench run {row.relative_to(REPOSITORY).as_posix()}"
    config = as_it_is(row).config
    assert all(expected.source for expected in config.expected)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_configuration_that_a_run_records_can_be_run_again(row: Path) -> None:
    resolved = as_it_is(row)
    assert resolve(resolved.tree, row, ()).tree == resolved.tree


def test_names_of_rows_are_unique() -> None:
    names = [as_it_is(row).config.name for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", VIEWS, ids=name_of)
def test_a_view_shows_cells_of_rows_that_exist(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench table {path.parent.relative_to(REPOSITORY).as_posix()}"
    view = load_view(path)
    rows = rows_below(view.folder)
    for shown, row in view.rows:
        assert row == rows[shown.row]
        check_measured(view, shown, as_it_is(row).config)
        assert all(entry.source for entry in shown.expected)
    for figure in view.figures:
        assert re.search("LEAF|FedScale|[Aa]ccuracy", figure.title)


@pytest.mark.parametrize("path", VIEWS, ids=name_of)
def test_a_row_of_a_view_runs_one_round(
    path: Path,
    small: dict[str, Path],
    out: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view, row = load_view(path), RUN_BY_VIEWS[path]
    shown = view.rows[0][0]
    arguments = ["table", str(path.parent), "--only", shown.row, "--out", str(out)]
    overrides = shortened(row, small)
    resolved = load_config(row, overrides)
    measure_once(monkeypatch, resolved)
    if path != VIEWS[0]:
        # A finished run is shown as one of its own is, without a page of the run alone.
        run(resolved, out / shown.row / "seed-0")
    assert main([*arguments, *overrides]) == 0
    table = capsys.readouterr().out
    assert shown.label is not None
    assert (shown.label if shown.expected else as_it_is(row).config.name) in table
    for entry in shown.expected:
        # Each cell has its line, with a number measured.
        metric = entry.metric.rpartition("ap_200_")[2]
        (line,) = [text for text in table.splitlines() if text.startswith(f"| {metric} ")]
        assert f"{entry.value:.4f} / 0." in line
    summary = read_json(out / shown.row / "seed-0" / "summary.json")
    assert summary is not None
    assert summary["name"] == as_it_is(row).config.name
    check_summary(row, resolved, summary)
    # A view of its own folder's rows writes beside them, like a table.
    page = (out / f"view-{path.parent.name}" / "report.html").read_text(encoding="utf-8")
    for figure in view.figures:
        assert (figure.title in page) == (not figure.rows or shown.row in figure.rows)
    assert "Nothing could be drawn." not in page


def prepare_commands(row: Path) -> list[list[str]]:
    """Commands in a row's header that prepare its data, as words."""
    lines = [line[1:] for line in row.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    text = "\n".join(lines)
    return [
        found.group(1).split()
        for found in re.finditer(r"pfl-bench data prepare ((?:\S+\s+)*?--out \S+)", text)
    ]


PREPARED = (
    *(f"fedscale/figure{number}/" for number in (2, 11, 12, 13, 15)),
    *("fedscale/table4/openimage", "fedscale/table4/speech", "fedscale/table6/"),
    *("leaf/", "reddit/"),
)
LEAF_ROWS = [row for row in ROWS if name_of(row).startswith(PREPARED)]


@pytest.mark.parametrize("row", LEAF_ROWS, ids=name_of)
def test_a_row_says_how_its_data_are_prepared(row: Path) -> None:
    task = as_it_is(row).tree["task"]
    commands = prepare_commands(row)
    if task["name"] == "synthetic":
        assert commands == []
        return
    ((name, *words),) = commands
    assert name == task["name"]
    assert words[-4:-1] == ["--source", "DIR", "--out"]
    assert words[-1] == task["data"]
    options = plugins.load(plugins.PREPARE, name).Options
    validate_options(options, words[:-4], str(row))


@pytest.mark.parametrize("path", SWEEPS, ids=name_of)
def test_a_sweep_is_of_valid_rows_that_test_nothing(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# pfl-bench sweep {path.relative_to(REPOSITORY).as_posix()}"
    sweep = load_sweep(path)
    assert kind_of(sweep.row) == "row"
    assert len(sweep.combinations) > 1
    assert len({point.slug for point in sweep.combinations}) == len(sweep.combinations)
    assert all(not p.resolved.config.evaluation.final_splits for p in sweep.combinations)


def test_a_combination_of_a_sweep_runs_one_round(
    small: dict[str, Path], out: Path, capsys: Capture
) -> None:
    path = CONFIGS / "flair" / "sweeps" / "federated_random_coarse.yaml"
    overrides = shortened(load_sweep(path).row, small)
    assert main(["sweep", str(path), "--only", "1", "--out", str(out), *overrides]) == 0
    (summary,) = [read_json(found) for found in out.glob("*/summary.json")]
    assert summary is not None
    assert summary["metrics"] == {}
    assert summary["selection"]["metric"] == load_sweep(path).metric
    assert "the best is not chosen" in capsys.readouterr().out


def test_numbers_of_our_own_are_called_so() -> None:
    """A command is the source of a number that nobody published; of a published one, a paper."""
    rows = {path: list(as_it_is(path).config.expected) for path in ROWS}
    for path, viewed in VIEWED.items():
        rows.setdefault(path, []).extend(viewed)
    every = [(path.name, expected) for path, many in rows.items() for expected in many]
    assert len(every) > 200
    for name, expected in every:
        ours = re.search(r"measured here|pfl-bench (table|run)|mean of seeds", expected.source)
        assert expected.measured_here == bool(ours), (name, expected.source)
