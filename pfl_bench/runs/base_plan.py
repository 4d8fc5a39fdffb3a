"""A private run as it is configured, and its composition as data, for the cost of several runs.

Guarantee: none of its own. A plan holds what the run's statement says as planned, and the same code
that audits runs makes events of it: mechanism by its name and options, users by their scheme.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_bench import plugins
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import build_mechanism
from pfl_bench.runs.preview import preview
from pfl_bench.types import ConfigError
from privacy.amplification import Composition, Participation
from privacy.audit.inputs import Compose, Configured
from privacy.description import DP_SGD
from privacy.errors import PrivacyError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.noise.feature_statistics import FeatureStatistics
from privacy.plan.example_level import example_level_composition

# DP-SGD is Opacus' own, and no plug-in.
_EXAMPLE_LEVEL = "dp_sgd"


def planned(resolved: ResolvedConfig, out: Path) -> dict[str, Any]:
    """The plan of one run, before it is run; its folder ``out`` must not exist and is not made.

    ConfigError where the configuration claims no privacy; UserInputError and
    privacy.errors.PrivacyError as of a run that cannot begin.
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
    return {**plan_of_statement(resolved, seen.statement.to_json_dict()), "split_by": seen.split_by}


def plan_of_statement(resolved: ResolvedConfig, statement: Mapping[str, Any]) -> dict[str, Any]:
    """The plan that a private run's statement, as ``privacy.json`` has it, is of."""
    keys = ("unit", "adjacency", "mechanism", "accountant", "rounds", "simulated", "actual")
    configured = configured_of(resolved)
    return {
        **{key: statement[key] for key in keys},
        "mechanism_options": dict(configured.mechanism_options),
    }


def configured_of(resolved: ResolvedConfig) -> Configured:
    """Settings of a private run, as its configuration has them."""
    config, privacy = resolved.config, resolved.config.privacy
    assert privacy is not None
    federated, central = config.federated, config.central
    own: dict[str, Any] = {
        "budget_epsilon": privacy.epsilon,
        "noise_multiplier": privacy.noise_multiplier,
        "delta": privacy.delta,
        "accountant": privacy.accountant,
    }
    if central is not None:
        return Configured(
            unit="example",
            mechanism=_EXAMPLE_LEVEL,
            mechanism_options=_example_level_options(resolved),
            sampling=central.sampling,
            cohort_size=central.batch_size,
            num_rounds=central.num_epochs,
            description=DP_SGD,
            **own,
        )
    assert federated is not None
    name, options = resolved.tree["privacy"]["mechanism"]["name"], resolved.mechanism_options
    scale = NoiseScale(
        0.0,
        federated.cohort_size,
        privacy.noise_cohort_size or federated.cohort_size,
        num_rounds=federated.num_rounds,
        separation=federated.separation,
    )
    population = privacy.population_size
    return Configured(
        unit="user",
        mechanism=name,
        mechanism_options={} if options is None else options.model_dump(mode="json"),
        sampling=federated.sampling,
        separation=federated.separation,
        population_size=population if isinstance(population, int) else None,
        hypothetical_population=privacy.hypothetical_population,
        cohort_size=federated.cohort_size,
        noise_cohort_size=privacy.noise_cohort_size,
        num_rounds=federated.num_rounds,
        weighting=federated.weighting,
        description=build_mechanism(name, options, scale).description,
        max_participations=federated.max_participations,
        canaries=privacy.audit,
        **own,
    )


def _example_level_options(resolved: ResolvedConfig) -> dict[str, Any]:
    privacy = resolved.config.privacy
    assert privacy is not None
    options = {"clip_norm": resolved.tree["privacy"]["mechanism"]["clip_norm"]}
    if privacy.statistics is not None:
        options["statistics"] = privacy.statistics.model_dump()
    return options


def compose_of(resolved: ResolvedConfig) -> Compose:
    """Composition of rounds of a recorded mechanism, by the mechanism, built anew."""
    federated = resolved.config.federated
    # DP-SGD has no mechanism that would have to know.
    num_rounds = 1 if federated is None else federated.num_rounds

    def composition(
        name: str,
        options: Mapping[str, Any],
        participation: Participation,
        noise_multiplier: float,
        rounds: int,
    ) -> Composition:
        if name == _EXAMPLE_LEVEL:
            recorded = options.get("statistics")
            try:
                statistics = None if recorded is None else FeatureStatistics(**recorded)
            except TypeError as error:
                raise PrivacyError(f"the statistics are recorded as {recorded!r}") from error
            composed = example_level_composition(statistics)
            return composed(participation, noise_multiplier, rounds)
        module = plugins.load(plugins.MECHANISM, name)
        scale = NoiseScale(
            0.0,
            participation.cohort_size,
            participation.cohort_size,
            num_rounds=num_rounds,
            separation=participation.min_separation,
        )
        read = module.Options.model_validate_json(json.dumps(dict(options)))
        mechanism: Mechanism = module.build(read, scale)
        return mechanism.composition(participation, noise_multiplier, rounds)

    return composition
