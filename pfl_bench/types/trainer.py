"""Protocol of trainers of any setting, which the runner drives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_bench.types.evaluation import OwnModels, PersonalModels


@dataclass(frozen=True)
class PrivateSeed:
    """A private run's seed, and what it was derived from.

    Attributes:
        value: 256 bits.
        nonce: What pins it; None where ``parts`` decide.
        parts: What decides a run's releases, by name: digests, versions and names. They are
            recorded beside a nonce too.
    """

    value: int
    nonce: str | int | None
    parts: Mapping[str, Any]

    def to_json_dict(self) -> dict[str, Any]:
        """The seed as ``environment.json`` holds it, its value in hexadecimal digits."""
        return {"value": f"{self.value:064x}", "nonce": self.nonce, "parts": dict(self.parts)}


@dataclass(frozen=True)
class ExpectedWork:
    """Expected work of all steps of a run together, if no loss diverges.

    Attributes:
        at_once: Clients of a round at most; of central training, batches of an epoch.
        clients: Trainings of a client, one client in two rounds twice; None where the data are
            pooled.
        steps: Optimizer steps of all clients; of multi-task training, dual coordinate steps.
        examples: That go through them.
        flops: None where they follow from steps and examples.
        bytes_down: That clients receive; None where nothing is sent.
        bytes_up: That they send.
    """

    at_once: int
    clients: float | None
    steps: float
    examples: float
    flops: float | None = None
    bytes_down: float | None = None
    bytes_up: float | None = None


class Trainer:
    """Base of trainers: what one has that keeps neither ledger nor models of the clients' own.

    Attributes:
        unit: What one step is called: "round" or "epoch".
        total: Steps of the whole run.
        last: The step that the run ends with: ``total``, or the last within a private run's budget.
        engine: What trains the clients, as far as it decides the rounding of results; None where
            there are none.
        private_seed: What cohorts, batches and noise are drawn from; None for a run that is not
            private.
        accountant: Of a private run; empty for others.
    """

    unit: str = "round"
    total: int
    last: int
    engine: str | None = None
    private_seed: PrivateSeed | None = None
    accountant: str = ""

    @property
    def personal(self) -> PersonalModels | None:
        """Gives clients' own models to evaluation; None for one model of all.

        With clients' own there is no central model to select.
        """
        return None

    @property
    def beside(self) -> OwnModels | None:
        """Gives evaluation what clients keep beside the central model; None for nothing."""
        return None

    def advance(self, index: int) -> dict[str, float]:
        """Do step ``index``, 1-based, and give its scalars.

        Among them what it cost (``pfl_bench.client.costs``): "systems/steps" and
        "systems/examples", the steps of training and the examples that went through them, or
        "systems/flops" where those do not tell the FLOPs; and "systems/bytes_down",
        "systems/bytes_up" if it sends.
        """
        raise NotImplementedError

    def expected_work(self) -> ExpectedWork:
        """Expected work of the whole run, by its settings and the sizes of its clients."""
        raise NotImplementedError

    def begin(self, done: int) -> None:
        """Open the run's files; check that a private run's ledger is its own, of ``done`` steps.

        Args:
            done: Steps that the run has behind it, from its checkpoint.

        Raises:
            privacy.errors.LedgerError: The ledger is damaged or of another run.
        """

    def close(self) -> None:
        """Close files, and take off the model what training has put on it."""

    def load_central(self) -> None:
        """Put the parameters to evaluate into the model."""

    def claim(self, done: int | None) -> Any:
        """The ``PrivacyStatement`` after ``done`` steps (None: as planned); None without one."""
        return None

    def statement(self, done: int | None) -> dict[str, Any] | None:
        """The privacy statement after ``done`` steps (None: as planned), as plain data."""
        claim = self.claim(done)
        return None if claim is None else dict(claim.to_json_dict())

    def epsilons(self, done: int) -> dict[str, float]:
        """Both epsilons after ``done`` steps, as scalars.

        Empty for a run without privacy, and under accountants that take seconds an answer (PLD,
        PRV), whose epsilons are in the statement alone.
        """
        claim = self.claim(done) if self.accountant == "rdp" else None
        if claim is None:
            return {}
        return {
            "privacy/epsilon_simulated": claim.simulated.epsilon,
            "privacy/epsilon_actual": claim.actual.epsilon,
        }

    def ledger_digest(self, done: int) -> str | None:
        """SHA-256 of the ledger's line of step ``done``; None without a ledger."""
        return None

    def canary_result(self, done: int) -> dict[str, Any] | None:
        """Result of the canaries of an audited run after ``done`` steps; None without canaries."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """All that changes from step to step."""
        raise NotImplementedError

    def state_form(self) -> dict[str, Any]:
        """Form that a saved state must have: today's, where None stands for anything."""
        return self.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        raise NotImplementedError
