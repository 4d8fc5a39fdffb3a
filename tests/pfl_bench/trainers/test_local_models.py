"""Local models against plain PyTorch, client by client; and what the trainer refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.federated.parts import RunParts, build_model, build_task
from pfl_bench.files import read_metrics
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.trainers import local_only as local_models
from pfl_bench.trainers.local_only import DIVERGED, LocalTrainer
from pfl_bench.types import ConfigError, Examples
from tests.helpers import change_tree, make_tree

CPU = torch.device("cpu")
RATES = [0.03, 0.3, 3.0]


def config(**changes: Any) -> ResolvedConfig:
    tree = make_tree("federated")
    del tree["federated"]
    tree |= {
        # A seed of small clients: 236 examples in all.
        "task": {
            "name": "synthetic",
            "seed": 15,
            "num_tasks": 12,
            "num_features": 6,
            "num_classes": 3,
        },
        "model": {"name": "softmax"},
        "local": {
            "num_epochs": 3,
            "batch_size": 4,
            "learning_rates": RATES,
            "clients_per_round": 5,
        },
        "evaluation": {"every": 1, "splits": ["val"], "final_splits": ["test"]},
    }
    change_tree(tree, changes)
    return resolve(tree, Path("test.yaml"), ())


def trainer(resolved: ResolvedConfig) -> tuple[LocalTrainer, Any, Any]:
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    return (
        LocalTrainer(RunParts.build(resolved, task, model), Path(), lambda text: None),
        model,
        task,
    )


def user_of(split: Any, name: str) -> int | None:
    return list(split.client_ids()).index(name) if name in split.client_ids() else None


def by_hand(
    resolved: ResolvedConfig, task: Any, user: int, rate: float, epochs: int
) -> tuple[torch.Tensor, list[tuple[float, float]]]:
    """A client's weights after so many epochs, and after each its val accuracy and loss."""
    model = build_model(resolved, task, CPU)
    optimizer = torch.optim.SGD(model.parameters, lr=rate)
    train, val = task.split("train"), task.split("val")
    examples = train.read_user(user, np.random.default_rng())
    judge = user_of(val, train.client_ids()[user])
    held_out = examples if judge is None else val.read_user(judge, np.random.default_rng())
    rng = stream(3, Purpose.LOCAL_TRAINING, 0, user)
    judged = []
    for _ in range(epochs):
        for chosen in torch.from_numpy(rng.permutation(len(examples))).split(4):
            optimizer.zero_grad()
            outputs = model.module(examples.inputs[chosen])
            task.loss(outputs, examples.targets[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            outputs = model.module(held_out.inputs)
            right = outputs.argmax(1) == held_out.targets
            loss = float(task.loss(outputs, held_out.targets))
            judged.append((float(right.float().mean()), loss))
    return model.vector, judged


@pytest.mark.parametrize("choose_epoch", [False, True])
@pytest.mark.parametrize("select_by", ["loss", "accuracy"])
def test_each_client_takes_what_does_best_on_its_own_val_examples(
    select_by: str, choose_epoch: bool
) -> None:
    resolved = config(local__choose_epoch=choose_epoch, local__select_by=select_by)
    local, model, task = trainer(resolved)
    rounds = [local.advance(index) for index in range(1, local.total + 1)]
    expected = local.expected_work()
    assert expected.clients == task.split("train").num_users
    assert expected.steps == sum(scalars["systems/steps"] for scalars in rounds)
    assert expected.examples == sum(scalars["systems/examples"] for scalars in rounds)
    state = local.state_dict()
    train = task.split("train")
    chosen = set()
    for user in range(train.num_users):
        candidates = []
        for place, value in enumerate(RATES):
            for done, (accuracy, loss) in enumerate(by_hand(resolved, task, user, value, 3)[1], 1):
                score = (-accuracy, loss) if select_by == "accuracy" else (loss,)
                if choose_epoch or done == 3:
                    candidates.append((score, place, done))
        (*_, loss), rate, epoch = min(candidates)
        assert (state["rate"][user], state["epoch"][user]) == (rate, epoch)
        assert float(state["loss"][user]) == pytest.approx(loss, rel=1e-4)
        vector, _ = by_hand(resolved, task, user, RATES[rate], epoch)
        assert (
            len(local.personal.personalise(train, user))
            == train.offsets[user + 1] - (train.offsets[user])
        )
        torch.testing.assert_close(model.vector, vector, rtol=1e-4, atol=1e-5)
        chosen.add((rate, epoch))
    # The clients differ, or else this has tested little.
    assert len(chosen) > 1


def test_a_tie_goes_to_the_earlier_rate_and_epoch() -> None:
    # Steps so short that they move no weight.
    local, _, _ = trainer(config(local__learning_rates=[1e-30, 1e-31], local__choose_epoch=True))
    local.advance(1)
    state = local.state_dict()
    assert (state["rate"][:5].tolist(), state["epoch"][:5].tolist()) == ([0] * 5, [1] * 5)


def test_a_choice_is_by_all_val_examples_alike_whatever_the_batches() -> None:
    losses = []
    for size in (2, 1000):
        local, _, task = trainer(config(evaluation__batch_size=size, local__clients_per_round=12))
        local.advance(1)
        losses.append(local.state_dict()["loss"])
    assert (np.diff(task.split("val").offsets) % 2 == 1).any()
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("per_round", "most"), [(5, 5), (100, 12)])
def test_no_round_has_more_clients_than_there_are(per_round: int, most: int) -> None:
    local, _, _ = trainer(config(local__clients_per_round=per_round))
    assert local.expected_work().at_once == most == local.advance(1)["train/num_clients"]


def test_models_that_are_trained_again_are_those_that_would_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, model, task = trainer(config(local__choose_epoch=True))
    monkeypatch.setattr(local_models, "MAX_KEPT_BYTES", 0)
    again, other, _ = trainer(config(local__choose_epoch=True))
    for index in range(1, kept.total + 1):
        assert kept.advance(index)["local/val_loss"] == again.advance(index)["local/val_loss"]
    assert "models" in kept.state_dict()
    assert "models" not in again.state_dict()
    for name in ("test", "val"):
        split = task.split(name)
        for user in reversed(range(split.num_users)):
            kept.personalise(split, user)
            with torch.no_grad():
                again.personalise(split, user)
            assert torch.equal(model.vector, other.vector)


def test_a_whole_run_reports_the_chosen_rates_and_beats_the_initial_model(tmp_path: Path) -> None:
    summary = run(config(), tmp_path)
    assert summary["setting"] == "local"
    assert summary["rounds"] == 3
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["train/num_clients"] for row in rows] == [5, 5, 2]
    counts = [[row[f"local/rate_{rate:g}"] for rate in RATES] for row in rows]
    assert [sum(row) for row in counts] == [5, 10, 12]
    assert summary["systems"]["bytes_up"] == 0
    assert summary["systems"]["flops"] > 0
    # Clients whose round has not come have the initial model.
    assert rows[0]["val/loss"] > rows[1]["val/loss"] > rows[2]["val/loss"]
    assert rows[-1]["val/accuracy"] > 0.6


@pytest.mark.parametrize("kept_bytes", [0, 2**20])
def test_a_cut_run_resumes_to_the_same_bits(
    kept_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_models, "MAX_KEPT_BYTES", kept_bytes)
    changes: dict[str, Any] = {"checkpoint": {"every": 1, "keep": 10}}
    whole = run(config(**changes), tmp_path / "whole")
    run(config(**changes), tmp_path / "cut")
    for name in ("summary.json", "checkpoints/step-00000002.pt", "checkpoints/step-00000003.pt"):
        (tmp_path / "cut" / name).unlink()
    resumed = run(config(**changes), tmp_path / "cut", resume=True)
    assert resumed["metrics"] == whole["metrics"]
    states = [load_latest(tmp_path / name / "checkpoints") for name in ("whole", "cut")]
    assert states[0] is not None
    assert states[1] is not None
    for name, tensor in states[0]["trainer"].items():
        assert torch.equal(tensor, states[1]["trainer"][name]), name


@pytest.mark.parametrize(("select_by", "kept_bytes"), [("loss", 2**20), ("accuracy", 0)])
def test_a_rate_that_diverges_is_out_and_a_client_left_with_none_keeps_the_start(
    select_by: str, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_models, "MAX_KEPT_BYTES", kept_bytes)
    changes: dict[str, Any] = {"local__clients_per_round": 12, "local__select_by": select_by}
    resolved = config(local__learning_rates=[1e38, 0.3], **changes)
    notices: list[str] = []
    task = build_task(resolved, CPU)
    losses = [by_hand(resolved, task, user, 1e38, 3)[1][-1][1] for user in range(12)]
    lost = [user for user, loss in enumerate(losses) if not math.isfinite(loss)]
    assert 0 < len(lost) < 12
    local, _, _ = trainer(resolved)
    assert local.advance(1)["local/num_diverged"] == 0
    assert set(local.state_dict()["rate"][lost].tolist()) == {1}
    resolved = config(local__learning_rates=[1e38], **changes)
    model = build_model(resolved, task, CPU)
    start = model.vector.clone()
    local = LocalTrainer(RunParts.build(resolved, task, model), Path(), notices.append)
    assert local.advance(1)["local/num_diverged"] == len(lost)
    assert (local.state_dict()["rate"] == DIVERGED).nonzero().flatten().tolist() == lost
    assert f"the loss of {len(lost)} clients was not finite" in notices[-1]
    assert (f"and {len(lost) - 10} others)" in notices[-1]) == (len(lost) > 10)
    assert "unless their examples hold values that are not finite" in notices[-1]
    local.personalise(task.split("train"), lost[0])
    assert torch.equal(model.vector, start)


def test_epochs_that_a_diverged_rate_leaves_out_cost_nothing() -> None:
    cost = {}
    for choose_epoch in (False, True):
        changes = {"local__learning_rates": [1e38], "local__clients_per_round": 12}
        local, _, task = trainer(config(**changes, local__choose_epoch=choose_epoch))
        cost[choose_epoch] = local.advance(1)
    sizes = np.diff(task.split("train").offsets)
    assert cost[False]["systems/examples"] == 3 * sizes.sum()
    assert cost[True]["systems/steps"] < cost[False]["systems/steps"]
    assert cost[True]["systems/examples"] < cost[False]["systems/examples"]


def test_lost_clients_are_in_no_mean_and_ten_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalTrainer, "_choose", lambda trainer, place, client: (0, 0))
    resolved = config(local__num_clients=11, local__clients_per_round=11)
    task, notices = build_task(resolved, CPU), list[str]()
    parts = RunParts.build(resolved, task, build_model(resolved, task, CPU))
    local = LocalTrainer(parts, Path(), notices.append)
    state = local.state_dict()
    state["rate"].fill_(DIVERGED)
    state["loss"][:2] = torch.tensor([2.0, 4.0])
    read = []

    def named(*name: int) -> np.random.Generator:
        read.extend(name[3:] if name[1] == Purpose.AUGMENTATION else ())
        return stream(*name)

    monkeypatch.setattr(local_models, "stream", named)
    scalars = local.advance(1)
    assert scalars["local/num_diverged"] == 11
    # A mean over those that have a loss.
    assert scalars["local/val_loss"] == 3.0
    # Of the rounds before, too.
    assert local.advance(2)["local/num_diverged"] == 11
    drawn = np.sort(stream(3, Purpose.PERSONAL).choice(12, 11, replace=False)).tolist()
    assert read == drawn
    ids = task.split("train").client_ids()
    names = [f"'{ids[user]}'" for user in drawn]
    assert names[-2] != f"'{ids[9]}'"
    assert f"({', '.join(names[:10])} and 1 others)" in notices[-1]


class Centred(torch.nn.Module):
    """A linear model behind dropout, of inputs less their running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.linear = torch.nn.Linear(6, 3)
        self.dropout = torch.nn.Dropout()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(inputs.mean(0), 0.3)
            self.steps.add_(1)
        return self.linear(self.dropout(inputs - self.mean))


@pytest.mark.parametrize("choose_epoch", [False, True])
def test_dropout_and_running_statistics_are_a_client_s_own(
    choose_epoch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded = []

    def named(seed: int, purpose: int, device: torch.device, *name: int) -> None:
        seeded.append(name[-1])
        seed_torch(seed, purpose, device, *name)

    monkeypatch.setattr(local_models, "seed_torch", named)
    resolved = config(local__learning_rates=[0.1, 0.3], local__choose_epoch=choose_epoch)
    task: Any = build_task(resolved, CPU)
    torch.manual_seed(1)
    module = Centred()
    local = LocalTrainer(
        RunParts.build(resolved, task, FlatModel(module, CPU)), Path(), lambda text: None
    )
    start = {name: value.clone() for name, value in module.state_dict().items()}
    local.advance(1)
    assert not local.keeps_models
    assert seeded == [user for user in range(5) for _ in range(2)]
    state, epochs = local.state_dict(), set()
    train, val, losses = task.split("train"), task.split("val"), state["loss"]
    ids = list(val.client_ids())
    for client in reversed(range(5)):
        module.eval()
        local.personalise(train, client)
        assert not module.training
        # Three passes or fewer, in batches of four.
        epoch = int(state["epoch"][client])
        epochs.add(epoch)
        size = int(train.offsets[client + 1] - train.offsets[client])
        assert module.steps == epoch * math.ceil(size / 4)
        own = ids.index(train.client_ids()[client])
        held_out = val.read_range(*val.offsets[own : own + 2].tolist())
        with torch.no_grad():
            loss = float(task.loss(module(held_out.inputs), held_out.targets))
        assert loss == pytest.approx(float(losses[client]))
    assert (epochs == {3}) != choose_epoch
    # The round of this one has not come.
    local.personalise(train, 11)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in start.items())


def test_some_clients_only_and_the_others_are_left_out_and_counted(tmp_path: Path) -> None:
    summary = run(config(local__num_clients=4, evaluation__splits=[]), tmp_path)
    metrics = summary["metrics"]
    assert metrics["test/num_clients"] == 4
    assert metrics["test/num_clients_without_examples"] == 8
    assert "8 of its 12 clients have no model" in (tmp_path / "run.log").read_text()


def test_clients_that_were_drawn_are_judged_on_their_own_val_examples() -> None:
    resolved = config(local__num_clients=4)
    local, _, task = trainer(resolved)
    for index in range(1, local.total + 1):
        local.advance(index)
    state = local.state_dict()
    assert local._users.tolist() != [0, 1, 2, 3]
    for place, user in enumerate(local._users.tolist()):
        best = min(by_hand(resolved, task, user, rate, 3)[1][-1][1] for rate in RATES)
        assert float(state["loss"][place]) == pytest.approx(best, rel=1e-4)


class Reversed:
    """A split whose users come the other way round, and the last of them not at all."""

    def __init__(self, split: Any) -> None:
        self._split = split
        self._users = list(reversed(range(split.num_users - 1)))
        self.name, self.num_users = split.name, len(self._users)
        self.offsets = np.cumsum([0, *np.diff(split.offsets)[self._users]])
        self.num_examples = int(self.offsets[-1])

    def client_ids(self) -> list[str]:
        ids = self._split.client_ids()
        return [ids[user] for user in self._users]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        return self._split.read_user(self._users[user], rng)

    def read_range(self, start: int, stop: int) -> Examples:
        parts = [self.read_user(user, np.random.default_rng()) for user in range(self.num_users)]
        inputs = torch.cat([part.inputs for part in parts])
        return Examples(inputs[start:stop], torch.cat([part.targets for part in parts])[start:stop])


def test_users_of_val_are_found_by_their_ids_wherever_they_stand() -> None:
    resolved = config(local__clients_per_round=12)
    task: Any = build_task(resolved, CPU)
    original = task.split
    other = {"val": Reversed(original("val")), "test": Reversed(original("test"))}
    task.split = lambda name: other.get(name) or original(name)
    model, notices = build_model(resolved, task, CPU), list[str]()
    local = LocalTrainer(RunParts.build(resolved, task, model), Path(), notices.append)
    assert "1 of 12 clients have no val examples" in notices[-1]
    local.advance(1)
    train, losses = task.split("train"), local.state_dict()["loss"]
    for user in range(12):
        best = min(by_hand(resolved, task, user, rate, 3)[1][-1][1] for rate in RATES)
        assert float(losses[user]) == pytest.approx(best, rel=1e-4)
        local.personalise(train, user)
        own = model.vector.clone()
        place = user_of(other["test"], train.client_ids()[user])
        if place is not None:
            model.vector.zero_()
            found = local.personalise(other["test"], place)
            assert torch.equal(model.vector, own)
            assert len(found) == np.diff(other["test"].offsets)[place]


def test_a_split_of_other_clients_is_refused() -> None:
    resolved = config()
    task: Any = build_task(resolved, CPU)
    test, original = Reversed(task.split("test")), task.split
    task.split = lambda name: test if name == "test" else original(name)
    test.client_ids = lambda: [f"other {user}" for user in range(11)]  # type: ignore[method-assign]
    parts = RunParts.build(resolved, task, build_model(resolved, task, CPU))
    with pytest.raises(ConfigError, match="no client of split 'test' has training examples"):
        LocalTrainer(parts, Path(), lambda text: None)


class OneHot:
    """A split whose targets are labels that each are there or not."""

    def __init__(self, split: Any) -> None:
        self._split = split

    def __getattr__(self, name: str) -> Any:
        return getattr(self._split, name)

    def read_range(self, start: int, stop: int) -> Examples:
        examples = self._split.read_range(start, stop)
        return Examples(examples.inputs, torch.eye(3)[examples.targets])


def test_accuracy_is_asked_for_where_there_is_none() -> None:
    resolved = config(local__select_by="accuracy")
    task: Any = build_task(resolved, CPU)
    original = task.split
    task.metrics, task.split = ("multilabel",), lambda name: OneHot(original(name))
    model = build_model(resolved, task, CPU)
    with pytest.raises(ConfigError, match="no accuracy"):
        LocalTrainer(RunParts.build(resolved, task, model), Path(), lambda text: None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {"name": "digits"}}, "divide the clients"),
        ({"local__num_clients": 13}, "more than the 12 training users"),
        ({"evaluation__select_best": "val/accuracy"}, "select_best"),
        (
            {"evaluation__adaptation": {"num_steps": 1, "batch_size": 1, "learning_rate": 0.1}},
            "adaptation",
        ),
        ({"local__learning_rates": [0.1, 0.1]}, "stands twice"),
        ({"local__learning_rates": []}, "learning_rates"),
        (
            {
                "privacy": {
                    "mechanism": {"name": "gaussian", "clip_norm": 1.0},
                    "population_size": 12,
                    "epsilon": 1.0,
                }
            },
            "never leave their clients",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("without", [1, 12])
def test_a_choice_on_training_examples_is_said_and_called_that(
    without: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LocalTrainer._find_val_users

    def fewer(trainer: LocalTrainer) -> Any:
        users = found(trainer)
        users[:without] = -1
        return users

    resolved = config()
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    notices: list[str] = []
    LocalTrainer(RunParts.build(resolved, task, model), Path(), notices.append)
    assert notices == []
    monkeypatch.setattr(LocalTrainer, "_find_val_users", fewer)
    trained = LocalTrainer(RunParts.build(resolved, task, model), Path(), notices.append)
    (notice,) = notices
    assert f"{without} of 12 clients have no val examples" in notice
    scalars = trained.advance(1)
    # Each mean is over the clients that are judged so, five in the round.
    losses = trained.state_dict()["loss"][:5]
    assert scalars["local/train_loss"] == pytest.approx(float(losses[:without].mean()))
    assert ("local/val_loss" in scalars) == (without == 1)
    if without == 1:
        assert scalars["local/val_loss"] == pytest.approx(float(losses[1:].mean()))


class Scaled:
    """A transform that multiplies training examples by what it draws."""

    def draw(self, count: int, rng: np.random.Generator) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(0.5, 2, (count, 1))).float()

    def __call__(self, inputs: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        return inputs if draws is None else inputs * draws


@pytest.mark.parametrize("has_val", [True, False])
def test_training_augments_and_the_choice_does_not(
    has_val: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = config(local__learning_rates=[0.3], local__clients_per_round=1)
    local, model, task = trainer(resolved)
    transform, train = Scaled(), task.split("train")
    monkeypatch.setattr(local._forward, "_transform", transform)
    # As what a task hides of training examples, and draws of them.
    whole = train.read_range(0, int(train.offsets[1]))
    read = Examples(whole.inputs[1:] + 1, whole.targets[1:])
    monkeypatch.setattr(local._train, "read_user", lambda user, rng: read)
    if not has_val:
        local._val_user[0] = -1
    local.advance(1)
    start = build_model(resolved, task, CPU)
    rng = stream(3, Purpose.LOCAL_TRAINING, 0, 0)
    for _ in range(3):
        order = torch.from_numpy(rng.permutation(len(read)))
        inputs = read.inputs[order] * transform.draw(len(read), rng)
        for batch, targets in zip(inputs.split(4), read.targets[order].split(4), strict=True):
            loss = task.loss(start.module(batch), targets)
            for parameter, gradient in zip(
                start.parameters, torch.autograd.grad(loss, start.parameters), strict=True
            ):
                parameter.data -= 0.3 * gradient
    local.personalise(train, 0)
    torch.testing.assert_close(model.vector, start.vector, rtol=1e-4, atol=1e-5)
    split = task.split("val")
    own = user_of(split, train.client_ids()[0])
    assert own is not None
    evaluated = split.read_range(*split.offsets[own : own + 2].tolist()) if has_val else whole
    with torch.no_grad():
        expected = float(task.loss(model.module(evaluated.inputs), evaluated.targets))
    assert float(local.state_dict()["loss"][0]) == pytest.approx(expected, rel=1e-4)
