"""A user's own mechanism states nothing of its noise: the audit still sees noise that is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_bench import plugins
from pfl_bench.client.machine import _digests_of_plugins
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from tests.helpers import make_config

MECHANISM = '''"""Gaussian noise, of which nothing is stated."""

import numpy as np

from privacy.description import Description
from privacy.mechanism import Release, noised_mean
from privacy.mechanisms import gaussian

Options = gaussian.Options
DESCRIPTION = Description("each round's sum gets noise of the multiplier {{z}}")


class Mine(gaussian.Gaussian):
    name = "{name}"
    description = DESCRIPTION
    begins_with_normals = False

    def release(self, aggregate, rng):
        stddev = self._noise.noise_multiplier * self._noise.ratio * self._clip_norm
        mean = noised_mean(aggregate.total, {stddev}, self._noise.cohort_size, {rng})
        return Release(mean, self._clip_norm, stddev)


def build(options, noise):
    return Mine(options.clip_norm, noise)
'''
# These state the law of their noise, but not how it is drawn, so that it is not drawn again.
UNEVEN = '''"""Gaussian noise whose scale alternates between rounds, and is right on average."""

from privacy.mechanism import Release, noised_mean
from privacy.mechanisms import gaussian
from privacy.noise.clipped_sum import ClippedSum

Options, DESCRIPTION = gaussian.Options, gaussian.DESCRIPTION


class Mine(ClippedSum):
    name = "uneven"
    description = DESCRIPTION
    composition = gaussian.Gaussian.composition
    _factor = 1.1

    def release(self, aggregate, rng):
        stddev = self._noise.noise_multiplier * self._noise.ratio * self._clip_norm
        self._factor = 2.0 - self._factor
        scaled = stddev * self._factor
        mean = noised_mean(aggregate.total, scaled, self._noise.cohort_size, rng)
        return Release(mean, self._clip_norm, stddev)


def build(options, noise):
    return Mine(options.clip_norm, noise)
'''
ACROSS = '''"""Clients whose noise spares the direction of their own update."""

import torch

from privacy.mechanisms import local_gaussian

Options, DESCRIPTION = local_gaussian.Options, local_gaussian.DESCRIPTION


class Mine(local_gaussian.LocalGaussian):
    name = "across"

    def _randomize(self, report, rng):
        bare = report.double()
        noise = torch.from_numpy(rng.standard_normal(len(bare)))
        noise -= (noise @ bare) / (bare @ bare) * bare
        report.add_((self._report_stddev(len(bare)) * noise).float())


def build(options, noise):
    return Mine(options.clip_norm, noise)
'''
UNSEEN_BY_REPLAY = {
    "uneven": (UNEVEN, "noise_scale", "the scale varies from round to round"),
    "across": (ACROSS, "report_noise", "noise goes with the client's own update by its spread"),
}
CHANGES = {
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 1.0,
    "privacy__noise_cohort_size": None,
}
MECHANISMS = {
    "sound": ("stddev", "rng"),
    "silent": ("0.0", "rng"),
    "repeated": ("stddev", "np.random.default_rng(5)"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of these plug-ins, forgotten afterwards."""
    monkeypatch.setattr(plugins, "__path__", [])
    monkeypatch.setenv(plugins.FOLDERS, "")
    (tmp_path / "mechanisms").mkdir()
    texts = {name: text for name, (text, *_) in UNSEEN_BY_REPLAY.items()}
    for name, (stddev, rng) in MECHANISMS.items():
        texts[name] = MECHANISM.format(name=name, stddev=stddev, rng=rng)
    for name, text in texts.items():
        (tmp_path / "mechanisms" / f"{name}.py").write_text(text, encoding="utf-8")
    _digests_of_plugins.cache_clear()
    plugins.add_folder(tmp_path)
    yield tmp_path
    _digests_of_plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("pfl_bench.plugins.")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_that_is_none_or_the_same_fails(name: str, folder: Path) -> None:
    mechanism = {"name": name, "clip_norm": 0.5}
    run(make_config("private_federated", privacy__mechanism=mechanism, **CHANGES), folder / "run")
    said = (folder / "run" / "run.log").read_text(encoding="utf-8")
    assert f"the mechanism {name} is of the plug-ins '{folder.name}': the epsilons are" in said
    done = audit_run(folder / "run", recompute="sample")
    failed = {check.name for check in done.checks if check.outcome == "failed"}
    assert failed == (set() if name == "sound" else {"releases"})
    # Nothing but the mechanism says what its rounds compose to.
    incomplete = {check.name for check in done.checks if check.outcome == "incomplete"}
    assert incomplete == {"epsilon_simulated", "epsilon_actual"}
    words = f"incomplete: on the word of plug-ins ({folder.name})"
    assert name != "sound" or done.words == words


@pytest.mark.parametrize("name", UNSEEN_BY_REPLAY)
def test_noise_of_the_wrong_law_that_is_not_drawn_again_fails(name: str, folder: Path) -> None:
    _, expected, words = UNSEEN_BY_REPLAY[name]
    mechanism = {"name": name, "clip_norm": 0.5}
    run(make_config("private_federated", privacy__mechanism=mechanism, **CHANGES), folder / "run")
    checks = {check.name: check for check in audit_run(folder / "run", 1).checks}
    assert {name for name, check in checks.items() if check.outcome == "failed"} == {expected}
    assert words in checks[expected].evidence
    assert checks["noise_replay"].outcome == "skipped"
