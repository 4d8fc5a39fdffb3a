"""Contents of a run's folder that no run writes: members, scalars, replaced lines, other files.

A sum before its noise, once kept "to debug", leaves the machine with the folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pfl_bench.config.schema import RunConfig
from pfl_bench.files import read_metrics
from pfl_bench.runs.audit_file import ledger_digest
from pfl_bench.runs.checkpoint import steps_saved
from pfl_bench.runs.environment import PACKAGES
from pfl_bench.simulation.devices.timeline import TIMELINES, RoundTimeline
from pfl_bench.simulation.devices.trace_file import DEVICES
from pfl_bench.types.layouts import LAYOUTS, unnamed
from privacy.audit import values

# Members of a checkpoint by those above; what stands under None is of a plug-in, or compared.
_FEDERATED = {
    "central": None,
    "mechanism": None,
    "private": dict.fromkeys(("history", "canaries", "ledger", "seed")),
    "clients": None,
}
_OF_EXAMPLES = dict.fromkeys(
    ("central", "buffers", "noise_generator", "ledger", "seed", "statistics")
)
_RUN = dict.fromkeys(("version", "step", "best", "costs", "divergence", "settings", "seconds"))
# Scalars of a step; those of simulated systems and of time say nothing of the data's values.
_SCALARS = {
    "train": (
        "loss", "step_loss", "num_examples", "step_examples", "num_steps", "num_nonfinite",
        "cohort_size", "update_norm", "central_learning_rate", "local_learning_rate",
        "learning_rate", "rounds_left_out",
    ),
    "privacy": (
        "clip_norm", "update_noise_stddev", "fraction_clipped", "noisy_fraction_unclipped",
        "epsilon_simulated", "epsilon_actual",
    ),
    "canaries": ("right", "trials"),
}  # fmt: skip
_FREE = ("systems", "time")
_FILES = (
    "config.yaml", "environment.json", "metrics.jsonl", "ledger.jsonl", "privacy.json",
    "summary.json", "checkpoints", "run.log", "report.html", "audit.json", "canaries.json",
    "attack.json", "attack", "selection.json", "profile.json", "trace.json", "wandb", "wandb.json",
    "mlflow.json", "mlflow.db", "mlflow", "tensorboard", ".lock", ".job.json", "stop.json",
    "strata.json", "timelines.jsonl", "devices.npz",
)  # fmt: skip
# Of these, what is written for people alone.
TEXTS = ("run.log", "report.html")


def members(state: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """Dotted names of a checkpoint's members that no run of this configuration saves."""
    if config.federated is not None:
        form, optimizer = _FEDERATED, config.federated.central_optimizer
    else:
        assert config.central is not None  # a private run is of one of the two
        form, optimizer = _OF_EXAMPLES, config.central.optimizer
    # Without momentum, gradient descent remembers nothing.
    is_plain = optimizer.name == "sgd" and not optimizer.momentum
    kept: dict[str, Any] = {"state": {} if is_plain else None, "param_groups": None}
    return values.unnamed(state, {**_RUN, "trainer": {**form, "optimizer": kept}})


def environment(environment: Mapping[str, Any]) -> Iterator[str]:
    """Dotted names of members of ``environment.json`` that no run writes."""
    yield from unnamed(environment, LAYOUTS["environment.json"])
    for one in (environment, *environment.get("resumptions", ())):
        packages = one.get("packages") or {}
        yield from (f"packages.{name}" for name in packages if name not in PACKAGES)


def results(summary: Mapping[str, Any], splits: Collection[str]) -> Iterator[str]:
    """Dotted names of members of ``summary.json`` that no run that evaluates ``splits`` writes."""
    yield from unnamed(summary, LAYOUTS["summary.json"])
    measured = summary.get("metrics") or {}
    yield from (f"metrics.{name}" for name in measured if name.partition("/")[0] not in splits)


def unasked_files(folder: Path, config: RunConfig) -> list[str]:
    """Files of canaries, strata and devices that are there, though the configuration has none."""
    asked = {
        "canaries.json": config.privacy is not None and config.privacy.audit is not None,
        "strata.json": bool(config.evaluation.strata),
        TIMELINES: config.systems is not None,
        DEVICES: config.systems is not None,
    }
    return [name for name, asks in asked.items() if not asks and (folder / name).exists()]


def timelines(folder: Path) -> list[str]:
    """Names of columns of rounds' timelines that no run writes."""
    known = {"round", *(each.name for each in fields(RoundTimeline))}
    return sorted(set().union(*read_metrics(folder / TIMELINES)) - known)


def scalars(rows: Iterable[Mapping[str, Any]], splits: Collection[str]) -> list[str]:
    """Names of scalars that no run with these evaluated splits writes."""
    found = set().union(*rows) - {"round"}
    return sorted(name for name in found if not _is_known(*name.partition("/")[::2], splits))


def _is_known(group: str, name: str, splits: Collection[str]) -> bool:
    return group in splits or group in _FREE or name in _SCALARS.get(group, ())


def replaced_lines(folder: Path, resumptions: Any) -> Iterator[str]:
    """Resumptions whose ledger did not begin with the bytes that it begins with now, in words.

    A round that was released, and then again from other data or code, has the same noise twice.
    """
    for resumption in resumptions if isinstance(resumptions, list) else ():
        recorded = resumption.get("ledger") if isinstance(resumption, Mapping) else None
        if not isinstance(recorded, Mapping):
            continue  # of an older version, or before the first round
        size = recorded.get("bytes")
        known = isinstance(size, int) and size >= 0
        if not known or ledger_digest(folder, size) != recorded.get("sha256"):
            yield (
                f"the ledger is not the one that the run was resumed with after "
                f"{resumption.get('after')}: a recorded line was replaced"
            )


def files(folder: Path) -> list[str]:
    """Names of files that no command of the toolkit leaves in a run's folder."""
    found = [path.name for path in folder.iterdir() if path.name not in _FILES]
    checkpoints = folder / "checkpoints"
    if checkpoints.is_dir():
        kept = {*steps_saved(checkpoints).values()}
        found += [f"checkpoints/{path.name}" for path in checkpoints.iterdir() if path not in kept]
    return sorted(found)
