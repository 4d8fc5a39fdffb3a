"""The page of results is what its records give, and says why each cell is not reproduced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.config.row_differences import head_lines
from pfl_bench.report.records import same_or_each
from tests.docs.following import documentation, script
from tests.helpers import REPOSITORY
from tests.pfl_bench.report.test_leaderboard import audited
from tests.pfl_bench.report.test_report import write_run

RESULTS = documentation("results")
FILES = documentation("record_files")
PROGRAM = script("results")
DIFFERS = "b test/accuracy"


def committed(run: Path, **git: Any) -> Path:
    """Give a made-up run a commit."""
    path = run / "environment.json"
    state = {"commit": "0123456789abcdef", "uncommitted_changes": False, **git}
    path.write_text(json.dumps({**json.loads(path.read_text()), "git": state}))
    return run


def reaching(run: Path, index: int | None) -> None:
    """Give a made-up run an accuracy that it was to reach, and at which round it did."""
    entry = {"metric": "test/accuracy", "target": 0.75, "reached": index is not None}
    costs = dict.fromkeys(("flops", "bytes_down", "bytes_up"), index and index * 1e9)
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "budgets": [{**entry, "index": index, **costs}]}))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A page of two rows with a paper's number: one is reproduced, one differs."""
    for name, level in (("a", 0.805), ("b", 0.6)):
        for seed in range(2):
            committed(write_run(tmp_path / "runs" / f"{name}{seed}", name, "federated", seed,
                                level=level))  # fmt: skip
    reaching(tmp_path / "runs" / "a0", 20)
    reaching(tmp_path / "runs" / "a1", 40)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    write(tmp_path, "page", {"title": "Results", "text": "An introduction."})
    section = {"title": "A table", "command": "pfl-bench table demo", "records": ["t.json"]}
    write(tmp_path, "t", {**section, "why": {DIFFERS: "The model is smaller."}})
    arguments = ["collect", str(tmp_path / "runs"), "--into", str(records(tmp_path))]
    assert PROGRAM.main(arguments) == 0
    assert PROGRAM.main(["write"], tmp_path) == 0
    return tmp_path


def write(checkout: Path, name: str, tree: dict[str, Any]) -> None:
    path = checkout / "docs" / "results" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")


def test_merging_keeps_other_rows_and_records_of_more_seeds(checkout: Path) -> None:
    before = json.loads(records(checkout).read_text())
    run = committed(write_run(checkout / "one", "a", "federated", 0, level=0.7))
    new = committed(write_run(checkout / "new", "c", "federated", 0, level=0.7))
    arguments = ["collect", str(run), str(new), "--into", str(records(checkout)), "--merge"]
    assert PROGRAM.main(arguments) == 0
    after = json.loads(records(checkout).read_text())
    assert after[:2] == before
    assert [record["row"] for record in after] == ["a", "b", "c"]


def collected(folders: list[Path], into: Path, *more: str) -> list[dict[str, Any]]:
    arguments = ["collect", *map(str, folders), "--into", str(into), *more]
    assert PROGRAM.main(arguments) == 0
    found: list[dict[str, Any]] = json.loads(into.read_text())
    return found


def test_merging_further_seeds_gives_the_record_of_all(tmp_path: Path) -> None:
    runs = [
        committed(write_run(tmp_path / f"{seed}", "a", "federated", seed, level=0.8 + seed / 50))
        for seed in range(4)
    ]
    for seed, run in enumerate(runs):
        reaching(run, 10 * seed or None)
    at_once = collected(runs, tmp_path / "all.json")
    assert at_once[0]["seeds"] == [0, 1, 2, 3]
    assert [len(seed) for seed in at_once[0]["budgets"]] == [1] * 4
    by_parts = tmp_path / "parts.json"
    for part in ([2], [0], [1], [1, 3]):
        record = collected([runs[seed] for seed in part], by_parts, "--merge")[0]
    assert sorted(record.pop("commands")) == sorted(at_once[0].pop("commands"))
    assert [record] == at_once


def test_a_value_of_records_that_are_merged_again_is_named_once() -> None:
    one, other = {"cpu": "AVX512", "cores": 2}, {"cpu": "AVX2", "cores": 2}
    both = {"cpu": "AVX512 / AVX2", "cores": 2}
    assert same_or_each((one, other)) == both
    assert same_or_each((both, other)) == both


@pytest.mark.parametrize(("setting", "data"), [("federated", {"checksum": "x"}),
                                               ("private_federated", {})])  # fmt: skip
def test_merging_joins_no_seeds_of_other_data_or_of_private_runs_without_audit(
    tmp_path: Path, setting: str, data: dict[str, str]
) -> None:
    runs = [committed(write_run(tmp_path / f"{seed}", "a", setting, seed)) for seed in (0, 1)]
    summary = runs[1] / "summary.json"
    tree = json.loads(summary.read_text())
    summary.write_text(json.dumps({**tree, "data": {**tree["data"], **data}}))
    collected(runs[:1], tmp_path / "t.json")
    (record,) = collected(runs[1:], tmp_path / "t.json", "--merge")
    assert record["seeds"] == [1]


def test_merging_adds_private_runs_that_passed(tmp_path: Path) -> None:
    runs = [committed(write_run(tmp_path / f"{n}", "a", "private_federated", n)) for n in range(3)]
    for run in runs:
        audited(run)
    at_once = collected(runs, tmp_path / "all.json")
    assert at_once[0]["privacy"]["audits"] == {"passed": 3}
    by_parts = tmp_path / "parts.json"
    for part in (runs[:1], runs[1:], runs[1:]):
        record = collected(part, by_parts, "--merge")[0]
    assert sorted(record.pop("commands")) == sorted(at_once[0].pop("commands"))
    assert [record] == at_once


def test_merging_keeps_what_is_measured_of_a_changed_row(checkout: Path) -> None:
    changed = committed(write_run(checkout / "changed", "a", "federated", 0, level=0.7))
    config = changed / "config.yaml"
    config.write_text(head_lines(["cohort_size: 60 -> 6"])[0] + "\n" + config.read_text())
    arguments = ["collect", str(changed), "--into", str(records(checkout)), "--merge"]
    assert PROGRAM.main(arguments) == 0
    names = [(one["row"], one["changes"]) for one in json.loads(records(checkout).read_text())]
    assert names == [("a", []), ("b", []), ("a", ["cohort_size: 60 -> 6"])]
    assert RESULTS.leaderboard(checkout)[0].count("| a ") == 2


def test_audits_are_counted_among_the_folders_that_were_looked_at(tmp_path: Path) -> None:
    run = committed(write_run(tmp_path / "a", "a", "private_federated"))
    shutil.copytree(run, tmp_path / "copy")
    (record,) = FILES.records(map(FILES.read_run, (run, tmp_path / "copy")))
    assert len(record.seeds) == 1
    assert RESULTS._audits([record]) == "audits: a not audited (2 of 2)"


def change(checkout: Path, **keys: Any) -> None:
    """Change keys of the section."""
    path = checkout / "docs" / "results" / "t.yaml"
    write(checkout, "t", {**yaml.safe_load(path.read_text()), **keys})


def records(checkout: Path) -> Path:
    return checkout / "docs" / "results" / "t.json"


def test_the_page_of_this_checkout_is_what_its_records_give() -> None:
    RESULTS.check_page(REPOSITORY)


def test_a_page_has_tables_origin_and_what_became_of_each_cell(checkout: Path) -> None:
    page = (checkout / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.startswith("# Results\n")
    assert "```bash\npfl-bench table demo\n```" in page
    assert "Commit 012345678;" in page
    assert "qmnist-digits (sha256:ab)" in page
    assert "reproduced 1, undecided 0, not reproduced 1, not comparable 0. Of 0 " in " ".join(
        page.split()
    )
    reproduced, rest = page.split("### Reproduced")[1].split("### Not reproduced")
    assert "- a, test/accuracy: published 0.8000, measured 0.8" in reproduced
    assert "- b, test/accuracy: published 0.8000, measured 0.5" in rest
    assert "The model is smaller." in rest
    seeds = json.loads(records(checkout).read_text())[0]["metrics"]["test/accuracy"]
    assert len(seeds) == 2
    assert f"{sum(seeds) / 2:.4f} ± " in page
    (costs,) = (line for line in page.splitlines() if "test/accuracy 0.75" in line)
    cells = [cell.strip() for cell in costs.strip("|").split("|")]
    assert cells[2:] == ["round 30 (2 of 2 runs)", "30 GFLOP", "30 GB", "30 GB"]


def test_a_number_that_a_hand_typed_is_seen(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert PROGRAM.main(["check"], checkout) == 0
    page = checkout / "docs" / "results.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("0.8000", "0.8100", 1), encoding="utf-8")
    assert PROGRAM.main(["check"], checkout) == 2
    assert "python scripts/results.py write" in capsys.readouterr().err
    page.write_text(text, encoding="utf-8")
    record = records(checkout).read_text().replace("0.8,", "0.79,")
    records(checkout).write_text(record)
    assert PROGRAM.main(["check"], checkout) == 2


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"why": {}}, "why: 'b test/accuracy' has no reason; add it"),
        ({"why": {DIFFERS: "x", "a test/accuracy": "y"}}, "'a test/accuracy' is no cell that"),
        ({"rows": ["a"]}, "'b test/accuracy' is no cell that differs"),
        ({"rows": ["a", "c"]}, "rows: no record is of c"),
        ({"records": ["u.json"]}, r"records: .*u\.json cannot be read"),
        ({"colums": ["row"]}, "colums: unknown key; did you mean 'columns'"),
        ({"columns": ["rwo"]}, "'rwo' is no column of this table; did you mean 'row'"),
    ],
)
def test_a_section_that_does_not_fit_its_records_is_refused(
    checkout: Path, keys: dict[str, Any], words: str
) -> None:
    change(checkout, **keys)
    with pytest.raises(RESULTS.ConfigError, match=words):
        RESULTS.results_page(checkout)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[", "[{", "the file: Invalid JSON"),
        ('"row":', '"name":', r"0\.row: Field required"),
        ('"row":', '"cell": 1, "row":', r"0\.cell: Unexpected"),
        ('"seeds": [', '"seeds": ["x", ', r"0\.seeds\.0: Input should be a valid integer"),
        ('"measured": [', '"measured": ["x", ', r"0\.lines\.0\.measured\.0: Input should be"),
    ],
)
def test_a_damaged_file_of_records_is_refused(
    checkout: Path, old: str, new: str, words: str
) -> None:
    records(checkout).write_text(records(checkout).read_text().replace(old, new, 1))
    with pytest.raises(RESULTS.ConfigError, match=rf"t\.json: is no file of records \({words}"):
        RESULTS.results_page(checkout)


def test_records_that_no_section_shows_are_refused(checkout: Path) -> None:
    shutil.copy(records(checkout), checkout / "docs" / "results" / "left.json")
    with pytest.raises(RESULTS.ConfigError, match=r"no section shows left\.json"):
        RESULTS.results_page(checkout)


@pytest.mark.parametrize(
    ("git", "finished", "words"),
    [
        ({"uncommitted_changes": True}, True, "no commit says what code it ran"),
        ({"commit": None}, True, "no commit says what code it ran"),
        ({}, False, "is not finished"),
    ],
)
def test_runs_of_unknown_code_are_not_collected(
    tmp_path: Path, git: dict[str, Any], finished: bool, words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    committed(write_run(tmp_path / "a", "a", "federated", finished=finished), **git)
    into = tmp_path / "t.json"
    assert PROGRAM.main(["collect", str(tmp_path), "--into", str(into)]) == 2
    assert words in capsys.readouterr().err
    assert not into.exists()


def test_records_that_cannot_be_written_are_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(write_run(tmp_path / "a", "a", "federated"))
    into, opened = tmp_path / "t.json", Path.open

    def refuse(self: Path, mode: str = "r", *given: Any, **more: Any) -> Any:
        if mode == "xb":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, mode, *given, **more)

    monkeypatch.setattr(Path, "open", refuse)
    assert PROGRAM.main(["collect", str(tmp_path), "--into", str(into)]) == 2
    mend = "permission is denied; mend this or name another file or folder"
    assert capsys.readouterr().err == f"results: {into}: {mend}\n"
