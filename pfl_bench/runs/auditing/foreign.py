"""Contents of a run's folder that no run writes: members of checkpoints, scalars, replaced lines.

A sum before its noise, once kept "to debug", leaves the machine with the folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pfl_bench.config.schema import RunConfig
from pfl_bench.runs.audit_file import ledger_digest

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
_RUN = dict.fromkeys(("version", "step", "best", "costs", "divergence", "settings"))
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
    "mlflow.json", "tensorboard", ".lock",
)  # fmt: skip


def foreign_members(state: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """Dotted names of a checkpoint's members that no run of this configuration saves."""
    if config.federated is not None:
        form, optimizer = _FEDERATED, config.federated.central_optimizer
    else:
        assert config.central is not None  # a private run is of one of the two
        form, optimizer = _OF_EXAMPLES, config.central.optimizer
    # Without momentum, gradient descent remembers nothing.
    is_plain = optimizer.name == "sgd" and not optimizer.momentum
    kept: dict[str, Any] = {"state": {} if is_plain else None, "param_groups": None}
    return _foreign(state, {**_RUN, "trainer": {**form, "optimizer": kept}}, "")


def _foreign(state: Any, form: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in state.items() if isinstance(state, Mapping) else ():
        if key not in form:
            yield f"{above}{key}"
        elif form[key] is not None:
            yield from _foreign(value, form[key], f"{above}{key}.")


def foreign_scalars(rows: Iterable[Mapping[str, Any]], splits: Collection[str]) -> list[str]:
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


def foreign_files(folder: Path) -> list[str]:
    """Names of files that no command of the toolkit leaves in a run's folder."""
    return sorted(path.name for path in folder.iterdir() if path.name not in _FILES)
