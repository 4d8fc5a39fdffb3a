"""What a mechanism says of itself: as JSON and back, and what is no description."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pfl_bench import plugins
from privacy.description import DP_SGD, FRESH, GAUSSIAN, Description, Tree
from privacy.errors import PrivacyError
from privacy.mechanism import Mechanism, NoiseScale

OPTIONS: dict[str, dict[str, Any]] = {
    "adaptive_gaussian": {"quantile": 0.5},
    "banded_matrix_factorization": {"bands": 3},
    "banded_inverse_square_root": {"bands": 3},
    "column_normalized_banded": {"bands": 3},
    "tree_aggregation": {"restart_every": 4},
}


def built(name: str, num_rounds: int = 8) -> Mechanism:
    module = plugins.load(plugins.MECHANISM, name)
    given = {} if name == "none" else {"clip_norm": 0.5, **OPTIONS.get(name, {})}
    mechanism: Mechanism = module.build(
        module.Options(**given), NoiseScale(0.0, 10.0, 10.0, num_rounds=num_rounds)
    )
    return mechanism


@pytest.mark.parametrize("name", plugins.available(plugins.MECHANISM))
def test_a_description_survives_json(name: str) -> None:
    described = built(name).description
    assert described.words == plugins.load(plugins.MECHANISM, name).DESCRIPTION.words
    facts = json.loads(json.dumps(described.to_json_dict(), allow_nan=False))
    assert "words" not in facts
    assert Description.from_json_dict({"words": described.words, **facts}) == described
    assert described.agrees(Description.from_json_dict(facts))
    # A run goes on only if its ledger, which was read again, says the same.
    assert facts == described.to_json_dict()


def test_what_the_shipped_ones_say() -> None:
    said = {name: built(name).description for name in plugins.available(plugins.MECHANISM)}
    assert {name for name, of in said.items() if of.randomizes_clients} == {
        "local_gaussian",
        "privunit",
    }
    assert {name for name, of in said.items() if of.correlates_rounds} == {
        "banded_inverse_square_root",
        "banded_matrix_factorization",
        "buffered_toeplitz",
        "column_normalized_banded",
        "tree_aggregation",
    }
    assert {name for name, of in said.items() if of.is_sampled_gaussian} == {
        "gaussian",
        "adaptive_gaussian",
    }
    assert {name for name, of in said.items() if of.draws_count} == {"adaptive_gaussian"}
    assert said["tree_aggregation"].strategy == Tree(4)
    column = said["banded_matrix_factorization"].strategy
    assert isinstance(column, tuple)
    assert len(column) == 3
    assert DP_SGD.is_sampled_gaussian


def test_a_column_that_is_not_planned_yet_is_left_unsaid() -> None:
    assert built("banded_matrix_factorization", num_rounds=0).description.strategy is None


def test_one_mechanism_agrees_with_itself_on_another_machine() -> None:
    banded = replace(GAUSSIAN, strategy=(0.9, 0.4))
    assert banded.agrees(replace(banded, words="other words", strategy=(0.9, 0.4 + 1e-8)))
    for other in (
        replace(banded, strategy=(0.9, 0.41)),
        replace(banded, strategy=(0.9,)),
        replace(banded, strategy=None),
        replace(banded, stddev=0.5),
        replace(banded, law="laplace"),
        replace(banded, draws_count=True),
    ):
        assert not banded.agrees(other)


def test_nothing_is_taken_for_granted_of_what_is_not_stated() -> None:
    silent = Description("somehow")
    assert silent.correlates_rounds
    assert not silent.is_sampled_gaussian
    assert silent.strategy != FRESH


@pytest.mark.parametrize(
    "facts",
    [
        {"law": "cauchy"},
        {"stddev": "1"},
        {"stddev": float("nan")},
        {"strategy": []},
        {"strategy": [0.0, 1.0]},
        {"strategy": ["x"]},
        {"strategy": "fresh"},
        {"strategy": {"restart_every": 0}},
        {"strategy": {"restarts": 3}},
        {"reports": "maybe"},
        {"norm": "l3"},
        {"clips_to_bound": None},
        {"draws_count": 1},
        {"colour": "red"},
        {"words": None},
    ],
    ids=str,
)
def test_what_is_no_description_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError, match="no description"):
        Description.from_json_dict({**GAUSSIAN.to_json_dict(), **facts})


def test_a_bound_of_each_element_reaches_further_the_more_there_are() -> None:
    assert replace(GAUSSIAN, norm="linf").reach(400) == 20.0
    assert replace(GAUSSIAN, norm="l1").reach(400) == GAUSSIAN.reach(400) == 1.0
    for other in (replace(GAUSSIAN, norm="linf"), replace(GAUSSIAN, clips_to_bound=False)):
        assert not other.is_sampled_gaussian
        assert Description.from_json_dict(other.to_json_dict()).agrees(other)
        assert not other.agrees(GAUSSIAN)


def test_a_description_from_before_the_clip_was_stated_is_of_a_clip_to_the_bound() -> None:
    document = GAUSSIAN.to_json_dict()
    del document["clips_to_bound"]
    assert Description.from_json_dict(document).agrees(GAUSSIAN)
