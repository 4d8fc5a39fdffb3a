"""Tasks of one's own objects: trained, private, resumed, audited, told apart, and refused."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import pfl_bench
from pfl_bench.cli.main import main
from pfl_bench.client.model_checks import mixing_layer
from pfl_bench.data.code_digest import code_digest
from pfl_bench.federated.parts import build_run
from pfl_bench.runs.preparing import prepare
from pfl_bench.types import UserInputError
from privacy.errors import PlanError
from tests.helpers import REPOSITORY

FACTOR = 1.0
PRIVATE = {
    "federated__num_rounds": 3,
    "federated__cohort_size": 8,
    "privacy__population_size": 24,
    "privacy__noise_cohort_size": 16,
}
EXAMPLES = {"central__num_epochs": 2, "central__batch_size": 16}


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), norm or nn.Identity(), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layers(inputs)) * FACTOR
        return outputs


class Centred(nn.Module):
    """Takes the mean of the batch off, always or in training."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(0) if self.always or self.training else inputs


class Gathering(nn.Module):
    """Gathers what it has seen in training, and hands it on as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += inputs.detach().sum(0)
        return inputs


class Following(nn.Module):
    """Has frozen weights follow what it sees in training."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.middle.data.lerp_(inputs.detach().mean(0), 0.5)
        return inputs + self.middle


class Recalling(nn.Module):
    """Takes off the mean of the first batch, or of all before; no buffer has it."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always
        self.mean: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return inputs
        before = inputs.detach().mean(0) if self.mean is None else self.mean
        if self.always or self.mean is None:
            self.mean = 0.9 * before + 0.1 * inputs.detach().mean(0)
        return inputs - before


class Words(nn.Module):
    """Looks up rows of an embedding by the signs of inputs, and may shrink those that it reads."""

    def __init__(self, max_norm: float | None = None, by_itself: bool = False) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, 8, max_norm=max_norm)
        self.by_itself = by_itself
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        words = (inputs > 0).long()
        if self.by_itself:
            with torch.no_grad():
                functional.embedding(words, self.rows.weight, max_norm=0.1)
        outputs: Tensor = self.head(self.rows(words).mean(1))
        return outputs


def users(count: int, prefix: str, seed: int = 0) -> dict[str, Any]:
    """Users of 6 examples each; inputs shape (6, 6), targets 0 to 2 that the inputs tell."""
    rng = np.random.default_rng(seed)
    found = {}
    for user in range(count):
        targets = rng.integers(0, 3, 6)
        inputs = rng.normal(size=(6, 6)) + 2 * np.eye(6)[targets]
        found[f"{prefix}{user}"] = (inputs, targets)
    return found


def task_of(model: Any = Net, seed: int = 0, **given: Any) -> Any:
    parts = {"val": users(4, "v", 1), "test": users(4, "t", 2), **given}
    return pfl_bench.in_memory_task("coins", users(24, "u", seed), model=model, **parts)


def private(task: Any, **changes: Any) -> Any:
    return pfl_bench.load_row("demo/private_federated", task=task, **{**PRIVATE, **changes})


def seed_of(folder: Path) -> str:
    recorded = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return json.dumps(recorded["private_seed"])


def test_a_private_run_is_trained_released_and_recomputed(tmp_path: Path) -> None:
    task = task_of()
    result = pfl_bench.run_row(private(task), tmp_path)
    assert 0.3 < result.metrics["test/accuracy"] <= 1
    assert result.expected == []
    module = result.model()
    assert isinstance(module, Net)
    assert not module.training
    split = task.split("test")
    examples = split.read_range(0, split.num_examples)
    correct = module(examples.inputs).argmax(1) == examples.targets
    assert float(correct.float().mean()) == pytest.approx(result.metrics["test/accuracy"])
    assert pfl_bench.audit(tmp_path, task=task).words == "passed: recomputed 3 of 3 rounds"
    with pytest.raises(UserInputError, match="other examples or users"):
        pfl_bench.audit(tmp_path, task=task_of(seed=5))
    # The data are nowhere but in the process: without them the records are left.
    del task, split
    gc.collect()
    audit = pfl_bench.audit(tmp_path)
    assert "records alone" in audit.words or audit.verdict == "incomplete"
    said = str(audit.to_json_dict())
    assert "give it as task=... in Python (run_row, audit)" in said
    assert "--data" not in said
    with pytest.raises(UserInputError, match="make it again"):
        result.model()


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    task = task_of()
    whole = pfl_bench.run_row(private(task), tmp_path / "whole")
    with pfl_bench.FederatedTrainer(private(task), out=tmp_path / "cut") as trainer:
        next(trainer)
    again = private(task_of())
    resumed = pfl_bench.FederatedTrainer(again, out=tmp_path / "cut", resume=True).fit()
    assert resumed.metrics == whole.metrics
    with pytest.raises(UserInputError):
        pfl_bench.run_row(private(task_of(seed=3)), tmp_path / "cut", resume=True)


def test_what_a_model_gathers_in_its_buffers_is_refused_under_dp_sgd(tmp_path: Path) -> None:
    task = task_of(lambda: Net(Gathering()))
    row = pfl_bench.load_row("demo/central", task=task, central__num_epochs=1)
    pfl_bench.run_row(row, tmp_path / "central")
    row = pfl_bench.load_row("demo/central_dp", task=task, **EXAMPLES)
    with pytest.raises(UserInputError, match=r"changed its buffer 'layers\.1\.seen'"):
        pfl_bench.run_row(row, tmp_path / "dp")


@pytest.mark.parametrize("selected", [None, "val/loss"])
def test_the_model_of_a_central_run_has_the_statistics_that_it_was_tested_with(
    tmp_path: Path, selected: str | None
) -> None:
    task = task_of(lambda: Net(nn.BatchNorm1d(8)))
    changes: dict[str, Any] = {**EXAMPLES, "evaluation__select_best": selected}
    result = pfl_bench.run_row(pfl_bench.load_row("demo/central", task=task, **changes), tmp_path)
    inputs, targets = (
        np.concatenate(part) for part in zip(*users(4, "t", 2).values(), strict=True)
    )
    with torch.no_grad():
        outputs = result.model()(torch.from_numpy(inputs).float())
    loss = nn.functional.cross_entropy(outputs, torch.from_numpy(targets))
    assert float(loss) == pytest.approx(result.metrics["test/loss"], rel=1e-5)
    assert int(result.state_dict()["layers.1.num_batches_tracked"]) > 0


def test_central_and_example_level_rows_train_and_a_trainer_takes_the_task(tmp_path: Path) -> None:
    task = task_of()
    row = pfl_bench.load_row("demo/central", task=task, central__num_epochs=2)
    assert pfl_bench.run_row(row, tmp_path / "central").metrics["test/accuracy"] > 0.3
    row = pfl_bench.load_row("demo/central_dp", task=task, **EXAMPLES)
    result = pfl_bench.run_row(row, tmp_path / "dp")
    assert result.statement is not None
    assert result.statement.unit == "example"
    assert pfl_bench.audit(tmp_path / "dp", task=task).verdict == "passed"
    # The row's cohort has 60 users.
    many = pfl_bench.in_memory_task("many", users(64, "m", 3), test=users(4, "t", 2), model=Net)
    trainer = pfl_bench.FederatedTrainer("demo/federated", task=many, out=tmp_path / "plain")
    with trainer:
        assert next(trainer).index == 1
    with pytest.raises(UserInputError, match="has its task already"):
        pfl_bench.run_row(row, task=task)


def test_other_data_and_other_code_draw_other_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {"federated__num_rounds": 1}
    tasks = [task_of(), task_of(seed=1)]
    # The same weights, another constant of the module that the model names.
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 0.5)
    tasks.append(task_of())
    tasks.append(task_of(lambda: Net(nn.Dropout(0.1))))
    seeds = []
    for number, task in enumerate(tasks):
        pfl_bench.run_row(private(task, **once), tmp_path / str(number))
        seeds.append(seed_of(tmp_path / str(number)))
    assert len(set(seeds)) == len(tasks)


def test_the_digest_of_code_is_of_what_runs() -> None:
    def made(body: str) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(f"SCALE = 2\ndef helper(x): return {body}\ndef f(x): return helper(x) * SCALE", space)
        return space["f"]

    assert code_digest(made("x + 1")) == code_digest(made("x + 1  # why"))
    assert code_digest(made("x + 1")) != code_digest(made("x + 2"))
    other = made("x + 1")
    other.__globals__["SCALE"] = 3
    assert code_digest(other) != code_digest(made("x + 1"))
    command = (
        "from tests.pfl_bench.federated.test_in_memory_task import Net; "
        "from pfl_bench.data.code_digest import code_digest; print(code_digest(Net))"
    )
    # Another order of sets than in this process.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)}
    done = [sys.executable, "-c", command]
    found = subprocess.check_output(done, text=True, env=environment).strip()
    assert found == code_digest(Net)


def test_datasets_and_users_with_further_examples_are_read() -> None:
    def dataset(seed: int) -> TensorDataset:
        inputs, targets = users(1, "u", seed)["u0"]
        return TensorDataset(torch.tensor(inputs), torch.tensor(targets))

    parts = [{user: dataset(10 * part + user) for user in range(3)} for part in range(2)]
    task = pfl_bench.in_memory_task("sets", parts[0], test=parts[1], model=Net)
    assert task.facts.split_by == "example"
    assert task.split_names == ("train", "test")
    read = task.split("train").read_range(6, 12)
    assert torch.equal(read.inputs, dataset(1).tensors[0].float())
    assert pfl_bench.load_row("demo/federated", task=task).config.evaluation.splits == []


def test_tables_sweeps_and_show_take_it(tmp_path: Path) -> None:
    splits = {"val": users(6, "v", 2), "test": users(6, "t", 3)}
    task = pfl_bench.in_memory_task("few", users(24, "u", 1), **splits, model=Net)
    rows, short = tmp_path / "rows", {"federated__num_rounds": 2, "federated__cohort_size": 4}
    rows.mkdir()
    for name in ("central", "federated"):
        assert main(["copy", f"demo/{name}.yaml", str(rows / f"{name}.yaml")]) == 0
    row = rows / "federated.yaml"
    shown = pfl_bench.show(row, estimate=False, task=task, **short)
    assert shown["config"]["task"]["title"] == "few"
    table = pfl_bench.run_table(rows, 2, out=tmp_path / "table", task=task, **short, **EXAMPLES)
    trained = {(run.summary["setting"], run.summary["seed"]) for run in table}
    assert trained == {(setting, seed) for setting in ("central", "federated") for seed in (0, 1)}
    assert {run.summary["task"] for run in table} == {"in_memory"}
    one = pfl_bench.run_row(pfl_bench.load_row(row, task=task, **short), tmp_path / "one")
    digest = one.summary["model_sha256"]
    assert digest in {run.summary["model_sha256"] for run in table if run.summary["seed"] == 0}
    file = tmp_path / "sweep.yaml"
    grid = "grid: {federated.local_learning_rate: [1.0e-6, 0.5]}"
    file.write_text(f"version: 1\nrow: {row}\nmetric: val/loss\n{grid}\n", encoding="utf-8")
    found = pfl_bench.sweep(file, tmp_path / "sweep", task=task, **short)
    assert {one["federated.local_learning_rate"] for one in found} == {0.5, 1.0e-6}
    assert found[0]["value"] < found[1]["value"]
    for call, given in ((pfl_bench.show, row), (pfl_bench.run_table, rows)):
        with pytest.raises(UserInputError, match=r"^task: 3 is no task; give what"):
            call(given, task=3)


def test_what_a_row_evaluates_and_a_task_lacks_is_left_out(tmp_path: Path) -> None:
    task = pfl_bench.in_memory_task("few", users(6, "u", 1), test=users(2, "t", 2), model=Net)
    chosen = pfl_bench.load_row("flair/table3/federated_imagenet", task=task).config.evaluation
    assert (chosen.splits, chosen.select_best) == ([], None)
    row = "leaf/figure2/e1"
    assert pfl_bench.load_row(row).config.evaluation.strata
    few = {"federated__num_rounds": 1, "federated__cohort_size": 2}
    result = pfl_bench.run_row(pfl_bench.load_row(row, task=task, **few), tmp_path)
    assert 0 <= result.metrics["test/accuracy"] <= 1


@pytest.mark.parametrize("row", ["demo/private_federated", "demo/central_dp"])
def test_weights_that_a_private_model_writes_by_itself_are_refused(
    row: str, tmp_path: Path
) -> None:
    """They would be released as they are: no gradient has them, so nothing clips or noises them."""

    def run(out: str, model: Any) -> Any:
        sequential = {"federated__engine": "sequential"}
        settings = PRIVATE | sequential if "federated" in row else EXAMPLES
        task = pfl_bench.in_memory_task("coins", users(24, "u"), model=model)
        plain = {"evaluation__splits": [], "evaluation__final_splits": ["train"]}
        loaded = pfl_bench.load_row(row, task=task, **settings | plain)
        return pfl_bench.run_row(loaded, tmp_path / out)

    with pytest.raises(UserInputError, match=r"changed its frozen parameter 'layers\.1\.middle'"):
        run("frozen", lambda: Net(Following()))
    with pytest.raises(UserInputError, match="layer rows has max_norm"):
        run("rows", lambda: Words(1.0))
    run("whole", lambda: Words())


@pytest.mark.parametrize("row", ["demo/private_federated", "demo/central_dp"])
@pytest.mark.parametrize("always", [False, True])
def test_a_private_model_that_recalls_other_examples_is_refused(
    row: str, always: bool, tmp_path: Path
) -> None:
    """One user's batch would move what the next client's gives, whatever is clipped there."""
    settings = PRIVATE if "federated" in row else EXAMPLES
    task = task_of(lambda: Net(Recalling(always)))
    with pytest.raises(UserInputError, match="keeps something of earlier examples"):
        pfl_bench.run_row(pfl_bench.load_row(row, task=task, **settings), out=tmp_path)


def test_no_pass_over_examples_moves_what_dp_sgd_trains(tmp_path: Path) -> None:
    task = task_of(lambda: Words(by_itself=True))
    with pytest.raises(UserInputError, match="changed its trained weights by itself"):
        pfl_bench.run_row(
            pfl_bench.load_row("demo/central_dp", task=task, **EXAMPLES), out=tmp_path
        )


def test_a_run_begins_with_the_weights_that_its_model_was_made_with() -> None:
    """Looking at the loss of training users' examples moves nothing, whatever the model does."""
    row = private(task_of(lambda: Words(by_itself=True)))
    parts = build_run(row)
    before = parts.model.vector.clone()
    with ExitStack() as stack:
        prepared = prepare(row, Path("unused"), None, stack, print, parts)
        assert torch.equal(prepared.trainer.state_dict()["central"], before)
        prepared.trainer.load_central()
        prepared.evaluator.evaluate(["train"])
        assert torch.equal(parts.model.vector, before), "which select_best keeps after evaluation"


def test_layers_that_mix_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"layer layers\.1 gives.*GroupNorm"):
        task_of(lambda: Net(Centred(always=True)))
    normed = task_of(lambda: Net(nn.BatchNorm1d(8)))
    public = pfl_bench.load_row("demo/federated", task=normed, federated__cohort_size=8)
    for row in (private(normed), public):
        with pytest.raises((UserInputError, PlanError), match=r"GroupNorm.*FrozenBatchNorm2d"):
            pfl_bench.run_row(row, tmp_path / "a")
    for number, model in enumerate((nn.BatchNorm1d(8), Centred(always=False))):
        task = task_of(lambda model=model: Net(model))
        row = pfl_bench.load_row("demo/central_dp", task=task, **EXAMPLES)
        with pytest.raises(UserInputError, match=r"layers\.1 mixes.*GroupNorm"):
            pfl_bench.run_row(row, tmp_path / str(number))


def test_worker_processes_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"this process alone has.*federated\.workers: 1"):
        pfl_bench.run_row(private(task_of(), federated__workers=2), tmp_path)


X, Y = np.zeros((4, 6)), np.zeros(4, dtype=int)
OBJECTS = np.array([None, "a", 1, 2], dtype=object)


class Frozen(Net):
    """A model whose outputs nothing can be learned from."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).detach()


def test_a_layer_that_makes_nan_does_not_end_the_search_for_mixing_layers() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    nn.init.constant_(layers[0].weight, math.nan)
    assert mixing_layer(layers, torch.ones(3, 2), training=False) is None


class Skipping(nn.Module):
    """Leaves a layer out every second time, and gives outputs of another shape then."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 2), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layer(inputs) if self.calls % 2 else inputs[:, :1]
        return outputs


def test_layers_that_are_left_out_at_times_do_not_end_the_search_for_mixing_layers() -> None:
    assert mixing_layer(Skipping(), torch.ones(3, 2), training=True) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {}}, "train: is empty"),
        ({"train": None}, "train: is a NoneType; give a dict"),
        ({"train": [X]}, "train: is a list; give a dict"),
        ({"train": {"a": (X[:0], Y[:0])}}, "train, user 'a': has 0 inputs.*leave it out"),
        ({"train": {"a": (X, Y[:3])}}, "user 'a': has 4 inputs and 3 targets"),
        ({"train": {"a": (X * np.nan, Y)}}, "user 'a', inputs: example 0 holds NaN"),
        ({"train": {"a": (X + 1e300, Y)}}, "beyond float32"),
        ({"train": {"a": (OBJECTS, Y)}}, "user 'a', inputs: ndarray is no array of numbers"),
        (
            {"train": {"a": (X, Y.astype(float))}},
            r"targets: are torch.float32; the loss takes whole.*\.astype\(int\), .*\.long\(\)",
        ),
        ({"train": {"a": (X, Y + 3)}}, "user 'a', targets: go from 3 to 3.*0 to 2"),
        ({"train": {"a": (X, Y), "b": (X[:, :2], Y)}}, r"user 'b': .*\[2\].*\[6\]"),
        ({"train": {1: (X, Y), "1": (X, Y)}}, "two users are '1'"),
        ({"train": {"a": 7}}, "user 'a': is a int; give a pair"),
        ({"val": {"a": (X, Y), "z": (X, Y)}}, "user 'z' is not in train, and user 'a' is"),
        ({"model": 7}, "model: a int is nothing that makes a module"),
        ({"model": nn.Linear(6, 3)}, "model: a built module"),
        ({"model": dict}, "model: makes a dict"),
        ({"model": lambda size: Net()}, "cannot be made without arguments"),
        ({"model": lambda: nn.Linear(5, 3)}, r"fails on a batch of inputs torch.float32 \[4, 6\]"),
        ({"model": lambda: nn.Unflatten(1, (2, 3))}, r"makes outputs \[4, 2, 3\]"),
        ({"model": Frozen}, "model: its outputs have no gradient"),
        (
            {"loss": lambda o, t: (o.argmax(1) != t).float().mean(), "metrics": ["classification"]},
            "loss: has no gradient",
        ),
        ({"metrics": None}, "metrics: None; give a list of classification"),
        ({"loss": "hinge"}, "loss: 'hinge' is none of cross_entropy"),
        ({"loss": lambda o, t: o.sum()}, "metrics: none"),
        ({"loss": lambda o, t: o, "metrics": ["classification"]}, r"loss: gives \[4, 3\]"),
        ({"metrics": ["speed"]}, r"give a list of classification.* evaluation__metrics="),
        ({"name": ""}, "name: '' is no text"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], message: str) -> None:
    given = {"name": "bad", "train": {"a": (X, Y)}, "model": Net, **changes}
    with pytest.raises(UserInputError, match=message):
        pfl_bench.in_memory_task(given.pop("name"), given.pop("train"), **given)


def test_arrays_that_are_read_only_are_taken_without_a_warning() -> None:
    """As those of pandas are; warnings are errors here."""
    fixed = X.astype(np.float32), Y.copy()
    for array in fixed:
        array.flags.writeable = False
    pfl_bench.in_memory_task("fixed", {"a": fixed}, model=Net)


def test_masked_numbers_are_refused_and_arrays_without_a_mask_taken() -> None:
    masked = np.ma.masked_array(X, mask=np.arange(X.size).reshape(X.shape) == 7)

    class Pairs(Dataset[Any]):
        def __len__(self) -> int:
            return len(masked)

        def __getitem__(self, index: int) -> Any:
            return masked[index], Y[index]

    for given, part in (
        ((masked, Y), "inputs"),
        ((list(masked), Y), "inputs"),
        ((X, np.ma.masked_equal(Y, Y[0])), "targets"),
        (Pairs(), "item 1"),
    ):
        with pytest.raises(UserInputError, match=f"user 'a', {part}: numbers are masked"):
            pfl_bench.in_memory_task("masked", {"a": given}, model=Net)
    pfl_bench.in_memory_task("bare", {"a": (np.ma.masked_array(X), Y)}, model=Net)


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(UserInputError, match="give what pfl_bench"):
        pfl_bench.load_row("demo/central", task="coins")
