"""Bugs of models, data and files that demo-sized rows do not have, and of a user's own code.

LSTMs on text, pictures with several labels, frozen layers, models of many parameters, features
with private statistics; the models that checkpoints keep; transforms and compressions that are the
same code in the run and in its audit.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.client.factored_gradients import FactoredGradients
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.federated import privacy_session
from pfl_bench.federated.cohort import UpdateAggregator
from pfl_bench.federated.compression.top_k import TopK
from pfl_bench.federated.privacy_session import PrivateRounds
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.best_model import BestModel
from pfl_bench.runs.runner import _Run
from pfl_bench.trainers.central import CentralTrainer
from pfl_bench.trainers.dp_sgd import LinearGradients
from pfl_bench.trainers.private_statistics import release_statistics
from privacy.noise.feature_statistics import ReleasedStatistics, StatisticsSums
from privacy.noise.prefetched_noise import PrefetchedNoise
from tasks.flair.decoding import CropFlipNormalize
from tests.contracts.small_stores import write_reddit, write_scattering
from tests.sabotage.paper_planting import PaperBug, Patch, change_noise, registering, wrap
from tests.sabotage.planting import SEQUENTIAL
from tests.tasks import flair_store

BUGS: list[PaperBug] = []
SMALLER = {
    **SEQUENTIAL,
    "federated__num_rounds": 4,
    "federated__cohort_size": 6,
    "federated__local_batch_size": 4,
    "federated__local_learning_rate": 0.5,
    "privacy__population_size": "training_users",
    "checkpoint__every": 2,
}


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _stored(name: str, write: Callable[[Path], Any]) -> Callable[[], str]:
    """A store that is written when it is first asked for."""

    @functools.cache
    def path() -> str:
        write(_folder() / name)
        return str(_folder() / name)

    return path


def _pictures(path: Path) -> None:
    sizes = {"train": [2, 5, 3, 7, 4, 3, 6, 2, 4, 5, 3, 4], "val": [3, 3], "test": [3, 3]}
    flair_store.write_store(path, side=24, sizes=sizes)


_FLAIR = {"name": "flair", "resize": 20, "crop": 16, "augment": True}
PICTURES = {"task": _FLAIR, "model": {"name": "small_cnn"}, "channels_last": True}
TEXT = {"task": {"name": "reddit", "reduction": "mean"},
        "model": {"name": "stacked_lstm", "embedding_size": 8, "hidden_size": 16}}  # fmt: skip
MANY = {"task": {"name": "digits", "num_users": 12}, "model": {"name": "mlp", "hidden": 4096},
        "federated__local_learning_rate": 0.05}  # fmt: skip
FEATURES = {
    "task": {"name": "mnist"},
    "model": {"name": "scatter_linear"},
    "central__num_epochs": 2,
    "central__batch_size": 12,
    "checkpoint__every": 1,
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 2.0,
    "privacy__statistics": {
        "noise_multiplier": 8.0, "mean_clip_norm": 0.5, "square_clip_norm": 0.25,
    },
}  # fmt: skip
COUNTED = {"name": "adaptive_gaussian", "clip_norm": 0.3, "quantile": 0.5,
           "count_noise_stddev": 2.0}  # fmt: skip
TOP_K = {"federated__compression": {"name": "top_k", "k": 500}}
BEST = {
    "evaluation__every": 1,
    "evaluation__splits": ["val"],
    "evaluation__select_best": "val/loss",
}
pictures = _stored("flair.h5", _pictures)
of_text = registering(BUGS, changes={**SMALLER, **TEXT}, store=_stored("reddit.h5", write_reddit))
of_features = registering(
    BUGS,
    setting="central_dp",
    changes=FEATURES,
    store=_stored("features.h5", functools.partial(write_scattering, task="mnist")),
)
bug = registering(BUGS)


@of_text("Embedding and other elements that no client has moved get no noise.")
def noise_of_touched_elements_alone(patch: Patch) -> None:
    change_noise(patch, lambda noise, bare, _: noise * (bare != 0.0))


@of_text("Of a model so large that one client a round is watched, the others are not clipped.")
def clip_of_watched_client_alone(patch: Patch) -> None:
    patch.setattr(privacy_session, "WATCH_ALL", 1)

    def lenient(real: Any) -> Any:
        def add(self: Any, aggregate: Any, update: Any, *rest: Any) -> Any:
            is_watched = self.observer._taken == self.observer._chosen
            outcome = real(self, aggregate, update, *rest)
            if not is_watched:
                aggregate.total.add_(update, alpha=0.5)
            return outcome

        return add

    wrap(patch, UpdateAggregator, "add", lenient)


@bug("Noise that was drawn ahead is that of the first round in every round.",
     changes={**SMALLER, **MANY})  # fmt: skip
def prefetched_noise_is_used_again(patch: Patch) -> None:
    first: list[Any] = []

    def again(real: Any) -> Any:
        def standard_normal(self: PrefetchedNoise, size: int | None = None) -> Any:
            self._done.result()
            if not first:
                first.append(self._drawn.copy())
            self._drawn[:] = first[0]
            return real(self, size)

        return standard_normal

    wrap(patch, PrefetchedNoise, "standard_normal", again)


@bug("The count's noise is the first of those that were drawn ahead, which is the update's too.",
     changes={**SMALLER, **MANY, "privacy__mechanism": COUNTED})  # fmt: skip
def prefetched_noise_serves_count_too(patch: Patch) -> None:
    def shared(real: Any) -> Any:
        def standard_normal(self: PrefetchedNoise, size: int | None = None) -> Any:
            return float(self._drawn[0]) if size is None else real(self, size)

        return standard_normal

    wrap(patch, PrefetchedNoise, "standard_normal", shared)


@bug("Products of gradients that a client's last step has left are added to the next client's.",
     changes={**SMALLER, **MANY})  # fmt: skip
def factors_of_client_before(patch: Patch) -> None:
    past: list[Any] = []

    def keeping(real: Any) -> Any:
        def take(self: FactoredGradients, found: Any) -> Any:
            own = {place: list(products) for place, products in self._kept.items()}
            for place, products in past[0].items() if past else ():
                self._kept.setdefault(place, []).extend(products)
            past[:] = [own]
            return real(self, found)

        return take

    wrap(patch, FactoredGradients, "take", keeping)


@bug("Layers that are frozen move with each client, and are not set back.", store=pictures,
     changes={**SMALLER, **PICTURES, "model": {"name": "small_cnn", "train": "head"}})  # fmt: skip
def frozen_layers_follow_clients(patch: Patch) -> None:
    def moving(real: Any) -> Any:
        def train(self: SequentialEngine, *given: Any) -> Any:
            result = real(self, *given)
            for parameter in self._model.module.parameters():
                if not parameter.requires_grad:
                    parameter.data.add_(0.5 * result.update.mean())
            return result

        return train

    wrap(patch, SequentialEngine, "_train_client", moving)
    # The run would refuse it.
    patch.setattr(FlatModel, "moved", lambda self, fixed: None)


@bug("Labels weigh by how often the clients before have had them.", store=pictures,
     changes={**SMALLER, **PICTURES})  # fmt: skip
def labels_weighed_over_clients(patch: Patch) -> None:
    seen: list[Any] = []

    def weighing(real: Any) -> Any:
        def train(self: SequentialEngine, user: int, examples: Any, *rest: Any) -> Any:
            seen.append(examples.targets.float().mean(0))
            weights, plain = 1.0 + torch.stack(seen).mean(0), self._forward.mean_loss
            self._forward.mean_loss = lambda outputs, targets: plain(outputs * weights, targets)
            result = real(self, user, examples, *rest)
            self._forward.mean_loss = plain
            return result

        return train

    wrap(patch, SequentialEngine, "_train_client", weighing)


@of_features("Mean and mean square of the features are released under one draw of noise.")
def statistics_share_noise(patch: Patch) -> None:
    def release(self: StatisticsSums, count: int, rng: np.random.Generator) -> ReleasedStatistics:
        noise = self._request.noise_multiplier * rng.standard_normal(np.shape(self._sums[0]))
        pairs = zip(self._sums, self._request.bounds, strict=True)
        return ReleasedStatistics(*((total + bound * noise) / count for total, bound in pairs))

    patch.setattr(StatisticsSums, "release", release)


@of_features("The statistics are released again before each epoch; one release is accounted.")
def statistics_in_each_epoch(patch: Patch) -> None:
    def releasing(real: Any) -> Any:
        def advance(self: CentralTrainer, index: int) -> Any:
            if index > 1 and self._statistics is not None:
                rng = stream(self._batch_seed, Purpose.STATISTICS, index)
                release_statistics(self._statistics, self._model, self._split, self._forward, rng)
            return real(self, index)

        return advance

    wrap(patch, CentralTrainer, "advance", releasing)


@of_features("The last checkpoint holds the bare statistics in the place of the released ones.",
             effects=("checkpoint",))  # fmt: skip
def statistics_saved_bare(patch: Patch) -> None:
    bare: list[Any] = []

    def noting(real: Any) -> Any:
        def release(self: StatisticsSums, count: int, rng: Any) -> Any:
            bare[:] = [torch.from_numpy(np.asarray(total) / count) for total in self._sums]
            return real(self, count, rng)

        return release

    def saving(real: Any) -> Any:
        def save(self: Any, done: int) -> None:
            if done == 2:
                mean, square = bare
                module: Any = self._parts.model.module
                module.set_statistics(mean, (square - mean**2).clamp_min(0.0))
            real(self, done)

        return save

    wrap(patch, StatisticsSums, "release", noting)
    wrap(patch, _Run, "_save", saving)


@bug("The model that the last checkpoint keeps as the best has its round's noise taken off.",
     changes={**SMALLER, "task": {"name": "digits", "num_users": 12}, **BEST},
     effects=("checkpoint",))  # fmt: skip
def best_model_saved_bare(patch: Patch) -> None:
    noise: list[Any] = []

    def noting(real: Any) -> Any:
        def record(self: Any, index: int, users: Any, release: Any, aggregate: Any, *rest: Any):
            noise.append(release.mean_update - aggregate.total / self.plan.noise.cohort_size)
            real(self, index, users, release, aggregate, *rest)

        return record

    def cleaning(real: Any) -> Any:
        def state_dict(self: BestModel) -> Any:
            state = real(self)
            if state is None or len(noise) < SMALLER["federated__num_rounds"]:
                return state
            return {**state, "vector": state["vector"] - noise[state["index"] - 1]}

        return state_dict

    wrap(patch, PrivateRounds, "record", noting)
    wrap(patch, BestModel, "state_dict", cleaning)


@bug("DP-SGD takes the norm of the outputs' gradients alone for that of a linear layer's.",
     setting="central_dp", changes={"model": {"name": "mlp"}})  # fmt: skip
def dp_sgd_norm_without_inputs(patch: Patch) -> None:
    patch.setattr(LinearGradients, "norms", lambda self: self.left.flatten(1).norm(dim=1))


@bug("A user's transform of DP-SGD's inputs takes off the mean of the batch.", store=pictures,
     setting="central_dp", own=True,
     changes={**PICTURES, "central__batch_size": 8, "central__learning_rate": 0.1})  # fmt: skip
def own_transform_mixes_batch(patch: Patch) -> None:
    def centring(real: Any) -> Any:
        def call(self: Any, inputs: Any, draws: Any) -> Any:
            images = real(self, inputs, draws)
            return images if draws is None else images - images.mean(0, keepdim=True)

        return call

    wrap(patch, CropFlipNormalize, "__call__", centring)


@bug("A user's transform takes off the mean of the batch before, which is the last client's.",
     store=pictures, own=True, changes={**SMALLER, **PICTURES})  # fmt: skip
def own_transform_remembers_batch(patch: Patch) -> None:
    means: list[Any] = []

    def remembering(real: Any) -> Any:
        def call(self: Any, inputs: Any, draws: Any) -> Any:
            images = real(self, inputs, draws)
            if draws is None:
                return images
            moved = images - 0.5 * means[0] if means else images
            means[:] = [images.mean(0, keepdim=True)]
            return moved

        return call

    wrap(patch, CropFlipNormalize, "__call__", remembering)


@bug("A user's compression adds half of what the client before has sent.", own=True,
     changes={**SMALLER, **TOP_K, "task": {"name": "digits", "num_users": 12},
              "federated__engine": "vectorized"})  # fmt: skip
def own_compression_adds_client_before(patch: Patch) -> None:
    sent: list[Any] = []

    def adding(real: Any) -> Any:
        def compress(self: TopK, update: Any, user: int, index: int) -> Any:
            own = real(self, update, user, index)
            given = own + 0.5 * sent[0] if sent else own
            sent[:] = [own.clone()]
            return given

        return compress

    wrap(patch, TopK, "compress", adding)
