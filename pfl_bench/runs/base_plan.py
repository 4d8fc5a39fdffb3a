"""Composition of one run of a configuration as data, for the joint cost of several runs.

Guarantee: none of its own. A plan holds what the run's statement says as planned, and the same code
that audits runs makes events of it: mechanism by its name and options, users by their scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.runs.audit import compose_by, configured_of
from pfl_bench.runs.preview import preview
from pfl_bench.types import ConfigError
from privacy.amplification import Composition
from privacy.audit.inputs import Compose
from privacy.audit.selected import plan_composition


def planned(resolved: ResolvedConfig, out: Path) -> dict[str, Any]:
    """The plan of one run, before it is run.

    Args:
        resolved: The configuration.
        out: A folder that is not there; it is not made.

    Raises:
        ConfigError: The configuration claims no privacy.
        UserInputError: Configuration or data do not fit.
        privacy.errors.PrivacyError: The privacy claim could not be made truthfully.
    """
    if resolved.config.privacy is None:
        raise ConfigError(
            f"{resolved.source}: the row claims no privacy, so that choosing among its runs has no "
            "price; leave selection out, or take a private row, such as demo/private_federated"
        )
    seen = preview(resolved, out)
    if seen.statement is None or seen.statement.unit == "none":
        raise ConfigError(
            f"{resolved.source}: its mechanism neither clips nor noises, so that there is no "
            "guarantee to account; choose a private one, such as gaussian"
        )
    return {
        **plan_of_statement(resolved, seen.statement.to_json_dict()),
        "split_by": seen.split_by,
    }


def plan_of_statement(resolved: ResolvedConfig, statement: Mapping[str, Any]) -> dict[str, Any]:
    """The plan that a private run's statement is of.

    Args:
        resolved: The run's configuration.
        statement: As ``privacy.json`` has it.
    """
    keys = ("unit", "adjacency", "mechanism", "accountant", "rounds", "simulated", "actual")
    configured = configured_of(resolved)
    return {
        **{key: statement[key] for key in keys},
        "mechanism_options": dict(configured.mechanism_options),
    }


def composition_of_plan(
    resolved: ResolvedConfig, plan: Mapping[str, Any], side: str
) -> Composition:
    """Composition of a plan in one of its settings.

    Args:
        resolved: A configuration with the mechanism of the plan.
        plan: What ``planned`` gives.
        side: "simulated" or "actual".
    """
    return plan_composition(compose_of(resolved), plan, side)


def compose_of(resolved: ResolvedConfig) -> Compose:
    """Composition of rounds of a configuration's mechanism."""
    return compose_by(configured_of(resolved))
