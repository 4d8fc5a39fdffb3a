"""docs/privacy.md and the audit pages say what the code does: tables are made from it."""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.runs.auditing.outcome import NAME as OUTCOME
from privacy.accountant import ACCOUNTANTS, check_composition
from privacy.aggregate import Aggregate
from privacy.amplification import Participation, sampled_gaussian
from privacy.audit.auditor import audit
from privacy.audit.inputs import AuditInputs, Configured
from privacy.description import GAUSSIAN
from privacy.errors import PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms import (
    adaptive_gaussian,
    banded_inverse_square_root,
    banded_matrix_factorization,
    buffered_toeplitz,
    column_normalized_banded,
    gaussian,
    laplace,
    local_gaussian,
    privunit,
    tree_aggregation,
)
from privacy.plan.plan import PlanRequest, PrivacyPlan, make_plan
from privacy.recording.central_record import CentralRecord
from privacy.recording.observation import Observer, ParticipationHistory
from privacy.schemes.poisson import Poisson
from tests.helpers import REPOSITORY

PAGE = REPOSITORY / "docs" / "privacy.md"
PAGES = [REPOSITORY / "docs" / f"{name}.md" for name in ("privacy", "audit", "empirical_audit")]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\.\w)")
PARTICIPATIONS = {
    "poisson": Participation.named("poisson", 1000, 20),
    "truncated_poisson": Participation.named("truncated_poisson", 1000, 20),
    "cyclic_poisson": Participation.named("cyclic_poisson", 1000, 20, 4),
    "fixed_size": Participation.named("fixed_size", 1000, 20),
    "full": Participation.named("full", 1000, 1000),
    "selected": Participation.named("selected", 1000, 20, 4, 3),
}
BOUND: dict[str, Any] = {"clip_norm": 1.0}
MECHANISMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gaussian": (gaussian, BOUND),
    "adaptive_gaussian": (adaptive_gaussian, {**BOUND, "quantile": 0.5}),
    "banded_matrix_factorization": (banded_matrix_factorization, {**BOUND, "bands": 4}),
    "banded_inverse_square_root": (banded_inverse_square_root, {**BOUND, "bands": 4}),
    "buffered_toeplitz": (buffered_toeplitz, {**BOUND, "buffers": 2}),
    "column_normalized_banded": (column_normalized_banded, {**BOUND, "bands": 4}),
    "tree_aggregation": (tree_aggregation, BOUND),
    "laplace": (laplace, BOUND),
    "local_gaussian": (local_gaussian, BOUND),
    "privunit": (privunit, BOUND),
}


def between(name: str) -> list[str]:
    """The lines between two markers of one of the pages that are not empty."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    assert text.count(begin) == text.count(end) == 1
    inner = text.split(begin)[1].split(end)[0]
    return [line for line in inner.splitlines() if line.strip()]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.fixture(scope="module")
def scripts() -> Iterator[None]:
    """Let modules of scripts/ be imported."""
    folder = str(REPOSITORY / "scripts")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def printed(scripts: None) -> list[str]:
    """What scripts/peer_errors.py computes now, without empty lines."""
    import peer_errors

    return [line for line in peer_errors.markdown(peer_errors.compute()) if line.strip()]


def test_the_tables_of_peers_errors_are_what_the_script_computes(printed: list[str]) -> None:
    assert len(printed) > 20
    assert same_but_for_drift(between("peers' errors"), printed) > 100


def test_published_epsilons_are_what_the_script_computes(scripts: None) -> None:
    import published_epsilons

    printed = list(published_epsilons.markdown())
    assert len(printed) == 2 + len(published_epsilons.PUBLISHED)
    assert all("comes out" in line for line in printed[2:])
    assert same_but_for_drift(between("published epsilons"), printed) >= 48


def same_but_for_drift(page: list[str], printed: list[str]) -> int:
    """Hold a table against what was computed, its numbers to half a percent; how many they are."""
    compared = 0
    assert len(page) == len(printed)
    for on_page, computed in zip(page, printed, strict=True):
        assert NUMBER.sub("#", on_page) == NUMBER.sub("#", computed)
        there, here = NUMBER.findall(on_page), NUMBER.findall(computed)
        for old, new in zip(there, here, strict=True):
            first, second = (float(text.replace(",", "")) for text in (old, new))
            assert math.isclose(first, second, rel_tol=0.005), (on_page, old, new)
            compared += 1
    return compared


def test_numbers_that_drift_are_found() -> None:
    line = "| 1 | flwr 1.42.0 | epsilon 5,000 of 1e-05 | 3.99 to 10.04 |"
    assert NUMBER.sub("#", line) == "| # | flwr 1.42.0 | epsilon # of # | # to # |"


def test_what_excludes_an_error_is_a_test_that_exists(printed: list[str]) -> None:
    named = [match for line in printed for match in re.findall(r"`(tests/[^`]+)`", line)]
    assert len(named) > 10
    for name in named:
        path, function = name.split("::")
        tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in found, name


def accountants_of(name: str, participation: Participation) -> str:
    module, options = MECHANISMS[name]
    cohort = participation.cohort_size
    noise = NoiseScale(1.0, cohort, cohort, num_rounds=16, separation=participation.min_separation)
    try:
        mechanism = module.build(module.Options(**options), noise)
        composition = mechanism.composition(participation, 1.0, 16)
    except PrivacyError:
        return "refused"
    return ", ".join(_able(composition))


def _able(composition: Any) -> Iterator[str]:
    for accountant in ACCOUNTANTS:
        try:
            check_composition(composition, accountant)
        except PrivacyError:
            continue
        yield accountant


def test_the_table_of_accountants_is_what_they_answer() -> None:
    header, _, *rows = map(cells, between("accountants"))
    assert header == ["mechanism", *PARTICIPATIONS]
    assert [row[0] for row in rows] == list(MECHANISMS)
    for row in rows:
        answers = [accountants_of(row[0], part) for part in PARTICIPATIONS.values()]
        assert row[1:] == answers, row[0]


def test_every_mechanism_is_on_the_page() -> None:
    folder = REPOSITORY / "privacy" / "mechanisms"
    mechanisms = {path.stem for path in folder.glob("*.py")} - {"__init__", "none"}
    assert mechanisms == set(MECHANISMS)
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in mechanisms)


def small_plan() -> PrivacyPlan:
    options = adaptive_gaussian.Options(clip_norm=1.0, quantile=0.5)
    return make_plan(
        PlanRequest(
            mechanism="adaptive_gaussian",
            mechanism_build=lambda noise: adaptive_gaussian.build(options, noise),
            mechanism_options=options.model_dump(),
            scheme=Poisson(),
            population_size=100,
            num_users=100,
            hypothetical_population=False,
            cohort_size=20,
            noise_cohort_size=None,
            num_rounds=1,
            weighting="uniform",
            epsilon=None,
            noise_multiplier=1.0,
            delta=None,
            accountant="rdp",
            uploads=("update",),
            batchnorm_layers=(),
            num_parameters=8,
        )
    )


def line_of(plan: PrivacyPlan) -> dict[str, Any]:
    """A ledger's line of one round, as a trainer writes it."""
    aggregate, observer = Aggregate.zeros(8), Observer(20, probes_all=True)
    update, drawn = torch.ones(8), ParticipationHistory(100).add(np.array([3]), 1)
    observer.begin(0)
    observer.before(aggregate, update)
    plan.mechanism.accumulate(aggregate, update, 1.0)
    observer.after(aggregate, 1.0)
    release = plan.mechanism.release(aggregate, np.random.default_rng(0))
    observed = observer.observe(release, aggregate) | drawn
    observed |= CentralRecord(torch.zeros(8)).round(release.mean_update, np.array([3]), [3])
    return {**plan.ledger_entry(1, [3], release, aggregate, observed), "previous": "0" * 64}


def test_the_keys_of_the_ledger_are_on_the_page() -> None:
    rows = map(cells, between("ledger keys")[2:])
    listed = [key for row in rows for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(line_of(small_plan()))


def test_every_check_of_the_audit_is_on_the_page() -> None:
    configured = Configured(
        unit="user",
        mechanism="adaptive_gaussian",
        mechanism_options={},
        sampling="poisson",
        separation=1,
        population_size=100,
        hypothetical_population=False,
        cohort_size=20,
        noise_cohort_size=None,
        num_rounds=1,
        weighting="uniform",
        budget_epsilon=None,
        noise_multiplier=1.0,
        delta=None,
        accountant="rdp",
        description=GAUSSIAN,
    )
    plan = small_plan()
    inputs = AuditInputs(
        plan.statement(1).to_json_dict(), configured, lambda *given: sampled_gaussian(*given[2:])
    )
    made = [check.name for check in audit([(line_of(plan), "0" * 64)], inputs)[0]]
    rows = map(cells, between("audit checks")[2:])
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    # Of the package that trains.
    made.append(OUTCOME)
    assert sorted(listed) == sorted(made)
    assert len(set(made)) == len(made) > 25
