"""What the runner drives: a trainer, and which one a configuration asks for."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from pfl_bench.federated.private_seed import PrivateSeed


class Trainer(Protocol):
    """What ``federated.py``, ``central.py`` and other trainers give the runner.

    One whose clients have models of their own also has ``personal``, a ``PersonalModels`` that
    gives them to evaluation; then there is no central model to select.
    """

    @property
    def unit(self) -> str:
        """What one step is called: "round" or "epoch"."""

    @property
    def total(self) -> int:
        """Steps of the whole run."""

    @property
    def private_seed(self) -> PrivateSeed | None:
        """What cohorts, batches and noise are drawn from; None for a run that is not private."""

    def advance(self, index: int) -> dict[str, float]:
        """Do step ``index``, 1-based, and give its scalars.

        Among them what it cost (``pfl_bench.client.costs``): "systems/steps" and
        "systems/examples", the steps of training and the examples that went through them, or
        "systems/flops" where those do not tell the FLOPs; and "systems/bytes_down",
        "systems/bytes_up" if it sends.
        """

    def close(self) -> None:
        """Close files."""

    def load_central(self) -> None:
        """Put the parameters to evaluate into the model."""

    def epsilons(self, done: int) -> dict[str, float]:
        """Both epsilons after ``done`` steps, as scalars; empty without privacy."""

    def statement(self, done: int | None) -> dict[str, Any] | None:
        """The privacy statement after ``done`` steps (None: as planned), or None without one."""

    def begin(self, done: int) -> None:
        """Open the ledger of a private run; check that it is of this run and has ``done`` steps."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes from step to step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""


@runtime_checkable
class KeepsLedger(Protocol):
    """A trainer whose private runs are recorded in a ledger."""

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of step ``done``; None without privacy."""


@runtime_checkable
class HasCanaries(Protocol):
    """A trainer that can add canary clients to a run, to audit it."""

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """What the canaries show after ``done`` steps; None for a run without them."""
