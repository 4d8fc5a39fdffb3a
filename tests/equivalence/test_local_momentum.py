"""Local momentum, weight decay and schedule: torch.optim.SGD begun anew, in both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.engines import sequential
from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.optimizers import rate_factor
from pfl_bench.config.loading import resolve
from pfl_bench.federated.parts import build_algorithm, build_forward, build_model, build_task
from pfl_bench.files import read_metrics
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, LocalTraining
from tests.contracts import small_stores
from tests.equivalence.test_processes import InTurn
from tests.equivalence.test_vectorized import (
    Both,
    _Scale,
    assert_equal,
    configure,
    on_ragged,
    perceptron,
    trained,
)
from tests.helpers import central_of, make_config, seed_of

CPU = torch.device("cpu")
LOCAL = LocalTraining(epochs=3, batch_size=3, learning_rate=0.05)
FULL: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.02}


def halves(index: int) -> float:
    return 0.5**index


STEPS: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"weight_decay": 0.3},
    {"proximal_weight": 0.7},
    FULL,
    {"momentum": 0.9, "max_steps": 1},
    {**FULL, "proximal_weight": 0.7},
    {"weight_decay": 0.3, "proximal_weight": 0.7},
    {**FULL, "gradient_clip_norm": 0.1},
    {**FULL, "proximal_weight": 0.7, "gradient_clip_global_norm": 0.2},
    {**FULL, "batches_across_epochs": True},
    {**FULL, "schedule": halves},
    {"schedule": halves, "proximal_weight": 0.7, "weight_decay": 0.3},
]


def network(hidden: int, dropped: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropped), nn.Linear(hidden, 10)
    )


def by_torch(split: Any, user: int, index: int, local: LocalTraining, hidden: int) -> Tensor:
    """What one client does, with torch.optim.SGD and nothing of ours but the stream's name."""
    module = network(hidden)
    weights = list(module.parameters())
    start = [weight.detach().clone() for weight in weights]
    rate = local.learning_rate * (1.0 if local.schedule is None else local.schedule(index))
    optimizer = torch.optim.SGD(weights, rate, local.momentum, 0.0, local.weight_decay)
    examples = split.read_user(user, np.random.default_rng())
    rng = stream(7, Purpose.LOCAL_TRAINING, index, user)
    orders = [rng.permutation(len(examples)) for _ in range(local.epochs)]
    if local.batches_across_epochs:
        orders = [np.concatenate(orders)]
    size = local.batch_size
    batches = [order[at : at + size] for order in orders for at in range(0, len(order), size)]
    for batch in batches[: local.max_steps]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(examples.inputs[batch]), examples.targets[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        if local.gradient_clip_global_norm is not None:
            nn.utils.clip_grad_norm_(weights, local.gradient_clip_global_norm)
        for weight, first in zip(weights, start, strict=True):
            assert weight.grad is not None
            if local.gradient_clip_norm is not None:
                nn.utils.clip_grad_norm_([weight], local.gradient_clip_norm)
            # FedProx's term is of the objective, and is not clipped.
            weight.grad += local.proximal_weight * (weight.detach() - first)
        optimizer.step()
    moved = nn.utils.parameters_to_vector(weights).detach()
    return moved - nn.utils.parameters_to_vector(start)


# The larger one has gradients that are products (``pfl_bench.client.factored_gradients``).
@pytest.mark.parametrize("hidden", [16, 4096])
@pytest.mark.parametrize("changes", STEPS, ids="-".join)
def test_a_client_does_what_torch_s_sgd_does(changes: dict[str, Any], hidden: int) -> None:
    fewer = replace(LOCAL, epochs=2, max_steps=4) if hidden > 16 else LOCAL
    local = replace(fewer, **changes)
    task = build_task(make_config("federated"), CPU)
    model, split = FlatModel(network(hidden), CPU), task.split("train")
    forward = Forward(model.module, task, CPU)
    engine = SequentialEngine(sequential.Options(), model, split, forward, local, seed=7)
    sizes = np.diff(split.offsets)
    users = [int(sizes.argmin()), 11, 12]
    for user, result in trained(engine, users, model.vector.clone(), index=3).items():
        expected = by_torch(split, user, 3, local, hidden)
        torch.testing.assert_close(result.update, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", STEPS, ids="-".join)
@pytest.mark.parametrize("slots", [2, 20])
def test_slots_take_the_same_steps(changes: dict[str, Any], slots: int) -> None:
    """Slots are refilled, batches padded, and a client that has ended moves another."""
    both, users = on_ragged(perceptron(dropout=0.4), replace(LOCAL, **changes), slots)
    first = both.check(users)
    assert_equal(trained(both.vectorized, list(users)[::-1], both.central), first, 1e-6)
    assert (both.vectorized._velocity is None) == (both.sequential._velocity is None)
    assert (both.vectorized._velocity is None) == ("momentum" not in changes)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("femnist", {"name": "cnn"}),
        ("celeba", {"name": "leaf_cnn"}),
        ("reddit", {"name": "stacked_lstm", "hidden_size": 8, "embedding_size": 4}),
        ("sent140", {"name": "stacked_lstm", "embedding_size": 8, "hidden_size": 8}),
        ("sent140", {"name": "bag_log_reg"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
@pytest.mark.parametrize("bound", [None, 0.2])
def test_gradients_of_all_forms_gain_momentum(
    task: str, model: dict[str, Any], bound: float | None, tmp_path: Path
) -> None:
    """Kernels, rows of an embedding, products of linear layers, an LSTM's; channels last, too."""
    path = tmp_path / "small.h5"
    getattr(small_stores, f"write_{task}")(path)
    options = {"name": task, "data": str(path), **({"size": 32} if task == "celeba" else {})}
    resolved = configure(options, model)
    if "cnn" in model["name"]:
        resolved = resolve({**resolved.tree, "channels_last": True}, Path("test.yaml"), ())
    opened = build_task(resolved, CPU)
    flat = build_model(resolved, opened, CPU)
    forward = build_forward(resolved, opened, flat)
    local = replace(LOCAL, epochs=2, proximal_weight=0.1, gradient_clip_global_norm=bound, **FULL)
    both = Both(flat, opened.split("train"), forward, local, slots=2)
    theirs = both.check(range(4))
    plain = Both(flat, opened.split("train"), forward, replace(local, momentum=0.0), slots=2)
    without = plain.check(range(4))
    assert all(theirs[user].update.norm() > 1.1 * without[user].update.norm() for user in theirs)


def test_layers_without_a_form_for_slots_gain_momentum() -> None:
    torch.manual_seed(0)
    local = replace(LOCAL, proximal_weight=0.3, **FULL)
    both, users = on_ragged(nn.Sequential(_Scale(), nn.Linear(6, 4)), local)
    both.check(users)
    assert any("vmap" in text for text in both.said)


class _Idle(nn.Module):
    """One of its layers takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.layer = nn.Linear(2, 2), nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_without_a_part_in_the_loss_have_gradient_0(momentum: float) -> None:
    torch.manual_seed(0)
    local = replace(LOCAL, momentum=momentum, weight_decay=0.3)
    both, users = on_ragged(_Idle(), local)
    both.check(users)
    (result,) = both.sequential.train(np.array([2]), 1, both.central)
    idle = both.central[:4].double()
    velocity = torch.zeros_like(idle)
    for _ in range(result.num_steps):
        velocity = momentum * velocity + 0.3 * idle
        idle = idle - 0.05 * velocity
    moved = (idle - both.central[:4].double()).float()
    torch.testing.assert_close(result.update[:4], moved, rtol=1e-5, atol=1e-6)


def test_a_client_that_diverges_leaves_its_slot_and_engine_clean() -> None:
    both, users = on_ragged(perceptron(), replace(LOCAL, **FULL), slots=2)
    split = both.vectorized._split
    split._inputs[int(split.offsets[2])] = torch.inf  # type: ignore[attr-defined]
    ours, theirs = (trained(e, users, both.central) for e in (both.vectorized, both.sequential))
    assert not ours.pop(2).update.isfinite().all()
    assert not theirs.pop(2).update.isfinite().all()
    assert_equal(ours, theirs)
    alone, _ = on_ragged(perceptron(), replace(LOCAL, **FULL), slots=2)
    assert_equal(ours, {u: r for u, r in alone.check(users).items() if u != 2})


SGD: dict[str, Any] = {
    "federated__local_momentum": 0.9,
    "federated__local_weight_decay": 5e-4,
    "federated__local_schedule": {"decay": "step", "step_every": 2, "step_factor": 0.5},
    "federated__local_learning_rate": 0.1,
    "federated__local_epochs": 3,
}


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_processes_and_a_resumed_run_give_the_same_bits(setting: str, tmp_path: Path) -> None:
    config = make_config(setting, **SGD, federated__num_rounds=4)
    run(config, tmp_path / "alone")
    run(config, tmp_path / "three", group=InTurn(3))
    whole = central_of(tmp_path / "alone")
    assert torch.equal(central_of(tmp_path / "three"), whole)
    # Killed after round 2.
    (tmp_path / "alone" / "summary.json").unlink()
    (tmp_path / "alone" / "checkpoints" / "step-00000004.pt").unlink()
    run(config, tmp_path / "alone", resume=True)
    assert torch.equal(central_of(tmp_path / "alone"), whole)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "reptile"])
def test_a_run_is_that_of_the_sequential_engine(algorithm: str, tmp_path: Path) -> None:
    named = {"name": algorithm, **({"proximal_weight": 0.5} if algorithm == "fedprox" else {})}
    found = []
    for engine in ("sequential", "vectorized"):
        changes = {**SGD, "federated__engine": engine, "federated__algorithm": named}
        run(make_config("federated", **changes), tmp_path / engine)
        found.append(central_of(tmp_path / engine))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_the_rate_of_a_round_is_logged_where_it_moves(tmp_path: Path) -> None:
    def rates(name: str, **changes: Any) -> list[float | None]:
        run(make_config("federated", **changes), tmp_path / name)
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        return [row.get("train/local_learning_rate") for row in rows]

    assert rates("step", **SGD) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])
    schedule = {"warmup": 2, "decay": "linear"}
    linear = rates("linear", federated__local_schedule=schedule)
    assert linear == pytest.approx([0.15, 0.3, 0.225, 0.15, 0.075, 0.0])
    assert rates("constant", federated__local_momentum=0.5) == [None] * 6


def test_clients_of_a_round_at_rate_0_send_nothing(tmp_path: Path) -> None:
    schedule = {"decay": "linear"}
    for name in ("fedavg", "scaffold", "qfedavg"):
        algorithm = {"name": name, **({"q": 1.0} if name == "qfedavg" else {})}
        changes = {"federated__local_schedule": schedule, "federated__algorithm": algorithm}
        run(make_config("federated", **changes), tmp_path / name)
        norms = [r["train/update_norm"] for r in read_metrics(tmp_path / name / "metrics.jsonl")]
        assert min(norms[:5]) > 0
        assert norms[5] == 0
        assert central_of(tmp_path / name).isfinite().all()


@pytest.mark.parametrize(
    ("algorithm", "changes", "words"),
    [
        ({"name": "scaffold"}, {"local_momentum": 0.9}, "mean gradients of plain local SGD"),
        (
            {"name": "qfedavg", "q": 1.0},
            {"local_momentum": 0.9},
            "local_momentum: 0.9 with qfedavg",
        ),
        ({"name": "qfedavg", "q": 1.0}, {"local_weight_decay": 0.1}, "without a penalty"),
        (
            {"name": "minibatch_sgd", "fraction": 0.5},
            {"local_momentum": 0.9},
            "it would change nothing",
        ),
    ],
)
def test_algorithms_of_plain_sgd_refuse_the_rest(
    algorithm: dict[str, Any], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    federated = {f"federated__{key}": value for key, value in changes.items()}
    config = make_config("federated", federated__algorithm=algorithm, **federated)
    with pytest.raises(ConfigError, match=words):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("local_momentum", 1.0),
        ("local_momentum", -0.1),
        ("local_momentum", float("nan")),
        ("local_weight_decay", -1e-4),
        ("local_weight_decay", float("inf")),
        ("local_schedule", {"decay": "exponential"}),
        ("local_schedule", {"decay": "sometimes"}),
        ("local_schedule", {"every": 10}),
    ],
)
def test_bad_values_are_refused_with_their_place(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"federated\.{key}"):
        make_config("federated", **{f"federated__{key}": value})


def test_each_setting_changes_a_private_run_s_seed() -> None:
    keys = ("local_schedule", "local_momentum", "local_weight_decay")
    seeds = {
        seed_of(make_config("private_federated", **{key: value}))
        for key, value in SGD.items()
        if key.removeprefix("federated__") in keys
    }
    assert len(seeds | {seed_of(make_config("private_federated"))}) == 4


def test_the_algorithm_s_clients_have_what_the_configuration_says() -> None:
    config = make_config("federated", **SGD)
    options = config.config.federated
    assert options is not None
    local = build_algorithm(config, options).local_training
    assert (local.momentum, local.weight_decay) == (0.9, 5e-4)
    assert [local.rate(index) for index in (1, 2, 3, 6)] == [
        0.1 * rate_factor(options.local_schedule, index, 6) for index in (1, 2, 3, 6)
    ]
