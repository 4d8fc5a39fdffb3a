"""Audits of folders whose data are gone: the statement says what noise is drawn again of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.runs.audit import audit_run, read_claim
from pfl_bench.runs.auditing import opened
from pfl_bench.runs.auditing.replay import make_replay
from pfl_bench.runs.runner import run
from pfl_bench.types import RunFolderError, UserInputError
from privacy.audit.check import Check
from privacy.errors import PrivacyError
from privacy.mechanisms.local_gaussian import LocalGaussian
from tests.sabotage.noise_bugs import noise_of
from tests.sabotage.planting import ADAPTIVE, BANDED, FIXED_SIZE, LOCAL, ROUNDS
from tests.sabotage.running import configured, copy_finished, remembering

Patch = pytest.MonkeyPatch
KINDS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "adaptive_gaussian": ADAPTIVE,
    "banded_matrix_factorization": BANDED,
    "local_gaussian": LOCAL,
    "local_gaussian, fixed_size": {**LOCAL, **FIXED_SIZE},
}


@pytest.fixture(autouse=True, scope="module")
def _remembering() -> Iterator[None]:
    with remembering():
        yield


@pytest.fixture
def data_are_gone(monkeypatch: Patch) -> Callable[[], None]:
    """Call it after the run: no data can be opened from then on."""

    def refuse(*_: Any) -> None:
        raise UserInputError("no such file")

    return lambda: monkeypatch.setattr(opened, "build_task", refuse)


def replayed(folder: Path, verdict: str) -> Check:
    """The check of the noise, of an audit of that verdict."""
    done = audit_run(folder, 1)
    assert done.verdict == verdict
    (found,) = [check for check in done.checks if check.name == "noise_replay"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_run_s_noise_is_drawn_again(
    kind: str, data_are_gone: Callable[[], None], tmp_path: Path
) -> None:
    copy_finished(configured(KINDS[kind]), tmp_path / "run")
    data_are_gone()
    found = replayed(tmp_path / "run", "incomplete")
    assert found.outcome == "passed"
    assert (found.numbers["rounds"], found.numbers["whole"]) == (ROUNDS, ROUNDS)


def test_more_canaries_than_are_configured_are_not_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    copy_finished(configured(LOCAL), folder)
    resolved, statement = read_claim(folder, None)
    replay = make_replay(opened.open_run(folder, resolved), 1, statement)
    assert not isinstance(replay, str)
    assert not isinstance(replay.noise, str)
    assert len(replay.noise(1, 0).values)
    with pytest.raises(PrivacyError, match="1000000000000 canaries are recorded, of 0 at most"):
        replay.noise(1, 10**12)


def uneven(total: Any, stddev: float, rng: Any) -> Any:
    """Noise whose scale alternates, by which no single round stands out."""
    noise = stddev * rng.standard_normal(total.numel())
    return total.new_tensor(noise * (1.05 if noise[0] > 0.0 else 0.95))


def less_along(self: Any, report: Any, rng: Any) -> None:
    """A report's noise without its part along the client's own update."""
    bare, stddev = report.double(), self._report_stddev(report.numel())
    noise = bare.new_tensor(stddev * rng.standard_normal(report.numel()))
    noise -= (noise @ bare) / (bare @ bare) * bare
    report.add_(noise.float())


@pytest.mark.parametrize("kind", ["gaussian", "local_gaussian"])
def test_noise_that_is_wrong_is_found(
    kind: str, data_are_gone: Callable[[], None], tmp_path: Path
) -> None:
    with Patch.context() as patch:
        if kind == "gaussian":
            noise_of(uneven)(patch)
        else:
            patch.setattr(LocalGaussian, "_randomize", less_along)
        run(configured(KINDS[kind]), tmp_path / "run")
    data_are_gone()
    found = replayed(tmp_path / "run", "failed")
    assert found.outcome == "failed"
    assert "the noise is not that of the seed's stream in" in found.evidence


# What stands for a number, and what becomes of the check.
DAMAGED = (
    *((value, "refused") for value in ("650", True, [], 649.5, 1e300, float("inf"), 10**400)),
    *((value, "skipped") for value in (None, -650, 0, 10**9)),
)


def judged(folder: Path) -> str:
    """What becomes of the check of the noise: its outcome, or that the statement is refused.

    Whatever it is, the audit does not pass.
    """
    try:
        return replayed(folder, "failed").outcome
    except (RunFolderError, PrivacyError):
        return "refused"


def test_a_statement_that_names_no_number_of_parameters_or_another_does_not_pass(
    data_are_gone: Callable[[], None], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    copy_finished(configured({}), folder)
    data_are_gone()
    stated = json.loads((folder / "privacy.json").read_text())
    for value, outcome in (*DAMAGED, (3, "incomplete"), (649, "incomplete"), (10**8, "incomplete")):
        (folder / "privacy.json").write_text(json.dumps(stated | {"num_parameters": value}))
        assert judged(folder) == outcome, value


@pytest.mark.parametrize("scheme", [{}, FIXED_SIZE], ids=["poisson", "fixed_size"])
def test_a_statement_that_names_no_population_or_another_does_not_pass(
    scheme: dict[str, Any], data_are_gone: Callable[[], None], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    copy_finished(configured({**LOCAL, **scheme}), folder)
    data_are_gone()
    stated = json.loads((folder / "privacy.json").read_text())
    for value, outcome in (*DAMAGED, (3, "incomplete"), (299, "failed"), (2 * 10**7, "failed")):
        side = stated["actual"] | {"population_size": value}
        (folder / "privacy.json").write_text(json.dumps(stated | {"actual": side}))
        assert judged(folder) == outcome, value


@pytest.mark.parametrize("actual", [None, "", [], {}, "gone"])
def test_a_statement_without_a_side_is_refused(actual: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    copy_finished(configured({}), folder)
    stated = json.loads((folder / "privacy.json").read_text())
    stated["actual"] = actual
    if actual == "gone":
        del stated["actual"]
    (folder / "privacy.json").write_text(json.dumps(stated))
    with pytest.raises((RunFolderError, PrivacyError)):
        audit_run(folder, 1)
