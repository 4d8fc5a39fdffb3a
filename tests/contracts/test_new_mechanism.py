"""A mechanism of one's own is one file: it runs, is audited and reported without any other edit."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import privacy.mechanisms
from pfl_bench.cli.main import main
from pfl_bench.report.page import write_report
from pfl_bench.runs.audit import RunAudit, audit_run
from pfl_bench.runs.runner import run
from privacy.statement.explaining import explain
from privacy.statement.statement import PrivacyStatement
from tests.helpers import make_config

OWN = '''
"""A Gaussian mechanism of one's own: all of it, of nothing that others share."""

import torch
from pydantic import BaseModel, ConfigDict

from privacy.amplification import sampled_gaussian
from privacy.clipping import ClipOutcome, add_clipped_
from privacy.description import FRESH, Description
from privacy.mechanism import Release, ReplayedNoise

DESCRIPTION = Description({description})


class Options(BaseModel):
    """The bound."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    clip_norm: float


class Own:
    """Clips, sums, and adds Gaussian noise."""

    name = "{name}"
    description = DESCRIPTION
    is_private = True
    count_noise_stddev = None

    def __init__(self, options, noise):
        self.clip_norm, self.noise = options.clip_norm, noise
        self.update_noise_multiplier = noise.noise_multiplier

    def clip_settings(self):
        return {{"kind": "fixed", "clip_norm": self.clip_norm}}

    def composition(self, participation, noise_multiplier, rounds):
        return sampled_gaussian(participation, noise_multiplier, rounds)

    def accumulate(self, aggregate, update, weight, rng=None):
        assert weight == 1.0
{clip}
        aggregate.count(outcome)
        return outcome

    def release(self, aggregate, rng):
        reach = {reach}
        stddev = self.noise.noise_multiplier * self.noise.ratio * self.clip_norm * reach
        noise = torch.from_numpy(stddev * rng.standard_normal(aggregate.total.numel()))
        mean = (aggregate.total + noise.float()) / self.noise.cohort_size
        return Release(mean.float(), self.clip_norm, stddev)

    def state_dict(self):
        return {{}}

    def load_state_dict(self, state):
        assert not state
'''
REPLAYS = """
    def replay_noise(self, streams):
        return ReplayedNoise(streams.rng.standard_normal(streams.wanted))
"""
SCALED = """
        outcome = add_clipped_(aggregate.total, update, self.clip_norm)
"""
# Each element is cut off: at the bound, or so that all together keep its L2 norm.
CUT_OFF = """
        each = self.clip_norm{part}
        clipped = update.clamp(-each, each)
        aggregate.total.add_(clipped)
        norms = [float(torch.linalg.vector_norm(x.double(), {order})) for x in (update, clipped)]
        outcome = ClipOutcome(norms[0], bool((update.abs() <= each).all()), True, norms[1])
"""
ELEMENTS = CUT_OFF.format(part="", order="float('inf')")
PARTS = CUT_OFF.format(part=" * update.numel() ** -0.5", order="2")
BUILD = '''

def build(options, noise):
    """Build the mechanism."""
    return Own(options, noise)
'''
STATED = '"the sum gets noise of {z} bounds", law="gaussian", stddev=1.0, strategy=FRESH'
# What needs something of the noise that nobody has stated.
NEEDS_A_LAW = {"noise_scale", "noise_replay"}
NEEDS_A_STDDEV = {"noise_multiplier"}
NEEDS_A_COMPOSITION = {
    "epsilon_simulated",
    "epsilon_actual",
    "referee_simulated",
    "referee_actual",
}
# Of any mechanism with a fixed bound and without canaries, whose users are not kept apart.
ALWAYS_SKIPPED = {"report_noise", "canaries"}


def write(
    name: str,
    description: str,
    replays: bool,
    folder: Path,
    patch: pytest.MonkeyPatch,
    clip: str = SCALED,
    reach: str = "1.0",
) -> None:
    """Put a mechanism into a folder of its own, and the folder beside those of the package."""
    folder.mkdir()
    text = OWN.format(name=name, description=description, clip=clip, reach=reach)
    text += (REPLAYS if replays else "") + BUILD
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    folders = [*privacy.mechanisms.__path__, str(folder)]
    patch.setattr(privacy.mechanisms, "__path__", folders)
    patch.setattr(privacy.mechanisms.__spec__, "submodule_search_locations", folders)
    importlib.invalidate_caches()


def run_and_audit(
    name: str, folder: Path, clip_norm: float = 0.5
) -> tuple[RunAudit, dict[str, str]]:
    """The audit, and why checks were not made that are made of other such runs."""
    options = {"name": name, "clip_norm": clip_norm}
    config = make_config("private_federated", privacy__mechanism=options)
    assert run(config, folder)["status"] == "finished"
    done = audit_run(folder, 1)
    left = [check for check in done.checks if check.outcome in ("skipped", "incomplete")]
    skipped = {check.name: check.evidence for check in left}
    assert skipped.keys() >= ALWAYS_SKIPPED
    return done, {key: value for key, value in skipped.items() if key not in ALWAYS_SKIPPED}


def told(folder: Path) -> str:
    document: dict[str, Any] = json.loads((folder / "privacy.json").read_text())
    return explain(PrivacyStatement.from_json_dict(document), width=10_000)


def test_a_gaussian_of_ones_own_runs_and_passes_every_check_that_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("my_gaussian", STATED, True, tmp_path / "mine", monkeypatch)
    folder = tmp_path / "run"
    done, _skipped = run_and_audit("my_gaussian", folder)
    assert done.verdict == "passed", [c for c in done.checks if c.outcome == "failed"]
    ours = make_config(
        "private_federated", privacy__mechanism={"name": "gaussian", "clip_norm": 0.5}
    )
    run(ours, tmp_path / "ours")
    passed = {check.name for check in done.checks if check.outcome == "passed"}
    like_ours = {c.name for c in audit_run(tmp_path / "ours", 1).checks if c.outcome == "passed"}
    assert passed == like_ours
    assert passed >= (NEEDS_A_LAW | NEEDS_A_STDDEV | NEEDS_A_COMPOSITION)
    line = json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])
    assert line["mechanism_description"]["strategy"] == [1.0]
    z = json.loads((folder / "privacy.json").read_text())["noise_multiplier"]
    assert f"Noise: the sum gets noise of {z:.6g} bounds" in told(folder)
    page = write_report([folder], folder / "report.html").read_text()
    assert "my_gaussian" in page
    assert (
        main(
            [
                "privacy",
                "epsilon",
                "--population",
                "1000",
                "--cohort",
                "50",
                "--rounds",
                "9",
                "--noise-multiplier",
                "2",
                "--mechanism",
                "my_gaussian",
                "--explain",
            ]
        )
        == 0
    )
    assert "the sum gets noise of 2 bounds" in capsys.readouterr().out


def test_what_a_mechanism_does_not_state_is_skipped_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("taciturn", '"noise {z} is added"', False, tmp_path / "mine", monkeypatch)
    done, skipped = run_and_audit("taciturn", tmp_path / "run")
    assert done.verdict == "incomplete", [c for c in done.checks if c.outcome == "failed"]
    expected = NEEDS_A_LAW | NEEDS_A_STDDEV | NEEDS_A_COMPOSITION
    assert expected <= skipped.keys()
    assert all("taciturn" in skipped[name] for name in expected)
    assert "does not state the law of its noise" in skipped["epsilon_actual"]
    # What needs no word of the mechanism is checked.
    checked = {check.name for check in done.checks if check.outcome == "passed"}
    assert {"chain", "configuration", "clip_bound", "budget", "releases"} <= checked


def test_rounds_of_which_nobody_states_how_they_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = STATED.removesuffix(", strategy=FRESH")
    write("half_said", stated, False, tmp_path / "mine", monkeypatch)
    done, skipped = run_and_audit("half_said", tmp_path / "run")
    assert done.verdict == "incomplete", [c for c in done.checks if c.outcome == "failed"]
    assert (NEEDS_A_COMPOSITION | {"noise_replay"}) <= skipped.keys()
    assert "how the noise of rounds goes together" in skipped["referee_actual"]
    assert "half_said" in skipped["noise_replay"]
    checked = {check.name for check in done.checks if check.outcome == "passed"}
    assert {"noise_scale", "noise_multiplier"} <= checked


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("raises", "raise KeyError('seed')", "fails (KeyError: 'seed'); mend it"),
        ("bare", "return streams.rng.standard_normal(streams.wanted)", "returns a ndarray of"),
    ],
)
def test_noise_that_cannot_be_replayed_names_the_file(
    name: str, line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = f"\n    def replay_noise(self, streams):\n        {line}\n"
    monkeypatch.setattr(f"{__name__}.REPLAYS", replays)
    write(name, STATED, True, tmp_path / "mine", monkeypatch)
    done, left = run_and_audit(name, tmp_path / "run")
    assert done.verdict == "incomplete"
    assert f"{tmp_path / 'mine' / name}.py: Own.replay_noise {said}" in left["noise_replay"]


@pytest.mark.parametrize(
    ("name", "stated", "clip", "reach"),
    [
        ("elements", 'norm="linf"', ELEMENTS, "aggregate.total.numel() ** 0.5"),
        ("parts", "clips_to_bound=False", PARTS, "1.0"),
    ],
)
def test_elements_may_be_cut_off_where_the_mechanism_states_it(
    name: str,
    stated: str,
    clip: str,
    reach: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(name, f"{STATED}, {stated}", True, tmp_path / "mine", monkeypatch, clip, reach)
    done, _ = run_and_audit(name, tmp_path / "run", clip_norm=0.02)
    assert done.verdict == "passed", [c for c in done.checks if c.outcome == "failed"]
    found = {check.name: check for check in done.checks}
    # Every update is beyond the bound.
    assert found["clip_bound"].numbers["largest_share"] <= 1.0
    assert found["clip_probe"].numbers["watched"] > 0
    alone = f"the bound alone was checked: {name} does not state that it clips to it"
    for check in ("clip_bound", "clip_probe"):
        assert found[check].outcome == "passed"
        assert (alone in found[check].evidence) == (name == "parts")
    assert found["noise_multiplier"].outcome == found["epsilon_actual"].outcome == "passed"


def test_elements_that_are_cut_off_need_the_noise_of_them_all_and_none_may_be_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = ELEMENTS.replace(
        "aggregate.total.add_", "clipped[-1] = update[-1]; aggregate.total.add_"
    )
    stated = f'{STATED}, norm="linf"'
    write("forgetful", stated, True, tmp_path / "mine", monkeypatch, spared)
    done, _ = run_and_audit("forgetful", tmp_path / "run", clip_norm=0.001)
    failed = {check.name for check in done.checks if check.outcome == "failed"}
    assert {"clip_bound", "clip_probe", "noise_multiplier"} <= failed
