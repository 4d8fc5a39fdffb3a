"""Decoding of JPEGs of 256 x 256 pixels, by the decoder of FLAIR's task."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tasks.flair.decoding import Decoder

PICTURES = 256


def rates(device: str, folder: Path) -> dict[str, Any]:
    """JPEGs a second, by where they are decoded: on the CPU, and on ``device``."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(PICTURES):
        # Smooth, as photographs are: noise would be slow to decode.
        small = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((256, 256), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        pictures.append(np.frombuffer(buffer.getvalue(), np.uint8).copy())
    names = [f"picture {i}" for i in range(PICTURES)]
    found = {}
    for where in dict.fromkeys(("cpu", device)):
        decoder = Decoder("cpu" if where == "cpu" else "gpu", 256, None)
        decoder.use_device(torch.device(where))
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            decoder.decode(pictures, names)
            if where == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        found[where] = {"pictures_a_second": round(PICTURES / min(seconds[1:]))}
    return found
