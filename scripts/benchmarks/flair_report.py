"""What the FLAIR benchmark says of its timings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.common import Seconds, spread


def summarise(
    name: str,
    seconds: Mapping[str, Seconds],
    images: list[int],
    large_images: int,
    agreement: float,
) -> dict[str, Any]:
    """Images a second, and speeds relative to other sides, round by round on the same users.

    Args:
        name: The workload.
        seconds: Of each side, a value a round.
        images: Images trained on in each round, counted in each epoch.
        large_images: Images that the large-batch sides train on in each repeat.
        agreement: Relative difference between our and the bare loop's first central step.
    """
    result: dict[str, Any] = {"workload": name, "agreement": agreement, "images": images}
    rates = {}
    for side, own in seconds.items():
        counts = [large_images] * len(own.wall) if side.startswith("large") else images
        rates[side] = {
            clock: [count / s for count, s in zip(counts, values, strict=True)]
            for clock, values in (("wall", own.wall), ("processor", own.processor))
        }
    fastest = max(statistics.median(r["wall"]) for s, r in rates.items() if s.startswith("large"))
    for side, own_rates in rates.items():
        row: dict[str, Any] = {
            "seconds": seconds[side].wall,
            "processor_seconds": seconds[side].processor,
            "images_a_second": spread(own_rates["wall"]),
            "share_of_large_batch": statistics.median(own_rates["wall"]) / fastest,
        }
        for other in ("bare", "pfl"):
            if other in rates:
                for clock, values in own_rates.items():
                    pairs = zip(values, rates[other][clock], strict=True)
                    row[f"speed_to_{other}_{clock}"] = spread([a / b for a, b in pairs])
        result[side] = row
    return result


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| workload | side | images/s (median) | of bare: median (min-max) | of bare, by processor "
        "time | of pfl | of large batches |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for side in ("bare", "pfl-bench", "pfl", "large batch", "large batch, compiled"):
            if side not in result:
                continue
            row = result[side]
            bare, large = row["speed_to_bare_wall"], side.startswith("large")
            cells = [
                result["workload"],
                side,
                f"{row['images_a_second']['median']:.1f}",
                "-" if large else f"{bare['median']:.3f} ({bare['min']:.2f}-{bare['max']:.2f})",
                "-" if large else f"{row['speed_to_bare_processor']['median']:.3f}",
                f"{row['speed_to_pfl_wall']['median']:.2f}"
                if "speed_to_pfl_wall" in row and not large
                else "-",
                f"{row['share_of_large_batch']:.2f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    worst = max(result["agreement"] for result in results)
    lines += [
        "",
        f"Largest difference of our first central step from the bare loop's: {worst:.1e} of it.",
    ]
    return "\n".join(lines)
