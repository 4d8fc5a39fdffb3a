"""Pictures of client systems: devices, when they are available, rounds and runs on the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pfl_bench.files import read_metrics
from pfl_bench.report import curves
from pfl_bench.report.canvas import INK, PALETTE, Picture
from pfl_bench.report.curves import Panel
from pfl_bench.report.panels import headline_keys
from pfl_bench.report.series import CLOCK, HOUR_S, Chart, Rows
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.simulation.devices.timeline import TIMELINES, Outcome, RoundTimeline
from pfl_bench.simulation.devices.trace_file import DEVICES, read_trace_file
from pfl_bench.types import DataError, RunFolderError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PHASES = ("download", "training", "upload")
_MINUTE_S, _STEP_S = 60.0, 1800
# A line drawn through so many points looks like one through half a million.
_POINTS = 257


def system_panels(groups: Rows) -> list[tuple[str, list[Panel]]]:
    """Draw metrics over simulated time, a first round of each row, and each source of devices."""
    devices: dict[str, Devices] = {}
    timelines: list[Panel] = []
    for place, (name, runs) in enumerate(groups.items()):
        path = next((run.path for run in runs if (run.path / DEVICES).exists()), None)
        if path is None:
            continue
        kept = read_devices(path)
        devices.setdefault(kept.source, kept)
        first = next(((i, one) for i, one in _read_timelines(path) if len(one.users)), None)
        if first is not None:
            title = f"{name}: round {first[0]}, some of its participants"
            timelines.append(timeline_panel(f"t{place}", title, first[1], kept.is_generated))
    if not devices:
        return []
    made_up = any(one.is_generated for one in devices.values())
    metrics = dict.fromkeys(key for runs in groups.values() for key in headline_keys(runs))
    clocks = (clock_panel(f"k{place}", one, groups, made_up) for place, one in enumerate(metrics))
    over_time = [panel for panel in clocks if panel is not None]
    parts = [("Simulated time", over_time), ("A round of devices", timelines)]
    for place, (source, one) in enumerate(devices.items()):
        parts.append((f"Devices: {source}", device_panels(f"d{place}", one)))
    return [(title, drawn) for title, drawn in parts if drawn]


def read_devices(folder: Path) -> Devices:
    """Read the devices that a run has kept; RunFolderError if their file is damaged."""
    try:
        return read_trace_file(folder / DEVICES)
    except DataError as error:
        raise RunFolderError(
            f"{error}: it was kept for the report alone, and can be deleted"
        ) from None


def _read_timelines(folder: Path) -> list[tuple[int, RoundTimeline]]:
    try:
        return [
            (int(line["round"]), RoundTimeline.from_json_dict(line))
            for line in read_metrics(folder / TIMELINES)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder / TIMELINES}: a line is no round ({error!r}); the file was kept for the "
            "report alone, and can be deleted"
        ) from None


def device_panels(identifier: str, devices: Devices) -> list[Panel]:
    """Draw what devices can do and, unless all always are, when they are available.

    Their source is in each description. Source: FedScale's figures 4 and 5.
    """
    slots = devices.availability
    made_up = " (generated)" if devices.is_generated else ""
    panels = [
        _distribution(f"{identifier}l", f"compute{made_up}", "ms a sample", devices.latency_ms),
        _distribution(f"{identifier}b", f"network{made_up}", "kbit/s", devices.bandwidth_kbps),
    ]
    lengths = (slots.end - slots.start) / _MINUTE_S
    if len(lengths) and (lengths * _MINUTE_S < slots.period_s).any():
        panels += [
            _over_the_period(f"{identifier}a", f"available clients{made_up}", devices),
            _distribution(f"{identifier}s", f"available slots{made_up}", "minutes", lengths),
        ]
    said = ((f"{devices.source}: {one.picture.description}", one) for one in panels)
    return [replace(one, picture=replace(one.picture, description=text)) for text, one in said]


def timeline_panel(
    identifier: str, title: str, timeline: RoundTimeline, is_generated: bool
) -> Panel:
    """Draw what a round's participants did when, a bar each (FedScale's figure 15)."""
    order = np.argsort(timeline.stop, kind="stable")
    spans = np.stack([timeline.download_s, timeline.compute_s, timeline.upload_s])[:, order]
    begins = np.cumsum(spans, axis=0) - spans
    elapsed = (timeline.stop - timeline.start)[order]
    shown = np.clip(elapsed - begins, 0.0, spans)
    outcomes = [Outcome(value).name.lower() for value in timeline.outcome[order].tolist()]
    labels = [f"client {user}" for user in timeline.users[order].tolist()]
    length = timeline.end - timeline.start
    texts = [
        f"{label}: download {down:.4g} s, training {compute:.4g} s, upload {up:.4g} s, {outcome}"
        for label, (down, compute, up), outcome in zip(labels, shown.T, outcomes, strict=True)
    ]

    def paint(axes: Axes) -> None:
        places = np.arange(len(labels))
        for index, phase in enumerate(_PHASES):
            axes.barh(
                places,
                shown[index],
                left=begins[index],
                height=0.7,
                color=PALETTE[(0, 4, 2)[index]],
                label=phase,
            )
        for place, outcome in zip(places.tolist(), outcomes, strict=True):
            if outcome != "counted":
                axes.text(elapsed[place], place, f" {outcome}", va="center", fontsize=8, color=INK)
        axes.axvline(length, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), label="round ends")
        # Room for the words; what a straggler had still to do is not drawn.
        axes.set_xlim(0.0, 1.15 * max(length, float(elapsed.max())) or 1.0)
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("simulated seconds")
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02))

    title += " (generated devices)" if is_generated else ""
    description = f"{title}: the round ends after {length:.4g} s. " + "; ".join(texts)
    height = min(12.0, 1.2 + 0.24 * len(labels))
    return Panel(title, Picture(identifier, description, paint, (6.8, height)))


def clock_panel(identifier: str, metric: str, rows: Rows, is_generated: bool) -> Panel | None:
    """Draw a metric over simulated time (FedScale's figure 12a); None if no run has both."""
    lines = curves.lines_of(rows, metric, CLOCK, 1 / HOUR_S)
    if not lines:
        return None
    title = f"{metric} over simulated time" + (" (generated devices)" if is_generated else "")
    ends = "; ".join(
        f"{one.name} {one.curve.y[-1]:.4g} after {one.curve.x[-1]:.4g} h" for one in lines
    )
    chart = Chart(CLOCK, "simulated hours", metric)
    return curves.live_panel(identifier, title, f"{title}. {ends}", chart, lines, size=curves.WIDE)


def _distribution(identifier: str, title: str, unit: str, values: NDArray[np.floating]) -> Panel:
    fractions = np.linspace(0.0, 1.0, _POINTS)
    points = np.quantile(values, fractions)
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))

    def paint(axes: Axes) -> None:
        axes.plot(points, fractions, color=PALETTE[0], linewidth=1.9)
        axes.set(xscale="log", xlabel=unit, ylabel="fraction below")

    text = f"{title}, {unit}: 5th percentile {low:.4g}, median {middle:.4g}, 95th {high:.4g}"
    return Panel(f"{title}, {unit}", Picture(identifier, text, paint))


def _over_the_period(identifier: str, title: str, devices: Devices) -> Panel:
    slots = devices.availability
    percent = 100.0 * slots.count(_STEP_S) / len(slots)
    hours = np.arange(len(percent)) * (_STEP_S / HOUR_S)

    def paint(axes: Axes) -> None:
        axes.plot(hours, percent, color=PALETTE[0], linewidth=1.9)
        axes.set(xlabel="hours of the period", ylabel="percent available", ylim=(0, None))
        axes.set_xticks(np.arange(0, slots.period_s / HOUR_S + 1, 24))

    text = (
        f"{title}: {percent.mean():.3g} percent on average, from {percent.min():.3g} to "
        f"{percent.max():.3g}"
    )
    return Panel(f"{title}, percent by hour", Picture(identifier, text, paint))
