"""The Reddit task: what models get, the loss by hand, columns, bad stores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_bench.client.factored_gradients import FactoredGradients
from pfl_bench.client.flat_model import FlatModel, clip_global, descend
from pfl_bench.client.forward import Forward
from pfl_bench.data import Store, StoreWriter
from pfl_bench.metrics.next_token import NOT_COUNTED
from pfl_bench.types import DataError, DataFacts
from tasks.reddit import models
from tasks.reddit.models import Options as ModelOptions
from tasks.reddit.models import build as build_model
from tasks.reddit.sequences import store_fields
from tasks.reddit.statistics import Options as StatisticsOptions
from tasks.reddit.statistics import format_statistics, statistics
from tasks.reddit.task import Options, RedditTask, build

LENGTH = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two users; ann has 5 sequences of 3 comments in train and one in test, bob one in train."""
    with StoreWriter(
        tmp_path / "r.h5",
        task="reddit",
        variant="test",
        source="by hand",
        split_by="example",
        num_classes=5,
        input_shape=(LENGTH,),
        fields=store_fields(LENGTH),
        extra={"pad_id": 0, "unk_id": 1},
    ) as writer:
        writer.set_names("vocabulary", ["<PAD>", "<UNK>", "<BOS>", "<EOS>", "a"])
        writer.set_names("subreddit", ["art", "pics"])
        tokens = np.arange(20).reshape(5, LENGTH) % 5
        writer.append(
            "train",
            "ann",
            tokens=tokens,
            targets=(tokens + 1) % 5,
            counted=np.array([15, 0, 1, 8, 5]),
            first=np.array([True, False, True, True, False]),
            subreddit=np.array([1, 1, 0, 1, 1]),
        )
        for split, user in (("train", "bob"), ("test", "ann")):
            writer.append(
                split,
                user,
                tokens=np.array([[2, 4, 1, 3]]),
                targets=np.array([[4, 1, 3, 0]]),
                counted=np.array([15]),
                first=np.array([True]),
                subreddit=np.array([0]),
            )
    return tmp_path / "r.h5"


def open_task(path: Path, **options: object) -> RedditTask:
    return build(Options.model_validate({"data": str(path), **options}))


def test_models_get_tokens_and_targets_that_count(path: Path) -> None:
    task = open_task(path)
    examples = task.split("train").read_user(0, np.random.default_rng(0))
    assert examples.inputs.dtype == examples.targets.dtype == torch.int64
    assert examples.inputs.tolist()[0] == [0, 1, 2, 3]
    assert examples.targets.tolist() == [
        [1, 2, 3, 4],
        [-100, -100, -100, -100],
        [4, -100, -100, -100],
        [-100, -100, -100, 1],
        [2, -100, 4, -100],
    ]
    chosen = task.split("train").read_examples(np.array([5, 0]), np.random.default_rng(0))
    assert chosen.inputs.tolist() == [[2, 4, 1, 3], [0, 1, 2, 3]]
    assert task.facts.extra["pad_id"] == 0
    assert task.facts.extra["unk_id"] == 1
    assert task.metrics == ("next_token",)


def test_a_limit_draws_a_subset(path: Path) -> None:
    split = open_task(path, max_examples_per_user=2).split("train")
    drawn = {
        tuple(split.read_user(0, np.random.default_rng(seed)).inputs[:, 0].tolist())
        for seed in range(40)
    }
    assert len(drawn) > 5
    assert {len(firsts) for firsts in drawn} == {2}


def test_the_subreddit_is_a_column_with_names(path: Path) -> None:
    task = open_task(path)
    assert "subreddit" in task.column_names
    assert task.read_column("train", "subreddit", 1, 4).tolist() == [1, 0, 1]
    assert task.column_values("subreddit") == ["art", "pics"]


def test_the_loss_is_the_mean_over_sequences_of_the_sum_over_counted_tokens(path: Path) -> None:
    task, mean = open_task(path), open_task(path, reduction="mean")
    outputs = torch.zeros(2, LENGTH, 5, dtype=torch.float64)
    outputs[0, 1, 3] = math.log(6)  # a probability of 6 / 10
    targets = torch.tensor([[-100, 3, 2, -100], [0, -100, -100, -100]])
    by_hand = (-math.log(0.6) + math.log(5) + math.log(5)) / 2
    assert task.loss(outputs, targets).item() == pytest.approx(by_hand)
    assert mean.loss(outputs, targets).item() == pytest.approx(by_hand / LENGTH)
    nothing = task.loss(outputs.requires_grad_(), torch.full((2, LENGTH), -100))
    nothing.backward()
    assert nothing.item() == 0
    assert outputs.grad is not None
    assert not outputs.grad.any()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_outputs_that_do_not_count_are_not_computed_and_the_loss_is_the_same(
    path: Path,
    reduction: Literal["sum", "mean"],
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = build(Options(data=str(path), reduction=reduction))
    facts = DataFacts("by hand", "test", "sha256:0", 2_000, (LENGTH,), "example")
    model = build_model(ModelOptions(name="stacked_lstm"), facts)
    flat = FlatModel(model, torch.device("cpu"))
    forward = Forward(model, task, torch.device("cpu"), precision)
    # What is left out decides how the products of bfloat16 are rounded.
    closeness = (
        {"rtol": 1e-5, "atol": 1e-7} if precision == "float32" else {"rtol": 0, "atol": 5e-3}
    )
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(0, 2_000, (2, 6, LENGTH), generator=generator)
    computed: list[int] = []
    cross_entropy = models.linear_cross_entropy

    def counting(layer: nn.Linear, rows: Tensor, targets: Tensor) -> Tensor:
        computed.append(len(rows))
        return cross_entropy(layer, rows, targets)

    monkeypatch.setattr(models, "linear_cross_entropy", counting)
    targets[2:4, 1:] = NOT_COUNTED
    for part, counted in ((slice(0, 6), 18), (slice(1, 3), 5)):
        whole = forward.mean_loss(forward.outputs(tokens[part]), targets[part])
        computed.clear()
        loss = forward.loss(tokens[part], targets[part], None)
        assert computed == [counted]
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(
            whole.item(), rel=1e-6 if precision == "float32" else 1e-3
        )
        for ours, theirs in zip(
            torch.autograd.grad(loss, flat.parameters),
            torch.autograd.grad(whole, flat.parameters),
            strict=True,
        ):
            torch.testing.assert_close(ours.to_dense(), theirs.to_dense(), **closeness)
    with FactoredGradients(model, flat.parameters) as products:
        before = flat.vector.clone()
        nothing = forward.loss(tokens, torch.full_like(targets, NOT_COUNTED), None)
        found = torch.autograd.grad(nothing, flat.parameters, allow_unused=True)
        gradients = [gradient for gradient in products.take(found) if gradient is not None]
        descend(flat.slices, clip_global(gradients, 1.0), 1.0)
    assert nothing.item() == 0
    assert torch.equal(flat.vector, before)


def test_statistics_count_comments_of_all_splits(path: Path) -> None:
    with Store(path) as store:
        found = statistics(store, StatisticsOptions(), lambda *_: None)
    here = found["comments_per_user"]
    assert {key: here[key] for key in ("users", "comments", "mean", "sd", "min", "max")} == {
        "users": 2,
        "comments": 5,
        "mean": 2.5,
        "sd": 1.5,
        "min": 1,
        "max": 4,
    }
    assert sum(here["histogram"]["users"]) == 2
    assert found["splits"]["train"] == {
        "users": 2,
        "comments": 4,
        "sequences": 6,
        "tokens": 20,
        "unknown_tokens": 5,
        "counted_tokens": 12,
    }
    assert found["subreddits"] == {"number": 2, "largest": {"art": 3, "pics": 2}}
    text = format_statistics(found)
    assert "1,660,820" in text
    assert "2.50" in text


def test_a_store_of_another_task_and_no_store_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data prepare reddit"):
        open_task(tmp_path / "absent.h5")
    with StoreWriter(
        tmp_path / "other.h5",
        task="other",
        variant="x",
        source="x",
        split_by="example",
        num_classes=5,
        input_shape=(LENGTH,),
        fields=store_fields(LENGTH),
    ) as writer:
        row = {"tokens": [[0] * 4], "targets": [[0] * 4], "counted": [0], "subreddit": [0]}
        writer.append("train", "a", first=np.array([True]), **row)
    with pytest.raises(DataError, match="prepared for task 'other'"):
        open_task(tmp_path / "other.h5")
