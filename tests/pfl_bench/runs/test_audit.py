"""``pfl-bench audit`` on real small runs, as they are and after tampering with their folders."""

from __future__ import annotations

import hashlib
import json
import operator
import shutil
import time
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.report.page import write_report
from pfl_bench.report.run_folder import read_run
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.trainers.central import CentralTrainer
from privacy.ledger import canonical_line
from tests.helpers import change_checkpoint, make_config

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(make_config("private_federated"), folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["audit", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def rewrite(folder: Path, change: Callable[[Lines], None]) -> None:
    """Change a ledger as one would who knows the chain: every link is made anew."""
    path = folder / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    previous, text = "0" * 64, b""
    for line in lines:
        line.pop("previous")
        written = canonical_line(line, previous)
        previous = hashlib.sha256(written.rstrip(b"\n")).hexdigest()
        text += written
    path.write_bytes(text)


def failed(folder: Path) -> set[str]:
    return {check.name for check in audit_run(folder, 1).checks if check.outcome == "failed"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("denominator",), None),
        (("denominator",), 0),
        (("simulated", "noise_multiplier"), "x"),
        (("simulated", "noise_multiplier"), 1e308),
        (("simulated", "cohort_size"), 0),
        (("release", "projections"), [1.0]),
        (("central", "coordinates", 0), None),
    ],
    ids=str,
)
def test_values_that_no_run_records_fail_an_audit_that_computes_again(
    copied: Path, capsys: pytest.CaptureFixture[str], place: tuple[Any, ...], value: Any
) -> None:
    *sections, key = place

    def change(lines: Lines) -> None:
        for line in lines:
            reduce(operator.getitem, sections, line)[key] = value

    rewrite(copied, change)
    code, out, _ = command(capsys, str(copied), "--recompute", "first")
    assert code == 1
    assert "FAILED" in out


def test_a_run_passes_and_prints_what_it_rests_on(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, str(finished))
    assert code == 0
    assert "PASSED: recomputed 6 of 6 rounds; 30 passed, 0 failed, 0 incomplete, 2 skipped" in out
    assert "PASS  noise_scale: standard deviation" in out
    assert "A run of this length would show a scale that is" in " ".join(out.split())
    assert "Outside of the guarantee" in out
    assert "A search over 10 such runs: epsilon (simulated)" in out
    ledger = hashlib.sha256((finished / "ledger.jsonl").read_bytes()).hexdigest()
    written = json.loads((finished / "audit.json").read_text())
    assert written["ledger_sha256"] == ledger
    assert written["passed"] is True
    assert written["verdict"] == "passed"
    assert written["counts"] == {"passed": 30, "failed": 0, "incomplete": 0, "skipped": 2}


def test_json_is_one_object_and_the_file_s_content(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, str(finished), "--json", "--tuned-runs", "3")
    assert code == 0
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document == json.loads((finished / "audit.json").read_text())
    assert document["tuned_runs"]["runs"] == 3
    stated = document["epsilon"]["actual"]
    assert document["tuned_runs"]["epsilon"]["actual"] > stated


def test_a_folder_that_cannot_be_written_is_audited_all_the_same(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Path.open

    def refuse(self: Path, mode: str = "r", *rest: Any, **given: Any) -> Any:
        if mode == "xb" and self.parent == copied:
            raise PermissionError(13, "Permission denied", str(self))
        return original(self, mode, *rest, **given)

    monkeypatch.setattr(Path, "open", refuse)
    code, out, err = command(capsys, str(copied), "--recompute", "none")
    assert code == 0
    assert "PASSED" in out
    assert f"this audit is not kept: {copied / 'audit.json'} cannot be written (Perm" in err
    # No page shows an audit that was not made now.
    page = str(copied.parent / "board.html")
    assert main(["leaderboard", str(copied), "--audit", "--out", page]) == 0
    assert "this audit is not kept" in capsys.readouterr().err


def test_what_is_no_private_run_ends_with_2(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(capsys, str(tmp_path))
    assert (code, out) == (2, "")
    assert "not a run folder" in err
    plain = tmp_path / "runs" / "table" / "plain"
    run(make_config("federated", federated__num_rounds=1), plain)
    _, _, err = command(capsys, str(tmp_path))
    assert err.endswith(f"name a run in it, such as {plain}\n")
    code, _, err = command(capsys, str(plain))
    assert code == 2
    assert "claims no privacy" in err
    code, _, err = command(capsys, str(finished), "--tuned-runs", "0")
    assert code == 2
    assert "at least 1" in err
    code, _, err = command(capsys, str(finished), "--data", "no.h5")
    assert code == 2
    assert "task.data" in err


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_statement_ends_with_2(
    text: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "privacy.json").write_text(text)
    assert command(capsys, str(copied))[0] == 2
    (copied / "privacy.json").unlink()
    code, _, err = command(capsys, str(copied))
    assert code == 2
    assert "privacy.json" in err


def test_an_edited_line_breaks_the_chain(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copied / "ledger.jsonl"
    path.write_text(path.read_text().replace('"num_nonfinite":0', '"num_nonfinite":1', 1))
    code, out, _ = command(capsys, str(copied))
    assert code == 1
    assert "FAIL  chain" in out
    assert "line 2: does not follow" in " ".join(out.split())


# Three epochs of 38 steps, their noise not calibrated.
SHORT = {"central__num_epochs": 3, "privacy__epsilon": None, "privacy__noise_multiplier": 1.0}
MISSING = {
    "checkpoints": {"folder", "central_step", "central_chain"},
    "metrics.jsonl": {"folder", "metrics"},
    "environment.json": {"folder", "private_seed"},
}


@pytest.mark.parametrize("what", MISSING)
def test_a_folder_that_lacks_files_is_incomplete(
    what: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / what
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    code, out, _ = command(capsys, str(copied))
    assert code == 1
    assert "INCOMPLETE: " in out
    assert f"{what} is missing: it would show" in " ".join(out.split())
    written = json.loads((copied / "audit.json").read_text())
    assert (written["verdict"], written["passed"]) == ("incomplete", False)
    assert list(written["missing"]) == [what]
    lacking = {c["name"] for c in written["checks"] if c["outcome"] == "incomplete"}
    assert lacking == MISSING[what]
    (copied / "metrics.jsonl").unlink(missing_ok=True)  # no pictures are drawn
    assert ">incomplete<" in write_report([copied], copied / "report.html").read_text()


def test_a_folder_of_an_earlier_version_is_incomplete_and_says_why(copied: Path) -> None:
    def earlier(lines: Lines) -> None:
        for line in lines:
            for key in ("central", "release", "users_sha256", "trained_sha256"):
                del line[key]
            # Then the mechanism's module is asked what it is.
            del line["mechanism_description"]

    rewrite(copied, earlier)
    for name, keys in (
        ("environment.json", ("private_seed",)),
        ("summary.json", ("model_sha256", "ledger_digest")),
    ):
        document = json.loads((copied / name).read_text())
        for key in keys:
            del document[key]
        (copied / name).write_text(json.dumps(document))

    def without_seed(state: dict[str, Any]) -> None:
        del state["trainer"]["private"]["seed"], state["trainer"]["private"]["ledger"]

    for path in (copied / "checkpoints").iterdir():
        change_checkpoint(path, without_seed)
    done = audit_run(copied, 1)
    assert done.verdict == "incomplete"
    lacking = {c.name: c.evidence for c in done.checks if c.outcome == "incomplete"}
    assert set(lacking) == {
        "constants",
        "private_seed",
        "cohort_replay",
        "noise_replay",
        "central_step",
        "central_chain",
        "releases",
    }
    assert "another version" in lacking["central_step"]
    assert "seed of cohorts and noise" in lacking["noise_replay"]


def test_a_missing_ledger_fails(copied: Path) -> None:
    (copied / "ledger.jsonl").unlink()
    assert failed(copied) == {"chain"}


def quieter(lines: Lines) -> None:
    for line in lines:
        line["update_noise_stddev"] *= 0.9


def other_data(lines: Lines) -> None:
    for line in lines:
        line["data"] = "sha256:0"


def one_fewer(lines: Lines) -> None:
    """In itself consistent, in the line that no other follows."""
    for key in ("realised_cohort", "distinct_users", "num_contributions"):
        lines[-1][key] -= 1
    lines[-1]["total_weight"] -= 1.0


def drop_last(lines: Lines) -> None:
    lines.pop()


TAMPERED = {
    "quieter": (quieter, {"noise_multiplier", "chain"}),
    "the last line": (one_fewer, {"chain"}),
    "other data": (other_data, {"configuration"}),
    "drop_last": (drop_last, {"rounds", "clip_path"}),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_ledger_that_is_rewritten_with_its_chain_is_found_too(what: str, copied: Path) -> None:
    change, names = TAMPERED[what]
    rewrite(copied, change)
    assert names <= failed(copied)


def again(lines: Lines) -> None:
    for line in [dict(line) for line in lines]:
        lines.append(line | {"round": len(lines) + 1})


def test_rounds_beyond_the_configured_ones_are_found(copied: Path) -> None:
    rewrite(copied, again)
    assert {"rounds", "metrics"} <= failed(copied)


def test_rounds_beyond_the_configured_ones_of_a_tree_are_found(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "federated__sampling": "cyclic_poisson",
        "federated__separation": 2,
        "privacy__mechanism": {"name": "tree_aggregation", "clip_norm": 0.5},
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 8.0,
    }
    run(make_config("private_federated", **changes), tmp_path / "run")
    rewrite(tmp_path / "run", again)
    assert {"rounds", "metrics"} <= failed(tmp_path / "run")


def test_a_statement_that_claims_less_is_found(copied: Path) -> None:
    statement = json.loads((copied / "privacy.json").read_text())
    honest = statement["actual"]["epsilon"]
    statement["actual"]["epsilon"] *= 0.5
    statement["clip"]["more"] = 1
    (copied / "privacy.json").write_text(json.dumps(statement))
    wrong = {c.name: c.evidence for c in audit_run(copied, 1).checks if c.outcome == "failed"}
    said = f"privacy.actual.epsilon is {honest / 2} in privacy.json and {honest} in the summary"
    assert said in wrong["configuration"]
    said = "privacy.clip.more is 1 in privacy.json and absent in the summary"
    assert said in wrong["configuration"]
    assert len(wrong["configuration"]) < 400, "what agrees is left out"
    assert set(wrong) == {
        "configuration",
        "epsilon_actual",
        "referee_actual",
        "metrics",
        "statement",
    }


def test_another_configuration_is_found(copied: Path) -> None:
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["privacy"]["epsilon"] = 4.0
    config["federated"]["cohort_size"] = 11
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    assert failed(copied) >= {"configuration", "budget"}


def test_a_checkpoint_that_forgot_the_bound_is_found(copied: Path) -> None:
    def forget(state: dict[str, Any]) -> None:
        state["trainer"]["mechanism"]["clip_norm"] = 0.5

    change_checkpoint(copied / "checkpoints" / "step-00000006.pt", forget)
    assert failed(copied) == {"clip_path"}


def test_a_run_that_was_cut_is_audited_against_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = FederatedTrainer.advance

    def stop(self: FederatedTrainer, index: int) -> dict[str, float]:
        if index == 5:
            raise KeyboardInterrupt
        return advance(self, index)

    monkeypatch.setattr(FederatedTrainer, "advance", stop)
    with pytest.raises(KeyboardInterrupt):
        run(make_config("private_federated", checkpoint__every=3), tmp_path / "cut")
    done = audit_run(tmp_path / "cut", 1)
    assert done.verdict != "failed"
    checks = {check.name: check for check in done.checks}
    assert "unfinished, held against the 6 planned" in checks["rounds"].evidence
    assert "checkpoint of round 3" in checks["clip_path"].evidence
    assert checks["chain"].evidence == "4 lines; named by the newest checkpoint"


def test_data_that_are_gone_are_skipped_and_said(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfl_bench.runs.auditing import opened
    from pfl_bench.types import DataError

    def gone(*_: object) -> None:
        raise DataError("digits.h5: no such file")

    monkeypatch.setattr(opened, "build_task", gone)
    checks = {check.name: check for check in audit_run(copied, 1).checks}
    assert checks["population"].outcome == "skipped"
    assert "digits.h5: no such file" in checks["population"].evidence
    assert "--data" in checks["population"].evidence
    assert checks["configuration"].outcome == "passed"


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5}},
        {
            "federated__sampling": "cyclic_poisson",
            "federated__separation": 2,
            "federated__num_rounds": 9,
        },
        {
            "privacy__mechanism": {"name": "buffered_toeplitz", "clip_norm": 0.5, "buffers": 2},
            "federated__sampling": "cyclic_poisson",
            "federated__separation": 2,
            "federated__num_rounds": 9,
        },
        {
            "federated__sampling": "fixed_size",
            "privacy__epsilon": None,
            "privacy__noise_multiplier": 2.0,
        },
        {
            "federated__sampling": "truncated_poisson",
            "privacy__accountant": "pld",
            # Calibrated in tests/privacy/accountants/test_truncation.py.
            "privacy__epsilon": None,
            "privacy__noise_multiplier": 2.0,
        },
        {
            "federated__sampling": "full",
            "federated__cohort_size": 60,
            "privacy__noise_cohort_size": 60,
        },
        {"privacy__epsilon": None, "privacy__noise_multiplier": 0.0},
    ],
    ids=["gaussian", "cyclic", "buffers", "fixed_size", "truncated", "full", "no noise"],
)
def test_runs_of_every_kind_pass(changes: dict[str, Any], tmp_path: Path) -> None:
    run(make_config("private_federated", **changes), tmp_path / "run")
    assert failed(tmp_path / "run") == set()


def test_example_level_runs_are_checked_as_far_as_their_ledger_goes(tmp_path: Path) -> None:
    run(make_config("central_dp", **SHORT | {"central__num_epochs": 1}), tmp_path / "run")
    done = audit_run(tmp_path / "run", 2)
    checks = {check.name: check for check in done.checks}
    assert done.verdict != "failed"
    for name in ("chain", "rounds", "epsilon_actual", "clip_path", "configuration", "population"):
        assert checks[name].outcome == "passed", name
    assert checks["chain"].numbers["named_by"] == ["the summary", "the newest checkpoint"]
    assert checks["noise_scale"].outcome == "skipped"
    assert "its steps are computed again" in checks["noise_scale"].evidence

    def fewer(lines: Lines) -> None:
        lines[-1]["steps"] -= 1

    rewrite(tmp_path / "run", fewer)
    assert "rounds" in failed(tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_rounds", 10**15), ("local_epochs", 30_000), ("cohort_size", 10**15)],
    ids=lambda value: str(value),
)
def test_a_configuration_of_endless_work_takes_no_longer_and_ends_in_no_traceback(
    copied: Path, key: str, value: int
) -> None:
    tree = yaml.safe_load((copied / "config.yaml").read_text())
    tree["federated"][key] = value
    (copied / "config.yaml").write_text(yaml.safe_dump(tree))
    started = time.monotonic()
    done = audit_run(copied, 1, recompute="sample", seconds=1.0)
    assert time.monotonic() - started < 30.0
    assert done.verdict == "failed"


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("metrics", "test/accuracy"), 0.99, "test/accuracy is 0.99, but comes to"),
        (("metrics", "test/loss_by_client"), 9.0, "test/loss_by_client is 9.0, but comes to"),
        (("best", "val/accuracy", "value"), 0.99, "best is not what metrics.jsonl comes to"),
        (("variant",), "femnist-3400", "variant is 'femnist-3400', but comes to 'sklearn"),
        (("data", "checksum"), "sha256:0", "data.checksum is 'sha256:0', but comes to"),
        (("name",), "sota", "name is 'sota', but comes to 'small'"),
        (("status",), "budget_exhausted", "status is 'budget_exhausted', but comes to 'finished'"),
        (("metric_directions", "lower_is_better"), [], "metric_directions is"),
        (("selection",), {"metric": "val/accuracy", "value": 0.9, "index": 2}, "selection is not"),
        (("systems", "bytes_up"), 1, "systems is not what metrics.jsonl comes to"),
        (("budgets",), [{"metric": "val/accuracy", "reached": True}], "budgets is not what"),
        (("diverged",), {"metric": "val/loss", "round": 1, "unit": "round"}, "diverged is not"),
        (("diverged",), "never", "diverged is not what metrics.jsonl comes to"),
        (
            ("canaries",),
            {"lower_bound": 0.0},
            "canaries is {'lower_bound': 0.0}, but comes to None",
        ),
        (("pinned_nonce",), False, "pinned_nonce is False, but comes to True"),
        (("fine_tuned",), True, "fine_tuned is True, but comes to False"),
        (("settings_sha256",), "sha256:0", "settings_sha256 is 'sha256:0', but comes to"),
        (("departure",), "x", "departure is 'x', but comes to ''"),
        (("data", "num_classes"), 2, "data.num_classes is 2, but comes to 10"),
        (("data", "artificial_users"), False, "data.artificial_users is False"),
        (("data", "source"), "real writers", "data.source is 'real writers'"),
    ],
    ids=str,
)
def test_a_summary_that_says_more_than_the_run_came_to_fails(
    copied: Path, place: tuple[str, ...], value: Any, says: str
) -> None:
    *sections, key = place
    summary = json.loads((copied / "summary.json").read_text())
    reduce(operator.getitem, sections, summary)[key] = value
    (copied / "summary.json").write_text(json.dumps(summary))
    done = audit_run(copied, 1, recompute="first")
    assert str(done).startswith("failed\nfailed outcome: ")
    assert says in str(done)
    (wrong,) = [check for check in done.checks if check.outcome == "failed"]
    assert wrong.name == "outcome"
    assert says in wrong.evidence


def test_what_is_outside_of_the_guarantee_is_the_audit_s_own_list(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = json.loads((copied / "privacy.json").read_text())
    (copied / "privacy.json").write_text(json.dumps(statement | {"not_covered": []}))
    code, out, _ = command(capsys, str(copied), "--recompute", "none")
    assert code == 1
    assert "FAIL  statement: not_covered is [], but comes to" in out
    listed = " ".join(out.partition("Outside of the guarantee")[2].split())
    assert f"- {statement['not_covered'][0]} - " in listed
    written = json.loads((copied / "audit.json").read_text())
    assert written["not_covered"] == statement["not_covered"]


@pytest.mark.parametrize("unit", ["round", "epoch"])
def test_a_run_that_ended_early_without_a_reason_is_said_to(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FederatedTrainer if unit == "round" else CentralTrainer
    advance, stopped = trainer.advance, list[int]()

    def stop_after_two(self: Any, index: int) -> dict[str, float]:
        if index == 2:
            self.total = index
            stopped.append(index)
        return advance(self, index)

    def until_stopped(first: int, end: int) -> Iterator[int]:
        return takewhile(lambda _: not stopped, range(first, end))

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "advance", stop_after_two)
        patch.setattr("pfl_bench.runs.runner.range", until_stopped, raising=False)
        setting = "private_federated" if unit == "round" else "central_dp"
        changes = {} if unit == "round" else SHORT
        run(make_config(setting, **changes), tmp_path)
    done = audit_run(tmp_path, 1)
    failed = {check.name: check.evidence for check in done.checks if check.outcome == "failed"}
    assert failed["outcome"].startswith("the run ended after 2 of ")
    assert f"{unit}s, and neither its configuration nor an exhausted budget" in failed["outcome"]
    assert "but comes to 'budget_exhausted'" not in failed["outcome"]


def test_metrics_beyond_every_float_fail_and_end_in_no_traceback(copied: Path) -> None:
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"systems/flops": 1.7e308, "systems/bytes_up": "nan"} for line in lines]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    checks = {check.name: check for check in audit_run(copied, 1).checks}
    assert "systems is not what metrics.jsonl comes to" in checks["outcome"].evidence


def test_the_leaderboard_audits_what_has_no_audit(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "audit.json").unlink(missing_ok=True)
    # Named twice, the run is there once.
    board = ["leaderboard", str(tmp_path), str(copied), "--out", str(tmp_path / "b.html")]
    assert main(board) == 0
    assert "no rank: audit: not audited" in capsys.readouterr().out
    assert main(board) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*board, "--force", "--audit", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "b.json").read_text())
    ((only,),) = [table["rows"] for table in document["tables"]]
    assert (only["rank"], only["privacy"]["audits"]) == (1, {"passed": 1})
    page = (tmp_path / "b.html").read_text()
    assert "src=" not in page
    assert '<span class="verdict reproduced">passed' in page


def test_the_leaderboard_believes_no_audit_that_came_with_the_folder(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit_run(copied, 1)
    for name in ("privacy.json", "summary.json"):
        document = json.loads((copied / name).read_text())
        document.get("privacy", document)["simulated"]["epsilon"] = 0.25
        (copied / name).write_text(json.dumps(document))
    board = ["leaderboard", str(copied), "--out", str(tmp_path / "b.html"), "--force"]
    assert main(board) == 0
    assert "audit: stale" in capsys.readouterr().out
    forged = json.loads((copied / "audit.json").read_text())
    forged["epsilon"]["simulated"] = 0.25
    (copied / "audit.json").write_text(json.dumps(forged))
    assert main([*board, "--audit"]) == 0
    assert "no rank: audit: failed" in capsys.readouterr().out
    # Nor where no audit can be made.
    (copied / "audit.json").write_text(json.dumps(forged))
    (copied / "config.yaml").write_text((copied / "config.yaml").read_text() + "no_key: 1\n")
    assert main([*board, "--audit"]) == 0
    assert "audit: not audited" in capsys.readouterr().out


def test_the_report_has_the_audit_and_says_when_it_is_stale(copied: Path) -> None:
    audit_run(copied, 2)
    (copied / "metrics.jsonl").unlink()  # no pictures are drawn
    text = write_report([copied], copied / "report.html").read_text()
    assert "Audit: small, seed 3" in text
    assert "29 passed, 0 failed, 0 incomplete, 2 skipped" in text
    assert "A search over 2 such runs" in text
    assert "Stale." not in text
    rewrite(copied, drop_last)
    assert "Stale." in write_report([copied], copied / "report.html").read_text()
    audit_run(copied, 2)
    text = write_report([copied], copied / "report.html").read_text()
    assert "Stale." not in text
    assert text.index(">failed<") < text.index(">passed<", text.index("<h2>Audit"))
    (copied / "audit.json").write_text('{"format_version": 99}')
    with pytest.raises(ValueError, match="again"):
        write_report([copied], copied / "report.html")
    assert read_run(copied).is_private
