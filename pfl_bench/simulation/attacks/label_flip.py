"""Label flipping: corrupted clients train on wrong labels."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from pfl_bench.config.training import Strict
from pfl_bench.simulation.poison import Poison
from pfl_bench.types import ConfigError, DataFacts, Examples

ClassIndex = Annotated[int, Field(ge=0)]
Pair = Annotated[list[ClassIndex], Field(min_length=2, max_length=2)]
Labels = Literal["permutation", "mirror", "random", "pairs"]


class Options(Strict):
    """Options of the attack: the labels that become wrong, and how.

    Attributes:
        labels: "permutation" gives each corrupted client a permutation of the classes of its own,
            "mirror" turns class c of K into K - 1 - c, "random" draws another class for each
            example, "pairs" turns the classes of ``pairs`` and leaves the rest.
        pairs: Of labels "pairs": lists of two classes, such as [[7, 1]] for sevens called one.
    """

    labels: Labels
    pairs: Annotated[list[Pair], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _pairs_fit(self) -> Options:
        if (self.labels == "pairs") != (self.pairs is not None):
            raise ValueError(
                "labels: pairs needs pairs, such as pairs: [[7, 1]], and none else does"
            )
        sources = [source for source, _ in self.pairs or []]
        if len(set(sources)) < len(sources) or any(a == b for a, b in self.pairs or []):
            raise ValueError(
                f"pairs {self.pairs}: a class is turned into one other; none may stand first "
                "twice or stay as it is"
            )
        return self

    @property
    def has_target(self) -> bool:
        """Whether there is one label that an attacked example is to get."""
        return self.labels in ("mirror", "pairs")


class LabelFlip(Poison):
    """Turns classes into others, all of which the data must have.

    Source: FedScale's repository, examples/poisoning_setting/customized_client.py, whose
    corrupted clients each shuffle the classes in their own way ("permutation"; a class may then
    stay as it is); Tolpegin et al. 2020, "Data poisoning attacks against federated learning
    systems" ("pairs").
    """

    def __init__(self, options: Options, facts: DataFacts) -> None:
        self.has_target = options.has_target
        self._labels = options.labels
        self._num_classes = facts.num_classes
        self._map = torch.arange(facts.num_classes)
        if options.labels == "mirror":
            self._map = self._map.flip(0)
        for source, target in options.pairs or []:
            if max(source, target) >= facts.num_classes:
                raise ConfigError(
                    f"attack.pairs: [{source}, {target}] names a class that the data do not have; "
                    f"they have {facts.num_classes}: 0 to {facts.num_classes - 1}"
                )
            self._map[source] = target

    def corrupt(self, examples: Examples, rng: np.random.Generator) -> Examples:
        """Training examples of a corrupted client, with targets of shape (n,), int64."""
        targets = examples.targets
        if self._labels == "permutation":
            permutation = torch.from_numpy(rng.permutation(self._num_classes))
            return Examples(examples.inputs, permutation[targets])
        if self._labels == "random":
            steps = torch.from_numpy(rng.integers(1, self._num_classes, len(targets)))
            return Examples(examples.inputs, (targets + steps) % self._num_classes)
        return self.attack(examples)

    def attack(self, examples: Examples) -> Examples:
        """Test examples with the labels that the attack is after; see ``is_attacked``."""
        return Examples(examples.inputs, self._map[examples.targets])

    def is_attacked(self, targets: Tensor) -> Tensor:
        """Mask of the examples, shape (n,), whose label the attack turns into another."""
        return self._map[targets] != targets


def build(options: Options, facts: DataFacts, example: Examples) -> LabelFlip:
    """Build the attack on data of some classes; the example is not used, as labels alone change."""
    return LabelFlip(options, facts)
