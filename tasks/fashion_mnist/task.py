"""The Fashion-MNIST task: which of ten articles of clothing an image shows."""

from __future__ import annotations

from pfl_bench.data import open_store
from tasks.common.images.task import ImageOptions, ImageTask, build_task

TASK_NAME = "fashion_mnist"


class Options(ImageOptions):
    """Options of the Fashion-MNIST task: those of all tasks on images."""


def build(options: Options) -> ImageTask:
    """Open a prepared store and make the row's clients; refused as ``build_task`` says."""
    return build_task(open_store(options.data, TASK_NAME), options.partition)
