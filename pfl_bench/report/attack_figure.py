"""The figure of a membership attack: its ROC curve beside what the claim allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_bench.report import canvas
from privacy.empirical.membership import clopper_pearson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONFIDENCE = 0.95


def roc_picture(found: Mapping[str, Any]) -> canvas.Picture:
    """Draw one kind of ``attack.json``; bands: Clopper-Pearson, 95 %, as of independent trials."""
    false = np.array(found["roc"]["false_positives"])
    true = np.array(found["roc"]["true_positives"])
    outs, ins = found["trials"]["out"], found["trials"]["in"]
    bands = np.array([clopper_pearson(int(count), ins, _CONFIDENCE) for count in true])
    smallest = 10.0 ** math.floor(math.log10(0.5 / outs))

    def paint(axes: Axes) -> None:
        rates = false / outs
        axes.plot(rates, true / ins, color=canvas.PALETTE[0], label=f"attack {found['kind']}")
        axes.fill_between(rates, bands[:, 0], bands[:, 1], color=canvas.PALETTE[0], alpha=0.2)
        chance = np.array([smallest, 1.0])
        axes.plot(chance, chance, color=canvas.INK, dashes=canvas.DASHES[2], label="chance")
        curve = found["curve"]
        if curve is not None:
            axes.plot(
                curve["false_positive_rate"],
                curve["true_positive_rate"],
                color=canvas.PALETTE[1],
                dashes=canvas.DASHES[1],
                label="most that the claim allows",
            )
        axes.set(xscale="log", yscale="log", xlim=(smallest, 1.0), ylim=(smallest, 1.0))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(frameon=False, fontsize=7)

    rates = ", ".join(
        f"true positive rate {one['true_positive_rate']:.3g} at {one['false_positive_rate']:g}"
        for one in found["rates"]
    )
    described = f"ROC curve of the attack {found['kind']}: area {found['auc']:.3f}, {rates}"
    return canvas.Picture(f"attack-{found['kind']}", described, paint, (4.1, 3.2))
