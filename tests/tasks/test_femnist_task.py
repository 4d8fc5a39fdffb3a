from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.types import DataError, Task
from tasks.femnist.task import FemnistTask, Options, build
from tests.tasks.femnist_files import make_users, pairs, prepared, write_leaf

USERS = make_users({"f0000_14": 30, "f0001_41": 7})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("femnist")
    write_leaf(folder / "raw" / "all_data_0.json", USERS)
    prepared(folder / "raw", folder / "femnist.h5", train_fraction=1.0, val_fraction=0.0)
    return folder / "femnist.h5"


def open_task(store: Path, max_examples_per_user: int | None = None) -> FemnistTask:
    return build(Options(data=str(store), max_examples_per_user=max_examples_per_user))


def test_users_get_their_images_as_floats(store: Path) -> None:
    task: Task = open_task(store)
    split = task.split("train")
    assert (split.num_users, split.num_examples) == (2, 37)
    assert split.client_ids() == ["f0000_14", "f0001_41"]
    for user, client_id in enumerate(split.client_ids()):
        examples = split.read_user(user, np.random.default_rng(0))
        assert examples.inputs.dtype == torch.float32
        assert examples.targets.dtype == torch.int64
        assert examples.inputs.shape == (len(USERS[client_id][1]), 1, 28, 28)
        stored = (examples.inputs * 255).round().to(torch.uint8).numpy()[:, 0]
        assert pairs(stored, examples.targets.numpy()) == pairs(*USERS[client_id])
        # Exactly v / 255: no second rounding.
        exact = torch.from_numpy(stored).to(torch.float32) / 255
        assert torch.equal(examples.inputs[:, 0], exact)


def test_facts_describe_what_models_see(store: Path) -> None:
    task = open_task(store)
    assert task.facts.input_shape == (1, 28, 28)
    assert task.facts.num_classes == 62
    assert task.facts.variant == "leaf-json"
    assert task.facts.checksum.startswith("sha256:")
    assert task.metrics == ("classification",)
    assert task.split_names == ("train",)


def test_a_range_reads_what_the_users_have(store: Path) -> None:
    split = open_task(store, max_examples_per_user=3).split("train")
    everything = split.read_range(0, 37)
    assert len(everything) == 37  # evaluation is never subsampled
    rng = np.random.default_rng(0)
    whole = open_task(store).split("train")
    users = [whole.read_user(user, rng).inputs for user in range(2)]
    assert torch.equal(torch.cat(users), everything.inputs)


@given(chosen=st.lists(st.integers(0, 36), max_size=50))
def test_chosen_examples_come_in_their_order(store: Path, chosen: list[int]) -> None:
    split = open_task(store).split("train")
    whole = split.read_range(0, 37)
    rng = np.random.default_rng(0)
    examples = split.read_examples(np.array(chosen, dtype=np.int64), rng)
    assert torch.equal(examples.inputs, whole.inputs[chosen])
    assert torch.equal(examples.targets, whole.targets[chosen])
    assert examples.inputs.shape == (len(chosen), 1, 28, 28)


@pytest.mark.parametrize("wrong", [-1, 37])
def test_chosen_examples_that_are_not_there_are_refused(store: Path, wrong: int) -> None:
    split = open_task(store).split("train")
    with pytest.raises(IndexError, match="examples 0 to 36"):
        split.read_examples(np.array([0, wrong]), np.random.default_rng(0))


def test_large_users_are_subsampled_anew_at_each_read(store: Path) -> None:
    split = open_task(store, max_examples_per_user=10).split("train")
    whole = {image.numpy().tobytes() for image in split.read_range(0, 30).inputs}
    rng = np.random.default_rng(0)
    drawn = [split.read_user(0, rng) for _ in range(20)]
    seen = [frozenset(image.numpy().tobytes() for image in part.inputs) for part in drawn]
    assert all(len(part) == 10 for part in seen)  # without replacement
    assert len(set(seen)) == 20
    assert set().union(*seen) == whole  # everyone's turn comes
    again = split.read_user(0, np.random.default_rng(0))
    assert torch.equal(again.inputs, drawn[0].inputs)


def test_small_users_are_read_whole_without_a_draw(store: Path) -> None:
    split = open_task(store, max_examples_per_user=7).split("train")
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    assert len(split.read_user(1, rng)) == 7
    assert rng.bit_generator.state == state


def test_the_loss_is_cross_entropy(store: Path) -> None:
    outputs = torch.zeros(4, 62, requires_grad=True)
    loss = open_task(store).loss(outputs, torch.arange(4))
    assert loss.item() == pytest.approx(np.log(62))
    loss.backward()  # type: ignore[no-untyped-call]


def test_a_missing_file_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data prepare femnist --source DIR --out .*none\.h5"):
        open_task(tmp_path / "none.h5")


def test_a_store_of_another_task_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.h5"
    with StoreWriter(
        path,
        task="flair",
        variant="test",
        source="made by a test",
        split_by="user",
        num_classes=2,
        input_shape=(3,),
        fields={"inputs": FieldSpec("uint8", (3,)), "targets": FieldSpec("uint8")},
    ) as writer:
        ones = np.ones((1, 3), dtype=np.uint8)
        writer.append("train", "a", inputs=ones, targets=ones[:, 0])
    with pytest.raises(DataError, match=r"other\.h5 was prepared for task 'flair'"):
        open_task(path)


def test_users_and_splits_that_are_not_there_are_refused(store: Path) -> None:
    task = open_task(store)
    with pytest.raises(IndexError, match="users 0 to 1"):
        task.split("train").read_user(2, np.random.default_rng(0))
    with pytest.raises(DataError, match="train"):
        task.split("test")


@pytest.mark.parametrize("wrong", [0, -1, 2.5])
def test_a_limit_below_one_is_refused(wrong: float) -> None:
    with pytest.raises(ValidationError):
        Options(data="x.h5", max_examples_per_user=wrong)  # type: ignore[arg-type]
