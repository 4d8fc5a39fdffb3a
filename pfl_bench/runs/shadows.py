"""Shadow runs of a row, and what their released models show of each training user.

A shadow run is the row with a seed of its own and ``federated.shadow``: a fair coin keeps each
training user or leaves the user out of every round. Coins, cohorts and noise of two shadow runs are
independent. What is attacked is the released model: the last round's, or the one that
``evaluation.select_best`` chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.config.loading import RECORD_NAME, ResolvedConfig, load_config
from pfl_bench.federated.parts import RunParts, build_run
from pfl_bench.federated.sampling import draw_members
from pfl_bench.files import read_npz, write_atomically
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.types import ConfigError, RunFolderError
from privacy.empirical.membership_scores import logit_of_loss
from privacy.plan.plan import tensor_digest

USERS_FILE = "users.npz"
# Seeds of shadow runs are so far apart that the row's own other seeds are not among them.
_SEED_STEP = 1_000_003
_BATCH = 256
_LARGEST_LOSS = 1e6

Plan = tuple[Path, ResolvedConfig]


@dataclass(frozen=True)
class ShadowUsers:
    """Measurements of shadow runs on the users that have examples.

    Attributes:
        losses: Shape (K, U): each user's mean loss in each run's released model.
        logits: Shape (K, U): mean logit of exp(-loss).
        members: Shape (K, U): who was in the population.
    """

    losses: NDArray[np.float64]
    logits: NDArray[np.float64]
    members: NDArray[np.bool_]


def shadow_plans(
    source: Path, overrides: Sequence[str], count: int, folder: Path
) -> tuple[ResolvedConfig, list[Plan]]:
    """The row that is attacked, and its ``count`` shadow runs with their folders below ``folder``.

    ``source`` is the row's file or a run's config.yaml. ConfigError if the row has no shadow runs.
    """
    # A run folder may be anybody's, and names no server for what is trained on one's own data.
    quiet = ["logging={}"] if source.name == RECORD_NAME else []
    overrides = [*quiet, *overrides]
    row = load_config(source, overrides)
    config = row.config
    if config.federated is None:
        raise ConfigError(
            f"{source}: an attack on users needs federated training, and this row is of the "
            f"setting '{config.setting}'; choose a row with the section federated"
        )
    if config.systems is not None or config.federated.shadow is not None:
        what = "systems" if config.systems is not None else "federated.shadow"
        raise ConfigError(
            f"{source}: has {what}, and shadow runs leave users out of cohorts that are drawn from "
            "all users; remove it"
        )
    own = [f"checkpoint.every={config.federated.num_rounds}", "evaluation.strata=[]"]
    if config.evaluation.select_best is None:
        own += [f"evaluation.every={config.federated.num_rounds}", "evaluation.final_splits=[]"]
        own += ["evaluation.splits=[]", "expected=[]"]
    plans = []
    for index in range(count):
        seed = config.seed + _SEED_STEP * (index + 1)
        texts = [*overrides, *own, f"seed={seed}", f"federated.shadow={index}"]
        plans.append((folder / f"shadow-{index:04d}", load_config(source, texts)))
    return row, plans


def read_users(plans: Sequence[Plan]) -> ShadowUsers:
    """Measurements of all shadow runs, which are finished; each run's part is kept in its folder.

    RunFolderError if one has no model, or another number of users than the first.
    """
    parts: RunParts | None = None
    losses, logits, members = [], [], []
    for folder, resolved in plans:
        vector, buffers = released_model(folder)
        digest = tensor_digest(vector)
        kept = _kept(folder, digest)
        if kept is None:
            parts = parts or build_run(resolved)
            kept = _measure(parts, vector, buffers)
            arrays: Any = {"losses": kept[0], "logits": kept[1], "model": np.array(digest)}
            write_atomically(folder / USERS_FILE, partial(np.savez, **arrays))
        federated = resolved.config.federated
        assert federated is not None  # shadow_plans made it
        assert federated.shadow is not None
        losses.append(kept[0])
        logits.append(kept[1])
        members.append(draw_members(resolved.config.seed, federated.shadow, len(kept[0])))
        if len(kept[0]) != len(losses[0]):
            raise RunFolderError(f"{folder}: has {len(kept[0])} users, not {len(losses[0])}")
    found = np.array(losses), np.array(logits)
    # Those without examples, in every run alike.
    seen = np.isfinite(found[0]).all(axis=0)
    return ShadowUsers(found[0][:, seen], found[1][:, seen], np.array(members)[:, seen])


def released_model(folder: Path) -> tuple[torch.Tensor, dict[str, Any] | None]:
    """The released parameters, shape (P,), of a finished run; and its buffers.

    None for the buffers of federated training, which leaves them as they began.

    RunFolderError if there is no checkpoint, it is damaged, or it is of clients' own models.
    """
    state = load_latest(folder / "checkpoints")
    if state is None:
        raise RunFolderError(
            f"{folder}: has no checkpoint, which the model is read from; restore it from a copy, "
            "or delete the folder and give the command again"
        )
    best = state.get("best")
    if best is not None:
        return best["vector"], best["buffers"]
    trained = state["trainer"]
    if "central" not in trained:
        raise RunFolderError(
            f"{folder}: each client has a model of its own, so there is no model of all to read; "
            "the metrics are in summary.json"
        )
    # Central training moves running statistics, and private statistics are released into them.
    return trained["central"], trained.get("buffers")


def _kept(folder: Path, digest: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Measurements kept of this very model; None if there are none, or the file is damaged."""
    try:
        kept = read_npz(folder / USERS_FILE, ("model", "losses", "logits"))
    except (OSError, ValueError):
        return None
    losses, logits = kept["losses"], kept["logits"]
    is_ours = str(kept["model"]) == digest and losses.ndim == 1 and losses.shape == logits.shape
    return (losses, logits) if is_ours and losses.dtype == logits.dtype == np.float64 else None


def _measure(
    parts: RunParts, vector: torch.Tensor, buffers: dict[str, Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean loss and mean logit of each training user; NaN for one without examples."""
    model, split = parts.model, parts.task.split("train")
    model.vector.copy_(vector)
    if buffers is not None:
        model.load_buffers(buffers)
    losses = np.empty(split.num_examples)
    was_training = model.module.training
    model.module.eval()
    with torch.no_grad():
        for start in range(0, split.num_examples, _BATCH):
            stop = min(start + _BATCH, split.num_examples)
            examples = split.read_range(start, stop)
            outputs = parts.forward.outputs(examples.inputs.to(model.device))
            targets = examples.targets.to(model.device)
            found = parts.forward.example_losses(outputs, targets)
            losses[start:stop] = found.double().cpu().numpy()
    model.module.train(was_training)
    # A model that has diverged is judged like any other: users are left out for no loss.
    losses = np.nan_to_num(losses, nan=_LARGEST_LOSS, posinf=_LARGEST_LOSS, neginf=-_LARGEST_LOSS)
    offsets = np.asarray(split.offsets)
    return _user_means(losses, offsets), _user_means(logit_of_loss(losses), offsets)


def _user_means(values: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    sums = np.append(0.0, np.cumsum(values))
    counts = np.diff(offsets)
    totals = sums[offsets[1:]] - sums[offsets[:-1]]
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
