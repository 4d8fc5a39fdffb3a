"""The vectorized engine against the sequential one, on every task's models and every setting."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.batched.auto_slots import automatic_slots
from pfl_bench.client.batched.program import LayerProgram
from pfl_bench.client.batched.slot_weights import SlotWeights
from pfl_bench.client.engines import sequential, vectorized
from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.client.engines.vectorized import VectorizedEngine
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import resolve
from pfl_bench.data.in_memory import InMemorySplit
from pfl_bench.federated.parts import (
    FederatedParts,
    build_engine,
    build_forward,
    build_model,
    build_task,
)
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import read_json
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, LocalResult, LocalTraining, RunFolderError
from privacy.ledger import read_ledger
from tests.equivalence.engines import CPU, LOCAL, MODELS, assert_equal, configure, trained
from tests.helpers import make_config, parts_of


class Both:
    """Both engines on one model and split."""

    def __init__(
        self, model: FlatModel, split: Any, forward: Forward, local: LocalTraining, slots: int
    ) -> None:
        self.model, self.said = model, list[str]()
        self.central = model.vector.clone()
        self.sequential = SequentialEngine(
            sequential.Options(), model, split, forward, local, seed=7
        )
        self.vectorized = VectorizedEngine(
            vectorized.Options(slots=slots), model, split, forward, local, 7, self.said.append
        )

    def check(self, users: Any, tolerance: float = 1e-5) -> dict[int, LocalResult]:
        before = self.central.clone()
        theirs = trained(self.sequential, users, self.central)
        ours = trained(self.vectorized, users, self.central)
        assert torch.equal(self.central, before)
        # A step rounds each weight that it moves to half a unit in its last place.
        rounding = 0.5 * torch.finfo(torch.float32).eps * float(self.central.norm())
        assert_equal(ours, theirs, tolerance, rounding)
        return ours


def on_ragged(
    module: nn.Module, local: LocalTraining, slots: int = 3, sizes: tuple[int, ...] = ()
) -> tuple[Both, range]:
    """Users of 1 to 11 examples of 6 features, 4 classes."""
    sizes = sizes or (4, 1, 11, 3, 7, 1, 6)
    rng = np.random.default_rng(0)
    count = sum(sizes)
    inputs = torch.from_numpy(rng.standard_normal((count, 6), dtype=np.float32))
    targets = torch.from_numpy(rng.integers(0, 4, count))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    split = InMemorySplit("train", inputs, targets, offsets, [str(i) for i in range(len(sizes))])
    model = FlatModel(module, CPU)
    return Both(model, split, Forward(module, _Task(), CPU), local, slots), range(len(sizes))


class _Task:
    """Of a task, only the loss: that of examples is to be found without ``example_losses``."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)


def perceptron(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 4))


@pytest.mark.parametrize("name", MODELS)
def test_every_task_s_models_are_trained_alike(name: str, stores: Callable[[str], Path]) -> None:
    options, model_options = MODELS[name]
    task_name = name.partition("-")[0]
    task_options = {"name": task_name, **options}
    if task_name not in ("digits", "synthetic"):
        task_options["data"] = str(stores(task_name))
    resolved = configure(task_options, model_options)
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    local = replace(LOCAL, learning_rate=0.01) if "resnet" in str(model_options) else LOCAL
    # More clients than slots.
    both = Both(model, task.split("train"), forward, local, slots=2)
    both.check(range(4 if task_name == "flair" else 5))
    assert not both.said


def test_images_with_channels_last_have_the_same_masks(stores: Callable[[str], Path]) -> None:
    tree = configure({"name": "femnist", "data": str(stores("femnist"))}, {"name": "cnn"}).tree
    resolved = resolve({**tree, "channels_last": True}, Path("test.yaml"), ())
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    assert forward.channels_last
    Both(model, task.split("train"), forward, LOCAL, slots=2).check(range(3))


@pytest.mark.parametrize("model", ["mlp", "softmax"])
def test_mixed_precision_is_that_of_the_sequential_engine_to_its_rounding(model: str) -> None:
    tree = configure({"name": "digits", "num_users": 60}, {"name": model}).tree
    resolved = resolve({**tree, "precision": "bfloat16"}, Path("test.yaml"), ())
    task = build_task(resolved, CPU)
    flat = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, flat)
    both = Both(flat, task.split("train"), forward, LOCAL, slots=3)
    theirs = trained(both.sequential, range(5), both.central)
    ours = trained(both.vectorized, range(5), both.central)
    for user, expected in theirs.items():
        difference = float((ours[user].update - expected.update).norm())
        assert difference < 0.02 * float(expected.update.norm())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_steps": 2},
        {"epochs": 3, "max_steps": 4},
        {"batches_across_epochs": True},
        {"batches_across_epochs": True, "max_steps": 3},
        {"batch_fraction": 0.5, "epochs": 1},
        {"batch_fraction": 1.0, "epochs": 1},
        {"gradient_clip_norm": 0.2},
        {"gradient_clip_global_norm": 0.3},
        {"proximal_weight": 0.7, "epochs": 3},
        {"proximal_weight": 0.7, "gradient_clip_global_norm": 0.3, "learning_rate": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("slots", [1, 3, 20])
def test_every_option_of_local_training_is_honoured(changes: dict[str, Any], slots: int) -> None:
    both, users = on_ragged(perceptron(dropout=0.4), replace(LOCAL, **changes), slots)
    first = both.check(users)
    # A slot that had a client before is as good as new; the order of users does not matter.
    central = both.central
    assert_equal(trained(both.vectorized, list(users)[::-1], central), first, 1e-6)


@pytest.mark.parametrize(
    "bound", [{"gradient_clip_norm": 0.05}, {"gradient_clip_global_norm": 0.1}]
)
def test_gradients_of_all_forms_are_clipped(
    bound: dict[str, float], stores: Callable[[str], Path]
) -> None:
    """Rows of an embedding, products of a linear layer, dense ones of an LSTM; tokens repeat."""
    task_options = {"name": "reddit", "data": str(stores("reddit"))}
    model_options = {"name": "stacked_lstm", "hidden_size": 8, "embedding_size": 4}
    resolved = configure(task_options, model_options)
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    local = replace(LOCAL, learning_rate=1.0, **bound)
    free = Both(model, task.split("train"), forward, replace(LOCAL, learning_rate=1.0), 3)
    both = Both(model, task.split("train"), forward, local, 3)
    clipped = both.check(range(5))
    unclipped = free.check(range(5))
    assert all(clipped[u].update.norm() < 0.8 * unclipped[u].update.norm() for u in clipped)


@pytest.mark.parametrize("examples", [1, 11])
def test_a_client_that_diverges_harms_no_other(examples: int) -> None:
    both, users = on_ragged(perceptron(), LOCAL, slots=20)
    split = both.vectorized._split
    bad = 2
    # Of all its examples: the first batch, on which the engine is checked, is not finite either.
    first = int(split.offsets[bad])
    split._inputs[first : first + examples] = torch.inf  # type: ignore[attr-defined]
    central = both.central
    theirs = trained(both.sequential, users, central)
    ours = trained(both.vectorized, users, central)
    assert not ours.pop(bad).update.isfinite().all()
    assert not theirs.pop(bad).update.isfinite().all()
    assert_equal(ours, theirs)


@pytest.mark.parametrize("bound", [{"gradient_clip_norm": 0.1}, {"gradient_clip_global_norm": 0.1}])
def test_clipping_does_not_spread_what_is_not_finite(bound: dict[str, float]) -> None:
    both, users = on_ragged(perceptron(), replace(LOCAL, **bound), slots=20)
    split = both.vectorized._split
    split._inputs[int(split.offsets[2])] = torch.nan  # type: ignore[attr-defined]
    central = both.central
    ours, theirs = (trained(e, users, central) for e in (both.vectorized, both.sequential))
    assert not ours.pop(2).update.isfinite().all()
    theirs.pop(2)
    assert_equal(ours, theirs)


class _Scale(nn.Module):
    """A layer that no form for slots is known of."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


def test_an_unknown_layer_goes_through_vmap_and_says_so() -> None:
    torch.manual_seed(0)
    both, users = on_ragged(nn.Sequential(_Scale(), nn.Linear(6, 4)), LOCAL)
    both.check(users)
    assert any("'0' (_Scale)" in text and "vmap" in text for text in both.said)


class _Frozen(nn.Module):
    """One linear layer, part of which is not trained; shared with its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.first.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(6)
        self.last = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(self.first(inputs).tanh())
        return self.last(self.norm(hidden))


def test_frozen_parameters_and_layers_used_twice() -> None:
    torch.manual_seed(0)
    both, users = on_ragged(_Frozen(), replace(LOCAL, gradient_clip_global_norm=0.2))
    both.check(users)


def test_a_trained_layer_used_twice() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    module = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 4))
    both, users = on_ragged(module, replace(LOCAL, gradient_clip_norm=0.1))
    both.check(users)


class _Mixes(nn.Module):
    """Its outputs depend on the other examples of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs - inputs.mean(0))


class _Draws(nn.Module):
    """Noise that is no dropout layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs + torch.randn_like(outputs) if self.training else outputs


class _Bypass(nn.Module):
    """Uses a layer's weights without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.layer.weight.t() + self.layer(inputs)


@pytest.mark.parametrize(
    ("module", "words"),
    [(_Mixes, "several examples"), (_Draws, "random numbers"), (_Bypass, "outside the layer")],
)
def test_a_model_that_slots_would_train_otherwise_is_refused(
    module: type[nn.Module], words: str
) -> None:
    both, users = on_ragged(module(), LOCAL)
    with pytest.raises(ConfigError, match=words):
        list(both.vectorized.train(np.array(users), 1, both.central))


def test_a_loss_that_is_no_mean_of_examples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = lambda _, outputs, targets: functional.cross_entropy(  # noqa: E731
        outputs, targets, reduction="sum"
    )
    monkeypatch.setattr(_Task, "loss", summed)
    both, users = on_ragged(perceptron(), LOCAL)
    with pytest.raises(ConfigError, match="plain mean"):
        list(both.vectorized.train(np.array(users), 1, both.central))


FULL = (
    torch.OutOfMemoryError("as on a GPU"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
)


@pytest.mark.parametrize("error", FULL)
def test_out_of_memory_halves_the_slots_and_goes_on(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, users = on_ragged(perceptron(dropout=0.4), LOCAL, slots=5)
    central = both.central
    theirs = trained(both.sequential, users, central)
    step, failed = VectorizedEngine._step, list[int]()
    before = list[weakref.ref[SlotWeights]]()

    def full(self: VectorizedEngine, clients: Any) -> None:
        if len(clients) > 2 and len(failed) < 4 and clients[0].steps > 1:
            failed.append(len(clients))
            assert self._weights is not None
            before.append(weakref.ref(self._weights))
            raise type(error)(*error.args)  # ``error`` stays, and would keep what is in memory
        step(self, clients)

    def allocate(model: FlatModel, slots: int) -> SlotWeights:
        assert not any(weights() for weights in before), "the memory of those before is not free"
        return SlotWeights(model, slots)

    monkeypatch.setattr(VectorizedEngine, "_step", full)
    monkeypatch.setattr("pfl_bench.client.engines.vectorized.SlotWeights", allocate)
    ours = trained(both.vectorized, users, central)
    assert failed == [5]
    assert any("2 slots" in text for text in both.said)
    assert_equal(ours, theirs)


def test_a_private_run_keeps_its_slots_or_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its noise belongs to their number: with fewer, other sums would have the same noise."""

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("as on a GPU")

    monkeypatch.setattr(VectorizedEngine, "_step", full)
    slots = {"federated__engine": "vectorized", "federated__engine_lanes": 4}
    with pytest.raises(ConfigError, match=r"out of memory .* federated\.engine_lanes=2"):
        run(make_config("private_federated", **slots), tmp_path / "run")


@pytest.mark.parametrize("error", FULL)
@pytest.mark.parametrize(
    ("owner", "method"), [(VectorizedEngine, "_step"), (LayerProgram, "outputs")]
)
def test_one_slot_that_has_no_memory_is_an_error(
    owner: type, method: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, users = on_ragged(perceptron(), LOCAL, slots=1)

    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(owner, method, full)
    with pytest.raises(type(error), match=str(error)[:19]):
        list(both.vectorized.train(np.array(users), 1, both.central))


def test_batches_of_minibatch_sgd_are_not_padded_out_of_proportion() -> None:
    local = replace(LOCAL, epochs=1, batch_fraction=1.0, batch_size=3)
    both, users = on_ragged(perceptron(), local, slots=4, sizes=(1, 2, 40, 1, 2, 1, 1))
    seen: list[int] = []
    assemble = both.vectorized._assemble

    def counted(*given: Any) -> Any:
        batch = assemble(*given)
        seen.append(batch.inputs.shape[0])
        return batch

    both.vectorized._assemble = counted  # type: ignore[method-assign]
    both.check(users)
    # 48 examples in all: the largest client is alone, the others share steps.
    assert max(seen) == 40
    assert sum(seen) < 60


@pytest.mark.parametrize("bias", [False, True])
def test_ten_rows_and_large_weights_are_multiplied_alike(bias: bool) -> None:
    torch.manual_seed(0)
    # 2^18 weights.
    module = nn.Sequential(nn.Linear(6, 1024), nn.ReLU(), nn.Linear(1024, 256, bias), nn.ReLU())
    module.append(nn.Linear(256, 4))
    local = replace(LOCAL, batch_size=10)
    both, users = on_ragged(module, local, slots=2, sizes=(10, 10, 3, 3))
    both.check(users)


def test_engine_slots_are_refused_where_there_are_none() -> None:
    resolved = make_config("federated", federated__engine="sequential", federated__engine_lanes=4)
    with pytest.raises(ConfigError, match="engine_lanes"):
        build_engine(parts_of(resolved), print)


def test_slots_follow_from_the_size_of_the_model() -> None:
    assert [automatic_slots(size, CPU) for size in (650, 48_670, 200_000, 6_603_710)] == [
        24,
        24,
        10,
        1,
    ]


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "reptile", "minibatch_sgd"])
def test_a_run_is_that_of_the_sequential_engine(
    setting: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, Any] = {"name": algorithm}
    named |= {"fedprox": {"proximal_weight": 0.5}, "minibatch_sgd": {"fraction": 0.5}}.get(
        algorithm, {}
    )
    # Cohorts and noise of a private run are its engine's own; here both take the same.
    same = {"privacy__nonce": 11} if setting == "private_federated" else {}
    found = {}
    for engine in ("sequential", "vectorized"):
        config = make_config(setting, federated__engine=engine, federated__algorithm=named, **same)
        run(config, tmp_path / engine)
        state = torch.load(tmp_path / engine / "checkpoints" / "step-00000006.pt")
        found[engine] = state["trainer"]["central"]
    torch.testing.assert_close(found["vectorized"], found["sequential"], rtol=1e-4, atol=1e-6)


def test_a_private_run_is_repeated_bit_for_bit_and_by_no_other_engine(tmp_path: Path) -> None:
    config = make_config(
        "private_federated",
        federated__engine="vectorized",
        federated__engine_lanes=3,
        privacy__nonce=None,
    )
    digests = []
    for name in ("a", "b"):
        run(config, tmp_path / name)
        lines = read_ledger(tmp_path / name / "ledger.jsonl")
        digests.append([line["release_sha256"] for line in lines])
    assert digests[0] == digests[1]
    # Killed after round 4: the rounds behind it are replayed and recorded again as they were.
    (tmp_path / "a" / "summary.json").unlink()
    (tmp_path / "a" / "checkpoints" / "step-00000006.pt").unlink()
    run(config, tmp_path / "a", resume=True)
    lines = read_ledger(tmp_path / "a" / "ledger.jsonl")
    assert [line["release_sha256"] for line in lines] == digests[0]
    environment = read_json(tmp_path / "a" / "environment.json")
    assert environment is not None
    assert environment["engine"] == {"name": "vectorized, 3 slots"}
    (tmp_path / "a" / "summary.json").unlink()
    for changes in ({"federated__engine": "sequential"}, {"federated__engine_lanes": 4}):
        settings = {"federated__engine": "vectorized", "federated__engine_lanes": 3, **changes}
        settings["privacy__nonce"] = None
        if settings["federated__engine"] == "sequential":
            del settings["federated__engine_lanes"]
        with pytest.raises(RunFolderError, match=r"federated\.engine"):
            run(make_config("private_federated", **settings), tmp_path / "a", resume=True)


def test_private_runs_by_two_engines_share_no_noise(tmp_path: Path) -> None:
    def seed(**federated: Any) -> int:
        settings = {f"federated__{key}": value for key, value in federated.items()}
        resolved = make_config("private_federated", **settings, privacy__nonce=None)
        task = build_task(resolved, torch.device("cpu"))
        model = build_model(resolved, task, torch.device("cpu"))
        return FederatedTrainer(
            FederatedParts.build(resolved, task, model), tmp_path, lambda text: None
        )._cohort_seed

    assert seed() == seed(engine="sequential") == seed(data_workers=2)
    others = [seed(engine="vectorized"), seed(engine="vectorized", engine_lanes=2)]
    assert len({seed(), *others}) == 3
