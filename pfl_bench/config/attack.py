"""The section ``attack`` of a configuration: who is corrupted, and what they do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pfl_bench.config.training import PositiveInt, Strict

ClassIndex = Annotated[int, Field(ge=0)]
Pair = Annotated[list[ClassIndex], Field(min_length=2, max_length=2)]
Labels = Literal["permutation", "mirror", "random", "pairs"]
Corner = Literal["top_left", "top_right", "bottom_left", "bottom_right"]

SPLIT = "attack"
# Options that belong to one kind alone.
_OF_KIND = {
    "label_flip": ("labels", "pairs"),
    "backdoor": (
        "target_class",
        "poisoned_fraction",
        "trigger_size",
        "trigger_corner",
        "trigger_value",
        "image_shape",
    ),
}


class AttackOptions(Strict):
    """Corrupted clients, which train on poisoned examples and may boost what they send.

    Attributes:
        kind: "label_flip" trains on wrong labels, "backdoor" on examples with a trigger, a square
            of pixels, and the label of a target class.
        corrupted_fraction: Share of the training users who are corrupted, drawn once from the
            run's seed; the nearest whole number of them. 0 for a run to compare with, whose attack
            is measured too.
        every: Corrupted clients attack in each so many rounds, and train honestly in the others.
        boost: Factor on what a corrupted client sends in a round of attack; "replace" is the one
            that makes the expected attackers of a round replace the model by theirs:
            cohort_size / (max(1, corrupted_fraction * cohort_size) * central_learning_rate).
        labels: Of label_flip: "permutation" gives each corrupted client a permutation of the
            classes of its own, "mirror" turns class c of K into K - 1 - c, "random" draws another
            class for each example, "pairs" turns the classes of ``pairs`` and leaves the rest.
        pairs: Of labels "pairs": lists of two classes, such as [[7, 1]] for sevens called one.
        target_class: Of backdoor: the class that the trigger is to be taken for.
        poisoned_fraction: Of backdoor: share of a corrupted client's examples that get the
            trigger, at least one of them.
        trigger_size: Of backdoor: side of the square, in pixels.
        trigger_corner: Of backdoor: the corner that the square lies in.
        trigger_value: Of backdoor: what its pixels are set to, in all channels; where images are
            bytes, in parts of 255, and else in the units of the task's inputs.
        image_shape: Of backdoor: [height, width] where the task gives images as flat vectors.

    Source: Sun et al. 2019, "Can you really backdoor federated learning?", sections 3 and 4
    (boosting, frequency of attacks); Bagdasaryan et al. 2020, "How to backdoor federated
    learning" (model replacement); Gu et al. 2017, "BadNets" (the trigger).
    """

    kind: Literal["label_flip", "backdoor"]
    corrupted_fraction: Annotated[float, Field(ge=0, le=1)]
    every: PositiveInt = 1
    boost: Annotated[float, Field(ge=1, allow_inf_nan=False)] | Literal["replace"] = 1.0
    labels: Labels | None = None
    pairs: Annotated[list[Pair], Field(min_length=1)] | None = None
    target_class: ClassIndex | None = None
    poisoned_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    trigger_size: PositiveInt = 4
    trigger_corner: Corner = "bottom_right"
    trigger_value: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    image_shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> AttackOptions:
        other = "backdoor" if self.kind == "label_flip" else "label_flip"
        for name in _OF_KIND[other]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is of kind {other}, not of {self.kind}; remove it")
        if self.kind == "backdoor" and self.target_class is None:
            raise ValueError("target_class is required: the class that triggered inputs are to get")
        if self.kind == "label_flip" and self.labels is None:
            raise ValueError("labels is required: permutation, mirror, random or pairs")
        if (self.labels == "pairs") != (self.pairs is not None):
            raise ValueError("labels 'pairs' and a list of pairs, such as [[7, 1]], go together")
        sources = [source for source, _ in self.pairs or []]
        if len(set(sources)) < len(sources) or any(a == b for a, b in self.pairs or []):
            raise ValueError(
                f"pairs {self.pairs}: a class is turned into one other; none may stand first "
                "twice or stay as it is"
            )
        return self

    @property
    def has_target(self) -> bool:
        """Whether there is one label that an attacked example is to get, so that success counts."""
        return self.kind == "backdoor" or self.labels in ("mirror", "pairs")
