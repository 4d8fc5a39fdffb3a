"""The processes of a run: what each sees of the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SAFE = "PYTHONSAFEPATH"
_HOME = Path(__file__).resolve().parents[2]


@contextmanager
def importing_nothing_here() -> Iterator[None]:
    """Processes that begin within it do not import from the current folder, which may be anybody's.

    They begin by ``python -c`` or ``python -m``, which otherwise look there first, also for modules
    of Python. A checkout that is the current folder is looked into, as it need not be installed.
    """
    before = os.environ.get(_SAFE)
    if before is None and not _HOME.samefile("."):
        os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE, None)


class WorkerGroup:
    """Base of the processes of a run, as one of them sees them: here one that is alone.

    Rank 0 leads: it alone draws cohorts, noises, takes the central step and writes. The others
    wait for its messages. Calls are made in one order by all of them.

    Attributes:
        rank: Number of this process; 0 leads.
        size: Number of processes.
        description: Of the processes, such as "2 worker processes"; empty for one.
    """

    rank: int = 0
    size: int = 1
    description: str = ""

    def broadcast(self, message: Any, vector: Tensor | None = None) -> tuple[Any, Tensor | None]:
        """Give the lead's message, and a vector with it, to all.

        Args:
            message: Picklable; that of other ranks is not looked at.
            vector: Shape (P,), float32; on other ranks a place for the lead's, None before the
                first.

        Returns:
            Message and vector, on all ranks those of the lead; the message is None when the run has
            ended. The vector must not be changed, and is valid until the next call.

        Raises:
            WorkerError: A process has died.
        """
        return message, vector

    def send(self, part: Any, vectors: Sequence[Tensor] = ()) -> None:
        """Bring the lead something; not called by the lead.

        Args:
            part: Picklable.
            vectors: Of shape (P,) each.

        Raises:
            WorkerError: The lead has died.
        """
        raise RuntimeError("this process leads, or is alone: nobody takes what it brings")

    def receive(self, rank: int) -> tuple[Any, Iterator[Tensor]]:
        """Take what another rank brings; called by the lead, rank by rank.

        Args:
            rank: Whose, 1 or larger.

        Returns:
            The part; and its vectors, of shape (P,), each valid until the next is asked for.

        Raises:
            WorkerError: The rank has died.
            UserInputError: What the rank ``fail``ed with.
            PrivacyError: Likewise.
        """
        raise RuntimeError(f"rank {rank} brings nothing: this process does not lead, or is alone")

    def fail(self, error: Exception) -> None:
        """Tell the lead, which waits in ``receive``, that this rank cannot go on.

        The lead's own error needs no telling, and is raised.
        """
        raise error

    def close(self) -> None:
        """Let go of the others: on the lead, the run has ended and so do they."""


class SingleProcess(WorkerGroup):
    """The group of a run in one process."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the vector that comes along, each rank its part of some splits.

    Attributes:
        splits: Their names.
    """

    splits: tuple[str, ...]
