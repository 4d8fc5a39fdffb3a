"""``pfl-bench audit --live``: a run without its noise is stopped, a true one is let go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.cli.main import main
from pfl_bench.runs.auditing.live import Watched, look
from pfl_bench.runs.runner import rounds
from pfl_bench.types import StoppedError
from privacy.mechanisms import gaussian
from tests.helpers import make_config


def config_of(count: int) -> Any:
    audit = {"kind": "worst_case", "count": count} if count else None
    return make_config(
        "private_federated",
        privacy__mechanism={"name": "gaussian", "clip_norm": 0.5},
        privacy__noise_cohort_size=None,
        privacy__epsilon=None,
        privacy__noise_multiplier=1.5,
        privacy__audit=audit,
    )


def no_noise(total: Any, stddev: float, cohort: float, rng: Any) -> Any:
    return total / cohort


@pytest.mark.parametrize("count", [40, 0])
def test_a_run_without_its_noise_is_stopped_in_its_first_rounds(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gaussian, "noised_mean", no_noise)
    running = rounds(config_of(count), tmp_path)
    next(running)
    # With canaries by their coins, else by the record's noise, which is none.
    assert main(["audit", "--live", str(tmp_path), "--every", "0.05", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 1
    assert ("canaries" in found["violation"]) == bool(count)
    with pytest.raises(StoppedError, match="stopped before round 2: pfl-bench audit --live"):
        next(running)
    assert not (tmp_path / "summary.json").exists()
    monkeypatch.undo()
    with pytest.raises(StoppedError, match=r"delete stop\.json"):
        next(rounds(config_of(count), tmp_path, resume=True))


def test_a_true_run_is_let_go_on_and_what_is_half_written_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, seen = tmp_path / "run", Watched()
    told: list[str] = []
    for _ in rounds(config_of(20), folder):
        look(folder, seen, told.append)
        assert not seen.violation
        if seen.rounds == 5:
            shutil.copytree(folder, tmp_path / "torn")
    assert seen.rounds == 6
    assert [text.partition(":")[0] for text in told] == ["round 1", "round 2", "round 4"]
    # A ledger that is a line ahead, and torn at its end, is that of a run at work.
    torn, again = tmp_path / "torn", Watched()
    ledger, metrics = (torn / "ledger.jsonl"), (torn / "metrics.jsonl")
    ledger.write_text(ledger.read_text()[:-40])
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]) + '{"rou')
    look(torn, again, told.append)
    assert (again.rounds, again.audited, again.violation) == (4, 4, "")
    assert main(["audit", "--live", str(folder)]) == 0
    assert "no violation in 6 rounds" in capsys.readouterr().out


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = dict(_last(rounds(config_of(0), tmp_path / "whole")))
    running = rounds(config_of(0), tmp_path / "run")
    next(running)
    (tmp_path / "run" / "stop.json").write_text('{"reason": "a person"}')
    with pytest.raises(StoppedError, match="a person"):
        next(running)
    (tmp_path / "run" / "stop.json").unlink()
    resumed = dict(_last(rounds(config_of(0), tmp_path / "run", resume=True)))
    assert resumed["model_sha256"] == whole["model_sha256"]


def _last(running: Any) -> Any:
    while True:
        try:
            next(running)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--every", "0"], "--every 0"), ([], "no config.yaml")]
)
def test_what_cannot_be_watched_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments:
        (tmp_path / "config.yaml").touch()
    assert main(["audit", "--live", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err
