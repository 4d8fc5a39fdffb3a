"""What tasks on a store share: users, ranges and chosen examples, columns and their names."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.data import FieldSpec, StoredTask, StoreWriter, gather, open_store
from pfl_bench.types import ConfigError, DataError, Examples, HasColumns, Task

FIELDS = {
    "tokens": FieldSpec("uint16", ragged=True),
    "inputs": FieldSpec("float32", (2,)),
    "targets": FieldSpec("uint8"),
    "play": FieldSpec("uint16"),
    "first": FieldSpec("bool"),
}
SIZES = {"a": 4, "b": 1, "c": 7}
TOTAL = sum(SIZES.values())


def arrays_of(first, count):
    """Examples that tell their own number in every field."""
    numbers = np.arange(first, first + count)
    return {
        "tokens": [[number] * (number % 4) for number in numbers.tolist()],
        "inputs": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "targets": numbers % 3,
        "play": numbers % 2,
        "first": numbers % 4 == 0,
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    target = tmp_path_factory.mktemp("stored") / "toy.h5"
    with StoreWriter(
        target,
        task="toy",
        variant="v",
        source="s",
        split_by="example",
        num_classes=3,
        input_shape=(2,),
        fields=FIELDS,
        extra={"artificial_users": True},
    ) as writer:
        first = 0
        for client_id, size in SIZES.items():
            writer.append("train", client_id, **arrays_of(first, size))
            first += size
        writer.append("test", "a", **arrays_of(100, 2))
        writer.set_names("play", ["Hamlet", "Lear"])
    return target


def to_examples(fields):
    """Inputs and targets, and behind the targets the sum and number of each example's tokens."""
    tokens = [[int(row.sum()), len(row)] for row in fields["tokens"]]
    behind = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 2)
    targets = torch.from_numpy(fields["targets"]).to(torch.int64).unsqueeze(1)
    return Examples(torch.from_numpy(fields["inputs"]), torch.cat([targets, behind], dim=1))


class ToyTask(StoredTask):
    metrics = ("classification",)

    def loss(self, outputs, targets):
        return outputs.sum()


def open_task(path, max_examples_per_user=None, **facts):
    fields = ("tokens", "inputs", "targets")
    return ToyTask(open_store(path, "toy"), fields, to_examples, max_examples_per_user, **facts)


def numbers_of(examples):
    """Which examples these are; checks on the way that the fields belong together."""
    numbers = examples.inputs[:, 0].long()
    assert torch.equal(examples.inputs[:, 1].long(), -numbers)
    lengths = numbers % 4
    expected = torch.stack([numbers % 3, numbers * lengths, lengths], dim=1)
    assert torch.equal(examples.targets, expected)
    return numbers.tolist()


def test_it_is_a_task_with_columns(path):
    task: Task = open_task(path, input_shape=(1, 2))
    assert isinstance(task, HasColumns)
    assert task.split_names == ("train", "test")
    assert task.facts.input_shape == (1, 2)
    assert task.facts.artificial_users  # as the store's extra says
    split = task.split("train")
    assert (split.name, split.num_users, split.num_examples) == ("train", 3, TOTAL)
    assert list(split.client_ids()) == list(SIZES)
    with pytest.raises(DataError, match="no split 'val'"):
        task.split("val")


def test_users_and_ranges_are_slices(path):
    split = open_task(path).split("train")
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    users = [numbers_of(split.read_user(user, rng)) for user in range(3)]
    assert users == [[0, 1, 2, 3], [4], list(range(5, 12))]
    assert rng.bit_generator.state == state
    assert numbers_of(split.read_range(3, 6)) == [3, 4, 5]
    assert numbers_of(split.read_range(5, 5)) == []
    for start, stop in ((-1, 2), (3, 2), (0, TOTAL + 1)):
        with pytest.raises(ValueError, match=f"examples {start}:{stop}"):
            split.read_range(start, stop)
    for user in (-1, 3):
        with pytest.raises(IndexError, match="users 0 to 2"):
            split.read_user(user, rng)


@given(chosen=st.lists(st.integers(0, TOTAL - 1), max_size=30))
def test_chosen_examples_come_in_their_order(path, chosen):
    split = open_task(path).split("train")
    indices = np.array(chosen, dtype=np.int64)
    assert numbers_of(split.read_examples(indices, np.random.default_rng(0))) == chosen
    assert split.gather("play", indices).tolist() == [number % 2 for number in chosen]
    ragged = split.gather("tokens", indices)
    assert [row.tolist() for row in ragged] == [[n] * (n % 4) for n in chosen]


@pytest.mark.parametrize("wrong", [-1, TOTAL])
def test_examples_that_are_not_there_are_refused(path, wrong):
    split = open_task(path).split("train")
    with pytest.raises(IndexError, match=f"example {wrong} of split 'train'"):
        split.read_examples(np.array([0, wrong]), np.random.default_rng(0))
    with pytest.raises(IndexError, match=f"example {wrong}"):
        gather(open_store(path, "toy").split("train"), "targets", np.array([wrong]))


def test_a_run_of_neighbours_is_one_read(path, monkeypatch):
    stored = open_store(path, "toy").split("train")
    reads = []
    read = stored.read
    monkeypatch.setattr(stored, "read", lambda *a: reads.append(a) or read(*a))
    gather(stored, "targets", np.array([7, 6, 5, 0, 1]))
    assert reads == [("targets", 0, 2), ("targets", 5, 8)]


def test_large_users_give_a_fresh_subset(path):
    split = open_task(path, max_examples_per_user=4).split("train")
    rng = np.random.default_rng(0)
    drawn = [numbers_of(split.read_user(2, rng)) for _ in range(40)]
    assert all(len(set(own)) == 4 and own == sorted(own) for own in drawn)
    assert {number for own in drawn for number in own} == set(range(5, 12))
    assert len({tuple(own) for own in drawn}) > 10
    assert numbers_of(split.read_user(0, rng)) == [0, 1, 2, 3]
    assert numbers_of(split.read_range(0, TOTAL)) == list(range(TOTAL))


def test_columns_are_the_integers_of_an_example(path):
    task = open_task(path)
    assert task.column_names == ("targets", "play", "first")
    values = task.read_column("train", "play", 2, 6)
    assert (values.dtype, values.tolist()) == (np.int64, [0, 1, 0, 1])
    assert task.read_column("test", "first", 0, 2).tolist() == [1, 0]
    assert task.column_values("play") == ["Hamlet", "Lear"]
    assert task.column_values("targets") is None
    for name in ("tokens", "inputs", "subreddit"):
        with pytest.raises(ConfigError, match=f"column '{name}'.*targets, play, first"):
            task.read_column("train", name, 0, 1)


def test_what_is_no_store_of_the_task_is_refused(path, tmp_path):
    with pytest.raises(DataError, match=r"data prepare toy --source DIR --out .*none\.h5"):
        open_store(tmp_path / "none.h5", "toy")
    with pytest.raises(DataError, match=r"task femnist: .*toy\.h5 was prepared for task 'toy'"):
        open_store(path, "femnist")
