"""The leaderboard: what is ranked with what, and what has no rank.

The command on a real run is in tests/pfl_bench/runs/test_audit.py, beside the audits.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_differences import settings_digest
from pfl_bench.config.row_files import bundled_configs
from pfl_bench.files import to_json_value
from pfl_bench.report.leaderboard import boards, ranked, standings, write_leaderboard
from pfl_bench.report.page import write_report
from pfl_bench.report.records import Record, method_of, records
from pfl_bench.report.run_folder import read_run, runs_below
from pfl_bench.report.table import Cell
from pfl_bench.runs.rows import rows_of
from tests.pfl_bench.report.test_report import write_all, write_run

Capture = pytest.CaptureFixture[str]


def change(path: Path, **members: Any) -> None:
    """Change members of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def audited(run: Path, verdict: str = "passed", ledger: str = "") -> Path:
    """Leave an audit in a run folder that has no ledger."""
    document = {"format_version": 1, "checks": [], "verdict": verdict, "ledger_sha256": ledger}
    (run / "audit.json").write_text(json.dumps(document))
    return run


def tables(root: Path) -> list[dict[str, Any]]:
    return [asdict(table) for table in standings([read_run(path) for path in runs_below(root)])]


def ranks(table: dict[str, Any]) -> dict[str, int | None]:
    return {row["row"]: row["rank"] for row in table["rows"]}


def test_a_pass_on_records_alone_is_ranked_and_called_so(tmp_path: Path) -> None:
    for path in write_all(tmp_path):
        change(audited(path) / "audit.json", words="passed on records alone")
    rows = tables(tmp_path)[0]["rows"]
    assert rows[3]["rank"] == 1
    assert rows[3]["privacy"]["audits"] == {"passed on records alone": 3}
    (board,) = boards(standings([read_run(path) for path in runs_below(tmp_path)]))
    assert "passed on records alone (3 of 3)" in board.table.to_markdown()


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (["/a/bin/pfl-bench", "run", "demo/central"], ["pfl-bench run demo/central"]),
        (["C:\\a\\pfl-bench.EXE", "run", "demo/central"], ["pfl-bench run demo/central"]),
        (["/a/pfl_bench/__main__.py", "run", "--out=/a/b"], ["pfl-bench run --out=b"]),
        (["/a/ipykernel_launcher.py", "-f", "/a/kernel.json"], []),
        (["mine.py", "3"], []),
        ([], []),
    ],
)
def test_the_command_of_a_script_or_notebook_is_none_of_ours(
    tmp_path: Path, recorded: list[str], shown: list[str]
) -> None:
    change(write_run(tmp_path / "run", "a", "federated") / "environment.json", command=recorded)
    (table,) = tables(tmp_path)
    assert [row["commands"] for row in table["rows"]] == [shown]


def test_runs_of_one_seed_with_the_same_results_are_one(tmp_path: Path) -> None:
    for seed in (0, 1):
        run = write_run(tmp_path / f"a{seed}", "row", "federated", seed, level=0.8 - seed / 10)
        shutil.copytree(run, tmp_path / f"again{seed}")

    def shown() -> tuple[str | Cell, str | Cell]:
        (board,) = boards(standings([read_run(path) for path in runs_below(tmp_path)]))
        write_report(runs_below(tmp_path), tmp_path / "page.html")
        return board.table.rows[0][3], board.table.rows[0][8]

    utility, seeds = shown()
    assert seeds == Cell("2", 2)
    assert ">2 seeds<" in (tmp_path / "page.html").read_text()
    # Private runs draw anew: of a seed, the mean of its runs counts.
    change(tmp_path / "again1" / "summary.json", model_sha256="another")
    other, seeds = shown()
    assert seeds == Cell("3 runs of 2 seeds", 2)
    assert other == utility
    assert "3 runs of 2 seeds" in (tmp_path / "page.html").read_text()


def test_rows_are_ranked_with_those_that_protect_the_same(tmp_path: Path) -> None:
    for path in write_all(tmp_path):
        audited(path)
    (table,) = tables(tmp_path)
    assert table["metric"] == "test/accuracy"
    assert [(row["row"], row["protects"], row["rank"]) for row in table["rows"]] == [
        ("demo-central", "nobody", 1),
        ("demo-federated", "nobody", 2),
        ("demo-central-dp", "example", 1),
        ("demo-private-federated", "user", 1),
    ]
    private = table["rows"][3]
    assert private["seeds"] == [0, 1, 2]
    assert private["privacy"]["audits"] == {"passed": 3}
    assert private["privacy"]["actual"] == {"epsilon": 9.87, "delta": 0.00188}


def test_private_rows_are_ranked_within_bounds_of_epsilon_and_the_front_is_marked(
    tmp_path: Path,
) -> None:
    # Name, epsilon, level, and rank and front that follow.
    wanted = {
        "a": (1.5, 0.5, 3, False), "b": (2.0, 0.65, 1, True), "c": (1.2, 0.6, 2, True),
        "d": (2.1, 0.55, 2, False), "e": (3.90001, 0.7, 1, True), "f": (100.0, 0.9, 1, True),
    }  # fmt: skip
    for name, (epsilon, level, _, _) in wanted.items():
        run = audited(write_run(tmp_path / name, name, "private_federated", level=level))
        change(run / "privacy.json", simulated={"epsilon": epsilon, "delta": 1e-5})
    (table,) = tables(tmp_path)
    found = {row["row"]: (row["rank"], row["front"]) for row in table["rows"]}
    assert found == {name: (rank, front) for name, (_, _, rank, front) in wanted.items()}
    assert [row["bound"] for row in table["rows"]] == [2.0] * 3 + [4.0] * 2 + [float("inf")]
    runs = [read_run(path) for path in runs_below(tmp_path)]
    (board,) = write_leaderboard(runs, standings(runs), tmp_path / "b.html")
    assert board.picture is not None
    assert "at epsilon 3.901" in (tmp_path / "b.html").read_text()
    assert "1 (beyond 16)" in board.table.to_markdown()


@pytest.mark.parametrize(
    ("verdict", "ledger", "why"),
    [
        ("failed", "", "audit: failed"),
        ("incomplete", "", "audit: incomplete"),
        ("passed", "of another ledger", "audit: stale"),
        (None, "", "audit: not audited"),
    ],
)
def test_one_run_without_a_passed_audit_leaves_a_row_without_rank(
    tmp_path: Path, verdict: str | None, ledger: str, why: str
) -> None:
    for seed in range(2):
        run = write_run(tmp_path / f"a{seed}", "a", "private_federated", seed)
        if verdict is not None or seed == 0:
            audited(run, verdict if seed and verdict else "passed", ledger if seed else "")
    audited(write_run(tmp_path / "b", "b", "private_federated", level=0.4))
    (table,) = tables(tmp_path)
    assert ranks(table) == {"b": 1, "a": None}
    assert table["rows"][1]["unranked"] == [why]


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"checksum": "sha256:cd"}},
        {"variant": "other"},
        {"task": "femnist"},
        {"data": {"checksum": "sha256:ab", "split_by": "user"}},
        {"metrics": {"val/accuracy": 0.5}},
    ],
)
def test_other_data_and_other_metrics_are_another_table(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    write_run(tmp_path / "a", "a", "federated")
    change(write_run(tmp_path / "b", "b", "federated") / "summary.json", **changes)
    found = tables(tmp_path)
    assert [list(ranks(table).values()) for table in found] == [[1], [1]]


@pytest.mark.parametrize("counts", [{"num_examples": 50}, {"num_clients": 9}])
def test_a_number_of_other_examples_or_clients_is_in_another_table(
    tmp_path: Path, counts: dict[str, int]
) -> None:
    whole = {"num_examples": 99, "num_clients": 10}
    for name, given in (("a", whole), ("b", whole), ("c", whole | counts)):
        measured = {"accuracy": 0.5, **given}
        run = write_run(tmp_path / name, name, "federated", expected=False)
        change(run / "summary.json", metrics={f"test/{key}": n for key, n in measured.items()})
    found = tables(tmp_path)
    assert [ranks(table) for table in found] == [{"a": 1, "b": 1}, {"c": 1}]
    assert found[0]["evaluated"] == "99 examples of 10 clients"
    (board, _) = boards(standings([read_run(path) for path in runs_below(tmp_path)]))
    assert "; on 99 examples of 10 clients" in board.about


def test_a_model_that_was_chosen_on_the_tested_split_has_no_rank(tmp_path: Path) -> None:
    for name, metric in (("a", "val/loss"), ("b", "test/loss")):
        run = write_run(tmp_path / name, name, "federated")
        selection = {"metric": metric, "value": 1.0, "index": 3}
        change(run / "summary.json", selection=selection)
    (table,) = tables(tmp_path)
    assert ranks(table) == {"a": 1, "b": None}
    why = "the model was chosen by test/loss, on the split that it is measured on"
    assert table["rows"][1]["unranked"] == [why]
    summaries = [read_run(path).summary for path in runs_below(tmp_path)]
    assert [why in row.note for row in rows_of(summaries)] == [False, True]


def test_the_better_loss_is_the_lower_one_and_equal_rows_share_a_rank(tmp_path: Path) -> None:
    for name, loss in (("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", "nan")):
        run = write_run(tmp_path / name, name, "federated", expected=False)
        change(run / "summary.json", metrics={"test/loss": loss})
    (table,) = tables(tmp_path)
    assert table["lower_is_better"]
    assert ranks(table) == {"b": 1, "c": 1, "a": 3, "d": None}
    assert table["rows"][-1]["unranked"] == ["no finite utility"]


def test_a_run_that_diverged_or_has_canaries_or_no_guarantee_has_no_rank(tmp_path: Path) -> None:
    found = {"metric": "train/loss", "round": 3, "unit": "round", "value": "nan", "start": 2.3}
    change(write_run(tmp_path / "a", "a", "federated") / "summary.json", diverged=found)
    run = audited(write_run(tmp_path / "b", "b", "private_federated"))
    tree = yaml.safe_load((run / "config.yaml").read_text())
    tree["privacy"]["audit"] = {"kind": "worst_case"}
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    change(run / "summary.json", settings_sha256=settings_digest(tree))
    run = audited(write_run(tmp_path / "c", "c", "private_federated"))
    change(run / "privacy.json", simulated={"epsilon": "inf", "delta": 1e-5})
    why = {row["row"]: row["unranked"] for table in tables(tmp_path) for row in table["rows"]}
    assert "train/loss" in why["a"][0]
    assert why["b"] == ["canaries have moved the model"]
    assert why["c"] == ["its guarantee is infinite"]


def test_another_setting_is_another_row_and_another_seed_or_device_is_not(tmp_path: Path) -> None:
    runs = {
        place: write_run(tmp_path / place, "a", "federated", seed)
        for place, seed in (("0", 0), ("1", 1), ("2", 2))
    }
    for place, key, value in (("1", "device", "cuda"), ("2", "task", {"name": "digits"})):
        path = runs[place] / "config.yaml"
        tree = {**yaml.safe_load(path.read_text()), key: value}
        path.write_text("# not the row: task.num_users 300 -> null\n" * (place == "2"))
        with path.open("a") as file:
            yaml.safe_dump(tree, file)
    (table,) = tables(tmp_path)
    assert sorted(row["seeds"] for row in table["rows"]) == [[0, 1], [2]]
    (other,) = [row for row in table["rows"] if row["seeds"] == [2]]
    assert other["changes"] == ["task.num_users 300 -> null"]


def test_a_shorter_run_is_not_the_row_of_its_name_whatever_its_head_says(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "demo-federated", "federated") / "config.yaml"
    row = load_config(bundled_configs() / "demo/federated.yaml", ["federated.num_rounds=5"])
    assert "# not the row: federated.num_rounds 60 -> 5" in row.to_yaml()
    path.write_text(yaml.safe_dump(row.tree))
    ((line,),) = [table["rows"] for table in tables(tmp_path)]
    assert line["changes"] == ["federated.num_rounds 60 -> 5"]


def test_runs_without_a_number_to_rank_by_are_named(tmp_path: Path, capsys: Capture) -> None:
    write_run(tmp_path / "a", "a", "federated")
    write_run(tmp_path / "b", "b", "federated", finished=False)
    sweep = write_run(tmp_path / "c", "c", "federated", expected=False)
    change(sweep / "summary.json", metrics={})
    runs = [read_run(path) for path in runs_below(tmp_path)]
    (board,) = write_leaderboard(runs, standings(runs), tmp_path / "b.html")
    assert len(board.table.rows) == 1
    left_out = json.loads((tmp_path / "b.json").read_text())["left_out"]
    assert left_out == {
        str(tmp_path / "b"): "not finished",
        str(tmp_path / "c"): "no final metrics, as those of a sweep",
    }
    assert all(path in (tmp_path / "b.html").read_text() for path in left_out)
    assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "c.html")]) == 0
    said = capsys.readouterr().err
    assert all(f"left out: {path}: {why}" in said for path, why in left_out.items())


def test_a_record_gives_the_lines_of_the_table_again(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(s), "a", "private_federated", s)) for s in (0, 1)]
    (record,) = records(runs)
    wanted = rows_of([run.summary for run in runs if run.is_finished])
    kept = TypeAdapter(Record).validate_json(json.dumps(asdict(record)))
    assert [line.judged() for line in kept.lines] == wanted


def test_a_record_of_an_infinite_epsilon_is_shown_from_its_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "a", "private_federated")
    for side in ("simulated", "actual"):
        change(run / "privacy.json", **{side: {"epsilon": "inf", "delta": 1e-5}})
    (record,) = records([read_run(run)])
    kept = json.dumps(to_json_value(asdict(record)))
    assert json.loads(kept)["privacy"]["simulated"]["epsilon"] == "inf"
    (board,) = boards(ranked([TypeAdapter(Record).validate_json(kept)]))
    (row,) = board.table.rows
    assert [cell.text for cell in row if isinstance(cell, Cell)].count("inf") == 2


def test_the_cost_of_a_row_is_the_mean_over_its_runs(tmp_path: Path) -> None:
    """Bytes are those down and up together; a run that does not say its time counts for none."""
    for seed, (flops, down, up, seconds) in enumerate(
        [(1e10, 1e6, 5e5, 100.0), (3e10, 3e6, 1.5e6, 110.0), (5e10, 5e6, 2.5e6, None)]
    ):
        run = write_run(tmp_path / str(seed), "a", "federated", seed)
        spent = {"flops": flops, "bytes_down": down, "bytes_up": up}
        change(run / "summary.json", systems=spent, seconds=seconds)
    runs = [read_run(path) for path in runs_below(tmp_path)]
    (board,) = boards(standings(runs))
    assert board.table.rows[0][9] == Cell("30 GFLOP", 3e10, "4.5 MB moved", "105.0 s a run")
    for run in runs:
        spent = {"flops": 2e9, "bytes_down": 0.0, "bytes_up": 0.0}
        change(run.path / "summary.json", systems=spent, seconds=None)
    (board,) = boards(standings([read_run(path) for path in runs_below(tmp_path)]))
    assert board.table.rows[0][9] == Cell("2 GFLOP", 2e9, "nothing moved", "")


def test_methods_are_named_in_a_few_words() -> None:
    federated = {
        "algorithm": {"name": "scaffold"},
        "central_optimizer": {"name": "adam"},
        "aggregation": {"name": "mean"},
        "compression": {"name": "top_k"},
    }
    privacy = {"mechanism": {"name": "gaussian"}}
    tree = {"federated": federated, "privacy": privacy, "model": {"name": "cnn"}}
    said = "scaffold, central adam, top_k, gaussian; cnn"
    assert method_of(tree, "private_federated") == said
    assert method_of({"privacy": privacy, "model": {"name": "cnn"}}, "central_dp") == "DP-SGD; cnn"


def test_a_run_that_has_lost_its_configuration_is_named(tmp_path: Path, capsys: Capture) -> None:
    write_run(tmp_path / "a", "a", "federated")
    lost = write_run(tmp_path / "b", "b", "federated")
    (lost / "config.yaml").unlink()
    assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 1
    assert f"left out: {lost}: not a run folder (it has no config.yaml)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "[" * 100_000),
        ("environment.json", '{"a": ' + "9" * 5000 + "}"),
        ("metrics.jsonl", '{"round": NaN}\n'),
        ("config.yaml", "a: !!timestamp 2024-13-45"),
        ("config.yaml", "a: " + "[" * 100_000),
    ],
)
def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_shown(
    name: str, content: str, tmp_path: Path, capsys: Capture
) -> None:
    write_all(tmp_path)
    (*others, bad) = runs_below(tmp_path)
    (bad / name).write_text(content)
    out = tmp_path / "page.html"
    for command in (["leaderboard", str(tmp_path)], ["report", *map(str, [*others, bad])]):
        assert main([*command, "--out", str(out), "--force"]) == 1
        assert f"left out: {bad / name}" in capsys.readouterr().err
        assert out.stat().st_size > 10_000
    assert main(["leaderboard", str(tmp_path), "--out", "board"]) == 2
    assert "--out board: give the name of a page, such as" in capsys.readouterr().err
    assert main(["report", str(bad), "--out", str(out), "--force"]) == 2
    assert str(bad / name) in capsys.readouterr().err


def test_a_folder_of_others_that_is_closed_is_named_and_the_others_are_shown(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a private run's folder is; before, its runs were left out without a word."""
    write_all(tmp_path)
    closed, out = tmp_path / "another's", tmp_path / "page.html"
    closed.mkdir()
    scandir, access = os.scandir, os.access

    def refuse(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read anything
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    for command in ("leaderboard", "report"):
        assert main([command, str(tmp_path), "--out", str(out), "--force"]) == 1
        assert f"left out: {closed}: permission to read it is denied" in capsys.readouterr().err
        assert out.stat().st_size > 10_000
    assert main(["leaderboard", str(closed)]) == 2
    assert f"{closed}: permission to read it is denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere is no folder; give a folder that"),
        (["."], "holds no run folder"),
    ],
)
def test_what_is_no_folder_of_runs_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
