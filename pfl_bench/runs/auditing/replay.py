"""Draws a run's cohorts and its noise anew, from the recorded seed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.config.training import FederatedOptions
from pfl_bench.federated.parts import build_mechanism
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.types import PluginError, UserInputError, place_of, returned
from privacy.audit.inputs import DrawUsers, Replay, as_number
from privacy.description import Tree
from privacy.errors import PrivacyError
from privacy.mechanism import NoiseScale, ReplayedNoise, ReplaysNoise, RoundStreams
from privacy.mechanisms.column_normalized_banded import ColumnNormalizedBanded
from privacy.recording.central_record import COORDINATES
from privacy.reference.cohort import SCHEMES, draw
from privacy.reference.correlated import Correlated
from privacy.reference.noise import Gaussian, Setting
from privacy.reference.round import MECHANISMS
from privacy.reference.streams import CLIENT_NOISE, COHORT, NOISE, stream
from privacy.sampling_scheme import Participation

# A second or a few of one core, each.
_MOST_ROUNDS = 200_000
_MOST_NORMALS = 200_000_000
_MOST_CLIENT_STREAMS = 100_000
_MOST_USERS = 20_000_000


def make_replay(run: OpenedRun, seed: int | None, statement: Mapping[str, Any]) -> Replay | str:
    """The draws that can be made anew of a run; in words, why none can be.

    ``seed`` is None where no file has it; of data and models that are not at hand the ``statement``
    says how many users and parameters they have.
    """
    options = run.resolved.config.federated
    if options is None:
        return "central training draws no cohorts"
    if seed is None:
        return (
            "neither environment.json nor a checkpoint has the seed of cohorts and noise, so that "
            "neither can be drawn anew"
        )
    cohort = _cohorts(options, seed)
    noise = _Noise(run, seed, cohort, statement)
    return Replay(
        cohort=cohort,
        noise=noise.reason or noise,
        noise_rounds=noise.most_rounds,
        needs_every_round=noise.is_correlated,
    )


def _cohorts(options: FederatedOptions, seed: int) -> DrawUsers | str:
    """A round's users, by the definition of a scheme; of a plug-in, by its own code."""
    scheme, size, groups = options.sampling, options.cohort_size, options.separation
    if not options.scheme.is_drawn:
        return "users are selected among simulated devices: their clock is not played anew"
    if scheme in SCHEMES:
        return lambda number, users: draw(scheme, seed, number, users, size, groups)
    own = options.scheme

    @functools.cache
    def drawn_once(users: Participation) -> NDArray[np.int64] | None:
        own.check(users)
        return own.assign(users, stream(seed, COHORT))

    def draw_users(number: int, num_users: int) -> NDArray[np.int64]:
        users = Participation(own, num_users, size)
        return own.draw(users, stream(seed, COHORT, number), number, drawn_once(users))

    return draw_users


def _whole(value: Any, most: int) -> int:
    """A number of a statement that may be damaged; 0 if it is none, or not from 1 to ``most``."""
    number = as_number(value)
    return int(number) if 1 <= number <= most and number == int(number) else 0


class _Noise:
    """Each round's noise, in multiples of its standard deviation; of some rounds its beginning.

    It is the reference's; of a plug-in, that of its own ``replay_noise``.
    """

    def __init__(
        self, run: OpenedRun, seed: int, cohort: DrawUsers | str, statement: Mapping[str, Any]
    ) -> None:
        resolved, data, options = run.resolved, run.data, run.resolved.config.federated
        assert options is not None
        privacy = resolved.config.privacy
        canaries = None if privacy is None else privacy.audit
        self._most_canaries = 0 if canaries is None else canaries.count
        self._seed, self._cohort = seed, cohort
        stated = statement["actual"].get("population_size")
        self._num_users = data.num_units or _whole(stated, _MOST_USERS)
        length = data.num_parameters or _whole(statement.get("num_parameters"), _MOST_NORMALS)
        self._length = length or COORDINATES
        name = resolved.tree["privacy"]["mechanism"]["name"]
        # Its noise is drawn at multiplier 1; without noise, no setting of it is infeasible.
        scale = NoiseScale(
            0.0, 1.0, 1.0, num_rounds=options.num_rounds, separation=options.separation
        )
        self._mechanism = build_mechanism(name, resolved.mechanism_options, scale)
        described = self._mechanism.description
        own = resolved.mechanism_options
        assert own is not None
        # At bound 1, too; any noise on the count leaves the same draws.
        self._setting = Setting(
            name, own.model_dump() | {"clip_norm": 1.0, "count_noise_stddev": 1.0}, 1.0, 1.0, 1.0,
            self._length, seed, options.num_rounds, described.to_json_dict()["strategy"],
        )  # fmt: skip
        self._reference = functools.cache(self._make_reference)
        self.is_correlated = described.correlates_rounds
        self.most_rounds, vectors = _MOST_ROUNDS, 1
        if described.randomizes_clients:
            vectors = options.cohort_size
            self.most_rounds = max(1, _MOST_CLIENT_STREAMS // vectors)
            if data.num_units is None:
                self.most_rounds = min(self.most_rounds, _MOST_NORMALS // (self._num_users or 1))
        elif isinstance(described.strategy, Tree):
            # A round draws two vectors on average, one after another, whole.
            vectors = 0
            self.most_rounds = _MOST_NORMALS // (2 * self._length)
        # All elements are drawn in each so many rounds; where rounds hang together, in all or none.
        self._every = -(-options.num_rounds * vectors * self._length // _MOST_NORMALS) or 1
        self.reason = ""
        if not length:
            self.reason = "the model is not at hand, and with it how many elements a round draws"
        elif described.reports == "direction":
            self.reason = "a report is a random vector about its client's update: it has no noise"
        elif name not in MECHANISMS and not isinstance(self._mechanism, ReplaysNoise):
            self.reason = f"how the mechanism {name} draws its noise is not known to the audit"
        elif described.randomizes_clients and (isinstance(cohort, str) or not self._num_users):
            why = cohort if isinstance(cohort, str) else "the data are not at hand"
            self.reason = f"each client draws its own noise, and {why}"

    def __call__(self, number: int, num_canaries: int) -> ReplayedNoise:
        """Draw a round's."""
        is_whole = self._every == 1 or (not self.is_correlated and number % self._every == 1)
        wanted = self._length if is_whole else min(self._length, COORDINATES)
        rng = stream(self._seed, NOISE, number)
        if self._setting.name not in MECHANISMS:
            assert isinstance(self._mechanism, ReplaysNoise)
            streams = RoundStreams(
                rng=rng,
                clients=lambda: [
                    stream(self._seed, CLIENT_NOISE, number, client)
                    for client in self._clients(number, num_canaries)
                ],
                num_parameters=self._length,
                wanted=wanted,
                draws_all=is_whole,
            )
            own, name = self._mechanism, "replay_noise"
            try:
                return returned(own, name, own.replay_noise(streams), ReplayedNoise)
            except (UserInputError, PrivacyError):
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise PluginError(
                    f"{place_of(own, name)} fails ({what}); mend it, so that it draws what "
                    "release() has drawn, or leave it out, and audit again"
                ) from error
        mechanism, described = self._reference(wanted), self._mechanism.description
        mechanism.begin(number)
        if described.randomizes_clients:
            nothing = torch.zeros(wanted, dtype=torch.float64)
            for client in self._clients(number, num_canaries):
                mechanism.report(client, nothing)
        noise, stddev = mechanism.noise(rng).numpy(), mechanism.stddev
        return ReplayedNoise(
            noise / (stddev or 1.0),
            float(rng.standard_normal()) if is_whole and described.draws_count else None,
            stddev if MECHANISMS[self._setting.name] is Correlated else None,
        )

    def _make_reference(self, length: int) -> Gaussian:
        """The reference's mechanism, by the numbers that the run's code finds for a strategy."""
        kind = MECHANISMS[self._setting.name]
        if kind is Correlated and not self.is_correlated:
            kind = Gaussian  # of one band
        strategy = self._setting.strategy
        if isinstance(self._mechanism, ColumnNormalizedBanded):
            strategy = self._mechanism.strategy
        return kind(replace(self._setting, length=length, strategy=strategy))

    def _clients(self, number: int, num_canaries: int) -> list[int]:
        """All who reported; canaries come after all users."""
        assert not isinstance(self._cohort, str)
        if not 0 <= num_canaries <= self._most_canaries:
            raise PrivacyError(
                f"{num_canaries} canaries are recorded, of {self._most_canaries} at most"
            )
        canaries = range(self._num_users, self._num_users + num_canaries)
        return [*self._cohort(number, self._num_users).tolist(), *canaries]
