"""Draws a run's cohorts and the first elements of its noise anew, from the recorded seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import build_mechanism
from pfl_bench.federated.sampling import build_sampler
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import ConfigError
from privacy.audit.central_columns import COORDINATES
from privacy.audit.inputs import Drawn, Replay
from privacy.mechanism import NoiseScale

if TYPE_CHECKING:
    from pfl_bench.config.training import FederatedOptions

Array = NDArray[np.float64]

# A second or a few of one core, each.
_MOST_DRAWN_USERS = 20_000_000
_MOST_ROUNDS = 200_000
_MOST_NORMALS = 500_000_000
_MOST_CLIENT_STREAMS = 100_000
_FRESH = ("gaussian", "adaptive_gaussian")


def make_replay(
    resolved: ResolvedConfig,
    seeds: Mapping[str, int],
    num_users: int | None,
    num_parameters: int | None,
) -> Replay | str:
    """Say what can be drawn anew.

    Args:
        resolved: The configuration, with a ``federated`` section.
        seeds: The private seed as each file has it; the first one is used.
        num_users: Users of the training split; None where the data are not at hand.
        num_parameters: P; None where the model is not at hand.

    Returns:
        The draws; in words, why nothing can be drawn.
    """
    options = resolved.config.federated
    assert options is not None
    if not seeds:
        return (
            "neither environment.json nor a checkpoint has the seed of cohorts and noise, so that "
            "neither can be drawn anew"
        )
    seed = next(iter(seeds.values()))
    cohort = _cohorts(options, seed, num_users)
    noise = _Noise(resolved, options, seed, num_users, num_parameters, cohort)
    return Replay(
        seeds=seeds,
        configured_seed=resolved.config.seed,
        nonce=None if resolved.config.privacy is None else resolved.config.privacy.nonce,
        cohort=cohort,
        cohort_rounds=max(1, _MOST_DRAWN_USERS // options.cohort_size),
        noise=noise.reason or noise,
        noise_rounds=noise.most_rounds,
        needs_every_round=noise.is_correlated,
    )


def _cohorts(
    options: FederatedOptions, seed: int, num_users: int | None
) -> Callable[[int], NDArray[np.int64]] | str:
    if options.sampling == "selected":
        return "users are selected among simulated devices: their clock is not played anew"
    if num_users is None:
        return "the data are not at hand, and with them how many users are drawn from"
    try:
        sampler = build_sampler(
            options.sampling,
            num_users,
            options.cohort_size,
            options.separation,
            stream(seed, Purpose.SAMPLING, 0),
        )
    except ConfigError as error:
        return f"no cohort can be drawn of these data ({error})"
    return lambda number: sampler.draw(stream(seed, Purpose.SAMPLING, number), number)


class _Noise:
    """First elements of each round's noise, in multiples of its standard deviation."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        options: FederatedOptions,
        seed: int,
        num_users: int | None,
        num_parameters: int | None,
        cohort: Callable[[int], NDArray[np.int64]] | str,
    ) -> None:
        self._seed = seed
        self._cohort = cohort
        self._num_users = num_users or 0
        self._name = resolved.tree["privacy"]["mechanism"]["name"]
        self._length = COORDINATES if num_parameters is None else num_parameters
        self._mechanism: Any = None
        self.is_correlated = False
        self.most_rounds = _MOST_ROUNDS
        self._counts_drawn = 0
        self.reason = ""
        if num_parameters is None:
            self.reason = "the model is not at hand, and with it how many elements a round draws"
        elif self._name in ("banded_matrix_factorization", "tree_aggregation"):
            self._correlate(resolved, options)
        elif self._name == "local_gaussian":
            self.most_rounds = max(1, _MOST_CLIENT_STREAMS // options.cohort_size)
            if isinstance(cohort, str):
                self.reason = f"each client draws its own noise, and {cohort}"
        elif self._name == "privunit":
            self.reason = "a report is a random vector about its client's update: it has no noise"
        elif self._name not in (*_FRESH, "laplace"):
            self.reason = (
                f"how the mechanism {self._name} draws its noise is not known to the audit"
            )

    def _correlate(self, resolved: ResolvedConfig, options: FederatedOptions) -> None:
        """Correlated noise by the mechanism itself, on an empty sum."""
        self.is_correlated = True
        scale = NoiseScale(
            1.0, 1.0, 1.0, num_rounds=options.num_rounds, separation=options.separation
        )
        self._mechanism = build_mechanism(self._name, resolved.mechanism_options, scale)
        if self._name == "tree_aggregation":
            # A round draws two vectors on average, one after another, each of the model's length.
            self.most_rounds = _MOST_NORMALS // (2 * self._length)
        else:
            self._length = min(self._length, COORDINATES)

    def __call__(self, number: int, num_canaries: int) -> Drawn:
        """Draw a round's."""
        count = min(self._length, COORDINATES)
        rng = stream(self._seed, Purpose.NOISE, number)
        if self._mechanism is not None:
            from privacy.aggregate import Aggregate

            release = self._mechanism.release(Aggregate.zeros(self._length), rng)
            head = release.mean_update[:count].numpy().astype(np.float64)
            # At multiplier 1, and by the bound.
            stddev = release.update_noise_stddev
            return Drawn(head / stddev, stddev=stddev / self._mechanism.clip_norm)
        if self._name == "local_gaussian":
            return Drawn(self._of_clients(number, num_canaries, count))
        if self._name == "laplace":
            return Drawn(np.asarray(rng.laplace(0.0, 2.0**-0.5, count)))
        draw_count = self._name == "adaptive_gaussian"
        if draw_count and self._counts_drawn + self._length <= _MOST_NORMALS:
            # The draw on the count comes after those on all elements.
            self._counts_drawn += self._length
            normals = rng.standard_normal(self._length + 1)
            return Drawn(normals[:count], count=float(normals[-1]))
        return Drawn(np.asarray(rng.standard_normal(count)))

    def _of_clients(self, number: int, num_canaries: int, count: int) -> Array:
        assert not isinstance(self._cohort, str)
        clients = [
            *self._cohort(number).tolist(),
            *range(self._num_users, self._num_users + num_canaries),
        ]
        draws = [
            stream(self._seed, Purpose.CLIENT_NOISE, number, client).standard_normal(count)
            for client in clients
        ]
        return np.asarray(np.sum(draws, axis=0) / np.sqrt(max(1, len(draws))))
