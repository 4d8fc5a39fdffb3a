"""Label flipping: corrupted clients train on wrong labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pfl_bench.config.attack import AttackOptions
from pfl_bench.types import ConfigError, DataFacts, Examples


class LabelFlip:
    """Turns classes into others.

    Args:
        options: Of kind "label_flip".
        facts: Of the data.

    Raises:
        ConfigError: A class is named that the data do not have.

    Source: FedScale's repository, examples/poisoning_setting/customized_client.py, whose
    corrupted clients each shuffle the classes in their own way ("permutation"; a class may then
    stay as it is); Tolpegin et al. 2020, "Data poisoning attacks against federated learning
    systems" ("pairs").
    """

    def __init__(self, options: AttackOptions, facts: DataFacts) -> None:
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
        """What a corrupted client trains on.

        Args:
            examples: Of the client; not changed. Targets of shape (n,), int64.
            rng: The client's own, opened anew for each call.
        """
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
        """Which examples of shape (n,) have a label that the attack turns into another."""
        return self._map[targets] != targets
