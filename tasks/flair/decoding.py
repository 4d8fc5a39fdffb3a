"""From the bytes of pictures, as published, to pixels, and from pixels to what models take."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pfl_bench.types import ConfigError, DataError
from tasks.common.vision.pictures import IMAGENET_MEAN, IMAGENET_STD, PictureError, opened

Bytes = NDArray[np.uint8]
JPEG_START = b"\xff\xd8"
# Markers of JPEG's frame headers (ITU T.81, table B.1): C0 to CF without C4, C8 and CC.
FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# By PyTorch's allocator, or by nvJPEG's status 5, NVJPEG_STATUS_ALLOCATOR_FAILURE.
_MEMORY_RAN_OUT = re.compile("out of memory|: 5$", re.IGNORECASE | re.MULTILINE)


class Decoder:
    """Decodes pictures to RGB, and scales them if asked to.

    On the CPU Pillow decodes: torchvision gives the same pixels, but its decoders are deprecated
    since 0.29. On a GPU torchvision's nvJPEG decodes JPEGs of one or three components, and Pillow
    what it does not take (CMYK, PNG). nvJPEG and libjpeg-turbo may differ by a few grey levels, so
    runs are repeated bit for bit only where the same one decodes.

    ``where`` is "cpu", "gpu", or "auto": where the model lives. Every picture has sides of
    ``stored_side`` and is scaled to ``resize`` (bilinear, antialiased), if that is not None.
    """

    def __init__(
        self, where: Literal["auto", "cpu", "gpu"], stored_side: int, resize: int | None
    ) -> None:
        self._where = where
        self._stored_side = stored_side
        self._resize = resize
        # A stream whose memory nothing but nvJPEG writes to.
        self._gpu: torch.cuda.Stream | None = None
        self.side = stored_side if resize is None else resize

    def use_device(self, device: torch.device) -> None:
        """Take note of where the model lives; refused if that is no GPU, and one was asked for."""
        if device.type == "cuda" and self._where != "cpu":
            # Of this thread's GPU: reading threads are not told which of several is theirs.
            self._gpu = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # In force from here on: filters that come and go are not safe in reading threads.
            warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)
        elif self._where == "gpu":
            raise ConfigError(
                f"task.decode: 'gpu' decodes with nvJPEG, but the model runs on {device.type}; set "
                "task.decode=cpu or auto, or device=cuda"
            )

    def decode(self, pictures: Sequence[Bytes], names: Sequence[str]) -> Tensor:
        """Decode pictures, which messages call by ``names``.

        Returns:
            Shape (n, 3, side, side), uint8, on the CPU or the GPU; channels last in memory.

        Raises:
            DataError: One cannot be decoded, or is not of the stored size.
            torch.OutOfMemoryError: The GPU's memory does not suffice to decode them.
        """
        if not pictures:
            return torch.empty((0, 3, self.side, self.side), dtype=torch.uint8)
        if self._gpu is not None:
            decoded = _decode_on_gpu(pictures, names, self._gpu)
        else:
            decoded = [_decode_on_cpu(p, name) for p, name in zip(pictures, names, strict=True)]
        for picture, name in zip(decoded, names, strict=True):
            if picture.shape[:2] != (self._stored_side, self._stored_side):
                raise DataError(
                    f"{name} has {picture.shape[1]} x {picture.shape[0]} pixels, but the store "
                    f"announces {self._stored_side} x {self._stored_side}; prepare the data again"
                )
        batch = torch.stack(decoded).permute(0, 3, 1, 2)
        if self._resize in (None, self._stored_side):
            return batch
        size = (self.side, self.side)
        # As float: scaling uint8 rounds in ways that depend on the processor.
        scaled = functional.interpolate(
            batch.float(), size=size, mode="bilinear", align_corners=False, antialias=True
        )
        return scaled.round_().clamp_(0, 255).to(torch.uint8)


def _decode_on_gpu(
    pictures: Sequence[Bytes], names: Sequence[str], stream: torch.cuda.Stream
) -> list[Tensor]:
    """Decode to tensors of shape (side, side, 3) on a GPU, in memory of a stream without kernels.

    nvJPEG writes at once: in memory of the caller's stream it would not wait for kernels there that
    still read what the memory held before.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    fit = [i for i, p in enumerate(pictures) if num_components(p.tobytes()) in (1, 3)]
    decoded: dict[int, Tensor] = {}
    if fit:
        jpegs = [torch.from_numpy(pictures[i]) for i in fit]
        try:
            with torch.cuda.stream(stream):
                batch = decode_jpeg(jpegs, ImageReadMode.RGB, device=stream.device)
        except RuntimeError as error:
            if _MEMORY_RAN_OUT.search(str(error)):
                # A smaller batch, or fewer slots, may fit.
                raise torch.OutOfMemoryError(
                    f"nvJPEG had too little memory for {len(fit)} pictures, which "
                    f"task.decode=cpu decodes without it: {error}"
                ) from error
            shown = ", ".join(names[i] for i in fit[:3])
            raise DataError(
                f"nvJPEG cannot decode one of {len(fit)} pictures ({shown}, ...): {error}; "
                "task.decode=cpu names the picture if it is damaged"
            ) from error
        caller = torch.cuda.current_stream(stream.device)
        caller.wait_stream(stream)
        for index, picture in zip(fit, batch, strict=True):
            # Freed, it is not written to before the caller's kernels have read it.
            picture.record_stream(caller)
            decoded[index] = picture.permute(1, 2, 0)
    for index, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        if index not in decoded:
            decoded[index] = _decode_on_cpu(picture, name).to(stream.device)
    return [decoded[index] for index in range(len(pictures))]


def _decode_on_cpu(picture: Bytes, name: str) -> Tensor:
    """Decode to a tensor of shape (side, side, 3)."""
    try:
        with opened(picture.tobytes()) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))
    except PictureError as error:
        raise DataError(
            f"{name} cannot be decoded ({error}); the store is damaged: copy it again, or prepare "
            "the data again"
        ) from error


def num_components(data: bytes) -> int | None:
    """Number of colour components of a JPEG: 1 grey, 3 colour, 4 CMYK; None if it is none.

    Source: ITU T.81, section B.2.2 (frame header syntax).
    """
    if data[:2] != JPEG_START:
        return None
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # fill byte
            place += 1
        elif marker in FRAME_HEADERS:
            return data[place + 9]
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


class CropFlipNormalize:
    """Random crop and flips for training, resizing for evaluation, ImageNet's normalisation.

    Args:
        side: Height and width of the pictures as they are read.
        crop: Height and width of what the model takes, at most ``side``.
        augment: Whether training crops and flips at random; otherwise it sees what evaluation sees.

    Source: Song et al. 2022 (FLAIR), section 5.1; the published code flips in each direction with
        probability 1/2, independently, and resizes bilinearly for evaluation.
    """

    def __init__(self, side: int, crop: int, augment: bool) -> None:
        self.side = side
        self.crop = crop
        self.augment = augment
        # For whole rows of pixels, a pixel's channels side by side: three times as fast on a CPU
        # as three numbers a pixel.
        self._scale = torch.tensor([1.0 / (255.0 * s) for s in IMAGENET_STD]).repeat(crop)
        shift = torch.tensor([-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])
        self._shift = shift.repeat(crop)

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw crops and flips.

        ``rng``, the client's stream, is untouched without augmentation.

        Returns:
            Shape (count, 4), int64: top, left, whether flipped left-right, whether upside down.
        """
        draws = np.zeros((count, 4), dtype=np.int64)
        if self.augment:
            draws[:, :2] = rng.integers(0, self.side - self.crop + 1, (count, 2))
            draws[:, 2:] = rng.integers(0, 2, (count, 2))
        return torch.from_numpy(draws)

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Transform a batch of shape (n, 3, side, side), uint8.

        ``draws`` are those of ``draw``, on the same device; None for evaluation.

        Returns:
            Shape (n, 3, crop, crop), float32, normalised; channels last in memory.
        """
        self._scale, self._shift = (t.to(inputs.device) for t in (self._scale, self._shift))
        if draws is None or not self.augment:
            pictures = inputs.float()
            if self.side != self.crop:
                pictures = functional.interpolate(
                    pictures, size=(self.crop, self.crop), mode="bilinear", align_corners=False
                )
            pixels = pictures.permute(0, 2, 3, 1).contiguous()
        elif inputs.device.type == "cpu":
            pixels = self._cut_one_by_one(inputs, draws)
        else:
            pixels = self._cut_at_once(inputs, draws).float()
        pixels.view(-1, 3 * self.crop).mul_(self._scale).add_(self._shift)
        return pixels.permute(0, 3, 1, 2)

    def _cut_one_by_one(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Copies of slices: on a CPU a fraction of the time of indexing each pixel."""
        out = torch.empty((len(inputs), self.crop, self.crop, 3), dtype=torch.float32)
        pictures = inputs.permute(0, 2, 3, 1)
        for target, picture, draw in zip(out, pictures, draws.tolist(), strict=True):
            top, left, mirrored, upside_down = draw
            cut = picture[top : top + self.crop, left : left + self.crop]
            axes = [axis for axis, flip in ((1, mirrored), (0, upside_down)) if flip]
            target.copy_(cut.flip(axes) if axes else cut)
        return out

    def _cut_at_once(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """One gather for the whole batch, as a GPU likes it."""
        place = torch.arange(self.crop, device=inputs.device)
        top, left, mirrored, upside_down = draws.unbind(1)
        rows = torch.where(upside_down[:, None] > 0, self.crop - 1 - place, place) + top[:, None]
        columns = torch.where(mirrored[:, None] > 0, self.crop - 1 - place, place) + left[:, None]
        batch = torch.arange(len(inputs), device=inputs.device)
        pictures = inputs.permute(0, 2, 3, 1)
        return pictures[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
