"""Holds the scores that a run kept of its canaries against those of rounds computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pfl_bench.federated.canaries import build_canaries, canary_result
from pfl_bench.files import read_json
from pfl_bench.runs.auditing.kept_state import other_values
from pfl_bench.runs.auditing.opened import OpenedRun
from privacy.empirical.canary_options import CanaryOptions
from privacy.reference.round import Round

# Relative, of all scores together: what rounding of sums and products alone moves is far less.
_NEAR = 1e-3
# Scores may be off by so many times the part of a round that rounding explains.
_TIMES = 4.0
# Methods whose bound follows from sums that are in no file; of others the scores are.
_OF_SUMS = ("one_run_gaussian", "one_run_independent")


class SeenCanaries:
    """The canaries of a run, shown rounds of the reference in place of the run's own.

    Args:
        run: With canaries, and data that are open.
        options: Those of its canaries.
        seed: The private seed.
        initial: Central parameters before the first round, shape (P,).
    """

    def __init__(self, run: OpenedRun, options: CanaryOptions, seed: int, initial: Tensor) -> None:
        plan = run.federated[2]
        assert plan is not None
        self._canaries = build_canaries(options, plan, seed, initial.device)
        self._plan, self._folder, self._initial = plan, run.folder, initial
        self._near, self._moved = _NEAR, 0.0

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has."""
        self._canaries.load_state_dict(saved)

    def see(self, number: int, made: Round) -> None:
        """Show them a round, from 1; PrivacyError if it is not finite."""
        assert made.reports is not None
        self._canaries.know_others(made.reports.float())
        self._canaries.updates(number, made.bound)
        mean = (made.total + made.noise) / self._plan.request.cohort_size
        moved = made.central - self._initial
        self._canaries.observe(number, mean.float(), moved)
        self._moved = float(moved.norm())

    def allow(self, share: float, central: float) -> None:
        """Take what rounding explains: of the round a part, of the central parameters a distance.

        It is called after each round that was seen, and what is explained of one stays.
        """
        away = central / self._moved if self._moved else 0.0
        self._near = max(self._near, _TIMES * share, _TIMES * away)

    def others(self, saved: Mapping[str, Any]) -> Iterator[str]:
        """Problems of what a checkpoint has of their scores, in words."""
        own = self._canaries.state_dict()["scores"]
        return other_values("checkpoint's canaries.scores", saved["scores"], own, self._most)

    def others_on_file(self, rounds: int) -> Iterator[str]:
        """Problems of what ``canaries.json`` has after so many rounds, the last, in words."""
        found = read_json(self._folder / "canaries.json")
        if found is None:
            return
        own = canary_result(self._canaries, self._plan, rounds)
        bound = ("lower_bound",) if own["method"] in _OF_SUMS else ()
        for key in ("scores", "trials", *bound):
            value = own.get(key)
            known = torch.tensor(value) if isinstance(value, list) else value
            try:
                if known is not None:
                    yield from other_values(f"canaries' {key}", found[key], known, self._most)
            except (KeyError, TypeError, ValueError, RuntimeError):
                yield f"canaries.json has no {key} of such a form as canaries give"

    def _most(self, known: Tensor) -> float:
        # Of one number, such as a count, a part of 1 too.
        return self._near * max(float(known.double().norm()), float(known.dim() == 0))
