"""Errors of values: the override or file that gave the value, what is allowed, in plain words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.types import ConfigError

# What the library that checks types says, and its names of parts of unions.
FOREIGN = (
    "Input should",
    "should be",
    "pydantic",
    "union_tag",
    "type=",
    "literal[",
    "constrained-",
)
WHOLE = "must be a whole number >= 1"
NO_SOURCE = "no device source named 'x'. There are: csv, fedscale, file, generated."

# The override, and what is said after "override TEXT: ".
FLIP = "kind: label_flip, corrupted_fraction: 0.1, labels: pairs"
WRONG = [
    ("federated.num_rounds=abc", f"{WHOLE} (given: 'abc')"),
    ("federated.num_rounds=2.5", f"{WHOLE} (given: 2.5)"),
    ("federated.num_rounds=1e3", f"{WHOLE} (given: 1000.0)"),
    ("federated.num_rounds=true", f"{WHOLE} (given: true)"),
    ("federated.num_rounds=null", f"{WHOLE} (given: null)"),
    ("federated.num_rounds=[3]", f"{WHOLE} (given: a list)"),
    ("federated.num_rounds={a: 3}", f"{WHOLE} (given: a section)"),
    ("federated={num_rounds: abc}", f"federated.num_rounds: {WHOLE} (given: 'abc')"),
    ("federated=3", "must be a section with the keys num_rounds, "),
    ("epsilon=2", "unknown key; did you mean 'privacy.epsilon' or 'federated.central_optimizer"),
    ("federated_num_rounds=3", "unknown key; did you mean 'federated.num_rounds'?"),
    ("federated.num_round=3", "unknown key; did you mean 'num_rounds'?"),
    ("federated.precision=bfloat16", "unknown key; did you mean 'precision'?"),
    ("federated.workers=many", "must be a whole number >= 1 and <= 64, or 'auto' (given: 'many')"),
    ("federated.local_learning_rate=.nan", "must be a finite number > 0 (given: nan)"),
    ("federated.local_learning_rate=fast", "must be a finite number > 0 (given: 'fast')"),
    ("federated.central_optimizer.momentum=1", "must be a number >= 0 and < 1 (given: 1)"),
    ("federated.local_learning_rate=1e300", "must be less than 3.4e+38 in size"),
    ("federated.num_rounds=9223372036854775808", "must be less than 9.2e+18 in size"),
    (
        "expected=[{metric: m, tolerance: 1, source: s, value: 4e38}]",
        "expected.0.value: must be less than 3.4e+38 in size",
    ),
    (
        "expected=[{metric: m, tolerance: 1, source: s, value: .nan}]",
        "expected.0.value: must be less than 3.4e+38 in size (given: nan)",
    ),
    (
        "federated.central_optimizer={name: sgd, weight_decay: .inf}",
        "federated.central_optimizer.weight_decay: must be less than 3.4e+38 in size (given: inf)",
    ),
    ("privacy.audit={}", "privacy.audit.kind: required, but missing"),
    ("privacy.population_size=lots", f"{WHOLE}, or 'training_users', or null (given: 'lots')"),
    ("privacy.delta=2", "must be a number > 0 and < 1, or null (given: 2)"),
    ("privacy.accountant=rpd", "must be one of 'rdp', 'pld', 'prv' (given: 'rpd'); did you mean"),
    ("privacy.mechanism=3", "must be a section of keys and values (given: 3)"),
    ("privacy.mechanism.quantile=x", "must be a number > 0 and < 1 (given: 'x')"),
    ("privacy.mechanism.name=gausian", "no mechanism named 'gausian'; did you mean 'gaussian'?"),
    ("privacy.hypothetical_population=1", "must be true or false (given: 1)"),
    ("systems={source: 3}", "systems.source: must be a section of keys and values (given: 3)"),
    ("systems={source: {name: csv}}", "systems.source.capacity: required, but missing"),
    ("systems={source: {name: csv, capacity: 3}}", "systems.source.capacity: must be text"),
    ("systems={source: {name: csv, kind: 3}}", "systems.source.kind: unknown key"),
    ("systems.source.name=x", NO_SOURCE),
    ("evaluation.splits=val", "must be a list (given: 'val')"),
    ("evaluation.splits=[1]", "evaluation.splits.0: must be text (given: 1)"),
    ("expected=[{value: x}]", "expected.0.value: must be a number (given: 'x')"),
    (f"attack={{{FLIP}, pairs: []}}", "attack.pairs: must be a list of 1 or more items, or null"),
    (f"attack={{{FLIP}, pairs: [[1]]}}", "attack.pairs.0: must be a list of 2 items"),
    (
        "attack={kind: backdor, corrupted_fraction: 1}",
        "attack.kind: no attack named 'backdor'; did you mean 'backdoor'?",
    ),
    ("seed=-1", "must be a whole number >= 0 and < 2^63 (given: -1)"),
    ("name=a b", "must be text of the pattern ^[A-Za-z0-9][A-Za-z0-9._-]*$ (given: 'a b')"),
    ("device=gpu", "must be one of 'auto', 'cpu', 'cuda', 'mps' (given: 'gpu')"),
    ("task.num_users=0", "must be a whole number >= 1 and <= "),
    ("task=3", "must be a section of keys and values (given: 3)"),
    ("task.name=3", "give the name of a task: "),
    ("model.name=3", "must be one of 'softmax', 'mlp' (given: 3)"),
    ("logging.wandb.tags=[3]", "logging.wandb.tags.0: must be text (given: 3)"),
    ("logging.wandb.project=''", "must be text that is not empty (given: '')"),
    ("version=2", "2 is not 1, the version of the configuration format"),
]


@pytest.mark.parametrize(("override", "words"), WRONG, ids=[override for override, _ in WRONG])
def test_a_wrong_override_is_blamed_in_plain_words(
    config_file: Callable[..., Path],
    override: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    row = config_file("private_federated")
    assert main(["run", str(row), override, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"override {override}: {words}" in said
    assert not [text for text in FOREIGN if text in said]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federated__num_rounds": "abc"}, f"federated.num_rounds: {WHOLE} (given: 'abc')"),
        ({"federated__workers": 0}, "federated.workers: must be a whole number >= 1 and <= 64, or"),
        ({"systems": {"source": {"name": "x"}}}, f"systems.source.name: {NO_SOURCE}"),
        ({"expected": [{"metric": 1}]}, "expected.0.metric: must be text (given: 1)"),
        ({"version": 7}, "version: 7 is not 1"),
        (
            {"evaluation__budgets": [{"metric": "test/accuracy", "value": 0.9}]},
            "evaluation: budgets: 'test/accuracy' names a split that is not in splits: ['val']",
        ),
    ],
)
def test_a_wrong_value_of_the_file_is_blamed_on_the_file(
    config_file: Callable[..., Path], changes: dict[str, object], words: str
) -> None:
    row = config_file("private_federated", **changes)
    with pytest.raises(ConfigError) as refused:
        load_config(row, ["seed=4"])
    assert f"{row}: {words}" in str(refused.value)
    assert not [text for text in FOREIGN if text in str(refused.value)]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("evaluation.select_best=test/accuracy", "evaluation: select_best 'test/accuracy' names"),
        (
            "privacy.statistics={noise_multiplier: 1, mean_clip_norm: 1, square_clip_norm: 1}",
            "privacy.statistics is of central training, whose unit is an example",
        ),
        ("federated.algorithm.name=fedprox", "federated.algorithm.proximal_weight: required, but"),
        ("privacy.mechanism.name=laplace", "privacy.mechanism.quantile: unknown key"),
        ("central.num_epochs=2", "central: this row has no section 'central'"),
    ],
)
def test_a_contradiction_names_the_file_and_the_override(
    config_file: Callable[..., Path], override: str, words: str
) -> None:
    row = config_file("private_federated")
    with pytest.raises(ConfigError) as refused:
        load_config(row, ["seed=4", override])
    assert f"{row} with override {override}: {words}" in str(refused.value)


def test_a_near_name_of_the_section_comes_before_that_name_elsewhere(
    config_file: Callable[..., Path],
) -> None:
    with pytest.raises(ConfigError, match=r"num_rounds=2: unknown key; did you.*'num_epochs'"):
        load_config(config_file("central"), ["central.num_rounds=2"])


@pytest.mark.parametrize("kind", ["central", "federated", "central_dp"])
def test_a_setting_of_another_kind_of_row_is_said_not_to_exist(
    config_file: Callable[..., Path], kind: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(config_file(kind), ["privacy.noise_cohort_size=50"])
    said = str(refused.value)
    assert "privacy.noise_cohort_size=50: privacy: " in said
    assert "\n" not in said
    if kind == "central_dp":
        assert "do not exist here: noise_cohort_size. Remove" in said
        assert "Allowed here: mechanism, epsilon," in said
    else:
        assert "no section 'privacy'" in said
        assert kind in said.partition("Sections of this row: ")[2].partition(".")[0].split(", ")
        assert said.endswith("needs mechanism")


def test_one_wrong_value_is_said_once(config_file: Callable[..., Path]) -> None:
    """A union of three types has an error of each."""
    with pytest.raises(ConfigError) as refused:
        load_config(config_file("private_federated"), ["privacy.population_size=-1"])
    assert str(refused.value).count("\n") == 0
