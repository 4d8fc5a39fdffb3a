"""Base of attacks by corrupted clients, which are plug-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_bench import plugins
from pfl_bench.types import DataFacts, Examples, PluginError, place_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from pfl_bench.config.loading import ResolvedConfig


class Poison:
    """Base of attacks: what corrupted clients train on and send, and what they want of the model.

    An attack is built anew in each process, and keeps nothing from round to round.

    Attributes:
        has_target: Whether there is one label that an attacked example is to get, so that success
            counts; else the attack shows in the accuracy of the test split alone.
    """

    has_target: bool = True

    def corrupt(self, examples: Examples, rng: np.random.Generator) -> Examples:
        """Training examples of a corrupted client; its own, if data are not poisoned.

        Args:
            examples: Of the client; not changed.
            rng: The client's own, opened anew for each call.
        """
        return examples

    def forge(self, update: Tensor, user: int, round_index: int) -> Tensor:
        """Update that a corrupted client sends; its own, if updates are not forged.

        Args:
            update: Shape (P,), after local training; not changed.
            user: Index of the user.
            round_index: From 1.
        """
        return update

    def attack(self, examples: Examples) -> Examples:
        """Test examples as the attack presents them, with the labels that it is after."""
        raise NotImplementedError

    def is_attacked(self, targets: Tensor) -> Tensor:
        """Mask of the test examples, by their labels of shape (n,), that can show a success."""
        raise NotImplementedError


def build_poison(resolved: ResolvedConfig, facts: DataFacts, example: Examples) -> Poison:
    """Build a row's attack for data of which there is an example."""
    kind, options = resolved.tree["attack"]["kind"], resolved.attack_options
    attack = resolved.config.attack
    assert options is not None  # the configuration has the section
    assert attack is not None
    built = plugins.build(plugins.ATTACK, kind, options, facts, example)
    poison = plugins.checked(built, Poison, plugins.ATTACK, kind)
    own = type(poison)
    if own.corrupt is Poison.corrupt and own.forge is Poison.forge and attack.boost == 1.0:
        raise PluginError(
            f"{place_of(poison, 'corrupt')} and forge are those of Poison, so that corrupted "
            "clients do what honest ones do: write corrupt() for the examples that they train on, "
            "forge() for the updates that they send, or set attack.boost above 1"
        )
    return poison
