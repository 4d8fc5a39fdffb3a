from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pfl_bench.config.loading import load_config, resolve
from pfl_bench.config.row_files import bundled_configs, locate
from pfl_bench.config.yaml_text import apply_override, read_yaml
from pfl_bench.types import ConfigError
from tests.helpers import make_tree


def refuse(tmp_path: Path, text: str) -> str:
    path = tmp_path / "row.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


def test_defaults_are_filled_in(config_file: Callable[..., Path]) -> None:
    resolved = load_config(config_file("private_federated"))
    assert resolved.config.setting == "private_federated"
    assert resolved.tree["federated"]["algorithm"] == {"name": "fedavg"}
    assert resolved.tree["privacy"]["mechanism"]["clip_learning_rate"] == 0.2
    assert resolved.tree["task"]["partition_seed"] == 0


def test_an_override_wins_over_the_file(config_file: Callable[..., Path]) -> None:
    path = config_file("federated", federated__num_rounds=50)
    resolved = load_config(path, ["federated.num_rounds=7", "task.num_users=40", "seed=9"])
    assert resolved.config.federated is not None
    assert resolved.config.federated.num_rounds == 7
    assert resolved.tree["task"]["num_users"] == 40
    assert resolved.config.seed == 9
    assert "# override: federated.num_rounds=7" in resolved.to_yaml()


def test_the_written_configuration_reads_back_the_same(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    first = load_config(config_file("private_federated"), ["federated.local_learning_rate=1e-05"])
    copy = tmp_path / "copy.yaml"
    copy.write_text(first.to_yaml(), encoding="utf-8")
    assert load_config(copy).tree == first.tree


@pytest.mark.parametrize(
    ("override", "place", "hint"),
    [
        ("federated.num_round=3", "unknown key", "'num_rounds'"),
        ("num_rounds=3", "unknown key", "'federated.num_rounds'"),
        ("privacy.epsilonn=3", "unknown key", "'epsilon'"),
        ("task.users=3", "unknown key", "'num_users'"),
        ("federated.algorithm.name=fedprx", "federated.algorithm.name", "'fedprox'"),
        ("privacy.mechanism.name=gausian", "privacy.mechanism.name", "'gaussian'"),
        ("task.name=digit", "task.name", "'digits'"),
        ("federated.engine=sequentia", "federated.engine", "'sequential'"),
        ("federated.cohort_size=many", "must be", "a whole number >= 1"),
        ("federated.cohort_size=2.5", "must be", "a whole number >= 1"),
        ("federated.cohort_size=true", "must be", "a whole number >= 1"),
        ("federated.cohort_size=0", "must be", "a whole number >= 1 (given: 0)"),
        ("federated.local_learning_rate=.nan", "federated.local_learning_rate", "finite"),
        ("seed=-1", "must be", "a whole number >= 0 and < 2^63 (given: -1)"),
        ("name=a/b", "name", "pattern"),
        ("model.name=resnet", "model.name", "'softmax'"),
        ("evaluation.select_best=test/accuracy", "evaluation", "not in splits"),
        ("evaluation.splits=[val, val]", "evaluation.splits", "'val' stands twice"),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_its_place(
    config_file: Callable[..., Path], override: str, place: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config_file("private_federated"), [override])
    message = str(caught.value)
    # What gave the value is blamed; a contradiction is between the file and the override.
    is_contradiction = override.startswith("evaluation.select_best")
    assert message.startswith("override ") != is_contradiction
    assert ("private_federated.yaml" in message) == is_contradiction
    assert f"override {override}: " in message
    assert place in message
    assert hint in message


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=3", "seed.deep=3", "seed=[1"])
def test_a_malformed_override_is_refused(config_file: Callable[..., Path], override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        load_config(config_file("federated"), [override])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "a configuration is a mapping of keys to values, but the file holds a list"),
        ("", "holds nothing; begin with a bundled row: pfl-bench copy"),
        ("x", "holds one value"),
        ("a: [", "not valid YAML"),
        ("version: 1\nversion: 1", "stands twice"),
        ("version: 2", "is not 1"),
        ("name: x", "version: required, but missing; write 'version: 1'"),
        ("version: 1\n", "name: required"),
        ("1: 2", "key 1 is not text"),
        ("a: &a [1, 1]\n? [*a, *a]\n: 1", "key (a sequence) is not text"),
        ("a: " + "[" * 100_000, "nested too deep"),
        ("a: " + "[" * 60 + "]" * 60, "nested"),
        ("a: &a [*a]", "recursive"),
        (
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefg")),
            "holds more than",
        ),
        ("a: " + "9" * 5000, "digits"),
        ("a: " + "9" * 400, "too large"),
        ("a: !!timestamp 2024-13-45", "tag"),
        ("a: !!binary 3", "tag"),
        ('a: "\\0"', "NUL"),
        ('a: "\\ud800"', "surrogates"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refuse(tmp_path, text)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such"):
        read_yaml(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="UTF-8 text"):
        read_yaml(binary)


def test_numbers_and_words_mean_what_they_look_like(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    dates = "h: 2024-13-45\ni: 2024-01-02\n"
    path.write_text(f"a: 1e-3\nb: 5e2\nc: no\nd: off\ne: true\nf: .5\ng: 3\n{dates}")
    assert read_yaml(path) == {
        "a": 0.001, "b": 500.0, "c": "no", "d": "off", "e": True, "f": 0.5, "g": 3,
        "h": "2024-13-45", "i": "2024-01-02",
    }  # fmt: skip


def test_population_size_is_required_and_has_no_default() -> None:
    tree = make_tree("private_federated")
    del tree["privacy"]["population_size"]
    with pytest.raises(ConfigError, match=r"privacy\.population_size is required"):
        resolve(tree, Path("row.yaml"), ())


def test_noise_must_be_determined() -> None:
    tree = make_tree("private_federated")
    del tree["privacy"]["epsilon"]
    with pytest.raises(ConfigError, match="give epsilon"):
        resolve(tree, Path("row.yaml"), ())


def test_exactly_one_trainer() -> None:
    tree = make_tree("federated")
    tree["central"] = make_tree("central")["central"]
    with pytest.raises(ConfigError, match="exactly one"):
        resolve(tree, Path("row.yaml"), ())


def test_central_privacy_takes_no_users() -> None:
    with pytest.raises(ConfigError, match="protects examples"):
        resolve(make_tree("central_dp", privacy__population_size=5), Path("row.yaml"), ())


def test_an_override_can_open_a_section() -> None:
    tree: dict[str, object] = {"federated": None}
    apply_override(tree, "federated.algorithm.name=fedprox")
    assert tree == {"federated": {"algorithm": {"name": "fedprox"}}}


def test_a_folder_of_results_does_not_hide_the_bundled_table_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo/federated/seed-0").mkdir(parents=True)
    assert locate("demo", folder=True) == bundled_configs() / "demo"
    Path("demo/mine.yaml").touch()
    assert locate("demo", folder=True) == Path("demo")
