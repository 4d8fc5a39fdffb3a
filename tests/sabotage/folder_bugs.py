"""Planted bugs of the folder as a whole: written anew consistently, or parts of it gone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import private_seed
from pfl_bench.federated.private_seed import PrivateSeed
from privacy.accountant import compose_epsilon
from privacy.amplification import Participation, sampled_gaussian
from privacy.ledger import canonical_line, read_ledger
from tests.sabotage.planting import ROUNDS, Bug, Edit, Patch

Lines = list[dict[str, Any]]


def written_anew(change: Callable[[Lines], None], factor: float = 1.0) -> Edit:
    """Write ledger, statement, summary and configuration anew, all agreeing; drop checkpoints.

    Args:
        change: Of the ledger's lines; rounds are numbered anew after it.
        factor: Of the noise that is claimed.
    """

    def edit(folder: Path) -> None:
        lines = read_ledger(folder / "ledger.jsonl")
        change(lines)
        previous, text = "0" * 64, b""
        for number, line in enumerate(lines, start=1):
            line.pop("previous")
            line["round"] = number
            written = canonical_line(line, previous)
            previous = hashlib.sha256(written.rstrip(b"\n")).hexdigest()
            text += written
        (folder / "ledger.jsonl").write_bytes(text)
        statement = json.loads((folder / "privacy.json").read_text())
        statement["rounds"] = len(lines)
        statement["noise_multiplier"] *= factor
        statement["update_noise_multiplier"] *= factor
        for label in ("simulated", "actual"):
            side = statement[label]
            side["noise_multiplier"] *= factor
            users = Participation.named("poisson", side["population_size"], side["cohort_size"])
            part = sampled_gaussian(users, side["noise_multiplier"], len(lines))
            side["epsilon"] = compose_epsilon([part], side["delta"], "rdp")
        (folder / "privacy.json").write_text(json.dumps(statement))
        summary = json.loads((folder / "summary.json").read_text())
        summary |= {"rounds": len(lines), "privacy": statement, "ledger_digest": previous}
        (folder / "summary.json").write_text(json.dumps(summary))
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["privacy"]["noise_multiplier"] *= factor
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        shutil.rmtree(folder / "checkpoints")

    return edit


def drop_middle(lines: Lines) -> None:
    del lines[ROUNDS // 2]


def twice_the_noise(lines: Lines) -> None:
    for line in lines:
        for label in ("simulated", "actual"):
            line[label]["noise_multiplier"] *= 2.0
        line["update_noise_stddev"] *= 2.0


def lose(name: str) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return edit


def and_metrics(edit: Edit) -> Edit:
    """And drop the metrics' line of the round that was dropped, numbering the rest anew."""

    def both(folder: Path) -> None:
        edit(folder)
        path = folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        del rows[ROUNDS // 2]
        rows = [row | {"round": number} for number, row in enumerate(rows, start=1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return both


def twice_in_metrics(edit: Edit) -> Edit:
    """And claim it in the metrics, whose epsilons are taken out."""

    def both(folder: Path) -> None:
        edit(folder)
        path = folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["privacy/update_noise_stddev"] *= 2.0
            for label in ("simulated", "actual"):
                row.pop(f"privacy/epsilon_{label}", None)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return both


def other_metrics(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["train/cohort_size"] += 1.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def noise_named_by_seed(patch: Patch) -> None:
    def derive(resolved: ResolvedConfig, *_: Any, **__: Any) -> PrivateSeed:
        return PrivateSeed(resolved.config.seed, None, {})

    patch.setattr(private_seed, "derive", derive)


FOLDER_BUGS = (
    Bug(
        "round_dropped_anew",
        "a round is dropped and the whole folder written anew, without checkpoints",
        "the files are edited: ledger, statement and summary agree",
        expects=("metrics", "cohort_replay", "noise_replay", "central_step"),
        after=written_anew(drop_middle),
    ),
    Bug(
        "round_dropped_anew_with_metrics",
        "the same, the metrics too",
        "and `metrics.jsonl` has a line fewer",
        expects=("cohort_replay", "noise_replay", "central_step"),
        after=and_metrics(written_anew(drop_middle)),
    ),
    Bug(
        "noise_doubled_anew",
        "twice the noise is claimed and the whole folder written anew, without checkpoints",
        "the files are edited: ledger, statement, configuration and summary agree",
        expects=("metrics",),
        after=written_anew(twice_the_noise, 2.0),
    ),
    Bug(
        "noise_doubled_anew_with_metrics",
        "the same, the metrics too",
        "and `metrics.jsonl` claims it",
        expects=("releases",),
        after=twice_in_metrics(written_anew(twice_the_noise, 2.0)),
    ),
    Bug(
        "metrics_edited",
        "the metrics say another cohort than the ledger",
        "the file is edited: one user more",
        expects=("metrics",),
        after=other_metrics,
    ),
    Bug(
        "checkpoints_lost",
        "a finished run has no checkpoint",
        "the folder is deleted",
        lacks=("folder", "central_step", "central_chain"),
        after=lose("checkpoints"),
    ),
    Bug(
        "metrics_lost",
        "a finished run has no metrics",
        "the file is deleted",
        lacks=("folder", "metrics"),
        after=lose("metrics.jsonl"),
    ),
    Bug(
        "noise_of_another_run",
        "two runs on the same data share their noise",
        "`private_seed.derive` is the seed alone",
        expects=("private_seed",),
        plant=noise_named_by_seed,
    ),
)
