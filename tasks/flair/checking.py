"""Look at encoded images as they come: what is wrong with each, or unusual about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tasks.common.threads import map_in_order
from tasks.common.vision.pictures import PictureError, opened, read_to_end

# Kinds that make an image unusable; all other kinds are reported only.
BAD_KINDS = ("missing", "unreadable", "wrong_size", "contradictory", "without_user")
NO_IMAGE = "other_files"
# Pixels of 256 x 256 x 3 take 197 kB; more than this is no small image, and is not read.
MAX_IMAGE_BYTES = 4 << 20

GREY_MODES = ("1", "L", "LA", "I", "F")
JPEG_FORMATS = ("JPEG", "MPO")

Check = Literal["decode", "headers"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Fault or peculiarity of an image.

    Attributes:
        kinds: Names such as "grey"; empty for an RGB JPEG of the right size.
        detail: The particulars, for messages.
    """

    kinds: tuple[str, ...] = ()
    detail: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether the image cannot be used."""
        return any(kind in BAD_KINDS for kind in self.kinds)


FINE = Finding()


class RawImage(NamedTuple):
    """An image as a source gives it.

    Attributes:
        image_id: The published id; the file's name for a file that is no image.
        data: The encoded image; None if it was not even read.
        finding: What the source found out by itself; None if the bytes are to be examined.
    """

    image_id: str
    data: bytes | None
    finding: Finding | None = None


def too_large(size: int) -> Finding:
    """The finding of an image that is not read because of its size in bytes."""
    return Finding(("unreadable",), f"{size} bytes; images of this data set have about 14,000")


def examine(data: bytes, side: int, check: Check) -> Finding:
    """Look at one encoded image: JPEG or PNG, whatever the file's name said.

    Its sides must have ``side`` pixels. "decode" also finds files that are cut; "headers" believes
    the header.
    """
    kinds = []
    try:
        with opened(data, ("JPEG", "PNG"), "JPEG or PNG picture") as image:
            if image.size != (side, side):
                width, height = image.size
                return Finding(("wrong_size",), f"{width} x {height}")
            if image.format not in JPEG_FORMATS:
                kinds.append("png")
            if image.mode in GREY_MODES or image.mode.startswith("I;"):
                kinds.append("grey")
            elif image.mode != "RGB":
                kinds.append("cmyk" if image.mode == "CMYK" else "other_mode")
            if check == "decode":
                read_to_end(image)
    except PictureError as error:
        return Finding(("unreadable",), str(error))
    return Finding(tuple(kinds)) if kinds else FINE


def examined(images: Iterable[RawImage], side: int, check: Check) -> Iterator[RawImage]:
    """Look at images on several threads; they keep their order, and few are in memory at once."""

    def look(image: RawImage) -> RawImage:
        if image.data is None or image.finding is not None:
            return image
        return image._replace(finding=examine(image.data, side, check))

    with closing(map_in_order(look, images)) as looked:
        yield from (image for _, image in looked)
