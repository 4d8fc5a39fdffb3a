"""Every task's models, and what an engine makes of them, for the tests that compare engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.types import Engine, LocalResult, LocalTraining

CPU = torch.device("cpu")
LOCAL = LocalTraining(epochs=2, batch_size=3, learning_rate=0.05)

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "digits-softmax": ({"num_users": 60}, {"name": "softmax"}),
    "digits-mlp": ({"num_users": 60}, {"name": "mlp"}),
    "femnist-softmax": ({}, {"name": "softmax"}),
    "femnist-cnn": ({}, {"name": "cnn"}),
    "femnist-leaf_cnn": ({}, {"name": "leaf_cnn"}),
    "mnist-lenet": ({"partition": {"kind": "writers"}}, {"name": "lenet"}),
    "mnist-opacus_cnn": ({"partition": {"kind": "writers"}}, {"name": "opacus_cnn"}),
    "fashion_mnist-softmax": (
        {"partition": {"kind": "feature_noise", "num_clients": 60, "level": 0.1}},
        {"name": "softmax"},
    ),
    "cifar10-lenet": (
        {"augment": True, "partition": {"kind": "iid", "num_clients": 60}},
        {"name": "lenet"},
    ),
    "celeba-leaf_cnn": ({"size": 32}, {"name": "leaf_cnn"}),
    "celeba-no_norm": ({"size": 32}, {"name": "leaf_cnn", "normalization": "none"}),
    "synthetic-perceptron": ({"num_tasks": 12}, {"name": "perceptron"}),
    "synthetic-softmax": ({"num_tasks": 12}, {"name": "softmax"}),
    "sent140-bag": ({}, {"name": "bag_log_reg"}),
    "sent140-lstm": ({}, {"name": "stacked_lstm", "embedding_size": 8, "hidden_size": 16}),
    "reddit-lstm": ({}, {"name": "stacked_lstm", "hidden_size": 32, "dropout": 0.3}),
    "reddit-mean": ({"reduction": "mean"}, {"name": "stacked_lstm", "hidden_size": 16}),
    "shakespeare-lstm": ({}, {"name": "stacked_lstm", "hidden_size": 16, "dropout": 0.2}),
    "flair-small_cnn": ({"resize": 32, "crop": 28}, {"name": "small_cnn"}),
    "flair-resnet18": ({"resize": 32, "crop": 32}, {"name": "resnet18"}),
    "flair-lora": ({"resize": 32, "crop": 32}, {"name": "resnet18", "train": "lora"}),
    "flair-film": ({"resize": 32, "crop": 32}, {"name": "resnet18", "train": "film"}),
}


def configure(task: dict[str, Any], model: dict[str, Any], **federated: Any) -> ResolvedConfig:
    sections = {"num_rounds": 1, "cohort_size": 5, "local_batch_size": 3}
    tree = {
        "version": 1,
        "name": "vectorized",
        "seed": 3,
        "device": "cpu",
        "task": task,
        "model": model,
        "federated": {**sections, "local_learning_rate": 0.1, **federated},
        "evaluation": {"final_splits": []},
    }
    return resolve(tree, Path("test.yaml"), ())


def trained(engine: Engine, users: Any, central: Tensor, index: int = 1) -> dict[int, LocalResult]:
    results = engine.train(np.asarray(users), index, central)
    return {r.user: replace(r, update=r.update.clone(), loss=r.loss.clone()) for r in results}


def assert_equal(
    ours: dict[int, LocalResult],
    theirs: dict[int, LocalResult],
    tolerance: float = 1e-5,
    rounding: float = 0.0,
) -> None:
    """Hold updates equal to ``tolerance`` of their norm, and an absolute ``rounding`` more."""
    assert ours.keys() == theirs.keys()
    for user, expected in theirs.items():
        result = ours[user]
        counts = (result.num_examples, result.num_steps, result.num_processed)
        assert counts == (expected.num_examples, expected.num_steps, expected.num_processed)
        scale = float(expected.update.norm())
        assert scale > 0
        assert float((result.update - expected.update).norm()) <= tolerance * scale + rounding
        torch.testing.assert_close(result.loss, expected.loss, rtol=1e-5, atol=1e-6)
