from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.datasets import load_digits

from pfl_bench.types import DataError, Task
from tasks.digits import models
from tasks.digits.task import DigitsTask, Options, build, skewed


@pytest.fixture(scope="module")
def task() -> DigitsTask:
    return build(Options())


def test_every_real_digit_belongs_to_exactly_one_user_of_one_split(task: DigitsTask) -> None:
    typed: Task = task  # the type checker holds the Protocol
    parts = [
        typed.split(name).read_range(0, typed.split(name).num_examples)
        for name in ("train", "val", "test")
    ]
    ours = np.concatenate(
        [np.column_stack([part.inputs * 16, part.targets[:, None]]) for part in parts]
    )
    pixels, labels = load_digits(return_X_y=True)
    theirs = np.column_stack([pixels, labels])
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))


def test_sizes_and_users_are_the_documented_ones(task: DigitsTask) -> None:
    assert task.split_names == ("train", "val", "test")
    sizes = {
        name: (task.split(name).num_users, task.split(name).num_examples)
        for name in task.split_names
    }
    assert sizes == {"train": (300, 1199), "val": (50, 299), "test": (50, 299)}
    ids = [client for name in task.split_names for client in task.split(name).client_ids()]
    assert len(set(ids)) == 400
    counts = np.diff(task.split("train").offsets)
    assert counts.min() == 1
    assert counts.max() >= 5 * np.median(counts)  # users differ in size


def test_split_by_example_each_user_has_a_sixth_of_its_own_to_be_tested_on() -> None:
    task = build(Options(num_users=200, split_by="example"))
    assert task.facts.split_by == "example"
    train, val, test = (task.split(name) for name in ("train", "val", "test"))
    assert train.num_users == 200
    assert val.client_ids() == test.client_ids()
    assert set(val.client_ids()) < set(train.client_ids())  # the small have none
    held = dict(zip(val.client_ids(), np.diff(val.offsets).tolist(), strict=True))
    sizes = dict(zip(train.client_ids(), np.diff(train.offsets).tolist(), strict=True))
    for name, left in sizes.items():
        # Whole sixths of what the user had.
        assert held.get(name, 0) == (left + 2 * held.get(name, 0)) // 6
    assert np.array_equal(val.offsets, test.offsets)
    parts = [part.read_range(0, part.num_examples) for part in (train, val, test)]
    pixels = np.concatenate([part.inputs * 16 for part in parts])
    assert sorted(map(tuple, pixels)) == sorted(map(tuple, load_digits().data))
    # A user's labels are skewed alike in all of its parts.
    agree = []
    for user, (start, stop) in enumerate(pairwise(test.offsets.tolist())):
        place = train.client_ids().index(test.client_ids()[user])
        own = train.read_user(place, np.random.default_rng()).targets.tolist()
        agree += [label in own for label in test.read_range(start, stop).targets.tolist()]
    assert np.mean(agree) > 0.7


def test_facts_say_that_users_are_artificial(task: DigitsTask) -> None:
    assert "dealt artificially" in task.facts.source
    assert task.facts.split_by == "user"
    assert task.facts.num_classes == 10
    assert task.facts.input_shape == (64,)
    assert task.facts.extra == {
        "num_users": 300,
        "label_concentration": 1.0,
        "partition_seed": 0,
    }


def test_the_checksum_depends_on_the_partition_and_nothing_else(task: DigitsTask) -> None:
    np.random.seed(1)  # noqa: NPY002 (no global state may matter)
    torch.manual_seed(1)
    assert build(Options()).facts.checksum == task.facts.checksum
    others = {
        build(Options(partition_seed=1)).facts.checksum,
        build(Options(label_concentration=0.5)).facts.checksum,
        build(Options(num_users=299)).facts.checksum,
    }
    assert len(others | {task.facts.checksum}) == 4


def test_reading_gives_fresh_tensors_and_draws_nothing(task: DigitsTask) -> None:
    split = task.split("train")
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    examples = split.read_user(7, rng)
    assert rng.bit_generator.state == state
    assert examples.inputs.dtype == torch.float32
    assert examples.targets.dtype == torch.int64
    assert examples.inputs.shape == (len(examples), 64)
    assert 0 <= examples.inputs.min() <= examples.inputs.max() <= 1
    again = split.read_range(int(split.offsets[7]), int(split.offsets[8]))
    examples.inputs.fill_(-1.0)
    assert again.inputs.min() >= 0
    assert torch.equal(split.read_user(7, rng).inputs, again.inputs)


def test_chosen_examples_come_in_their_order(task: DigitsTask) -> None:
    split = task.split("val")
    rng = np.random.default_rng(0)
    whole = split.read_range(0, 299)
    for chosen in ([298, 3, 3, 0], []):
        examples = split.read_examples(np.array(chosen, dtype=np.int64), rng)
        assert torch.equal(examples.inputs, whole.inputs[chosen])
        assert torch.equal(examples.targets, whole.targets[chosen])
    for wrong in (-1, 299):
        with pytest.raises(IndexError, match="examples 0 to 298"):
            split.read_examples(np.array([0, wrong]), rng)


@pytest.mark.parametrize("user", [-1, 300])
def test_a_user_that_is_not_there_is_refused(task: DigitsTask, user: int) -> None:
    with pytest.raises(IndexError, match="users 0 to 299"):
        task.split("train").read_user(user, np.random.default_rng(0))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 300)])
def test_a_range_outside_the_split_is_refused(task: DigitsTask, start: int, stop: int) -> None:
    with pytest.raises(IndexError, match="within 0:299"):
        task.split("val").read_range(start, stop)


def test_a_split_that_is_not_there_is_refused(task: DigitsTask) -> None:
    with pytest.raises(DataError, match=r"no split 'dev'.*train, val, test"):
        task.split("dev")


@pytest.mark.parametrize(
    "wrong",
    [{"num_users": 0}, {"num_users": 1200}, {"label_concentration": 0.0}, {"users": 3}],
)
def test_options_outside_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Options(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_users", [1, 6, 1199])
def test_extreme_numbers_of_users_work(num_users: int) -> None:
    task = build(Options(num_users=num_users, label_concentration=1e-3))
    assert task.split("train").num_users == num_users
    assert np.diff(task.split("test").offsets).min() >= 1


@settings(max_examples=40, deadline=None)
@given(data=st.data(), concentration=st.floats(1e-3, 1e6), seed=st.integers(0, 2**32))
def test_dealing_is_a_permutation_in_which_every_user_has_something(
    data: st.DataObject, concentration: float, seed: int
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=60)))
    num_users = data.draw(st.integers(1, len(labels)))
    order, offsets = skewed(labels, num_users, concentration, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(labels)))
    assert len(offsets) == num_users + 1
    assert (offsets[0], offsets[-1]) == (0, len(labels))
    assert (np.diff(offsets) >= 1).all()


def test_a_low_concentration_gives_users_of_few_labels() -> None:
    def mean_labels(concentration: float) -> float:
        split = build(Options(num_users=60, label_concentration=concentration)).split("train")
        targets = split.read_range(0, split.num_examples).targets.numpy()
        return float(
            np.mean(
                [
                    len(set(targets[a:b]))
                    for a, b in zip(split.offsets, split.offsets[1:], strict=False)
                ]
            )
        )

    assert mean_labels(0.05) + 1 < mean_labels(1.0) < mean_labels(100.0) - 0.5


@pytest.mark.parametrize(
    ("options", "num_parameters"),
    [
        (models.Options(name="softmax"), 650),
        (models.Options(name="mlp"), 4810),
        (models.Options(name="mlp", hidden=5), 385),
    ],
)
def test_models_have_the_documented_size_and_give_logits(
    task: DigitsTask, options: models.Options, num_parameters: int
) -> None:
    model = models.build(options, task.facts)
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    examples = task.split("val").read_range(0, 5)
    outputs = model(examples.inputs)
    assert outputs.shape == (5, 10)
    loss = task.loss(outputs, examples.targets)
    assert loss.shape == ()
    loss.backward()  # type: ignore[no-untyped-call]


def test_the_task_can_be_learned(task: DigitsTask) -> None:
    torch.manual_seed(0)
    model = models.build(models.Options(name="mlp"), task.facts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train = task.split("train").read_range(0, 1199)
    test = task.split("test").read_range(0, 299)
    for _ in range(200):
        optimizer.zero_grad()
        task.loss(model(train.inputs), train.targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    accuracy = (model(test.inputs).argmax(1) == test.targets).float().mean()
    assert accuracy > 0.88
