"""Mocha against direct solutions of the problem that it solves; and what the trainer refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.federated.parts import RunParts, build_model, build_task
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.trainers.mocha import trainer as mocha
from pfl_bench.trainers.mocha.dual import (
    LOSSES,
    independent_relationship,
    learned_relationship,
    local_ascent,
    mean_relationship,
    sigma_prime,
)
from pfl_bench.trainers.mocha.trainer import MultitaskTrainer
from pfl_bench.types import ConfigError, DataError, Examples
from tests.helpers import change_tree, make_tree

CPU = torch.device("cpu")
# A seed of small clients: 77 examples in all.
TASK = {
    "name": "synthetic",
    "seed": 34,
    "num_tasks": 5,
    "num_features": 4,
    "num_classes": 3,
}


def config(**changes: Any) -> ResolvedConfig:
    tree = make_tree("federated")
    del tree["federated"]
    tree |= {
        "task": dict(TASK),
        "model": {"name": "softmax"},
        "multitask": {"num_rounds": 4, "regularization": 0.1},
        "evaluation": {"every": 2, "splits": ["val"], "final_splits": ["test"]},
    }
    change_tree(tree, changes)
    return resolve(tree, Path("test.yaml"), ())


def trainer(resolved: ResolvedConfig) -> tuple[MultitaskTrainer, Any, Any]:
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    return (
        MultitaskTrainer(RunParts.build(resolved, task, model), Path(), lambda text: None),
        model,
        task,
    )


def solve_directly(task: Any, relationship: np.ndarray, weight: float) -> tuple[np.ndarray, float]:
    """Logistic loss: W and its objective by L-BFGS on the primal problem, all clients at once."""
    split = task.split("train")
    examples = split.read_range(0, split.num_examples)
    inputs = np.hstack([examples.inputs.numpy(), np.ones((split.num_examples, 1))])
    signs = np.where(np.eye(3)[examples.targets.numpy()] > 0, 1.0, -1.0)
    owner = np.repeat(np.arange(split.num_users), np.diff(split.offsets))
    inverse = np.linalg.inv(relationship)
    shape = (split.num_users, inputs.shape[1], 3)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        models = flat.reshape(shape)
        margins = signs * np.einsum("nd,ndk->nk", inputs, models[owner])
        related = np.einsum("tu,udk->tdk", inverse, models)
        value = np.logaddexp(0, -margins).sum() + weight / 2 * (models * related).sum()
        slopes = -signs * expit(-margins)
        gradient = weight * related
        np.add.at(gradient, owner, inputs[:, :, None] * slopes[:, None, :])
        return float(value), gradient.ravel()

    found = minimize(
        objective,
        np.zeros(np.prod(shape)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-9},
    )
    return found.x.reshape(shape), float(found.fun)


def gap_after(resolved: ResolvedConfig, rounds: int) -> tuple[MultitaskTrainer, Any, Any, float]:
    local, model, task = trainer(resolved)
    for index in range(1, rounds + 1):
        scalars = local.advance(index)
        assert scalars["multitask/duality_gap"] > -1e-9
    return local, model, task, scalars["multitask/duality_gap"] / scalars["multitask/primal"]


@pytest.mark.parametrize(
    ("relationship", "participation"), [("independent", 1.0), ("mean", 1.0), ("mean", 0.5)]
)
def test_the_gap_closes_and_the_models_are_those_of_a_direct_solver(
    relationship: str, participation: float
) -> None:
    resolved = config(
        multitask__loss="logistic",
        multitask__relationship=relationship,
        multitask__participation=participation,
        multitask__local_epochs=3,
        multitask__regularization=1.0,
    )
    local, model, task, gap = gap_after(resolved, 40 if participation == 1 else 100)
    assert gap < 1e-6
    omega = mean_relationship(5, 0.1) if relationship == "mean" else independent_relationship(5)
    expected, _ = solve_directly(task, omega, 1.0)
    split = task.split("train")
    for user in range(split.num_users):
        local.personalise(split, user)
        weights, bias = model.slices
        np.testing.assert_allclose(weights.T, expected[user, :-1], atol=1e-3)
        np.testing.assert_allclose(bias, expected[user, -1], atol=1e-3)


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_with_hinge_loss_the_gap_closes_too(participation: float) -> None:
    resolved = config(
        multitask__relationship="mean",
        multitask__participation=participation,
        multitask__local_epochs=5,
        multitask__regularization=1.0,
    )
    assert gap_after(resolved, 5)[3] > 0.05
    assert gap_after(resolved, 200)[3] < 5e-3


def test_steps_that_ignore_one_another_would_not_ascend() -> None:
    """sigma' is needed: with 1 in its place the dual falls where clients are alike."""
    resolved = config(
        multitask__relationship="mean", multitask__mean_ridge=0.01, multitask__local_epochs=20
    )
    duals = {}
    for is_safe in (True, False):
        local, _, _ = trainer(resolved)
        if not is_safe:
            local._sigma_prime = 1.0
        duals[is_safe] = [local.advance(index)["multitask/dual"] for index in range(1, 9)]
    assert np.all(np.diff(duals[True]) >= -1e-9)
    assert np.any(np.diff(duals[False]) < 0)


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_a_coordinate_step_minimises_its_parabola_and_conjugate(name: str) -> None:
    loss, rng = LOSSES[name], np.random.default_rng(0)
    grid = np.linspace(0, 1, 20001)
    for _ in range(200):
        dual, margin = rng.random(1), rng.normal(scale=5, size=1)
        curvature = float(np.exp(rng.normal(scale=2)))
        value = loss.conjugate(grid) + (grid - dual) * margin + curvature / 2 * (grid - dual) ** 2
        found = loss.maximise(dual, margin, curvature)
        assert found[0] == pytest.approx(grid[value.argmin()], abs=1e-4)


def test_a_logistic_step_finds_its_root_however_large_features_are() -> None:
    """Newton's method alone goes to and fro where the curvature is large."""
    rng = np.random.default_rng(6)
    for curvature in (1e-6, 1.0, 1e2, 1e4, 1e6):
        dual, margin = rng.random(200), rng.normal(scale=30, size=200)
        found = LOSSES["logistic"].maximise(dual, margin, curvature)
        # At the root the log odds are what the margin and the change come to.
        odds = -margin - curvature * (found - dual)
        np.testing.assert_allclose(found, expit(odds), atol=1e-9 * (1 + curvature))


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_conjugates_are_the_losses_own(name: str) -> None:
    """conjugate(-a) = max over margins of -a m - loss(m), within 0 to 1."""
    loss = LOSSES[name]
    margins = np.linspace(-40, 40, 400001)
    for dual in (0.0, 0.1, 0.5, 0.9, 1.0):
        largest = (-dual * margins - loss.value(margins)).max()
        assert float(loss.conjugate(np.array([dual]))[0]) == pytest.approx(largest, abs=1e-6)


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_an_example_of_zeros_leaves_no_gap(name: str) -> None:
    """Without a bias no model changes its loss, and its dual variable is worth as much."""
    loss, rng = LOSSES[name], np.random.default_rng(5)
    features, signs = rng.normal(size=(6, 3)), rng.choice([-1.0, 1.0], (6, 2))
    features[[0, 4]] = 0.0
    duals, model = np.zeros((6, 2)), np.zeros((3, 2))
    for _ in range(300):
        model += local_ascent(features, signs, duals, model, 1.0, rng.permutation(6), loss)
    penalty = (model**2).sum() / 2
    primal = loss.value(signs * (features @ model)).sum() + penalty
    assert primal == pytest.approx(-loss.conjugate(duals).sum() - penalty)


def random_relationship(rng: np.random.Generator, count: int) -> np.ndarray:
    root = rng.normal(size=(count, count))
    matrix = root @ root.T + 1e-3 * np.eye(count)
    return matrix / np.trace(matrix)


def test_the_learned_relationship_is_the_best_of_trace_one() -> None:
    rng = np.random.default_rng(1)
    for count, width in ((4, 9), (7, 3)):
        models = rng.normal(size=(count, width))
        smoothing = 1e-2
        epsilon = smoothing * (models**2).sum() / count

        gram = models @ models.T + epsilon * np.eye(count)

        best = learned_relationship(models, smoothing)
        assert np.trace(best) == pytest.approx(1)
        assert np.linalg.eigvalsh(best)[0] > 0
        lowest = np.trace(np.linalg.solve(best, gram))
        for step in (1e-4, 1e-2, 0.3, 1.0):
            for _ in range(50):
                other = (1 - step) * best + step * random_relationship(rng, count)
                assert lowest <= np.trace(np.linalg.solve(other, gram)) * (1 + 1e-12)
        # Zhang and Yeung's closed form, by another route.
        values, vectors = np.linalg.eigh(gram)
        root = (vectors * np.sqrt(values)) @ vectors.T
        np.testing.assert_allclose(best, root / np.trace(root), atol=1e-10)


def test_models_that_are_all_zero_tell_nothing_of_their_relationship() -> None:
    learned = learned_relationship(np.zeros((3, 2)), 1e-3)
    np.testing.assert_array_equal(learned, independent_relationship(3))


def test_the_mean_relationship_measures_the_distance_from_the_mean() -> None:
    models = np.random.default_rng(2).normal(size=(5, 3))
    omega = mean_relationship(5, 0.1)
    assert np.trace(omega) == pytest.approx(1)
    distances = ((models - models.mean(0)) ** 2).sum() + 0.1 * (models**2).sum()
    ratio = np.trace(models.T @ np.linalg.inv(omega) @ models) / distances
    other = np.random.default_rng(3).normal(size=(5, 3))
    distances = ((other - other.mean(0)) ** 2).sum() + 0.1 * (other**2).sum()
    assert np.trace(other.T @ np.linalg.inv(omega) @ other) == pytest.approx(ratio * distances)


def test_sigma_prime_bounds_what_clients_add_up_to_and_is_reached() -> None:
    rng = np.random.default_rng(4)
    omega = random_relationship(rng, 6)
    bound = sigma_prime(omega)
    ratios = []
    for _ in range(2000):
        sums = rng.normal(size=(6, 2))
        ratios.append(np.trace(sums.T @ omega @ sums) / (np.diag(omega) @ (sums**2).sum(1)))
    assert max(ratios) <= bound + 1e-12
    roots = np.sqrt(np.diag(omega))
    worst = np.linalg.eigh(omega / np.outer(roots, roots))[1][:, -1:] / roots[:, None]
    reached = (worst.T @ omega @ worst).item() / (np.diag(omega) @ (worst**2)[:, 0])
    assert reached == pytest.approx(bound)
    assert sigma_prime(independent_relationship(5)) == pytest.approx(1)


class Drawn:
    """One split of ``Clusters``."""

    def __init__(self, name: str, models: np.ndarray, count: int) -> None:
        rng = np.random.default_rng([ord(letter) for letter in name])
        inputs = rng.normal(size=(len(models), count, models.shape[1]))
        labels = np.einsum("ucd,ud->uc", inputs, models) > 0
        self.name = name
        self.num_users, self.num_examples = len(models), len(models) * count
        self.offsets = np.arange(len(models) + 1) * count
        self.inputs = torch.from_numpy(inputs.reshape(-1, models.shape[1])).float()
        self.targets = torch.from_numpy(labels.reshape(-1).astype(np.int64))

    def client_ids(self) -> list[str]:
        return [str(user) for user in range(self.num_users)]

    def read_range(self, start: int, stop: int) -> Examples:
        return Examples(self.inputs[start:stop], self.targets[start:stop])


class Clusters:
    """40 clients of 8 examples for 20 features, whose true models lie near one of two."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        centres = rng.normal(size=(2, 20))
        models = centres[rng.integers(0, 2, 40)] + 0.2 * rng.normal(size=(40, 20))
        sizes = {"train": 8, "val": 8, "test": 100}
        self._splits = {name: Drawn(name, models, size) for name, size in sizes.items()}
        self.facts = SimpleNamespace(split_by="example")
        self.loss = torch.nn.functional.cross_entropy

    def split(self, name: str) -> Drawn:
        return self._splits[name]


def in_clusters(**changes: Any) -> tuple[MultitaskTrainer, FlatModel, Any]:
    task: Any = Clusters()
    model = FlatModel(torch.nn.Linear(20, 2), CPU)
    resolved = config(**changes)
    return (
        MultitaskTrainer(RunParts.build(resolved, task, model), Path(), lambda text: None),
        model,
        task,
    )


def accuracy(local: MultitaskTrainer, model: FlatModel, split: Any) -> float:
    right = 0
    for user in range(split.num_users):
        local.personalise(split, user)
        examples = split.read_range(*split.offsets[user : user + 2])
        with torch.no_grad():
            right += int((model.module(examples.inputs).argmax(1) == examples.targets).sum())
    return right / split.num_examples


def test_a_learned_relationship_beats_none_and_the_mean_where_clients_cluster() -> None:
    """Best of a grid of weights each, chosen by val and compared on test."""
    accuracies = {}
    for relationship in ("learned", "independent", "mean"):
        found = []
        for weight in (0.2, 1.0, 5.0):
            local, model, task = in_clusters(
                multitask__relationship=relationship,
                multitask__regularization=weight,
                multitask__relationship_every=4,
                multitask__local_epochs=2,
            )
            for index in range(1, 13):
                local.advance(index)
            names = ("val", "test")
            found.append([accuracy(local, model, task.split(name)) for name in names])
        accuracies[relationship] = max(found)[1]
    assert accuracies["learned"] > accuracies["independent"] + 0.05
    assert accuracies["learned"] > accuracies["mean"] + 0.02


def test_costs_and_loss_of_a_round_are_those_counted_by_hand() -> None:
    local, model, task = in_clusters(
        multitask__relationship="independent", multitask__num_rounds=3, multitask__local_epochs=2
    )
    # A client has 8 examples, and a model of 20 features and a bias for each of 2 classes.
    work = {"train/num_steps": 640, "systems/flops": 4 * 640 * 42, "systems/bytes_up": 40 * 42 * 4}
    for index in range(1, 4):
        scalars = local.advance(index)
        assert {name: scalars[name] for name in work} == work
        assert scalars["systems/bytes_down"] == work["systems/bytes_up"]
    expected = local.expected_work()
    assert [expected.clients, expected.steps, expected.examples] == [120, 3 * 640, 3 * 640]
    found = [expected.flops, expected.bytes_up, expected.bytes_down]
    assert found == [3 * 4 * 640 * 42, 3 * 40 * 42 * 4, 3 * 40 * 42 * 4]
    split, total = task.split("train"), 0.0
    for user in range(40):
        local.personalise(split, user)
        examples = split.read_range(*split.offsets[user : user + 2])
        signs = 2 * torch.nn.functional.one_hot(examples.targets, 2) - 1
        with torch.no_grad():
            total += float((1 - signs * model.module(examples.inputs)).clamp(min=0).sum())
    assert scalars["train/loss"] == pytest.approx(total / 320, rel=1e-5)


def test_a_drawn_client_trains_by_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def named(*name: int) -> np.random.Generator:
        names.append(name)
        return stream(*name)

    local, _, _ = trainer(config(multitask__num_clients=3, multitask__participation=0.6))
    monkeypatch.setattr(mocha, "stream", named)
    scalars = local.advance(1)
    drawn = np.sort(stream(3, Purpose.PERSONAL).choice(5, 3, replace=False))
    users = drawn[stream(3, Purpose.SAMPLING, 1).random(3) < 0.6].tolist()
    assert 0 < len(users) < 3
    assert users != list(range(len(users)))
    assert scalars["train/cohort_size"] == len(users)
    wanted = [(3, Purpose.LOCAL_TRAINING, 1, user) for user in users]
    assert [name for name in names if name[1] == Purpose.LOCAL_TRAINING] == wanted


def test_a_new_relationship_starts_from_the_best_halving_of_the_dual_variables() -> None:
    local, _, _ = in_clusters(multitask__regularization=0.01)
    scalars = local.advance(1)
    assert scalars["multitask/rescaled"] < 1
    state = local.state_dict()
    omega, loss = state["relationship"].numpy(), LOSSES["hinge"]
    # What was before the shrinking; the penalty is tr(B Omega B^T) / (2 lambda).
    sums = state["sums"].numpy() / scalars["multitask/rescaled"]
    duals = state["duals"].numpy() / scalars["multitask/rescaled"]

    def dual(factor: float) -> float:
        penalty = np.trace(sums.T @ omega @ sums) / (2 * 0.01)
        return float(-loss.conjugate(factor * duals).sum() - factor**2 * penalty)

    best = max((0.5**power for power in range(20)), key=dual)
    assert scalars["multitask/rescaled"] == best
    assert dual(best) > max(0, dual(1.0))
    assert local._objectives()[1] == pytest.approx(dual(best))


def test_a_learned_relationship_is_fitted_after_the_rounds_that_it_is_due_at() -> None:
    """By the smoothing that is set, to the models; the round's objectives are of the old one."""
    smoothing, weight = 0.3, 0.5
    local, _, _ = in_clusters(
        multitask__relationship_every=2,
        multitask__smoothing=smoothing,
        multitask__regularization=weight,
        multitask__participation=0.5,
    )
    omega = independent_relationship(40)
    for index in range(1, 5):
        scalars = local.advance(index)
        assert scalars["multitask/sigma_prime"] == pytest.approx(sigma_prime(omega))
        assert ("multitask/rescaled" in scalars) == (index % 2 == 0)
        factor = scalars.get("multitask/rescaled", 1.0)
        state = {name: value.numpy().copy() for name, value in local.state_dict().items()}
        sums, duals = state["sums"] / factor, state["duals"] / factor
        penalty = np.trace(sums.T @ omega @ sums) / (2 * weight)
        conjugates = LOSSES["hinge"].conjugate(duals).sum()
        assert scalars["multitask/dual"] == pytest.approx(-conjugates - penalty)
        assert scalars["multitask/primal"] == pytest.approx(penalty + 320 * scalars["train/loss"])
        if index % 2 == 0:
            omega = learned_relationship(omega @ sums / weight, smoothing)
        np.testing.assert_allclose(state["relationship"], omega, atol=1e-12)


@pytest.mark.parametrize("relationship", ["learned", "mean"])
def test_clients_of_a_round_start_from_the_models_that_the_centre_sent(relationship: str) -> None:
    """One client's steps do not depend on who else takes part, and are scaled by sigma'."""
    options = {"mean_ridge": 0.5, "local_epochs": 2, "regularization": 0.05, "num_clients": 30}
    changes = {f"multitask__{name}": value for name, value in options.items()}
    local, _, task = in_clusters(multitask__relationship=relationship, **changes)
    local.advance(1)
    before = {name: value.numpy().copy() for name, value in local.state_dict().items()}
    omega = before["relationship"]
    if relationship == "mean":
        np.testing.assert_allclose(omega, mean_relationship(30, 0.5))
    factor = local.advance(2).get("multitask/rescaled", 1.0)
    split, place = task.split("train"), 17
    user = int(np.sort(stream(3, Purpose.PERSONAL).choice(40, 30, replace=False))[place])
    assert user != place
    examples = split.read_range(*split.offsets[user : user + 2])
    features = np.hstack([examples.inputs.double().numpy(), np.ones((8, 1))])
    signs = np.eye(2)[examples.targets] * 2 - 1
    rng = stream(3, Purpose.LOCAL_TRAINING, 2, user)
    order = np.concatenate([rng.permutation(8) for _ in range(2)])
    model = (omega @ before["sums"] / 0.05)[place].reshape(21, 2)
    part = slice(8 * place, 8 * place + 8)
    duals = before["duals"][part]
    scale = sigma_prime(omega) * omega[place, place] / 0.05
    change = local_ascent(features, signs, duals, model, scale, order, LOSSES["hinge"])
    after = local.state_dict()
    np.testing.assert_allclose(after["duals"][part], factor * duals, atol=1e-12)
    expected = factor * (before["sums"][place] + change.ravel())
    np.testing.assert_allclose(after["sums"][place], expected, atol=1e-12)


def test_expected_work_is_of_the_clients_that_take_part() -> None:
    local, _, _ = in_clusters(multitask__participation=0.5, multitask__num_rounds=3)
    expected = local.expected_work()
    assert [expected.at_once, expected.clients, expected.steps] == [40, 60, 3 * 0.5 * 320]


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("targets", lambda split: torch.eye(2)[split.targets], "one class an example"),
        ("inputs", lambda split: split.inputs.long(), "dense features"),
        ("inputs", lambda split: split.inputs[:, :19], "for a layer of 20 features"),
    ],
)
def test_data_of_other_kinds_are_refused(part: str, change: Any, message: str) -> None:
    task: Any = Clusters()
    split = task.split("train")
    setattr(split, part, change(split))
    parts = RunParts.build(config(), task, FlatModel(torch.nn.Linear(20, 2), CPU))
    with pytest.raises(ConfigError, match=message):
        MultitaskTrainer(parts, Path(), lambda text: None)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("relationship", ["learned", "mean"])
def test_features_that_are_not_finite_are_refused(relationship: str, value: float) -> None:
    task: Any = Clusters()
    task.split("train").inputs[8 * 13 + 2, 3] = value
    resolved = config(multitask__relationship=relationship)
    parts = RunParts.build(resolved, task, FlatModel(torch.nn.Linear(20, 2), CPU))
    local = MultitaskTrainer(parts, Path(), lambda text: None)
    with pytest.raises(DataError, match="example 2 of client '13' holds NaN or infinity"):
        local.advance(1)


def test_what_leaves_the_first_example_as_it_is_is_refused_too() -> None:
    task: Any = Clusters()
    task.split("train").inputs.abs_()
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(20, 2))
    parts = RunParts.build(config(), task, FlatModel(module, CPU))
    with pytest.raises(ConfigError, match="does something else"):
        MultitaskTrainer(parts, Path(), lambda text: None)


@pytest.mark.parametrize("relationship", ["learned", "mean"])
def test_a_cut_run_resumes_to_the_same_bits(relationship: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "checkpoint": {"every": 1, "keep": 10},
        "multitask__participation": 0.7,
        "multitask__relationship": relationship,
        "multitask__relationship_every": 2,
    }
    whole = run(config(**changes), tmp_path / "whole")
    run(config(**changes), tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    for step in (3, 4):
        (tmp_path / "cut" / f"checkpoints/step-{step:08d}.pt").unlink()
    resumed = run(config(**changes), tmp_path / "cut", resume=True)
    assert resumed["metrics"] == whole["metrics"]
    states = [load_latest(tmp_path / name / "checkpoints") for name in ("whole", "cut")]
    assert states[0] is not None
    assert states[1] is not None
    for name, tensor in states[0]["trainer"].items():
        assert torch.equal(tensor, states[1]["trainer"][name]), name
    assert whole["systems"]["bytes_up"] > 0
    assert whole["systems"]["flops"] > 0


def test_a_model_without_bias_is_linear_too() -> None:
    resolved = config(multitask__relationship="independent", multitask__regularization=10.0)
    task = build_task(resolved, CPU)
    # Dropout, which the model is evaluated without, leaves it one layer.
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 3, bias=False))
    model = FlatModel(module, CPU)
    local = MultitaskTrainer(RunParts.build(resolved, task, model), Path(), lambda text: None)
    gaps = [local.advance(index)["multitask/duality_gap"] for index in range(1, 30)]
    assert gaps[-1] < 1e-2 * gaps[0]
    local.personalise(task.split("test"), 1)
    expected = local.state_dict()["sums"][1].reshape(4, 3).T / 10 / 5
    torch.testing.assert_close(model.slices[0], expected.float())
    assert expected.abs().sum() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "perceptron"}}, "does something else"),
        ({"task": {"name": "digits"}}, "divide the clients"),
        ({"multitask__num_clients": 6}, "more than the 5 training users"),
        ({"multitask__regularization": 0.0}, "regularization"),
        (
            {
                "privacy": {
                    "mechanism": {"name": "gaussian", "clip_norm": 1.0},
                    "population_size": 5,
                    "epsilon": 1.0,
                }
            },
            "which of them are alike",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_layers_and_too_many_clients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = config()
    task = build_task(resolved, CPU)
    two = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    with pytest.raises(ConfigError, match="one linear layer"):
        MultitaskTrainer(
            RunParts.build(resolved, task, FlatModel(two, CPU)), Path(), lambda text: None
        )
    monkeypatch.setattr(mocha, "MAX_CLIENTS", 5)
    trainer(resolved)
    monkeypatch.setattr(mocha, "MAX_CLIENTS", 4)
    with pytest.raises(ConfigError, match="at most 4 clients"):
        trainer(resolved)
