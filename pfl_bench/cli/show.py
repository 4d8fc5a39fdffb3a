"""``pfl-bench show``: a row before it is run: settings, published numbers, privacy and cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.cli.preview_text import (
    cost_lines,
    data_lines,
    epsilon_lines,
    notice_lines,
    time_lines,
    wrapped,
)
from pfl_bench.cli.speech import answer, write
from pfl_bench.config.bundled_rows import locate_row
from pfl_bench.config.loading import ResolvedConfig, load_config
from pfl_bench.config.schema import RunConfig
from pfl_bench.config.yaml_text import read_yaml, with_overrides
from pfl_bench.files import to_json_value
from pfl_bench.runs.preview import Preview, preview
from pfl_bench.runs.time_estimate import TimeEstimate, estimate_time
from pfl_bench.types import DataError, UserInputError
from privacy.errors import PrivacyError

_PRIVATE = ("private_federated", "central_dp")


def main(arguments: argparse.Namespace) -> int:
    """Show a row; nothing is written, and no run folder is made."""
    found = look(arguments.row, arguments.overrides, not arguments.no_estimate)
    if arguments.json:
        answer(json.dumps(found.to_json_dict(), allow_nan=False))
        return 0
    write("\n".join(_head(found.path, found.resolved, arguments.all, arguments.overrides)))
    if found.preview is None:
        write("\n".join(_without_data(found.resolved, found.lacking or "")))
    else:
        write("\n".join(_with_data(found.preview)))
        if not arguments.no_estimate:
            write("\n".join(time_lines(found.estimate, found.why)))
    return 0


@dataclass
class Look:
    """Facts of a row that are known before it is run.

    Attributes:
        preview: None without the data; then ``lacking`` says why there are none.
        estimate: None if it was not asked for, or cannot be measured; then ``why`` says why.
    """

    path: Path
    resolved: ResolvedConfig
    preview: Preview | None = None
    lacking: str | None = None
    estimate: TimeEstimate | None = None
    why: str | None = None

    def to_json_dict(self) -> dict[str, Any]:
        """As ``pfl-bench show --json`` prints it."""
        shown, estimate = self.preview, self.estimate
        statement = None if shown is None else shown.statement
        document = {
            "name": self.resolved.config.name,
            "setting": self.resolved.config.setting,
            "config": self.resolved.tree,
            "not_the_row": list(self.resolved.not_the_row),
            "privacy": None if statement is None else statement.to_json_dict(),
            "cost": None if shown is None else asdict(shown.cost),
            "num_users": None if shown is None else shown.num_users,
            "num_parameters": None if shown is None else shown.num_parameters,
            "notices": [] if shown is None else list(shown.notices),
            "estimate": None if estimate is None else {**asdict(estimate), "total": estimate.total},
            "data_not_prepared": self.lacking,
        }
        value: dict[str, Any] = to_json_value(document)
        return value


def look(row: str, overrides: list[str], estimates: bool) -> Look:
    """Look at a row, and with ``estimates`` measure how long it will take."""
    path = locate_row(row)
    found = Look(path, load_config(path, overrides))
    try:
        found.preview = preview(found.resolved, Path("runs") / found.resolved.config.name)
    except DataError as error:
        found.lacking = str(error)
    if found.preview is not None and estimates:
        try:
            found.estimate = estimate_time(found.resolved)
        except (UserInputError, PrivacyError) as error:
            # The row is right; what is not is the smaller run that is measured.
            found.why = str(error)
    return found


def _head(
    path: Path, resolved: ResolvedConfig, everything: bool, overrides: list[str]
) -> Iterator[str]:
    config = resolved.config
    yield from wrapped(f"{config.name} ({config.setting}): {path}", "")
    yield ""
    tree = resolved.tree
    if not everything:
        tree = with_overrides(read_yaml(path), overrides)
    kept = {key: value for key, value in tree.items() if key != "expected"}
    text: str = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=76)
    yield from (f"  {line}" for line in text.splitlines())
    if not everything:
        yield "  # All other keys have their defaults: --all shows them too."
    yield ""
    yield "Published"
    if not config.expected:
        yield "  nothing"
    for entry in config.expected:
        best = "" if entry.statistic == "last" else ", best over rounds,"
        spread = f"± {entry.sd:g} over {entry.seeds} seeds, " if entry.sd is not None else ""
        judged = f"({spread}margin {entry.tolerance:g})"
        diverged = ", of a training that diverged" if entry.diverged else ""
        told = f"{entry.metric}{best} {entry.value:g} {judged}{diverged}: {entry.source}"
        yield from wrapped(told)
    for difference in resolved.not_the_row:
        yield from wrapped(f"not compared with it: {difference}")


def _with_data(shown: Preview) -> Iterator[str]:
    yield from ("", "Privacy")
    statement = shown.statement
    if statement is None or statement.unit == "none":
        yield "  none is claimed"
    else:
        yield from epsilon_lines(statement.simulated, statement.actual)
    yield from ("", "Data and model")
    yield from data_lines(shown)
    yield from notice_lines(shown.notices)
    yield from ("", "Cost")
    yield from cost_lines(shown.cost)


def _without_data(resolved: ResolvedConfig, lacking: str) -> Iterator[str]:
    """A row's facts that need no data: the arithmetic of its privacy, its rounds and clients."""
    yield from ("", "Privacy")
    if resolved.config.setting not in _PRIVATE:
        yield "  none is claimed"
    else:
        yield from _planned_privacy(resolved)
    yield from ("", "Cost")
    yield from wrapped(_planned_steps(resolved.config))
    yield from wrapped(f"data not prepared: {lacking}")


def _planned_steps(config: RunConfig) -> str:
    """Rounds and clients, or epochs, as far as they are known without the data."""
    if config.federated is not None:
        rounds, clients = config.federated.num_rounds, config.federated.cohort_size
        return f"{rounds:,} rounds, about {clients:,} clients in each"
    if config.central is not None:
        return f"{config.central.num_epochs:,} epochs"
    if config.local is not None:
        epochs, rates = config.local.num_epochs, len(config.local.learning_rates)
        return f"{epochs:,} epochs of each client at each of {rates} rates"
    assert config.multitask is not None
    return f"{config.multitask.num_rounds:,} rounds"


def _planned_privacy(resolved: ResolvedConfig) -> Iterator[str]:
    """Both epsilons of a federated row whose population is a number; of another, its goal."""
    privacy, federated = resolved.config.privacy, resolved.config.federated
    assert privacy is not None
    if federated is None or not isinstance(privacy.population_size, int):
        goal = "" if privacy.epsilon is None else f"at most {privacy.epsilon:g} is the goal; "
        yield from wrapped(f"epsilon: {goal}noise and epsilon follow from the data's size")
        return
    from pfl_bench.cli.privacy_settings import calibrated, make_pair
    from pfl_bench.federated.accounting import composition_of

    options = dict(resolved.tree["privacy"]["mechanism"])
    name = options.pop("name")
    noise_cohort = privacy.noise_cohort_size or federated.cohort_size
    asked = argparse.Namespace(
        population=privacy.population_size,
        cohort=federated.cohort_size,
        noise_cohort=noise_cohort,
        users=privacy.population_size,
        sampling=federated.sampling,
        separation=federated.separation,
        max_participations=federated.max_participations,
        delta=privacy.delta,
        epsilon=privacy.epsilon,
        rounds=federated.num_rounds,
        accountant=privacy.accountant,
    )
    cohorts, rounds = (federated.cohort_size, noise_cohort), federated.num_rounds
    composition = composition_of(
        name, options, str(resolved.source), cohorts, rounds, federated.separation
    )
    noise = privacy.noise_multiplier
    if noise is None:
        assert privacy.epsilon is not None
        noise = calibrated(asked, composition)
    pair = make_pair(asked, composition, noise, rounds, privacy.accountant)
    actual = None if privacy.hypothetical_population else pair.actual
    yield from epsilon_lines(pair.simulated, actual)
