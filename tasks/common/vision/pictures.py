"""Pictures in the data of several tasks: opened, and what is wrong with them said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.common.sources import reason

if TYPE_CHECKING:
    from PIL import Image


# Decoding at an eighth of the size finds a cut file all the same, in half the time.
_DRAFT_FRACTION = 8


class PictureError(ValueError):
    """A picture cannot be decoded, or is not as it should be; the message says why."""


@contextmanager
def opened(
    content: bytes, formats: tuple[str, ...] | None = None, what: str = "picture"
) -> Iterator[Image.Image]:
    """Open a picture; whatever Pillow refuses it by, now or while it is used, is a PictureError.

    ``formats`` are Pillow's names of those that it may have, None for all that Pillow reads;
    messages say that it is no ``what``.

    No more is to be done with it inside than to look at it and to decode it: what fails there is
    said of the picture.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(content), formats=formats) as picture:
            yield picture
    except (PictureError, MemoryError, NameError, ImportError):
        # The last two are of our code, whoever reads the picture.
        raise
    except UnidentifiedImageError as error:
        # Pillow's own words are of an object in memory and its address.
        raise PictureError(f"it is no {what}") from error
    except Exception as error:
        # Of many types: a PNG without its palette is an AssertionError, in Pillow 10 a TypeError.
        raise PictureError(reason(error, 120)) from error


def read_to_end(picture: Image.Image) -> None:
    """Decode an open picture to its end, small and grey where its format can."""
    small = [max(1, side // _DRAFT_FRACTION) for side in picture.size]
    picture.draft("L", (small[0], small[1]))
    picture.load()


def encoded(picture: Image.Image, form: str, **settings: Any) -> bytes:
    """Encode a picture as "JPEG" or "PNG", with Pillow's settings of that form."""
    file = BytesIO()
    picture.save(file, form, **settings)
    return file.getvalue()


def grainy_jpeg(picture: Image.Image, spread: float, rng: np.random.Generator) -> bytes:
    """Encode a drawn picture with grey noise of that standard deviation on its pixels."""
    from PIL import Image

    grain = rng.normal(0.0, spread, (picture.height, picture.width, 1))
    pixels = np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG", quality=90)


# Mean and standard deviation of each channel of ImageNet's pixels, in 0 to 1. Source: torchvision's
# documentation of its classification weights.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
