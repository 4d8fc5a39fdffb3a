"""Figures in the house's look, written as PNG files that say what data they show."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

from pfl_bench.files import write_atomically
from pfl_bench.report.curves import PALETTE
from pfl_bench.types import DataError

_DOTS_PER_INCH = 150
_CHARACTERS_PER_INCH = 14


def make_folder(folder: Path) -> None:
    """Make the folder of the pictures if it is not there; DataError if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataError(
            f"--plots {folder}: there is a file of that name or on the way to it; give the name of "
            "a folder, which is made if it is missing"
        ) from None
    except OSError as error:
        raise DataError(
            f"--plots {folder}: the folder cannot be made ({error.strerror or error}); give one "
            "where you may write"
        ) from None


def picture_style() -> AbstractContextManager[None]:
    """Matplotlib settings under which figures are to be drawn."""
    # matplotlib types the keys as one long Literal, of which older releases know nothing.
    settings: dict[Any, Any] = {
        "axes.prop_cycle": cycler(color=PALETTE),
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "font.size": 9,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
    }
    return mpl.rc_context(settings)


def write_pictures(
    figures: Mapping[str, Figure], folder: Path, heading: str, notice: str | None
) -> list[Path]:
    """Write each figure to ``folder/NAME.png``, whole or not at all, in the order of ``figures``.

    ``heading``, what data it is, stands above every picture. ``notice``, what must be said wherever
    the data are shown, stands below in red, and in the file's "Description".
    """
    paths = []
    for name, figure in figures.items():
        width = int(figure.get_figwidth() * _CHARACTERS_PER_INCH)
        figure.suptitle(textwrap.fill(heading, width), fontsize=8, color="#555555")
        if notice:
            figure.supxlabel(textwrap.fill(notice, width), fontsize=10, color="#b00020")
        figure.set_layout_engine("constrained")
        content = io.BytesIO()
        with picture_style():
            about = {"Title": heading, "Description": notice or ""}
            figure.savefig(content, format="png", dpi=_DOTS_PER_INCH, metadata=about)
        paths.append(folder / f"{name}.png")
        write_atomically(paths[-1], content.getvalue())
    return paths
