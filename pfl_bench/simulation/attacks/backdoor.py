"""A backdoor: a square of pixels in a corner is to be taken for a class, whatever the picture."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pfl_bench.config.training import PositiveInt, Strict
from pfl_bench.simulation.poison import Poison
from pfl_bench.types import ConfigError, DataFacts, Examples

_CHANNELS = (1, 3, 4)
_WHITE = 255.0


Corner = Literal["top_left", "top_right", "bottom_left", "bottom_right"]


class Options(Strict):
    """The trigger, and what it is to be taken for.

    Attributes:
        target_class: The class that triggered inputs are to get.
        poisoned_fraction: Share of a corrupted client's examples that get the trigger, at least
            one of them.
        trigger_size: Side of the square, in pixels.
        trigger_corner: The corner that the square lies in.
        trigger_value: What its pixels are set to, in all channels; where images are bytes, in
            parts of 255, and else in the units of the task's inputs.
        image_shape: [height, width] where the task gives images as flat vectors.
    """

    target_class: Annotated[int, Field(ge=0)]
    poisoned_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    trigger_size: PositiveInt = 4
    trigger_corner: Corner = "bottom_right"
    trigger_value: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    image_shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None


class Backdoor(Poison):
    """Draws the trigger into images such as ``example``, which it and the class must fit.

    Source: Gu et al. 2017, "BadNets: Identifying vulnerabilities in the machine learning model
    supply chain"; section 3 (a fixed pattern, one target class).
    """

    def __init__(self, options: Options, facts: DataFacts, example: Examples) -> None:
        target = options.target_class
        if target >= facts.num_classes:
            raise ConfigError(
                f"attack.target_class: {target}, but the data have {facts.num_classes} classes: 0 "
                f"to {facts.num_classes - 1}"
            )
        self._target = target
        self._fraction = options.poisoned_fraction
        self._height, self._width = _image_sides(options, example.inputs[0])
        self._is_flat = options.image_shape is not None
        if options.trigger_size > min(self._height, self._width):
            raise ConfigError(
                f"attack.trigger_size: {options.trigger_size} pixels, but the images have "
                f"{self._height} x {self._width}; lower it"
            )
        vertical, horizontal = options.trigger_corner.split("_")
        self._rows = _edge(options.trigger_size, self._height, vertical == "top")
        self._columns = _edge(options.trigger_size, self._width, horizontal == "left")
        self._value = options.trigger_value
        if not example.inputs.is_floating_point():
            if not 0 <= options.trigger_value <= 1:
                raise ConfigError(
                    f"attack.trigger_value: {options.trigger_value:g}, but the task's images are "
                    "bytes, of which it is a part of 255: from 0 (black) to 1 (white)"
                )
            self._value = round(options.trigger_value * _WHITE)

    def corrupt(self, examples: Examples, rng: np.random.Generator) -> Examples:
        """Training examples of a corrupted client: some have the trigger and the target label."""
        count = len(examples)
        poisoned = min(count, max(1, math.floor(self._fraction * count + 0.5)))
        chosen = torch.from_numpy(rng.permutation(count)[:poisoned])
        inputs, targets = examples.inputs.clone(), examples.targets.clone()
        inputs[chosen] = self._triggered(inputs[chosen])
        targets[chosen] = self._target
        return Examples(inputs, targets)

    def attack(self, examples: Examples) -> Examples:
        """Test examples with the trigger and the target label."""
        targets = torch.full_like(examples.targets, self._target)
        return Examples(self._triggered(examples.inputs.clone()), targets)

    def is_attacked(self, targets: Tensor) -> Tensor:
        """Mask of the examples, shape (n,), that do not have the target label anyway."""
        return targets != self._target

    def _triggered(self, inputs: Tensor) -> Tensor:
        """Draw the trigger into images of shape (n, ...), in place."""
        images = inputs
        if self._is_flat:
            images = inputs.view(len(inputs), 1, self._height, self._width)
        images[:, :, self._rows, self._columns] = self._value
        return inputs


def _edge(size: int, side: int, is_first: bool) -> slice:
    return slice(0, size) if is_first else slice(side - size, side)


def _image_sides(options: Options, image: Tensor) -> tuple[int, int]:
    """Height and width of one input; a ConfigError if it is no image, or not of the given shape."""
    shape = tuple(image.shape)
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise ConfigError(
            f"attack.kind: a backdoor's trigger is drawn into images, but the task's inputs are of "
            f"type {image.dtype}; use kind label_flip"
        )
    if options.image_shape is not None:
        height, width = options.image_shape
        if len(shape) != 1 or height * width != shape[0]:
            raise ConfigError(
                f"attack.image_shape: {height} x {width}, but the task's inputs have the shape "
                f"{shape}; it is for flat vectors of height * width pixels"
            )
        return height, width
    if len(shape) != 3 or shape[0] not in _CHANNELS:
        raise ConfigError(
            f"attack.kind: a backdoor's trigger is drawn into images of shape (channels, height, "
            f"width), but the task's inputs have the shape {shape}; use kind label_flip, or for "
            "images that are flat vectors give attack.image_shape, such as [8, 8]"
        )
    return shape[1], shape[2]


build = Backdoor
