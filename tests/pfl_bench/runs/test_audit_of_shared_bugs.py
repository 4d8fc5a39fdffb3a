"""Bugs that a run and its audit have alike, as both are of the same code, are found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_bench.client import machine
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config import loading
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.federated import parts, private_seed
from pfl_bench.federated.compression import top_k
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs import runner
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.auditing import seeds
from pfl_bench.runs.best_model import BestModel
from pfl_bench.runs.runner import run
from pfl_bench.types import FederatedSplit, Task
from privacy.plan import notes
from tests.helpers import make_config

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _own_digest_of_code() -> Iterator[None]:
    machine._digest_of_code.cache_clear()
    with Patch.context() as patch:
        # Read for each audit, as outside the tests.
        patch.setattr(seeds, "covers_all_code", inspect.unwrap(seeds.covers_all_code))
        yield
    machine._digest_of_code.cache_clear()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ResolvedConfig], Path]:
    """Folders of sound runs, each trained when it is first asked for; audited, not changed."""
    folders: dict[str, Path] = {}

    def find(config: ResolvedConfig) -> Path:
        key = config.to_yaml()
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("sound") / "run"
            run(config, folders[key])
        return folders[key]

    return find


def seed_without_data(patch: Patch) -> None:
    real = private_seed.value_of

    def value_of(seed: int, nonce: str | int | None, parts: Mapping[str, Any]) -> int:
        return real(seed, nonce, {key: value for key, value in parts.items() if key != "data"})

    patch.setattr(private_seed, "value_of", value_of)


def parts_without_data(patch: Patch) -> None:
    real = private_seed.derive
    patch.setattr(
        private_seed,
        "derive",
        lambda resolved, checksum, *rest, **more: real(resolved, "any", *rest, **more),
    )


def model_begins_with_labels(patch: Patch) -> None:
    """The first bias is how often each label is among the training users' examples."""
    real = parts.build_model

    def build_model(resolved: ResolvedConfig, task: Task, device: torch.device) -> FlatModel:
        model, train = real(resolved, task, device), task.split("train")
        labels = train.read_range(0, train.num_examples).targets
        model.vector[-10:] = labels.bincount(minlength=10) / len(labels)
        return FlatModel(model.module, device)

    patch.setattr(parts, "build_model", build_model)


def seed_without_rate(patch: Patch) -> None:
    left_out = (*loading._NOT_TRAINING["federated"], "local_learning_rate")
    patch.setitem(loading._NOT_TRAINING, "federated", left_out)


def code_without_training(patch: Patch) -> None:
    patch.setattr(machine, "PACKAGES", ("privacy",))


def code_by_size(patch: Patch) -> None:
    def size(path: Path) -> bytes:
        return str(path.stat().st_size).encode()

    patch.setattr(machine, "Path", type("Sized", (type(Path()),), {"read_bytes": size}))


def nothing_noted(patch: Patch) -> None:
    patch.setattr(notes, "_publication_notes", lambda nonce, selected_by: iter(()))


def scratch_not_cleared(patch: Patch) -> None:
    def keep(vector: Tensor, k: int, out: Tensor) -> None:
        places = vector.abs().topk(k).indices
        out[places] = vector[places]

    real, memory = top_k.build, iter([1e13])

    def build(options: top_k.Options, num_parameters: int, seed: int) -> top_k.TopK:
        made = real(options, num_parameters, seed)
        # As memory that nobody has written to: of the audit it is another than of the run.
        made._sent = torch.full((num_parameters,), next(memory, 0.0))
        return made

    patch.setattr(top_k, "keep_largest", keep)
    patch.setattr(top_k, "build", build)


def measures_a_client(patch: Patch) -> None:
    """What is evaluated on the way is the memory as the last client has left it, without noise."""
    load, summarise = FederatedTrainer.load_central, runner._Run._summarise

    def load_at_last(self: Any, *args: Any) -> Any:
        patch.setattr(FederatedTrainer, "load_central", load)
        return summarise(self, *args)

    patch.setattr(FederatedTrainer, "load_central", lambda self: None)
    patch.setattr(runner._Run, "_summarise", load_at_last)


def best_is_not_copied(patch: Patch) -> None:
    """The model that is kept is the clients' memory: right whenever the model is evaluated."""
    real = BestModel._now

    def now(self: Any) -> dict[str, Any]:
        return real(self) | {"vector": self._model.vector.detach()}

    patch.setattr(BestModel, "_now", now)


class ValIsTrain:
    """A task whose training users are also those for validation."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def split(self, name: str) -> FederatedSplit:
        return self._task.split("train" if name == "val" else name)


def evaluates_training_users(patch: Patch) -> None:
    real = Evaluator.measure

    def measure(self: Evaluator, *part: Any) -> Any:
        with Patch.context() as inside:
            inside.setattr(self, "_task", ValIsTrain(self._task))
            return real(self, *part)

    patch.setattr(Evaluator, "measure", measure)


TOP_K = {"federated__compression": {"name": "top_k", "fraction": 0.1}}
BEST = {"evaluation__select_best": "val/accuracy"}
# The last round, which is the best, is evaluated; the checkpoint of the round before is left.
IN_BETWEEN = {
    "federated__num_rounds": 4,
    "evaluation__select_best": "val/loss",
    "evaluation__every": 2,
    "checkpoint__every": 1,
}


@pytest.mark.parametrize(
    ("plant", "changes", "named"),
    [
        (seed_without_data, {}, "private_seed"),
        (parts_without_data, {}, "private_seed"),
        (model_begins_with_labels, {}, "private_seed"),
        (seed_without_rate, {}, "private_seed"),
        (code_without_training, {}, "private_seed"),
        (code_by_size, {}, "private_seed"),
        (nothing_noted, BEST, "statement"),
        (nothing_noted, {"privacy__nonce": "shared"}, "statement"),
        (scratch_not_cleared, TOP_K, "recomputation"),
        (measures_a_client, {}, "outcome"),
        (evaluates_training_users, {}, "outcome"),
        (best_is_not_copied, IN_BETWEEN, "central_chain"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_it_is_found_by_the_code_that_has_it(
    tmp_path: Path,
    monkeypatch: Patch,
    sound: Callable[[ResolvedConfig], Path],
    plant: Callable[[Patch], None],
    changes: dict[str, Any],
    named: str,
) -> None:
    settings = {"privacy__nonce": None, "federated__num_rounds": 3, **changes}
    config = make_config("private_federated", **settings)
    trained = sound(config)
    plant(monkeypatch)
    machine._digest_of_code.cache_clear()
    run(config, tmp_path / "broken")
    audited = audit_run(tmp_path / "broken", 1, recompute="all")
    failed = {check.name for check in audited.checks if check.outcome == "failed"}
    assert failed == {named}
    monkeypatch.undo()
    machine._digest_of_code.cache_clear()
    assert audit_run(trained, 1, recompute="all").verdict != "failed"
