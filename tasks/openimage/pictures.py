"""Reading pictures: checked when a store is made, decoded when it is used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.common.vision.pictures import opened, read_to_end

FORMATS = ("JPEG", "PNG")
_WHAT = f"picture in {' or '.join(FORMATS)}"


def check_picture(content: bytes) -> NDArray[np.uint8]:
    """Give a picture's n bytes back, shape (n,), or a PictureError if they cannot be decoded."""
    with opened(content, FORMATS, _WHAT) as picture:
        read_to_end(picture)
    return np.frombuffer(content, dtype=np.uint8)


def decode_picture(content: bytes, size: int) -> NDArray[np.uint8]:
    """Decode to RGB and scale (bilinear), whatever the proportions; shape (size, size, 3)."""
    with opened(content, FORMATS, _WHAT) as picture:
        colour = picture.convert("RGB")
        scaled = colour.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(scaled)
