"""The CIFAR-10 task: which of ten things a small colour image shows."""

from __future__ import annotations

from pfl_bench.data import open_store
from tasks.cifar10.prepare import SIDE
from tasks.common.images.task import CropFlip, ImageOptions, ImageTask, build_task

TASK_NAME = "cifar10"


class Options(ImageOptions):
    """Options of the CIFAR-10 task, beside those of all tasks on images.

    Attributes:
        augment: Whether training images are padded by 4 pixels (mirrored), cropped at random to
            their size, and flipped left-right with probability 1/2.
    """

    augment: bool = False


def build(options: Options) -> ImageTask:
    """Open a prepared store and make the row's clients; refused as ``build_task`` says."""
    transform = CropFlip(SIDE) if options.augment else None
    store = open_store(options.data, TASK_NAME)
    return build_task(store, options.partition, transform=transform)
