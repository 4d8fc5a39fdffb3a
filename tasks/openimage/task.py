"""The OpenImage task: what is in a picture, one client a Flickr user."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from pfl_bench.data import Store, open_store
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.common.vision.decoding import DecodedPictures
from tasks.openimage.pictures import decode_picture
from tasks.openimage.transform import FlipNormalize

TASK_NAME = "openimage"


class Options(TaskOptions):
    """Options of the OpenImage task, beside those of all tasks on FedScale's layout.

    Attributes:
        size: Height and width to which pictures are scaled, without regard to their proportions;
            FedScale's is 256.
        augment: Whether training mirrors half of the pictures.
        keep_decoded: Keep decoded pictures in memory (3 * size^2 bytes each, at most 8 GiB).
    """

    size: int = Field(default=256, ge=16, le=1024)
    augment: bool = True
    keep_decoded: bool = False


class OpenImageTask(LabelledTask):
    """One label a picture, cross entropy; pictures are decoded when they are read.

    Args:
        store: An open OpenImage store.
        options: As in ``Options``.

    Raises:
        ConfigError: More decoded pictures would be kept than the limit allows.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self.transform = FlipNormalize(options.augment)
        decode = partial(decode_picture, size=options.size)
        pictures = DecodedPictures(store, options.size, decode, options.keep_decoded)
        shape = (3, options.size, options.size)
        super().__init__(store, ("image", "targets"), pictures, options, input_shape=shape)


def build(options: Options) -> OpenImageTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return OpenImageTask(open_store(options.data, TASK_NAME), options)
