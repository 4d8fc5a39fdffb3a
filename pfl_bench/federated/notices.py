"""Notices of single rounds of a federated run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pfl_bench.federated.aggregation import Aggregation

_MOST_NAMES = 10


class RoundNotices:
    """Says it: of lost updates each time, of what may go on for many rounds the first time."""

    def __init__(
        self, notice: Callable[[str], None], client_ids: Callable[[], Sequence[str]]
    ) -> None:
        self._notice = notice
        self._client_ids = client_ids
        self._nobody_is_said = False

    def nobody(self, index: int) -> None:
        """No update of a round came in time."""
        if self._nobody_is_said:
            return
        self._nobody_is_said = True
        self._notice(
            f"round {index}: no update came in time, and this may go on: nobody was available, "
            "allowed (federated.max_participations, separation) or quick enough"
        )

    def lost(self, index: int, users: Sequence[int]) -> None:
        """Updates of users were not finite; says nothing of none."""
        if not users:
            return
        ids = self._client_ids()
        names = ", ".join(f"'{ids[user]}'" for user in users[:_MOST_NAMES])
        more = f" and {len(users) - _MOST_NAMES} more" if len(users) > _MOST_NAMES else ""
        self._notice(
            f"round {index}: the update of client {names}{more} was not finite and contributed "
            "nothing; a lower federated.local_learning_rate usually mends this, or this client's "
            "data hold NaN or infinity: correct or remove these values"
        )

    def left_out(self, index: int, aggregation: Aggregation, came: int) -> None:
        """Fewer updates came than an aggregation needs; says nothing if enough did."""
        if came >= aggregation.fewest or aggregation.rounds_left_out != 1:
            return
        self._notice(
            f"round {index} is left out, the first of perhaps more (train/rounds_left_out in "
            f"metrics.jsonl counts them): {aggregation.name} needs {aggregation.fewest} or more "
            f"finite updates, and {came} came; a larger federated.cohort_size, sampling fixed_size "
            "or, with devices, more over-commitment mends this"
        )
