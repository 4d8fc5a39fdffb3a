"""Statements that a deployment published: the same numbers from the same settings.

Source of the numbers: google-research/federated, mf_dpftrl_matrices/privacy_accounting.ipynb (its
printed zCDP and epsilons at delta 1e-10).
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest

from pfl_bench.cli.main import main
from privacy.amplification import Participation
from privacy.mechanism import NoiseScale
from privacy.mechanisms import banded_matrix_factorization as banded

DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"
ZCDP = (0.1506840301548885, 0.014342572340349278)
EPSILONS = (3.4240074094281336, 0.9935500950539097)


def documented() -> list[list[str]]:
    """The two commands of docs/privacy.md."""
    section = DOCUMENT.read_text(encoding="utf-8").split("### Statements of a deployment")[1]
    section = section.split("\n## ")[0]
    return [shlex.split(line) for line in re.findall(r"^`pfl-bench (.*)`$", section, re.M)]


@pytest.mark.parametrize("which", [0, 1])
def test_documented_commands_print_the_published_epsilons(
    which: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = documented()[which]
    # The other strategy has the same columns' norms, and need not be optimized.
    strategy = ["strategy=square_root"] if command[-1] == "bands=400" else []
    assert main([*command, *strategy]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert float(printed["epsilon"]) == pytest.approx(EPSILONS[which], rel=1e-5)


def test_zcdp_is_that_of_three_columns() -> None:
    # rho = squared sensitivity / (2 z^2); theirs has columns of squared norm 1 / 5.
    noise = NoiseScale(1.0, 1.0, 1.0, num_rounds=2000, separation=485)
    mechanism = banded.build(
        banded.Options(clip_norm=1.0, bands=400, strategy="square_root"), noise
    )
    users = Participation.named("selected", 3_000_000, 6500, 485, 3)
    composed = mechanism.composition(users, 1.411 * math.sqrt(5), 2000)
    assert composed.count == 1
    assert 0.5 / composed.event.noise_multiplier**2 == pytest.approx(ZCDP[0], rel=1e-9)
    # One more round of the user costs as much again.
    more = Participation.named("selected", 3_000_000, 6500, 485, 4)
    composed = mechanism.composition(more, 1.411 * math.sqrt(5), 2000)
    assert 0.5 / composed.event.noise_multiplier**2 == pytest.approx(ZCDP[0] * 4 / 3, rel=1e-9)
