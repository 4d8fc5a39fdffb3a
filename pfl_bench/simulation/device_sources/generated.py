"""Made-up devices with the spread, the daily swing and the short slots of real ones.

What they are made to be like, and what of it is known:

- Compute and network capacities "can exhibit order-of-magnitude difference" (FedScale, section 3.2
  and figure 4). Latency: lognormal around 150 ms a sample (the one published entry that its users
  quote has 162 ms); the 95th percentile is 14 times the 5th. Bandwidth: lognormal around 6.1 Mbit/s
  with 26 % below 3 Mbit/s, which is what a user of the published file reports of it; the 95th
  percentile is 37 times the 5th.
- The number of available clients swings by day and night (figure 5a): devices count as available
  while they charge. Here most of that time is a night's charge of hours, and the hour at which it
  begins differs by client (habits and time zones), so that some three times as many are available
  at the peak as at the trough. The paper's text gives no figure for the swing: three is ours.
- Slots are short, "comparable" to a round of "a few minutes" (figure 5b): half of them last at most
  five minutes. About 18 slots a client in six days: as many as the published file's size leaves
  room for (25.6 MB for 107,749 clients).

Source: Lai et al. 2022 (FedScale), section 3.2, figures 4 and 5.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.config.sections import PERIOD_S
from pfl_bench.config.training import PositiveInt, Strict
from pfl_bench.simulation.devices.availability import Availability, merge_slots
from pfl_bench.simulation.devices.devices import Devices

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60

# Medians, and standard deviations of the natural logarithm.
_LATENCY_MS = (150.0, 0.8)
_BANDWIDTH_KBPS = (6_100.0, 1.1)
_NIGHT_S = (4.5 * _HOUR_S, 0.5)
_SHORT_S = (3.8 * _MINUTE_S, 1.0)
# A night's charge begins around 22 h by the client's own clock, clocks differ by so many hours.
_BEDTIME_H, _BEDTIME_SPREAD_H, _CLOCK_SPREAD_H = 22.0, 1.0, 5.3
# How probable a night's charge is, over clients: Beta, mean 0.45.
_NIGHTLY = (1.8, 2.2)
# Short slots a day, over clients: Gamma, mean 2.8.
_SHORT_PER_DAY = (2.0, 1.4)
_SHORTEST_S = 20


class Options(Strict):
    """Options of made-up devices, which are named as generated wherever they are shown.

    Attributes:
        seed: Decides all of them; the run's own seed does not.
        num_devices: How many; null for one a user of the data.
    """

    seed: Annotated[int, Field(ge=0)] = 0
    num_devices: PositiveInt | None = None


def build(options: Options, num_users: int) -> Devices:
    """Make up devices, ``num_users`` unless the options say how many."""
    rng = np.random.Generator(np.random.Philox(options.seed))
    return generate_devices(options.num_devices or num_users, rng, f"seed {options.seed}")


def generate_devices(num_devices: int, rng: np.random.Generator, label: str) -> Devices:
    """Make up one or more devices; ``label`` is what ``rng`` is, such as "seed 0"."""
    latency = _lognormal(_LATENCY_MS, num_devices, rng).astype(np.float32)
    bandwidth = _lognormal(_BANDWIDTH_KBPS, num_devices, rng).astype(np.float32)
    slots = _generate_slots(num_devices, rng)
    return Devices(latency, bandwidth, slots, f"generated, {label}", is_generated=True)


def _lognormal(
    law: tuple[float, float], size: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    median, spread = law
    return np.exp(rng.normal(np.log(median), spread, size))


def _generate_slots(num: int, rng: np.random.Generator) -> Availability:
    days = PERIOD_S // _DAY_S
    clock = rng.normal(0.0, _CLOCK_SPREAD_H * _HOUR_S, num)
    charges = rng.random((num, days)) < rng.beta(*_NIGHTLY, (num, 1))
    charger, day = np.nonzero(charges)
    begin = day * _DAY_S + rng.normal(
        _BEDTIME_H * _HOUR_S, _BEDTIME_SPREAD_H * _HOUR_S, len(charger)
    )
    begin += clock[charger]
    night = _lognormal(_NIGHT_S, len(charger), rng)
    counts = rng.poisson(rng.gamma(*_SHORT_PER_DAY, num) * days)
    visitor = np.repeat(np.arange(num), counts)
    visit = rng.uniform(0, PERIOD_S, len(visitor))
    short = _lognormal(_SHORT_S, len(visitor), rng)
    owner = np.concatenate([charger, visitor])
    start = np.concatenate([begin, visit]).astype(np.int64) % PERIOD_S
    length = np.concatenate([night, short]).astype(np.int64)
    end = start + np.clip(length, _SHORTEST_S, _DAY_S)
    # What goes on in the next period is a slot at the beginning of this one.
    over = np.flatnonzero(end > PERIOD_S)
    owner = np.concatenate([owner, owner[over]])
    start = np.concatenate([start, np.zeros(len(over), np.int64)])
    end = np.concatenate([np.minimum(end, PERIOD_S), end[over] - PERIOD_S])
    # One key sorts several times as fast as two.
    order = np.argsort(owner * PERIOD_S + start)
    return merge_slots(owner[order], start[order], end[order], num, PERIOD_S)
