"""Canary clients: updates of the auditor's own that pass through the same clip, sum and noise.

Guarantee: none is claimed; this measures one from below. A canary's update has norm next to
clip_norm, the most that a user can change, and is independent of the data. Unit: a canary, as a
user; adjacency add-or-remove-one, under selected zero-out: included or not.

- one_shot, one_run: each canary (that is included) takes part by the run's own sampling law, drawn
  from the auditor's own streams: with probability q a round, under cyclic_poisson in the rounds of
  a group that was drawn once, under full in every round, under selected in as many rounds as the
  cap allows, the separation apart, from one of the first on. Under fixed_size the law is q too, but
  not the fixed size of the cohort, which canaries come on top of.
- worst_case: each canary takes part in each round by a fair coin, whatever the sampler: it is one
  step that is measured.

All draws come from streams named by (round, purpose), so a resumed run repeats them; what is kept
between rounds are scores. (0, 0) is for coins and groups, (0, 1) and on for directions, (t, 0) for
who takes part in round t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.amplification import Composition, Participation
from privacy.empirical.canary_directions import Coordinates, Directions, Sphere, Streams
from privacy.empirical.canary_options import CanaryOptions
from privacy.empirical.canary_scores import CanaryObservation, OneShotScores, StepScores
from privacy.empirical.matched_sum import MatchedSum, Strategy, expected_participation, is_small
from privacy.empirical.one_run_scores import OneRunScores
from privacy.errors import PrivacyError

# What one kind keeps.
Scores = OneShotScores | OneRunScores | StepScores


class Canaries:
    """The canaries of a run; a trainer calls it twice a round.

    ``participation`` is how this very run draws its users (not the simulated deployment), and
    ``noise_multiplier`` z of this very run, in multiples of clip_norm. ``streams`` gives one
    independent generator per (round, index); round 0 is for the whole run. Refused are more
    canaries than the model or the memory has room for, and a sampling scheme under which no bound
    can be made.
    """

    def __init__(
        self,
        options: CanaryOptions,
        num_parameters: int,
        participation: Participation,
        num_rounds: int,
        noise_multiplier: float,
        streams: Streams,
        device: torch.device | str,
    ) -> None:
        scheme = participation.scheme
        places = scheme.adjacency == "replace-one" or scheme.largest_cohort(participation)
        if options.kind == "worst_case" and places:
            raise PrivacyError(
                "privacy.audit.kind: worst_case takes a canary to add itself to a round; under "
                f"{scheme.title}, such as fixed-size sampling, a user may take another's place; "
                "use kind one_run, or sample by poisson"
            )
        self._options = options
        self._participation = participation
        self._num_rounds = num_rounds
        self._streams = streams
        once = streams(0, 0)
        coins = once.random(options.count) < 0.5
        self._groups = once.integers(participation.min_separation, size=options.count)
        one_run = options.kind == "one_run"
        self._included = coins if one_run else np.ones(options.count, dtype=np.bool_)
        # Only the largest of many rounds' cosines has a null law that must be measured.
        held_out = options.kind == "one_shot" and options.seen_access == "every_round"
        num_held_out = options.count if held_out else 0
        drawn = (options.count + num_held_out, num_parameters, streams, torch.device(device))
        self._directions: Directions
        if options.seen_direction == "coordinate":
            self._directions = Coordinates(*drawn)
        else:
            self._directions = Sphere(*drawn, options.memory_limit_mib)
        self._scores: Scores
        if options.kind == "one_shot":
            self._scores = OneShotScores(options, num_parameters, num_held_out)
        elif options.kind == "worst_case":
            self._scores = StepScores(options)
        else:
            rate = participation.sampling_probability
            self._scores = OneRunScores(options, self._included, rate, noise_multiplier)
        self._rounds = 0
        self._clip_norm = math.nan
        self._current = 0
        self._others: NDArray[np.float64] | None = None
        self._knew_others = True

    def match(self, strategy: Strategy | None) -> None:
        """Keep sums that are matched to the mechanism's noise; call it before the first round.

        ``strategy`` is how the noise of rounds goes together, of a mechanism whose server adds
        Gaussian noise; None for others, with which some bounds are refused.
        """
        if not isinstance(self._scores, OneRunScores):
            return
        options, users, total = self._options, self._participation, self._num_rounds
        by_coordinate = options.seen_direction == "coordinate"
        if by_coordinate and options.seen_access == "every_round" and is_small(strategy, total):
            assert strategy is not None
            expected = expected_participation(
                users.sampling_probability, users.min_separation, users.max_participations, total
            )
            self._scores.match(MatchedSum(strategy, expected), self._groups)
        elif options.bound != "f_dp":
            raise PrivacyError(
                f"privacy.audit.bound: {options.bound} needs a mechanism whose server adds "
                "Gaussian noise of a stated strategy, over not too many rounds; use bound f_dp"
            )

    def _eligible(self, round_number: int) -> NDArray[np.bool_]:
        turn, group = divmod(round_number - 1, self._participation.min_separation)
        cap = self._participation.max_participations
        allowed = cap is None or turn < cap
        return np.asarray((self._groups == group) & allowed)

    def taking_part(self, round_number: int) -> NDArray[np.bool_]:
        """Mask of the canaries that take part in a round: shape (count,)."""
        draws = self._streams(round_number, 0).random(self._options.count)
        if self._options.kind == "worst_case":
            return np.asarray(draws < 0.5)
        rate = self._participation.sampling_probability
        return np.asarray(self._included & self._eligible(round_number) & (draws < rate))

    def know_others(self, total: Tensor) -> None:
        """Tell what a worst-case adversary knows: what all others have put into the round's sum.

        Call it before the round's first canary is taken in, in every round or in none. Without it
        the clients' own updates count as noise along the canaries, and bounds are lower.

        ``total``, shape (P,), float32, is the sum before canaries and noise; it is not kept.
        """
        if self._options.seen_access == "every_round" and self._options.kind != "one_shot":
            self._others = self._directions.project(total)

    def updates(self, round_number: int, clip_norm: float) -> Iterator[Tensor]:
        """The updates of those that take part in this round, one at a time.

        Tensors of shape (P,), float32, of norm next to ``clip_norm``, the positive and finite bound
        in force in this round. Rounds come one after the other, from 1.
        """
        if round_number != self._rounds + 1:
            raise PrivacyError(
                f"canaries are asked for round {round_number}, but have seen {self._rounds} "
                "rounds; go on with the next round, from the checkpoint of the one before"
            )
        if not (math.isfinite(clip_norm) and clip_norm > 0.0):
            raise PrivacyError(
                f"canaries are sent at norm clip_norm, which is {clip_norm!r}; audit a mechanism "
                "that clips"
            )
        self._clip_norm, self._current = clip_norm, round_number
        chosen = np.flatnonzero(self.taking_part(round_number))
        return (self._directions.update(int(index), clip_norm) for index in chosen)

    def observe(self, round_number: int, mean_update: Tensor, moved: Tensor) -> None:
        """See what a round released, after its ``updates``.

        ``mean_update``, shape (P,), is the released sum over the configured cohort size; ``moved``,
        shape (P,), central parameters after the round's step minus the initial ones.
        """
        if round_number != self._current or self._rounds != round_number - 1:
            raise PrivacyError(
                f"canaries observe round {round_number}, but their updates were for round "
                f"{self._current}; call updates, then observe, once a round"
            )
        scale = self._participation.cohort_size / self._clip_norm
        # A norm in float32 could overflow where the products do not.
        release_norm = float(torch.linalg.vector_norm(mean_update, dtype=torch.float32))
        moved_norm = float(torch.linalg.vector_norm(moved, dtype=torch.float32))
        if not (math.isfinite(release_norm) and math.isfinite(moved_norm)):
            raise PrivacyError(f"round {round_number}: the release is not finite; lower the rates")
        release = self._directions.project(mean_update) * scale
        if self._others is None:
            self._knew_others = False
        else:
            release -= self._others / self._clip_norm
            self._others = None
        self._scores.observe(
            CanaryObservation(
                release=release,
                release_norm=release_norm * scale,
                moved=self._directions.project(moved),
                moved_norm=moved_norm,
                eligible=self._eligible(round_number),
                taking_part=self.taking_part(round_number),
                round_number=round_number,
            )
        )
        self._rounds = round_number

    @property
    def last_guesses(self) -> tuple[int, int] | None:
        """Of the last round: coins guessed right, and coins; None where coins are not a round's."""
        return self._scores.last_guesses if isinstance(self._scores, StepScores) else None

    def result(
        self, rounds: int, delta: float, composition: Callable[[float, int], Composition]
    ) -> dict[str, Any]:
        """Bounds that the canaries show of the epsilon of this very run, after all its rounds.

        JSON-serialisable: kind, count, settings, "estimate" (epsilon, not a bound; None if there is
        none), "lower_bound" (epsilon at "confidence", at least 0), "rests_on" (the assumptions, in
        words), and the scores that it was made of.

        ``composition`` says what a noise multiplier and a number of rounds of this run's mechanism
        and sampler are to an accountant.
        """
        if rounds != self._rounds:
            raise PrivacyError(
                f"the run has released {rounds} rounds, but its canaries saw {self._rounds}"
            )
        options = self._options
        return {
            "kind": options.kind,
            "count": options.count,
            "direction": options.seen_direction,
            "access": options.seen_access,
            "sampling": self._participation.scheme.name,
            "knows_others": self._knew_others and rounds > 0,
            "rounds": rounds,
            "delta": delta,
            "confidence": options.confidence,
            **self._scores.result(rounds, delta, composition),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {
            "kind": self._options.kind,
            "rounds": self._rounds,
            "knew_others": self._knew_others,
            "scores": self._scores.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        keys = {"kind", "rounds", "knew_others", "scores"}
        if set(state) != keys or state["kind"] != self._options.kind:
            raise PrivacyError(
                f"the saved canaries are not of kind {self._options.kind}; resume with the "
                "configuration that the run was started with"
            )
        self._scores.load_state_dict(state["scores"])
        self._rounds = int(state["rounds"])
        self._knew_others = bool(state["knew_others"])
        self._current = 0
