"""Mocha: federated multi-task learning of one linear model a client, tied by their relationship.

A round: the clients that take part improve their dual variables by coordinate ascent on their own
examples and send the change of b_t (a vector of a model's size); the centre adds them up and sends
each client its model, W = B Omega / lambda. Every ``relationship_every`` rounds a learned Omega is
fitted to the models, and the dual variables are shrunk to a good start under it. They never leave
a client.

Memory: the relationship of m clients, three times 8 m^2 bytes while it is updated, and 8 bytes an
example and class.

Source: Smith et al. 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.training import MultitaskOptions
from pfl_bench.evaluation.personalized_clients import PersonalizedModels
from pfl_bench.federated.parts import RunParts
from pfl_bench.rng import Purpose, stream
from pfl_bench.trainers.mocha.dual import (
    LOSSES,
    Array,
    independent_relationship,
    learned_relationship,
    local_ascent,
    mean_relationship,
    sigma_prime,
)
from pfl_bench.types import ConfigError, DataError, Examples, ExpectedWork, Trainer

MAX_CLIENTS = 5000
RESCALINGS = 20
BYTES_PER_NUMBER = 4  # A model and a change of b_t travel as float32.


class MultitaskTrainer(PersonalizedModels, Trainer):
    """Trains clients' related linear models; the runner drives it, one round a step.

    Examples are read as evaluation sees them, all of a client's: dual variables belong to examples,
    so none may be subsampled or augmented. The data have dense features and one class an example;
    the model is one linear layer, where a client's is put for evaluation.

    ConfigError if the settings do not fit the data or one another, or the model is not linear.
    """

    def __init__(self, parts: RunParts, folder: Path, notice: Callable[[str], None]) -> None:
        resolved, task, model = parts.resolved, parts.task, parts.model
        options = resolved.config.multitask
        assert options is not None, "a multi-task trainer needs the section 'multitask'"
        self._options = options
        self._seed = resolved.config.seed
        self.total = self.last = options.num_rounds
        super().__init__(resolved.config, "multitask", task, options.num_clients, notice)
        count = len(self._users)
        if count > MAX_CLIENTS:
            raise ConfigError(
                f"multitask: the relationship of {count} clients is a matrix of {count} x {count}, "
                f"whose eigenvalues take time with the cube of that; at most {MAX_CLIENTS} clients "
                "can be related: set multitask.num_clients"
            )
        self._train = task.split("train")
        self._forward = parts.forward
        self._model = model
        self._linear = LinearLayer(model)
        first = int(self._train.offsets[self._users[0]])
        self._linear.check(self._forward, self._train.read_range(first, first + 1))
        self._loss = LOSSES[options.loss]
        sizes = np.diff(self._train.offsets)[self._users]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])
        num_classes, width = self._linear.num_classes, self._linear.width
        self._duals = np.zeros((int(self._offsets[-1]), num_classes))
        self._sums = np.zeros((count, width * num_classes))
        self._set_relationship(_start(options, count))

    def _set_relationship(self, relationship: Array) -> None:
        self._relationship = relationship
        # Off the diagonal of an unrelated matrix is nothing to add up.
        self._sigma_prime = sigma_prime(relationship)
        self._update_models()

    def _update_models(self) -> None:
        """W = B Omega / lambda; row t is w_t, of shape (width, num_classes), flattened."""
        product = torch.from_numpy(self._relationship) @ torch.from_numpy(self._sums)
        self._models: Array = (product / self._options.regularization).numpy()

    def advance(self, index: int) -> dict[str, float]:
        """Run round ``index``, 1-based; gives its scalars.

        The objective and the duality gap are of its end, before the relationship moves on, which it
        does after ``relationship_every`` rounds.
        """
        options, count = self._options, len(self._users)
        rng = stream(self._seed, Purpose.SAMPLING, index)
        taking_part = np.flatnonzero(rng.random(count) < options.participation)
        steps = 0
        for place in taking_part.tolist():
            steps += self._improve(place, index)
        self._update_models()
        primal, dual, loss = self._objectives()
        scalars = {
            "train/cohort_size": float(len(taking_part)),
            "train/num_steps": float(steps),
            "train/loss": loss,
            "multitask/primal": primal,
            "multitask/dual": dual,
            "multitask/duality_gap": primal - dual,
            "multitask/sigma_prime": self._sigma_prime,
            "systems/flops": self._flops(steps),
        }
        for direction in ("down", "up"):
            scalars[f"systems/bytes_{direction}"] = self._bytes(len(taking_part))
        if options.relationship == "learned" and index % options.relationship_every == 0:
            self._set_relationship(learned_relationship(self._models, options.smoothing))
            scalars["multitask/rescaled"] = self._rescale()
        return scalars

    def _flops(self, steps: float) -> float:
        """Of coordinate steps: the margin, and the move of the model."""
        return 4.0 * steps * self._sums.shape[1]

    def _bytes(self, clients: float) -> float:
        """That so many clients receive, or send."""
        return clients * self._sums.shape[1] * float(BYTES_PER_NUMBER)

    def expected_work(self) -> ExpectedWork:
        """The coordinate steps of the clients that take part, an example each."""
        options = self._options
        rounds = options.num_rounds * options.participation
        count = len(self._users)
        steps = rounds * options.local_epochs * float(self._offsets[-1])
        sent = self._bytes(rounds * count)
        return ExpectedWork(count, rounds * count, steps, steps, self._flops(steps), sent, sent)

    def _rescale(self) -> float:
        """Shrink all dual variables by the power of 1/2 that is best under a new relationship.

        Variables that were good under the old one can be far too large under the new, so that the
        dual would start below that of no model at all, and rounds would be lost on the way back.
        (A client sends one sum of conjugates a power, and is told which. The paper does not have
        this; any start is as good for what the rounds converge to.)
        """
        penalty = 0.5 * float((self._models * self._sums).sum())
        factors = [0.5**power for power in range(RESCALINGS)]
        duals = [
            -float(self._loss.conjugate(factor * self._duals).sum()) - factor**2 * penalty
            for factor in factors
        ]
        best = factors[int(np.argmax(duals))]
        self._duals *= best
        self._sums *= best
        self._update_models()
        return best

    def _improve(self, place: int, index: int) -> int:
        """A client's local dual ascent; gives the number of its coordinate steps."""
        features, signs = self._read(place)
        rng = stream(self._seed, Purpose.LOCAL_TRAINING, index, int(self._users[place]))
        passes = [rng.permutation(len(features)) for _ in range(self._options.local_epochs)]
        scale = self._sigma_prime * self._relationship[place, place] / self._options.regularization
        model = self._models[place].reshape(self._linear.width, -1)
        order = np.concatenate(passes)
        duals = self._duals[self._offsets[place] : self._offsets[place + 1]]
        change = local_ascent(features, signs, duals, model, scale, order, self._loss)
        self._sums[place] += change.reshape(-1)
        return len(order)

    def _read(self, place: int) -> tuple[Array, Array]:
        """A client's features, with a one for the bias, and signs; a DataError if not finite."""
        user = int(self._users[place])
        offsets = self._train.offsets
        examples = self._train.read_range(int(offsets[user]), int(offsets[user + 1]))
        inputs = self._forward.prepare(examples.inputs.to(self._model.device), None)
        features = inputs.flatten(1).cpu().double().numpy()
        wrong = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if len(wrong):
            raise DataError(
                f"train: example {wrong[0]} of client '{self._train.client_ids()[user]}' holds NaN "
                "or infinity, to which no linear model can be fitted; mend it, or leave it out"
            )
        if self._linear.width > features.shape[1]:
            features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
        signs = np.full((len(features), self._linear.num_classes), -1.0)
        signs[np.arange(len(features)), examples.targets.numpy()] = 1.0
        return features, signs

    def _objectives(self) -> tuple[float, float, float]:
        """Primal and dual objective, and the mean loss of an example."""
        losses = 0.0
        for place in range(len(self._users)):
            features, signs = self._read(place)
            model = self._models[place].reshape(self._linear.width, -1)
            losses += float(self._loss.value(signs * (features @ model)).sum())
        # lambda / 2 * tr(W Omega^-1 W^T) without an inverse, as W Omega^-1 = B / lambda.
        penalty = 0.5 * float((self._models * self._sums).sum())
        conjugates = float(self._loss.conjugate(self._duals).sum())
        return losses + penalty, -conjugates - penalty, losses / len(self._duals)

    def _put_model(self, place: int) -> None:
        self._linear.load(self._models[place].reshape(self._linear.width, -1))

    def state_dict(self) -> dict[str, Any]:
        """Dual variables, what clients sent, and the relationship."""
        arrays = {"duals": self._duals, "sums": self._sums, "relationship": self._relationship}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        for name, array in (("duals", self._duals), ("sums", self._sums)):
            torch.from_numpy(array).copy_(state[name])
        relationship = torch.empty_like(torch.from_numpy(self._relationship))
        relationship.copy_(state["relationship"])
        self._set_relationship(relationship.numpy())


def _start(options: MultitaskOptions, count: int) -> Array:
    if options.relationship == "mean":
        return mean_relationship(count, options.mean_ridge)
    return independent_relationship(count)


class LinearLayer:
    """The one linear layer of a model: where its weights and bias lie.

    It has ``num_classes`` K and ``num_features`` d; ``width`` is d, plus 1 if there is a bias.
    ConfigError if the trainable parameters are not those of one linear layer.
    """

    def __init__(self, model: FlatModel) -> None:
        shapes = [tuple(p.shape) for p in model.slices]
        is_layer = bool(shapes) and len(shapes[0]) == 2 and shapes[1:] in ([], [shapes[0][:1]])
        if not is_layer:
            raise ConfigError(
                "multitask: Mocha here is for one linear layer of features, whose parameters are "
                "a weight matrix of shape (classes, features) and maybe a bias of shape "
                f"(classes,), but this model's have the shapes {shapes[:4]}; choose such a model, "
                "such as softmax regression (a bag of words looks rows of words up, and has no "
                "features)"
            )
        self.num_classes, self.num_features = shapes[0]
        self.width = self.num_features + len(shapes) - 1
        self._slices = model.slices

    def apply(self, features: Tensor) -> Tensor:
        """Scores of the layer alone for features of shape (n, d): shape (n, K)."""
        scores = features @ self._slices[0].T
        return scores + self._slices[1] if len(self._slices) > 1 else scores

    def load(self, model: NDArray[np.float64]) -> None:
        """Set the layer to a model, shape (width, K); its last row is the bias, if there is one."""
        self._slices[0].copy_(torch.from_numpy(model[: self.num_features].T))
        if len(self._slices) > 1:
            self._slices[1].copy_(torch.from_numpy(model[-1]))

    def check(self, forward: Forward, examples: Examples) -> None:
        """Try the model on one example or more: it must be the linear layer and nothing else.

        ConfigError if it is more, targets are not one class an example, or features are not dense.
        """
        targets = examples.targets
        if targets.ndim != 1 or targets.is_floating_point():
            raise ConfigError(
                "multitask: Mocha needs one class an example, but the targets of this task have "
                f"shape {tuple(targets.shape)} and type {targets.dtype}"
            )
        inputs = forward.prepare(examples.inputs.to(forward.device), None)
        if not inputs.is_floating_point() or inputs[0].numel() != self.num_features:
            raise ConfigError(
                "multitask: Mocha needs dense features, a number each, but an example of this task "
                f"has shape {tuple(inputs.shape[1:])} and type {inputs.dtype} for a layer of "
                f"{self.num_features} features; choose a task and model of dense features"
            )
        # Random examples beside the real ones: a ReLU, say, may leave some as they are.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn((32, *inputs.shape[1:]), generator=generator, dtype=inputs.dtype)
        inputs = torch.cat([inputs, drawn.to(inputs.device)])
        forward.module.eval()
        with torch.no_grad():
            expected = self.apply(inputs.flatten(1))
            given = forward.module(inputs)
        if given.shape != expected.shape or not torch.allclose(
            given, expected, rtol=1e-3, atol=1e-4
        ):
            raise ConfigError(
                "multitask: Mocha is for linear models, one layer from features to classes, but "
                "this model does something else to the layer's inputs or outputs; choose a linear "
                "model of the task, such as softmax regression"
            )
