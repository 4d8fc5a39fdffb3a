"""Opening pictures: each kind of damage has words of its own, and a fault of ours is none."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tasks.common.vision.pictures import PictureError, opened


def encoded(kind: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(file, kind, **options)
    return file.getvalue()


def without_palette() -> bytes:
    whole = encoded("PNG", "P", transparency=3)
    name = whole.index(b"PLTE")
    size = int.from_bytes(whole[name - 4 : name], "big")
    return whole[: name - 4] + whole[name + 4 + size + 4 :]


def decoded(content: bytes, *args: object) -> np.ndarray:
    with opened(content, *args) as picture:
        return np.asarray(picture.convert("RGB"))


def test_pictures_are_decoded() -> None:
    whole = encoded("PNG")
    assert np.array_equal(decoded(whole), np.asarray(Image.open(io.BytesIO(whole))))
    assert decoded(encoded("JPEG"), ("JPEG",)).shape == (16, 16, 3)


@pytest.mark.parametrize("content", [b"", b"no picture", encoded("GIF")])
def test_what_is_no_picture_is_named_without_an_address(content: bytes) -> None:
    with pytest.raises(PictureError, match=r"^it is no JPEG or PNG$"):
        decoded(content, ("JPEG", "PNG"), "JPEG or PNG")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (encoded("JPEG")[:-20], "truncated"),
        (encoded("PNG")[:200], "."),
        (without_palette(), "."),
    ],
)
def test_damage_is_a_picture_error_with_a_reason(content: bytes, words: str) -> None:
    with pytest.raises(PictureError, match=words):
        decoded(content)


@pytest.mark.parametrize(
    "error", [PictureError("too small"), MemoryError(), NameError("ours"), KeyboardInterrupt()]
)
def test_what_is_no_fault_of_the_decoder_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, opened(encoded("PNG")):
        raise error
    assert caught.value is error
