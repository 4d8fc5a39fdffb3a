"""Lines that ``show`` and ``run --dry-run`` both print of a run, of at most 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator

from pfl_bench.report.costs import bytes_text, flops_text
from pfl_bench.runs.preview import Cost, Preview
from pfl_bench.runs.time_estimate import TimeEstimate
from privacy.statement.statement import Accounted, round_up, small

WIDTH = 80


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """A text in lines, those after the first indented further."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def epsilon_lines(simulated: Accounted, actual: Accounted | None) -> Iterator[str]:
    """Both epsilons, a line each; None for an actual one that only the data tell."""
    for label, accounted in (("simulated", simulated), ("actual", actual)):
        head = f"epsilon ({label})".ljust(21)
        if accounted is None:
            yield from wrapped(f"{head}known when the data are there (hypothetical population)")
            continue
        delta = "" if accounted.delta is None else f" at delta {small(accounted.delta)}"
        yield from wrapped(
            f"{head}{round_up(accounted.epsilon, 4)}{delta}: {accounted.cohort_size:g} of "
            f"{accounted.population_size}, z = {accounted.noise_multiplier:.4g}"
        )


def cost_lines(cost: Cost) -> Iterator[str]:
    """Lines with the expected cost of training."""
    steps = f"{cost.steps:,} {cost.unit}s"
    if cost.clients is not None:
        steps += f", about {cost.clients:,} clients in each"
    yield from wrapped(steps)
    if cost.clients is None:
        yield from wrapped(f"about {cost.local_steps:.4g} optimizer steps an {cost.unit}")
    else:
        yield from wrapped(f"about {cost.local_steps:.4g} local steps a client in each")
    amounts = f"about {flops_text(cost.flops)} computed"
    if cost.bytes_down is not None:
        amounts += f", {bytes_text(cost.bytes_down)} received by clients"
        amounts += f", {bytes_text(cost.bytes_up)} sent"
    yield from wrapped(amounts)


def time_lines(estimate: TimeEstimate | None, why: str | None = None) -> Iterator[str]:
    """Lines with a run's expected time on this machine, or the reason why there is no estimate."""
    if estimate is None:
        yield from wrapped(f"time: not estimated: {why}")
        return
    workers = "" if estimate.workers == 1 else f" by {estimate.workers} worker processes"
    yield from wrapped(
        f"time: about {duration(estimate.total)} here{workers} (training "
        f"{duration(estimate.training)}, evaluation {duration(estimate.evaluation)}), from "
        f"{estimate.measured}"
    )


def data_lines(preview: Preview) -> Iterator[str]:
    """Lines with the data, the number of users and the size of the model."""
    yield from wrapped(preview.data)
    users = ", ".join(f"{name} {count:,}" for name, count in preview.num_users.items())
    yield from wrapped(f"users: {users}")
    yield from wrapped(f"model: {preview.num_parameters:,} parameters on {preview.device}")


def notice_lines(notices: Iterable[str]) -> Iterator[str]:
    """Lines with the notices of a run, a paragraph each."""
    for notice in notices:
        yield from wrapped(f"note: {notice}")


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 1:
        return "a second"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{math.ceil(seconds)} s"
