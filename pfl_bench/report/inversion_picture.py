"""The picture of a gradient inversion: originals above what was made of each update."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import write_figure
from pfl_bench.runs.gradient_inversion import Inverted

if TYPE_CHECKING:
    from torch import Tensor

_MOST_SHOWN = 8


def save_picture(inverted: Inverted, path: Path) -> None:
    """Write a PNG: a column an example, a row for the originals and for each reconstruction."""
    from matplotlib.figure import Figure

    rows: dict[str, Tensor] = {"original": inverted.originals}
    for name, one in inverted.found.items():
        rows[f"{name}\n{one.psnr:.1f} dB"] = one.images
    shown = min(_MOST_SHOWN, len(inverted.originals))
    figure = Figure(figsize=(1.6 + 1.1 * shown, 1.15 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), shown, squeeze=False)
    low, high = inverted.pixel_range
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images[:shown], strict=True):
            pixels = ((image - low) / (high - low)).clamp(0.0, 1.0).permute(1, 2, 0).numpy()
            axes.imshow(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels, cmap="gray")
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    write_figure(figure, path, dpi=150, metadata={"Software": None})
