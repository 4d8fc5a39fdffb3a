"""Local models: each client trains on its own examples alone and picks its own learning rate.

Nothing leaves a client, so there is no central model: the runner evaluates through ``personal``,
which puts a client's own model into the working memory.

Source: Caldas et al. 2018 (LEAF), table 2 ("Local Models") and appendix B (each device explores
    a grid of learning rates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.batches import local_batches
from pfl_bench.client.forward import Forward
from pfl_bench.client.precision import new_loss_sum
from pfl_bench.evaluation.fine_tuning import take_steps
from pfl_bench.evaluation.personalized_clients import PersonalizedModels
from pfl_bench.evaluation.splits import measured_names
from pfl_bench.federated.parts import RunParts
from pfl_bench.metrics import build_metrics
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.types import ConfigError, Examples, ExpectedWork, LocalTraining, Task, Trainer

# Chosen models that fit into so much are kept; larger ones are trained again when wanted.
MAX_KEPT_BYTES = 64 * 2**20
UNTRAINED = -1
DIVERGED = -2


@dataclass(frozen=True, slots=True)
class _Client:
    """Examples that a client trains on and is judged by, on the device."""

    user: int
    train: Examples
    judge: Examples


class LocalTrainer(PersonalizedModels, Trainer):
    """Trains clients' own models; a round is the next ``clients_per_round`` clients.

    All rates of a client start from the same initial model, that of ``parts``, which is the working
    copy, and see the same batches. A client takes the rate, and with ``choose_epoch`` the epoch, of
    lowest loss (or highest accuracy) on its own ``val`` examples, or if it has none on its training
    examples; a tie goes to the earlier rate and epoch. A rate whose loss is not finite is out; a
    client left with none keeps the initial model.

    ConfigError if the settings do not fit the data or one another.
    """

    def __init__(self, parts: RunParts, folder: Path, notice: Callable[[str], None]) -> None:
        resolved, task, model = parts.resolved, parts.task, parts.model
        options = resolved.config.local
        assert options is not None, "a trainer of local models needs the section 'local'"
        self._options = options
        self._seed = resolved.config.seed
        super().__init__(resolved.config, "local", task, options.num_clients, notice)
        self._notice = notice
        self._train = task.split("train")
        self._val = task.split("val") if "val" in task.split_names else None
        self._val_user = self._find_val_users()
        without = int((self._val_user < 0).sum())
        if without:
            notice(
                f"local: {without} of {len(self._val_user)} clients have no val examples; they "
                f"choose among the rates by {options.select_by} on their training examples, which "
                "favours the rate that fits these best (prepare the data with a val part by "
                "example to avoid it)"
            )
        self._model = model
        self._forward = parts.forward
        batch_size = resolved.config.evaluation.batch_size
        self._judge = ClientModelSelector(self._forward, task, options.select_by, batch_size)
        self._initial = model.vector.clone()
        self._buffers = model.buffers()
        count = len(self._users)
        self.total = self.last = math.ceil(count / options.clients_per_round)
        self._rate = torch.full((count,), UNTRAINED)
        self._epoch = torch.zeros(count, dtype=torch.int64)
        self._loss = torch.full((count,), math.nan, dtype=torch.float64)
        self._kept: Tensor | None = None
        if not self._buffers and 4 * count * model.num_parameters <= MAX_KEPT_BYTES:
            self._kept = self._initial.cpu().repeat(count, 1)

    @property
    def keeps_models(self) -> bool:
        """Whether chosen models are kept; else evaluation trains each client again."""
        return self._kept is not None

    def expected_work(self) -> ExpectedWork:
        """Every client's passes over its examples, at each rate of the grid."""
        sizes = np.diff(self._train.offsets)[self._users]
        options = self._options
        passes = options.num_epochs * len(options.learning_rates)
        steps = float(passes * np.ceil(sizes / options.batch_size).sum())
        examples = float(passes * sizes.sum())
        most = min(options.clients_per_round, len(sizes))
        return ExpectedWork(most, len(sizes), steps, examples, None, 0.0, 0.0)

    def _find_val_users(self) -> NDArray[np.int64]:
        found = np.full(len(self._users), -1)
        if self._val is not None:
            places = self._places_of(self._val)
            found[places[places >= 0]] = np.flatnonzero(places >= 0)
        return found

    def advance(self, index: int) -> dict[str, float]:
        """Train the next clients over the whole grid in round ``index``, 1-based; gives scalars.

        "local/rate_<rate>" counts the clients that chose each so far; "local/val_loss" and
        "local/train_loss" are means over the round's clients that are judged on these examples.
        """
        options = self._options
        first = (index - 1) * options.clients_per_round
        places = range(first, min(first + options.clients_per_round, len(self._rate)))
        examples = steps = 0
        for place in places:
            client = self._read(place)
            taken, epochs = self._choose(place, client)
            steps += taken
            examples += epochs * len(client.train)
        lost = [place for place in places if self._rate[place] == DIVERGED]
        if lost:
            ids = self._train.client_ids()
            names = ", ".join(f"'{ids[self._users[place]]}'" for place in lost[:10])
            names += f" and {len(lost) - 10} others" if len(lost) > 10 else ""
            self._notice(
                f"round {index}: at every rate the loss of {len(lost)} clients was not finite "
                f"({names}); they keep the initial model. Lower local.learning_rates mend this, "
                "unless their examples hold values that are not finite"
            )
        scalars = {
            "train/num_clients": float(len(places)),
            "train/num_steps": float(steps),
            "local/num_diverged": float((self._rate == DIVERGED).sum()),
            "systems/steps": float(steps),
            "systems/examples": float(examples),
            "systems/bytes_down": 0.0,
            "systems/bytes_up": 0.0,
        }
        has_val = torch.from_numpy(self._val_user[places.start : places.stop] >= 0)
        for judged_on, chosen in (("val", has_val), ("train", ~has_val)):
            losses = self._loss[places.start : places.stop][chosen]
            if not losses.isnan().all():
                scalars[f"local/{judged_on}_loss"] = float(losses.nanmean())
        for number, rate in enumerate(options.learning_rates):
            scalars[f"local/rate_{rate:g}"] = float((self._rate == number).sum())
        return scalars

    def _read(self, place: int) -> _Client:
        user, val_user = int(self._users[place]), int(self._val_user[place])
        rng = stream(self._seed, Purpose.AUGMENTATION, 0, user)
        train = self._to_device(self._train.read_user(user, rng))
        split, own = self._train, user
        if self._val is not None and val_user >= 0:
            split, own = self._val, val_user
        start, stop = int(split.offsets[own]), int(split.offsets[own + 1])
        # Training examples too as evaluation sees them: a task may hide of them what is to be told.
        return _Client(user, train, self._to_device(split.read_range(start, stop)))

    def _to_device(self, examples: Examples) -> Examples:
        device = self._model.device
        return Examples(examples.inputs.to(device), examples.targets.to(device))

    def _choose(self, place: int, client: _Client) -> tuple[int, int]:
        """Train a client at each rate and record its choice; gives the steps and epochs taken."""
        options = self._options
        best = (math.inf, math.inf)
        steps = epochs = 0
        self._rate[place] = DIVERGED
        for number, rate in enumerate(options.learning_rates):
            for epoch, taken in self._epochs(client, rate, options.num_epochs):
                steps += taken
                epochs += 1
                if epoch < options.num_epochs and not options.choose_epoch:
                    continue
                score = self._judge.score(client.judge)
                loss = score[1]
                if not math.isfinite(loss):
                    break
                if score < best:
                    best = score
                    self._rate[place], self._epoch[place], self._loss[place] = number, epoch, loss
                    if self._kept is not None:
                        self._kept[place] = self._model.vector
        return steps, epochs

    def _epochs(self, client: _Client, rate: float, count: int) -> Iterator[tuple[int, int]]:
        """Train from the start; after each epoch give its number and steps."""
        model, forward, own = self._model, self._forward, client.train
        local = LocalTraining(epochs=1, batch_size=self._options.batch_size, learning_rate=rate)
        model.vector.copy_(self._initial)
        model.load_buffers(self._buffers)
        rng = stream(self._seed, Purpose.LOCAL_TRAINING, 0, client.user)
        seed_torch(self._seed, Purpose.LOCAL_TRAINING, model.device, 0, client.user)
        for epoch in range(1, count + 1):
            model.module.train()
            batches = local_batches(own, local, forward, rng, model.device)
            yield epoch, take_steps(model, forward, batches, rate)

    def _put_model(self, place: int) -> None:
        """Put a client's model into the working memory: the initial one before its round came."""
        if self._kept is not None:
            self._model.vector.copy_(self._kept[place])
        elif self._rate[place] in (UNTRAINED, DIVERGED):
            self._model.vector.copy_(self._initial)
            self._model.load_buffers(self._buffers)
        else:
            rate = self._options.learning_rates[int(self._rate[place])]
            was_training = self._model.module.training
            for _ in self._epochs(self._read(place), rate, int(self._epoch[place])):
                pass
            self._model.module.train(was_training)

    def state_dict(self) -> dict[str, Any]:
        """The clients' choices, and their models where they are kept."""
        state = {"rate": self._rate, "epoch": self._epoch, "loss": self._loss}
        if self._kept is not None:
            state["models"] = self._kept
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._rate.copy_(state["rate"])
        self._epoch.copy_(state["epoch"])
        self._loss.copy_(state["loss"])
        if self._kept is not None:
            self._kept.copy_(state["models"])


class ClientModelSelector:
    """Scores the model that is in memory on a client's examples; the lower, the better.

    The lowest "loss" is best, or the highest "accuracy", then the lowest loss. ConfigError if the
    task's metrics have no accuracy, but it is asked for.
    """

    def __init__(
        self, forward: Forward, task: Task, select_by: Literal["loss", "accuracy"], batch_size: int
    ) -> None:
        self._forward = forward
        self._task = task
        self._by_accuracy = select_by == "accuracy"
        self._batch_size = batch_size
        if self._by_accuracy:
            names = measured_names(forward, task.split("train"), build_metrics(self._task))
            if "train/accuracy" not in names:
                raise ConfigError(
                    "local.select_by: the metrics of this task have no accuracy; set it to loss"
                )

    @torch.no_grad()
    def score(self, examples: Examples) -> tuple[float, float]:
        """Score the model, put into evaluation mode, on examples that are on its device.

        Gives what is compared first (the loss, or minus the accuracy), and the mean loss.
        """
        self._forward.module.eval()
        metrics = build_metrics(self._task) if self._by_accuracy else []
        total = new_loss_sum(self._forward.device)
        all_inputs = torch.split(examples.inputs, self._batch_size)
        all_targets = torch.split(examples.targets, self._batch_size)
        for inputs, targets in zip(all_inputs, all_targets, strict=True):
            outputs = self._forward.outputs(inputs)
            total += self._task.loss(outputs, targets).to(total.dtype) * len(inputs)
            for metric in metrics:
                metric.update(outputs, targets)
        loss = float(total) / len(examples)
        if not self._by_accuracy:
            return loss, loss
        values = {name: value for metric in metrics for name, value in metric.compute().items()}
        return -values["accuracy"], loss
