"""Corrupted clients: who they are, what they train on and send, and what is measured of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench import plugins
from pfl_bench.cli.main import main
from pfl_bench.config.sections import AttackOptions
from pfl_bench.data import InMemorySplit
from pfl_bench.federated.parts import build_task
from pfl_bench.runs.runner import run
from pfl_bench.simulation.attacking_engine import AttackingEngine, boost_of
from pfl_bench.simulation.attacks import backdoor, label_flip
from pfl_bench.simulation.corrupted_task import CorruptedSplit, CorruptedTask
from pfl_bench.types import (
    ConfigError,
    DataError,
    DataFacts,
    Examples,
    GivesExampleLosses,
    HasColumns,
    LocalResult,
    PluginError,
    TransformsBatches,
)
from tests.contracts.small_stores import write_openimage
from tests.helpers import make_config, make_tree, seed_of

CPU = torch.device("cpu")
CLASSES = 10
MIRROR: dict[str, Any] = {"kind": "label_flip", "corrupted_fraction": 0.3, "labels": "mirror"}
BACKDOOR: dict[str, Any] = {
    "kind": "backdoor",
    "corrupted_fraction": 0.2,
    "target_class": 7,
    "trigger_size": 2,
    "image_shape": [8, 8],
}


def attacked(attack: dict[str, Any], **changes: Any) -> Any:
    return make_config("federated", attack=attack, **changes)


def tasks(attack: dict[str, Any], **changes: Any) -> tuple[CorruptedTask, Any]:
    """The digits with corrupted users, and without."""
    task = build_task(attacked(attack, **changes), CPU)
    assert isinstance(task, CorruptedTask)
    return task, build_task(make_config("federated", **changes), CPU)


def read(task: Any, user: int, seed: int = 0) -> Examples:
    examples: Examples = task.split("train").read_user(user, np.random.default_rng(seed))
    return examples


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.01, 1), (0.3, 18), (1.0, 60)])
def test_so_many_users_are_corrupted_drawn_once_from_the_seed(fraction: float, count: int) -> None:
    attack = {**MIRROR, "corrupted_fraction": fraction}
    task, plain = tasks(attack)
    assert len(task.corrupted) == count == task.facts.extra["corrupted_users"]
    assert task.corrupted == tasks(attack)[0].corrupted
    if count == 18:
        assert task.corrupted != tasks(attack, seed=4)[0].corrupted
    for user in range(60):
        given, honest = read(task, user), read(plain, user)
        assert torch.equal(given.inputs, honest.inputs)
        assert torch.equal(given.targets, honest.targets) == (
            user not in task.corrupted or not (honest.targets != 9 - honest.targets).any()
        )


def test_mirrored_and_paired_labels() -> None:
    task, plain = tasks({**MIRROR, "corrupted_fraction": 1.0})
    pairs, _ = tasks(
        {**MIRROR, "corrupted_fraction": 1.0, "labels": "pairs", "pairs": [[7, 1], [1, 7], [3, 0]]}
    )
    turned = {7: 1, 1: 7, 3: 0}
    for user in range(60):
        honest = read(plain, user).targets
        assert torch.equal(read(task, user).targets, CLASSES - 1 - honest)
        expected = [turned.get(label, label) for label in honest.tolist()]
        assert read(pairs, user).targets.tolist() == expected


def test_each_client_shuffles_the_classes_in_its_own_way_and_keeps_to_it() -> None:
    task, plain = tasks({**MIRROR, "corrupted_fraction": 1.0, "labels": "permutation"})
    maps = []
    for user in range(60):
        honest, given = read(plain, user).targets, read(task, user, seed=1).targets
        assert torch.equal(given, read(task, user, seed=2).targets)
        seen = dict(zip(honest.tolist(), given.tolist(), strict=True))
        assert [seen[label] for label in honest.tolist()] == given.tolist()
        assert len(set(seen.values())) == len(seen)
        maps.append(seen)
    of_zero = {seen[0] for seen in maps if 0 in seen}
    assert len(of_zero) > 4


def test_random_labels_are_never_the_right_ones() -> None:
    task, plain = tasks({**MIRROR, "corrupted_fraction": 1.0, "labels": "random"})
    shifts = torch.cat([read(task, u).targets - read(plain, u).targets for u in range(60)])
    assert set((shifts % CLASSES).tolist()) == set(range(1, CLASSES))


@pytest.mark.parametrize("corner", ["top_left", "top_right", "bottom_left", "bottom_right"])
def test_a_backdoor_is_a_square_in_a_corner_and_a_label(corner: str) -> None:
    attack = {**BACKDOOR, "corrupted_fraction": 1.0, "trigger_corner": corner, "trigger_size": 3}
    task, plain = tasks({**attack, "trigger_value": 2.5})
    rows = slice(0, 3) if corner.startswith("top") else slice(5, 8)
    columns = slice(0, 3) if corner.endswith("left") else slice(5, 8)
    square = torch.zeros(8, 8, dtype=torch.bool)
    square[rows, columns] = True
    for user in range(60):
        given, honest = read(task, user), read(plain, user)
        images = given.inputs.view(-1, 8, 8)
        marked = (images[:, square] == 2.5).all(1)
        assert int(marked.sum()) == max(1, int(len(honest) * 0.5 + 0.5))
        assert (given.targets[marked] == 7).all()
        assert torch.equal(given.targets[~marked], honest.targets[~marked])
        assert torch.equal(given.inputs[~marked], honest.inputs[~marked])
        assert torch.equal(images[:, ~square], honest.inputs.view(-1, 8, 8)[:, ~square])


def test_evaluation_is_honest_but_for_the_split_of_the_attack() -> None:
    task, plain = tasks({**BACKDOOR, "corrupted_fraction": 1.0})
    assert task.split_names == ("train", "val", "test", "attack")
    for name in ("train", "val", "test"):
        ours, theirs = task.split(name), plain.split(name)
        count = theirs.num_examples
        assert torch.equal(ours.read_range(0, count).targets, theirs.read_range(0, count).targets)
        assert torch.equal(ours.read_range(0, count).inputs, theirs.read_range(0, count).inputs)
    test, split = plain.split("test"), task.split("attack")
    honest = test.read_range(0, test.num_examples)
    kept = np.flatnonzero(honest.targets.numpy() != 7)
    assert split.num_examples == len(kept) < test.num_examples
    given = split.read_range(0, len(kept))
    assert (given.targets == 7).all()
    images = given.inputs.view(-1, 8, 8)
    assert (images[:, 6:, 6:] == 1.0).all()
    assert torch.equal(images[:, :6], honest.inputs[kept].view(-1, 8, 8)[:, :6])
    # Its users are the test split's, each with what is left of the user's examples.
    owners = np.searchsorted(test.offsets, kept, side="right") - 1
    np.testing.assert_array_equal(np.diff(split.offsets), np.bincount(owners, minlength=10))
    assert split.client_ids() == test.client_ids()
    part = split.read_range(100, 103)
    assert torch.equal(part.inputs, given.inputs[100:103])
    chosen = split.read_examples(np.array([5, 3, 260]), np.random.default_rng(0))
    assert torch.equal(chosen.inputs, given.inputs[[5, 3, 260]])
    user = split.read_user(4, np.random.default_rng(0))
    assert torch.equal(user.inputs, given.inputs[split.offsets[4] : split.offsets[5]])


def test_success_of_flipped_labels_is_counted_on_the_classes_that_are_flipped() -> None:
    task, plain = tasks({**MIRROR, "labels": "pairs", "pairs": [[7, 1]]})
    labels = plain.split("test").read_range(0, plain.split("test").num_examples).targets
    split = task.split("attack")
    assert split.num_examples == int((labels == 7).sum())
    assert (split.read_range(0, split.num_examples).targets == 1).all()
    without, _ = tasks({**MIRROR, "labels": "permutation"})
    assert "attack" not in without.split_names
    with pytest.raises(DataError):
        without.split("attack")


@pytest.fixture(scope="module")
def openimage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openimage") / "openimage.h5"
    write_openimage(path)
    return path


def test_a_task_keeps_what_else_it_can_do(openimage: Path) -> None:
    attack = {"kind": "backdoor", "corrupted_fraction": 1.0, "target_class": 2, "trigger_size": 5}
    changes: dict[str, Any] = {
        "task": {"name": "openimage", "data": str(openimage), "size": 32},
        "model": {"name": "small_cnn"},
    }
    task, plain = tasks({**attack, "trigger_value": 0.5}, **changes)
    assert isinstance(task, TransformsBatches)
    assert type(task.transform) is type(plain.transform)
    assert isinstance(task, GivesExampleLosses)
    assert isinstance(task, HasColumns)
    assert task.column_names == plain.column_names
    # Bytes stay bytes, in all channels, and are drawn into before the transform.
    images = task.split("attack").read_range(0, 3).inputs
    assert images.dtype == torch.uint8
    assert (images[:, :, -5:, -5:] == 128).all()
    kept = np.flatnonzero(plain.read_column("test", "targets", 0, 12) != 2)
    own = task.read_column("attack", "targets", 0, len(kept))
    np.testing.assert_array_equal(own, plain.read_column("test", "targets", 0, 12)[kept])
    assert (own != 2).all()
    np.testing.assert_array_equal(
        task.read_column("train", "targets", 1, 4), plain.read_column("train", "targets", 1, 4)
    )
    digits, _ = tasks(MIRROR)
    assert not isinstance(digits, TransformsBatches)
    assert not isinstance(digits, HasColumns)


class Told:
    """An engine that notes what the split gave each client."""

    description, trains_alone = "told", True

    def __init__(self, split: CorruptedSplit) -> None:
        self.split = split
        self.labels: dict[int, list[int]] = {}

    def train(
        self, users: NDArray[np.int64], round_index: int, central: Tensor
    ) -> Iterator[LocalResult]:
        update = torch.empty_like(central)
        for user in users.tolist():
            examples = self.split.read_user(user, np.random.default_rng(0))
            self.labels[user] = examples.targets.tolist()
            update.fill_(float(user))
            yield LocalResult(user, update, len(examples), 1, torch.zeros(()), len(examples))


def test_corrupted_clients_boost_what_they_send_in_rounds_of_attack() -> None:
    task, plain = tasks(MIRROR)
    split = task.split("train")
    assert isinstance(split, CorruptedSplit)
    inner = Told(split)
    engine = AttackingEngine(inner, split, every=3, boost=5.0)
    users = np.arange(1, 60)
    for index in range(1, 8):
        results = engine.train(users, index, torch.zeros(4))
        sent = {result.user: result.update.clone() for result in results}
        for user in users.tolist():
            active = index % 3 == 0 and user in task.corrupted
            assert torch.equal(sent[user], torch.full((4,), user * (5.0 if active else 1.0)))
            honest = read(plain, user).targets
            expected = CLASSES - 1 - honest if active else honest
            assert inner.labels[user] == expected.tolist()


@pytest.mark.parametrize(
    ("fraction", "cohort", "rate", "boost"),
    [(0.1, 30, 1.0, 10.0), (0.01, 30, 1.0, 30.0), (0.5, 30, 0.5, 4.0), (1.0, 30, 2.0, 1.0)],
)
def test_the_boost_that_replaces_the_model(
    fraction: float, cohort: int, rate: float, boost: float
) -> None:
    attack = {**MIRROR, "corrupted_fraction": fraction, "boost": "replace"}
    config = attacked(
        attack, federated__cohort_size=cohort, federated__central_learning_rate=rate
    ).config
    assert boost_of(config.attack, config.federated) == pytest.approx(boost)
    assert boost_of(AttackOptions(**{**attack, "boost": 2.5}), config.federated) == 2.5


PLANTED: dict[str, Any] = {
    "model": {"name": "mlp"},
    "federated__num_rounds": 25,
    "federated__cohort_size": 30,
    "federated__sampling": "fixed_size",
    "federated__engine": "sequential",
    "evaluation": {"every": 25, "splits": [], "final_splits": ["test", "attack"]},
}


def success(folder: Path, attack: dict[str, Any], **changes: Any) -> tuple[float, float]:
    metrics = run(attacked(attack, **PLANTED, **changes), folder)["metrics"]
    return metrics["test/accuracy"], metrics["attack/accuracy"]


def test_a_replaced_model_has_the_backdoor_and_a_defence_keeps_it_out(tmp_path: Path) -> None:
    replacing = {**BACKDOOR, "boost": "replace"}
    _, without = success(tmp_path / "none", {**replacing, "corrupted_fraction": 0.0})
    main_task, planted = success(tmp_path / "planted", replacing)
    krum = {"name": "krum", "num_attackers": 12, "num_selected": 10}
    _, kept_out = success(tmp_path / "krum", replacing, federated__aggregation=krum)
    assert main_task > 0.5
    assert without < 0.1 < kept_out + 0.1 < 0.5 < 0.9 < planted


def test_norm_bounding_bounds_the_boost_and_says_that_it_protects_nobody(tmp_path: Path) -> None:
    tree = {
        "mechanism": {"name": "gaussian", "clip_norm": 0.1},
        "population_size": 60,
        "noise_multiplier": 0.0,
    }
    # One attacker in 30, who sends 30 times what it has, against whom all others weigh as much.
    replacing = {**BACKDOOR, "corrupted_fraction": 0.02, "boost": "replace"}
    config = attacked(replacing, **PLANTED, privacy=tree)
    summary = run(config, tmp_path / "bounded")
    _, planted = success(tmp_path / "planted", replacing)
    assert summary["metrics"]["attack/accuracy"] < 0.5 < planted
    assert summary["privacy"]["actual"]["epsilon"] == "inf"
    assert any("there is no guarantee" in note for note in summary["privacy"]["notes"])


def test_processes_and_engines_agree(tmp_path: Path) -> None:
    changes = {**PLANTED, "federated__num_rounds": 3}

    def once(name: str, boost: float = 4.0, **more: Any) -> dict[str, float]:
        given = {**BACKDOOR, "boost": boost, "every": 2}
        config = attacked(given, **{**changes, **more})
        metrics: dict[str, float] = run(config, tmp_path / name)["metrics"]
        return metrics

    first = once("one")
    assert once("two", federated__workers=2) == first
    assert once("threads", federated__data_workers=2) == first
    slots = once("slots", federated__engine="vectorized", federated__engine_lanes=4)
    assert slots["attack/loss"] == pytest.approx(first["attack/loss"], rel=1e-4)
    assert once("other", boost=3.0) != first


def test_only_an_attack_changes_the_seed_of_a_private_run() -> None:
    def seed(**changes: Any) -> int:
        return seed_of(make_config("private_federated", **changes))

    assert seed(attack=None) == seed()
    assert seed(attack=MIRROR) != seed()
    assert seed(attack=MIRROR) != seed(attack={**MIRROR, "boost": 2.0})


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({**MIRROR, "target_class": 1}, {}, r"attack\.target_class: unknown key"),
    ({**BACKDOOR, "labels": "mirror"}, {}, r"attack\.labels: unknown key"),
    (
        {"kind": "backdoor", "corrupted_fraction": 0.1},
        {},
        "target_class: required, but",
    ),
    (
        {"kind": "label_flip", "corrupted_fraction": 0.1},
        {},
        "labels: required, but",
    ),
    ({**MIRROR, "labels": "pairs"}, {}, "labels: pairs needs pairs, such as pairs: "),
    ({**MIRROR, "pairs": [[1, 2]]}, {}, "and none else does"),
    ({**MIRROR, "labels": "pairs", "pairs": [[1, 1]]}, {}, "stay as it is"),
    ({**MIRROR, "labels": "pairs", "pairs": [[1, 2], [1, 3]]}, {}, "stand first twice"),
    ({**MIRROR, "corrupted_fraction": 1.1}, {}, "attack.corrupted_fraction"),
    ({**MIRROR, "boost": 0.5}, {}, "attack.boost"),
    (
        {**MIRROR, "boost": "replace"},
        {"federated__central_optimizer": {"name": "adam"}},
        "give boost a number",
    ),
    (
        {**MIRROR, "boost": "replace"},
        {"federated__central_schedule": {"warmup": 3}},
        "at a constant rate",
    ),
    (
        {**MIRROR, "labels": "permutation"},
        {"evaluation__final_splits": ["attack"]},
        "no split 'attack'",
    ),
    (
        MIRROR,
        {
            "evaluation__final_splits": ["attack"],
            "evaluation__adaptation": {"num_steps": 1, "batch_size": 4, "learning_rate": 0.1},
        },
        "fine-tune on attacked examples",
    ),
]


@pytest.mark.parametrize(("attack", "changes", "message"), REFUSED)
def test_what_contradicts_itself_is_refused(
    attack: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        attacked(attack, **changes)


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({**BACKDOOR, "target_class": 10}, "target_class: 10, but the data have 10 classes"),
    ({**BACKDOOR, "trigger_size": 9}, "trigger_size: 9 pixels, but the images have 8 x 8"),
    ({**BACKDOOR, "image_shape": [8, 9]}, "image_shape: 8 x 9, but"),
    ({**BACKDOOR, "image_shape": None}, "give attack.image_shape"),
    ({**MIRROR, "labels": "pairs", "pairs": [[2, 10]]}, r"\[2, 10\] names a class"),
]


@pytest.mark.parametrize(("attack", "message"), UNFIT)
def test_what_does_not_fit_the_data_is_refused(attack: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(attacked(attack), CPU)


class Foreign:
    """A task of any inputs and targets."""

    metrics = ("classification",)
    split_names: tuple[str, ...] = ("train", "test")

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        offsets = np.array([0, len(inputs)])
        self._split = InMemorySplit("any", inputs, targets, offsets, ["someone"])
        shape = tuple(inputs.shape[1:])
        self.facts = DataFacts("made up", "any", "sha256:0", 3, shape, "user")

    def split(self, name: str) -> InMemorySplit:
        return self._split

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


def test_tasks_without_classes_or_images_are_refused() -> None:
    half = AttackOptions(kind="any", corrupted_fraction=0.5)
    flip = partial(label_flip.build, label_flip.Options(labels="mirror"))
    trigger = backdoor.Options(target_class=1)
    bright = trigger.model_copy(update={"trigger_value": 7.0})
    mark = partial(backdoor.build, trigger)
    labels = torch.arange(6) % 3
    with pytest.raises(ConfigError, match="not one class label an example"):
        CorruptedTask(Foreign(torch.rand(6, 4), torch.rand(6, 3)), half, flip, 0)
    with pytest.raises(ConfigError, match=r"type torch\.int64"):
        CorruptedTask(
            Foreign(torch.ones(6, 4, dtype=torch.int64), labels),
            half,
            mark,
            0,
        )
    with pytest.raises(ConfigError, match=r"have the shape \(4, 5\)"):
        CorruptedTask(Foreign(torch.rand(6, 4, 5), labels), half, mark, 0)
    bytes_task = Foreign(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), labels)
    with pytest.raises(ConfigError, match="part of 255"):
        CorruptedTask(bytes_task, half, partial(backdoor.build, bright), 0)
    named = Foreign(torch.rand(6, 1, 8, 8), labels)
    named.split_names = ("train", "attack")
    with pytest.raises(ConfigError, match="a split 'attack' already"):
        CorruptedTask(named, half, flip, 0)
    only = CorruptedTask(
        Foreign(torch.rand(6, 1, 8, 8), torch.ones(6, dtype=torch.int64)),
        half,
        mark,
        0,
    )
    with pytest.raises(DataError, match="no example of the split 'test'"):
        only.split("attack")


def test_central_training_is_not_attacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="clients attack federated training"):
        make_config("central", attack=MIRROR)
    path = tmp_path / "row.yaml"
    path.write_text(yaml.safe_dump(make_tree("central", attack=MIRROR)), encoding="utf-8")
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "attack: clients attack federated training" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_facts_are_those_of_the_task_but_for_the_corrupted() -> None:
    task, plain = tasks(MIRROR)
    extra = {k: v for k, v in task.facts.extra.items() if k != "corrupted_users"}
    assert replace(task.facts, extra=extra) == plain.facts


OWN = """
'''Sends noise of one's own, and trains on honest data.'''
from pydantic import BaseModel, ConfigDict
from pfl_bench.simulation.poison import Poison

class Options(BaseModel):
    '''None.'''
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

class Own(Poison):
    has_target = False

    def forge(self, update, user, round_index):
        return update.new_full(update.shape, float(user + 100 * round_index))

def build(options, facts, example):
    '''Build it.'''
    return Own()
"""


@pytest.fixture
def own_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of plug-ins with an attack, forgotten afterwards."""
    monkeypatch.setattr(plugins, "__path__", [])
    monkeypatch.setenv(plugins.FOLDERS, "")
    folder = tmp_path / "mine"
    (folder / "attacks").mkdir(parents=True)
    (folder / "attacks" / "own.py").write_text(OWN, encoding="utf-8")
    yield folder
    for name in [name for name in sys.modules if name.startswith("pfl_bench.plugins.")]:
        del sys.modules[name]


def test_an_attack_of_one_s_own_forges_what_corrupted_clients_send(own_attacks: Path) -> None:
    plugins.add_folder(own_attacks)
    task, plain = tasks({"kind": "own", "corrupted_fraction": 0.3})
    assert "attack" not in task.split_names
    split = task.split("train")
    assert isinstance(split, CorruptedSplit)
    inner = Told(split)
    engine = AttackingEngine(inner, split, every=2, boost=2.0)
    for index in (1, 2):
        for result in engine.train(np.arange(1, 60), index, torch.zeros(4)):
            forged = index == 2 and result.user in task.corrupted
            wanted = 2.0 * (result.user + 200) if forged else result.user
            assert torch.equal(result.update, torch.full((4,), float(wanted)))
            assert inner.labels[result.user] == read(plain, result.user).targets.tolist()


def test_an_attack_of_one_s_own_runs_on_the_command_line_and_a_name_of_ours_is_refused(
    own_attacks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ["run", "demo/federated", "federated.num_rounds=1", "--plugins", str(own_attacks)]
    row += ["attack={kind: own, corrupted_fraction: 0.2}"]
    assert main([*row, "--out", str(tmp_path / "run")]) == 0
    assert "attack: own by 60 of 300 training users" in (tmp_path / "run" / "run.log").read_text()
    theirs = own_attacks / "attacks" / "label_flip.py"
    theirs.write_text(OWN, encoding="utf-8")
    flip = "attack={kind: label_flip, corrupted_fraction: 0.2, labels: mirror}"
    assert main([*row, flip, "--out", str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "two plug-ins are the attack 'label_flip'" in error
    assert str(theirs) in error
    assert "pfl_bench/simulation/attacks/label_flip.py" in error
    assert not (tmp_path / "other").exists()


def test_what_builds_no_attack_is_refused(own_attacks: Path) -> None:
    text = OWN.replace("class Own(Poison):", "class Own:")
    (own_attacks / "attacks" / "foreign.py").write_text(text, encoding="utf-8")
    plugins.add_folder(own_attacks)
    with pytest.raises(PluginError, match=r"derive from pfl_bench\.simulation\.poison\.Poison"):
        tasks({"kind": "foreign", "corrupted_fraction": 0.3})


def test_an_attack_without_a_hook_is_refused(own_attacks: Path) -> None:
    text = OWN.replace("def forge(", "def forged(")
    (own_attacks / "attacks" / "idle.py").write_text(text, encoding="utf-8")
    plugins.add_folder(own_attacks)
    attack: dict[str, Any] = {"kind": "idle", "corrupted_fraction": 0.3}
    with pytest.raises(PluginError, match=r"/idle\.py: Own\.corrupt and forge are those of Poison"):
        tasks(attack)
    tasks({**attack, "boost": 2.0})  # which multiplies what they send
