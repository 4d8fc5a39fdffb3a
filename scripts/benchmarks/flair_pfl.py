"""pfl-research's own FLAIR recipe, rebuilt on PyPI's ``pfl``.

Rebuilt, from apple/pfl-research at benchmarks/flair (train.py, configs/baseline.yaml),
benchmarks/dataset/flair/numpy.py and benchmarks/model/pytorch/cnn.py: pixels in HDF5, a user read
and shuffled whole by its own opening of the file, as uint8 with the channels last; scaled,
transposed, ``RandomResizedCrop(224)``, ``RandomHorizontalFlip`` and ``Normalize`` of torchvision
in each forward pass, one crop a batch; ResNet-18 with frozen statistics (from scratch: GroupNorm);
local SGD of 2 epochs in batches of 16 with the whole gradient's norm bounded by 10; AdamW with
epsilon 0.01 and beta 0.9, 0.99 in the centre, the first step of its warm-up; where private, a
fixed bound of 0.1. float32 and torch's default layout: the recipe has no other.

Left out, in pfl's favour: the central evaluation and the evaluation on users each 20 rounds, and a
checkpoint each round. Users are those of the other sides' cohorts, not drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.pfl_side import PflSide, Privacy

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MAX_IMAGES = 512
LOCAL = {
    "local_batch_size": 16,
    "local_num_epochs": 2,
    "local_learning_rate": 0.01,
    "local_max_grad_norm": 10.0,
}
# The recipe's full rate is 0.1, which it reaches after 30 rounds.
FIRST_CENTRAL_RATE = 0.1 / 30


class RecipeModel(nn.Module):
    """The recipe's wrapper: a network that transforms its batches itself.

    Args:
        network: Takes shape (n, 3, crop, crop).
        crop: Side of the crop.
    """

    def __init__(self, network: nn.Module, crop: int) -> None:
        from torchvision import transforms

        super().__init__()
        self.network = network
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(crop),
                transforms.RandomHorizontalFlip(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
        """Mean binary cross entropy of images, shape (n, side, side, 3), uint8."""
        self.train(not eval)
        images = self.transform((inputs.float() / 255.0).permute(0, 3, 1, 2))
        return functional.binary_cross_entropy_with_logits(self.network(images), targets)

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing is evaluated."""
        return {}


def pfl_side(
    network: nn.Module,
    crop: int,
    file: Path,
    num_classes: int,
    cohort: Callable[[int], Sequence[int]],
    privacy: Privacy | None,
) -> PflSide:
    """Build the recipe.

    Args:
        network: Trained in place, on the device where it is.
        crop: Side of the crop.
        file: As ``write_pfl_file`` wrote it.
        num_classes: Labels.
        cohort: Gives the users of a round.
        privacy: None for none.
    """
    model = RecipeModel(network, crop)
    device = next(network.parameters()).device

    def read_user(user: int) -> tuple[Tensor, Tensor]:
        with h5py.File(file, "r") as opened:
            group = opened[f"train/{user}"]
            inputs = np.array(group["images"])
            targets = np.zeros((len(inputs), num_classes), dtype=np.float32)
            targets[np.array(group["labels_row"]), np.array(group["labels_col"])] = 1
        inputs, targets = inputs[:MAX_IMAGES], targets[:MAX_IMAGES]
        order = np.random.permutation(len(inputs))  # noqa: NPY002 - what the recipe costs
        shuffled = inputs[order], targets[order]
        return tuple(torch.as_tensor(values).to(device) for values in shuffled)

    trained = [p for p in model.parameters() if p.requires_grad]
    central = torch.optim.AdamW(
        trained, FIRST_CENTRAL_RATE, eps=0.01, betas=(0.9, 0.99), weight_decay=0.0
    )
    return PflSide(model, cohort, read_user, central, LOCAL, privacy, eval=False)
