"""Report of the FLAIR benchmark of the page: all sides, and images a second."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.common import Seconds, spread
from benchmarks.page import details, what

LARGE = "large batch"


def summarise(
    seconds: Mapping[str, Seconds], images: list[int], large_images: int
) -> dict[str, Any]:
    """Each side's seconds, and images a second, each image counted in each epoch.

    Args:
        seconds: Of each side, a value a round; no processor's where that is not known.
        images: Images trained on in each round.
        large_images: Images that the large-batch sides train on in each repeat.
    """
    sides, large = {}, {}
    for side, own in seconds.items():
        if side.startswith(LARGE):
            large[side] = [large_images / s for s in own.wall]
            continue
        sides[side] = {
            "seconds": own.wall,
            "images_a_second": [n / s for n, s in zip(images, own.wall, strict=True)],
        }
        if own.processor:
            sides[side]["processor_seconds"] = own.processor
    return {"sides": sides, "images": images, "large_images_a_second": large}


def table(report: Mapping[str, Any]) -> str:
    """All sides beside one another, then images a second and their share of large batches'."""
    lines = [
        *details(report["results"]),
        "",
        "| workload | side | images/s: median (min-max) | of large batches |",
        "| --- | --- | --- | --- |",
    ]
    for result in report["results"]:
        large = result["large_images_a_second"]
        fastest = max(statistics.median(values) for values in large.values())
        rates = {side: row["images_a_second"] for side, row in result["sides"].items()}
        named = what(result)
        for side, values in {**rates, **large}.items():
            rate = spread(values)
            lines.append(
                f"| {named} | {side} | {rate['median']:.1f} "
                f"({rate['min']:.1f}-{rate['max']:.1f}) | {rate['median'] / fastest:.2f} |"
            )
            named = ""
    return "\n".join(lines)
