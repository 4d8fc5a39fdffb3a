from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from pfl_bench.client.costs import StepFlops, measure_step
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import resolve
from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, DataFacts
from tasks.sent140 import models, task

VOCABULARY = ["<PAD>", "<UNK>", "good", "bad", "day", "so", "the"]
MOODS = {2: 1, 3: 0}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users whose tweets are good or bad by one word; the longest has 9 words, one has none."""
    path = tmp_path_factory.mktemp("sent140") / "small.h5"
    rng = np.random.default_rng(0)
    with StoreWriter(
        path,
        task="sent140",
        variant="sent140-csv-partial",
        source="made by a test",
        split_by="user",
        num_classes=2,
        input_shape=(9,),
        fields={"tokens": FieldSpec("uint32", ragged=True), "targets": FieldSpec("uint8")},
        extra={"vocabulary": {"size": len(VOCABULARY)}},
    ) as writer:
        writer.set_names("vocabulary", VOCABULARY)
        for split, users in (("train", 30), ("val", 6), ("test", 6)):
            for user in range(users):
                moods = rng.choice([2, 3], 6)
                tokens = [
                    rng.permutation(np.append(rng.choice([1, 4, 5, 6], rng.integers(0, 8)), mood))
                    for mood in moods
                ]
                targets = np.array([MOODS[int(mood)] for mood in moods])
                if user == 0:
                    tokens[0] = np.array([], dtype=np.int64)
                    tokens[1] = np.array([1, 4, 4, 4, 4, 4, 4, 4, moods[1]])
                rows = [row.astype(np.uint32) for row in tokens]
                targets = targets.astype(np.uint8)
                writer.append(split, f"{split}{user:02d}", tokens=rows, targets=targets)
    return path


def open_task(store: Path, **options: Any) -> task.Sent140Task:
    return task.build(task.Options(data=str(store), **options))


def build(store: Path, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return models.build(models.Options(**options), open_task(store).facts)


def write_vectors(folder: Path) -> Path:
    path = folder / "vectors.txt"
    path.write_text("good 1 2 3\nbad 4 5 6\nnight 7 8 9\n", encoding="utf-8")
    return path


def test_tweets_are_padded_to_the_longest_of_the_store(store: Path) -> None:
    opened = open_task(store)
    split = opened.split("train")
    examples = split.read_user(0, np.random.default_rng(0))
    assert opened.facts.input_shape == (9,)
    assert opened.facts.class_names == ("negative", "positive")
    assert examples.inputs.shape == (6, 9)
    assert examples.inputs.dtype == examples.targets.dtype == torch.int64
    assert not examples.inputs[0].any()
    assert examples.inputs[1, :8].tolist() == [1, 4, 4, 4, 4, 4, 4, 4]
    for row in split.read_range(6, 180).inputs:
        length = int((row != 0).sum())
        assert not row[length:].any()
        assert sum(int(number) in MOODS for number in row) == 1


def test_max_words_cuts_and_pads(store: Path) -> None:
    whole = open_task(store).split("train").read_range(0, 180)
    for width in (4, 25):
        cut = open_task(store, max_words=width)
        inputs = cut.split("train").read_range(0, 180).inputs
        assert cut.facts.input_shape == (width,)
        assert torch.equal(inputs, functional.pad(whole.inputs, (0, width - 9)))


def test_large_users_are_subsampled_and_a_store_without_words_is_refused(
    store: Path, tmp_path: Path
) -> None:
    limited = open_task(store, max_examples_per_user=2).split("train")
    assert len(limited.read_user(3, np.random.default_rng(0))) == 2
    with pytest.raises(DataError, match=r"no file .*data prepare sent140 --source"):
        open_task(tmp_path / "none.h5")


def dense(module: torch.nn.Module, inputs: Tensor) -> Tensor:
    """Logistic regression on the counts, made in full."""
    counts = functional.one_hot(inputs, len(VOCABULARY)).sum(dim=1)[:, 2:].float()
    weight, bias = (parameter for parameter in module.parameters())
    return counts @ weight + bias


def test_the_bag_is_logistic_regression_on_counts_with_the_same_gradient(store: Path) -> None:
    module = build(store, name="bag_log_reg", init="normal")
    assert sum(p.numel() for p in module.parameters()) == 2 * 5 + 2
    # Padding, unknown words, and words that come again.
    inputs = torch.tensor([[2, 2, 1, 3, 0, 0], [1, 1, 0, 0, 0, 0], [6, 5, 4, 6, 6, 6]])
    targets = torch.tensor([0, 1, 1])
    assert torch.allclose(module(inputs), dense(module, inputs), atol=1e-6)
    gradients = [
        torch.autograd.grad(functional.cross_entropy(outputs, targets), list(module.parameters()))
        for outputs in (module(inputs), dense(module, inputs))
    ]
    for ours, wanted in zip(*gradients, strict=True):
        assert torch.allclose(ours, wanted, atol=1e-6)


def test_the_bag_starts_at_zero_unless_told(store: Path) -> None:
    zeros = build(store, name="bag_log_reg")
    assert not any(parameter.any() for parameter in zeros.parameters())
    assert all(p.all() for p in build(store, name="bag_log_reg", init="normal").parameters())


def test_the_lstm_takes_fixed_vectors_from_a_file(store: Path, tmp_path: Path) -> None:
    path = write_vectors(tmp_path)
    module = build(store, name="stacked_lstm", embeddings=str(path))
    table = module.get_parameter("embedding.weight")
    assert table.tolist() == [[0] * 3, [0] * 3, [1, 2, 3], [4, 5, 6], [0] * 3, [0] * 3, [0] * 3]
    assert not table.requires_grad
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    layers = 4 * 100 * (3 + 100 + 1) + 4 * 100 * (100 + 100 + 1)
    assert trained == layers + 101 * 128 + 129 * 2
    options = {"name": "stacked_lstm", "embeddings": str(path), "train_embeddings": True}
    assert build(store, **options).get_parameter("embedding.weight").requires_grad


def test_learned_vectors_are_random_and_trained(store: Path) -> None:
    module = build(store, name="stacked_lstm", embedding_size=8)
    table = module.get_parameter("embedding.weight")
    assert table.shape == (7, 8)
    assert table.requires_grad
    assert table.std() > 0.1


def test_padding_matters_only_where_the_last_position_is_read(store: Path) -> None:
    inputs = torch.tensor([[2, 4, 5, 0, 0, 0], [3, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    options = {"name": "stacked_lstm", "embedding_size": 8, "max_words": 6}
    last_word = build(store, **options)
    assert torch.allclose(last_word(inputs)[1], last_word(inputs[1:2, :1])[0], atol=1e-6)
    assert torch.allclose(last_word(inputs)[0], last_word(inputs[:1, :3])[0], atol=1e-6)
    as_leaf = build(store, read_out="last_position", **options)
    # Shorter rows are padded to max_words first, so both see six steps.
    assert torch.allclose(as_leaf(inputs)[0], as_leaf(inputs[:1, :3])[0], atol=1e-6)
    assert not torch.allclose(as_leaf(inputs)[0], last_word(inputs)[0], atol=1e-4)


def test_the_lstm_reads_the_first_words_alone(store: Path) -> None:
    module = build(store, name="stacked_lstm", embedding_size=8, max_words=3)
    inputs = torch.tensor([[2, 4, 5, 6, 6]])
    assert torch.equal(module(inputs), module(inputs[:, :3]))
    assert not torch.equal(module(inputs), module(inputs[:, 1:]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "stacked_lstm"}, "embeddings = FILE"),
        ({"name": "stacked_lstm", "embeddings": "x", "embedding_size": 8}, "one of the two"),
        ({"name": "stacked_lstm", "embedding_size": 8, "train_embeddings": True}, "of a file"),
        ({"name": "stacked_lstm", "embedding_size": 8, "init": "normal"}, "init: no option"),
        ({"name": "bag_log_reg", "hidden_size": 8}, "hidden_size: no option"),
        ({"name": "bag"}, "bag_log_reg"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        models.Options(**options)


def test_foreign_data_and_a_missing_file_of_vectors_are_refused(store: Path) -> None:
    with pytest.raises(DataError, match=r"embeddings: .*none\.txt does not exist"):
        build(store, name="stacked_lstm", embeddings="none.txt")
    images = DataFacts("x", "digits", "sha256:0", 10, (1, 8, 8), "user")
    with pytest.raises(ConfigError, match=r"numbered words.*digits"):
        models.build(models.Options(name="bag_log_reg"), images)


def make_tree(store: Path, model: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "small",
        "device": "cpu",
        "task": {"name": "sent140", "data": str(store)},
        "model": model,
        **more,
    }


CENTRAL = {
    "central": {
        "num_epochs": 1,
        "batch_size": 30,
        "learning_rate": 0.1,
        "physical_batch_size": 10,
        "data_workers": 0,
    },
    "privacy": {"mechanism": {"name": "gaussian", "clip_norm": 1.0}, "epsilon": 50.0},
}


@pytest.mark.parametrize(
    "model",
    [{"name": "bag_log_reg"}, {"name": "stacked_lstm", "embedding_size": 4, "hidden_size": 5}],
    ids=["bag", "lstm"],
)
def test_example_level_dp_trains_both(store: Path, tmp_path: Path, model: dict[str, Any]) -> None:
    tree = make_tree(store, model, **CENTRAL)
    summary = run(resolve(tree, Path("row.yaml"), ()), tmp_path / "run")
    assert summary["privacy"]["unit"] == "example"
    assert summary["privacy"]["num_parameters"] == summary["num_parameters"]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    "options",
    [
        {"name": "bag_log_reg", "init": "normal"},
        {"name": "stacked_lstm", "embedding_size": 4, "hidden_size": 5, "max_words": 6},
    ],
    ids=["bag", "lstm"],
)
def test_gradients_of_single_examples_are_right(store: Path, options: dict[str, Any]) -> None:
    from opacus import GradSampleModule

    module = build(store, **options)
    inputs = torch.tensor([[2, 2, 1, 3, 0, 0], [1, 1, 0, 0, 0, 0], [6, 5, 4, 6, 6, 6]])
    targets = torch.tensor([0, 1, 1])
    wanted = [
        torch.autograd.grad(
            functional.cross_entropy(module(inputs[i : i + 1]), targets[i : i + 1]),
            list(module.parameters()),
        )
        for i in range(3)
    ]
    wrapped = GradSampleModule(module, loss_reduction="mean")
    functional.cross_entropy(wrapped(inputs), targets).backward()  # type: ignore[no-untyped-call]
    for place, parameter in enumerate(wrapped.parameters()):
        singles = torch.stack([gradients[place] for gradients in wanted])
        assert torch.allclose(parameter.grad_sample, singles, atol=1e-5)  # type: ignore[arg-type]


def test_federated_training_learns_the_words(store: Path, tmp_path: Path) -> None:
    federated = {
        "num_rounds": 40,
        "cohort_size": 10,
        "local_batch_size": 3,
        "local_learning_rate": 1.0,
    }
    evaluation = {"every": 40, "splits": [], "final_splits": ["test"]}
    tree = make_tree(store, {"name": "bag_log_reg"}, federated=federated, evaluation=evaluation)
    summary = run(resolve(tree, Path("row.yaml"), ()), tmp_path / "run")
    # All tweets but one, which has no word, tell their mood.
    assert summary["metrics"]["test/accuracy"] >= 35 / 36


def test_the_sums_of_looked_up_words_are_counted_as_operations(store: Path) -> None:
    opened = task.build(task.Options(data=str(store)))
    model = FlatModel(build(store, name="bag_log_reg"), torch.device("cpu"))
    forward = Forward(model.module, opened, torch.device("cpu"))
    # 9 places times 2 classes, each multiplied and added, forward and back.
    assert measure_step(forward, model, opened.split("train")) == StepFlops(0, 9 * 2 * 2 * 2)
