"""The section ``attack`` of a configuration: who is corrupted, when, and by which plug-in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from pfl_bench.config.training import PositiveInt, Strict

SPLIT = "attack"


class AttackOptions(Strict):
    """Corrupted clients, which train on poisoned examples or forge what they send.

    The other keys of the section are the plug-in's own (``pfl_bench.simulation.attacks``).

    Attributes:
        kind: Name of the plug-in, such as "label_flip" or "backdoor".
        corrupted_fraction: Share of the training users who are corrupted, drawn once from the
            run's seed; the nearest whole number of them. 0 for a run to compare with, whose attack
            is measured too.
        every: Corrupted clients attack in each so many rounds, and train honestly in the others.
        boost: Factor on what a corrupted client sends in a round of attack; "replace" is the one
            that makes the expected attackers of a round replace the model by theirs:
            cohort_size / (max(1, corrupted_fraction * cohort_size) * central_learning_rate).

    Source: Sun et al. 2019, "Can you really backdoor federated learning?", sections 3 and 4
    (boosting, frequency of attacks); Bagdasaryan et al. 2020, "How to backdoor federated
    learning" (model replacement).
    """

    # Keys of the plug-in, which its own type checks (``config.loading``).
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    kind: str
    corrupted_fraction: Annotated[float, Field(ge=0, le=1)]
    every: PositiveInt = 1
    boost: Annotated[float, Field(ge=1, allow_inf_nan=False)] | Literal["replace"] = 1.0

    @property
    def own(self) -> dict[str, Any]:
        """The keys that are the plug-in's."""
        return dict(self.model_extra or {})

    @property
    def shared(self) -> dict[str, Any]:
        """The keys that every attack has."""
        return self.model_dump(mode="json", include=set(type(self).model_fields))
