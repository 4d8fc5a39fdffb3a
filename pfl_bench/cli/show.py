"""``pfl-bench show``: a row before it is run: settings, published numbers, privacy and cost."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.cli.speech import answer_json, write
from pfl_bench.config.loading import ResolvedConfig, load_config
from pfl_bench.config.row_files import locate_row
from pfl_bench.config.schema import RunConfig
from pfl_bench.config.yaml_text import read_yaml, with_overrides
from pfl_bench.files import to_json_value
from pfl_bench.report.costs import bytes_text, flops_text
from pfl_bench.runs.preview import Cost, Preview, preview
from pfl_bench.runs.time_estimate import TimeEstimate, estimate_time
from pfl_bench.types import DataError, UserInputError
from privacy.errors import PrivacyError
from privacy.statement.statement import Accounted, round_up, small

_WIDTH = 80


def main(arguments: argparse.Namespace) -> int:
    """Show a row; nothing is written, and no run folder is made."""
    found = look(arguments.row, arguments.overrides, not arguments.no_estimate)
    if arguments.json:
        answer_json(found.to_json_dict())
        return 0
    write("\n".join(_head(found.path, found.resolved, arguments.all, arguments.overrides)))
    if found.preview is None:
        write("\n".join(_without_data(found.resolved, found.lacking or "")))
    else:
        write("\n".join(_with_data(found.preview)))
        if not arguments.no_estimate:
            write("\n".join(_time_lines(found.estimate, found.why)))
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
            found.estimate = estimate_time(found.resolved, found.preview.cost.steps)
        except (UserInputError, PrivacyError) as error:
            # The row is right; what is not is the smaller run that is measured.
            found.why = str(error)
    return found


def _head(
    path: Path, resolved: ResolvedConfig, everything: bool, overrides: list[str]
) -> Iterator[str]:
    config = resolved.config
    yield from _wrapped(f"{config.name} ({config.setting}): {path}", "")
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
        yield from _wrapped(told)
    for difference in resolved.not_the_row if config.expected else ():
        yield from _wrapped(f"not compared with it: {difference}")


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
    if not resolved.config.is_private:
        yield "  none is claimed"
    else:
        yield from _planned_privacy(resolved)
    yield from ("", "Cost")
    yield from _wrapped(_planned_steps(resolved.config))
    yield from _wrapped(f"data not prepared: {lacking}")


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
        yield from _wrapped(f"epsilon: {goal}noise and epsilon follow from the data's size")
        return
    from pfl_bench.cli.privacy_settings import account, settings_of
    from pfl_bench.federated.accounting import composition_of

    options = dict(resolved.tree["privacy"]["mechanism"])
    name = options.pop("name")
    noise_cohort = privacy.noise_cohort_size or federated.cohort_size
    asked = argparse.Namespace(
        mechanism=name,
        population=privacy.population_size,
        cohort=federated.cohort_size,
        noise_cohort=noise_cohort,
        users=privacy.population_size,
        rounds=federated.num_rounds,
        **federated.model_dump(include={"sampling", "separation", "max_participations"}),
        **privacy.model_dump(include={"delta", "epsilon", "accountant"}),
    )
    cohorts, rounds = (federated.cohort_size, noise_cohort), federated.num_rounds
    composition = composition_of(
        name, options, str(resolved.source), cohorts, rounds, federated.separation
    )
    noise = privacy.noise_multiplier
    if noise is None:
        assert privacy.epsilon is not None
        deployment = settings_of(asked, composition, 0.0, privacy.accountant)["simulated"]
        noise = deployment.calibrated(privacy.epsilon, rounds)
    guarantee = account(asked, composition, noise, rounds, privacy.accountant)
    actual = None if privacy.hypothetical_population else guarantee.actual
    yield from epsilon_lines(guarantee.simulated, actual)


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    """A text in lines, those after the first indented further."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def epsilon_lines(simulated: Accounted, actual: Accounted | None) -> Iterator[str]:
    """Both epsilons, a line each; None for an actual one that only the data tell."""
    for label, accounted in (("simulated", simulated), ("actual", actual)):
        head = f"epsilon ({label})".ljust(21)
        if accounted is None:
            yield from _wrapped(f"{head}known when the data are there (hypothetical population)")
            continue
        delta, users = accounted.delta, accounted.population_size
        shown = "" if delta is None else f" at delta {small(delta)}"
        warning = ""
        if delta is not None and delta * users >= 1.0:
            warning = f"; delta is not below 1/{users}, so this promises nothing: lower it"
        yield from _wrapped(
            f"{head}{round_up(accounted.epsilon, 4)}{shown}: {accounted.cohort_size:g} of {users}, "
            f"z = {accounted.noise_multiplier:.4g}{warning}"
        )


def cost_lines(cost: Cost) -> Iterator[str]:
    """Lines with the expected cost of training."""
    clients, work = "", f"optimizer steps an {cost.unit}"
    if cost.clients is not None:
        clients, work = f", about {cost.clients:,} clients in each", "local steps a client in each"
    yield from _wrapped(f"{cost.steps:,} {cost.unit}s{clients}")
    yield from _wrapped(f"about {cost.local_steps:.4g} {work}")
    amounts = f"about {flops_text(cost.flops)} computed"
    if cost.bytes_down is not None:
        amounts += f", {bytes_text(cost.bytes_down)} received by clients"
        amounts += f", {bytes_text(cost.bytes_up)} sent"
    yield from _wrapped(amounts)


def _time_lines(estimate: TimeEstimate | None, why: str | None = None) -> Iterator[str]:
    """Lines with a run's expected time on this machine, or the reason why there is no estimate."""
    if estimate is None:
        yield from _wrapped(f"time: not estimated: {why}")
        return
    workers = "" if estimate.workers == 1 else f" by {estimate.workers} worker processes"
    yield from _wrapped(
        f"time: about {_duration(estimate.total)} here{workers} (training "
        f"{_duration(estimate.training)}, evaluation {_duration(estimate.evaluation)}), from "
        f"{estimate.measured}"
    )


def data_lines(preview: Preview) -> Iterator[str]:
    """Lines with the data, the number of users and the size of the model."""
    yield from _wrapped(preview.data)
    users = ", ".join(f"{name} {count:,}" for name, count in preview.num_users.items())
    yield from _wrapped(f"users: {users}")
    yield from _wrapped(f"model: {preview.num_parameters:,} parameters on {preview.device}")


def notice_lines(notices: Iterable[str]) -> Iterator[str]:
    """Lines with the notices of a run, a paragraph each."""
    for notice in notices:
        yield from _wrapped(f"note: {notice}")


def _duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 1:
        return "a second"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{math.ceil(seconds)} s"
