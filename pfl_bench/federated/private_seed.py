"""The seed of a private run's cohorts and noise.

Guarantee: two runs on the same data that shared their noise and released other sums would have no
joint guarantee, because the difference of their releases is bare of noise. So the seed takes in all
that decides what a run releases: seed, configuration, data, initial model, simulated devices, code,
library versions, processor and device, and how the engine adds up. The same command on the same
machine and code gives the same bits; anything else draws anew.

``privacy.nonce`` replaces all of these but the seed, where noise has to stay while code changes.
The statement and the audit then say that all runs of this nonce and seed share their noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pfl_bench.client import machine
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.row_differences import digest_of
from pfl_bench.types import PrivateSeed, RunFolderError


class OtherSeedError(RunFolderError):
    """A checkpoint of a private run was written under another seed than the run has today."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder}: this run's cohorts and noise were drawn from another seed than it has "
            "today, because code, versions, processor or settings are others than when it began; "
            "resume under those that environment.json names, or start in a new folder with --out"
        )


def derive(
    resolved: ResolvedConfig,
    checksum: str,
    initial_digest: str,
    device: torch.device,
    engine: str = "",
    traces: str = "",
) -> PrivateSeed:
    """Derive the seed of a private run.

    Args:
        resolved: The configuration.
        checksum: Digest of the data's content.
        initial_digest: Digest of the model that the run begins with.
        device: Where the model lives.
        engine: How updates are computed and added, as far as it decides their last bits; empty
            where there are no clients.
        traces: Digest of the simulated devices; empty without them.
    """
    files = _digest_of_settings(resolved.tree["model"].get("weights"))
    nonce = resolved.config.privacy.nonce if resolved.config.privacy is not None else None
    parts = {
        "configuration": configuration_digest(resolved, has_traces=bool(traces)),
        "data": checksum,
        "initial_model": initial_digest,
        "model_files": files,
        "engine": engine,
        "simulated_devices": traces,
        **machine.identity(device),
    }
    return PrivateSeed(value_of(resolved.config.seed, nonce, parts), nonce, parts)


def configuration_digest(resolved: ResolvedConfig, has_traces: bool) -> str:
    """Digest of what a configuration says of training and releases.

    Where there are devices, their content has a digest of its own (``has_traces``).
    """
    tree = resolved.training_tree
    # Where files lie decides nothing: their content is in the digests.
    for section, path in (("task", "data"), ("model", "weights")):
        tree[section] = {key: value for key, value in tree[section].items() if key != path}
    if has_traces:
        tree["systems"] = {k: v for k, v in tree["systems"].items() if k != "source"}
    return digest_of(tree)


def _digest_of_settings(weights: str | None) -> str:
    """Digest of the settings beside a model's weights, where those are a folder; else empty.

    They decide what the same tensors compute, such as an activation or the number of heads.
    """
    if weights is None or not Path(weights).is_dir():
        return ""
    paths = sorted(Path(weights).glob("*.json"))
    return digest_of([[path.name, path.read_text(encoding="utf-8")] for path in paths])


def value_of(seed: int, nonce: str | int | None, parts: Mapping[str, Any]) -> int:
    """The private seed that belongs to a run's seed, its nonce and the parts of ``PrivateSeed``."""
    deciding: Any = parts if nonce is None else {"nonce": nonce}
    return int(digest_of([seed, deciding]).removeprefix("sha256:"), 16)
