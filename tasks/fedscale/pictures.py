"""Pictures among the samples: opened, and what is wrong with them said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from tasks.fedscale.samples import SampleError


@contextmanager
def opened(content: bytes, formats: tuple[str, ...], what: str) -> Iterator[Any]:
    """Open a picture; whatever Pillow refuses it by, now or while it is used, is a SampleError.

    Args:
        content: The bytes.
        formats: Pillow's names of the formats that it may have.
        what: What it is to be, for messages.

    Yields:
        A ``PIL.Image.Image``.

    Raises:
        SampleError: It cannot be decoded.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(content), formats=formats) as picture:
            yield picture
    except SampleError:
        raise
    except UnidentifiedImageError as error:
        # Pillow's own words are of an object in memory and its address.
        raise SampleError(f"it is no {what}") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise SampleError(" ".join(str(error).split())[:120] or type(error).__name__) from error
