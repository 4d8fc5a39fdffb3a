"""Does the audit fail sound runs? Small private runs of settings that are drawn, and their audits.

    python -m tests.sabotage.sound_runs OUTCOMES.jsonl [--count 200] [--seed 0]
        [--diverging | --extreme]

Each run is of real code on the digits, with a mechanism, sampling scheme, engine, algorithm,
central optimizer, number of workers, precision, accountant and seed that are drawn, and in one of
three a convolutional network at a rate up to 0.5, which turns roundings into more. One in four has
canaries, one in four attackers. Settings that the plan refuses are drawn again. It is audited by
the defaults of ``pfl-bench audit``. A failed audit is a false alarm. Prints a table by mechanism;
an interrupted call goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.types import UserInputError
from privacy.errors import PrivacyError
from tasks.common.images.store import FeatureOptions, Images, write_images
from tests.helpers import make_config

MECHANISMS: tuple[dict[str, Any], ...] = (
    {"name": "gaussian", "clip_norm": 0.5},
    {"name": "adaptive_gaussian", "clip_norm": 0.5, "quantile": 0.4},
    {"name": "laplace", "clip_norm": 2.0},
    {"name": "tree_aggregation", "clip_norm": 0.5},
    {"name": "banded_matrix_factorization", "clip_norm": 0.5, "bands": 3},
    {"name": "banded_inverse_square_root", "clip_norm": 0.5, "bands": 3},
    {"name": "column_normalized_banded", "clip_norm": 0.5, "bands": 3},
    {"name": "buffered_toeplitz", "clip_norm": 0.5, "buffers": 2},
    {"name": "local_gaussian", "clip_norm": 0.5},
    {"name": "privunit", "clip_norm": 0.5},
    {"name": "dp_sgd"},
)
_SCHEMES: tuple[dict[str, Any], ...] = (
    {"federated__sampling": "poisson"},
    {"federated__sampling": "truncated_poisson"},
    {"federated__sampling": "fixed_size"},
    {"federated__sampling": "full", "federated__cohort_size": 60},
    {"federated__sampling": "cyclic_poisson", "federated__separation": 3},
)
_ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "fedavg"},
    {"name": "fedprox", "proximal_weight": 0.1},
    {"name": "minibatch_sgd", "fraction": 0.5},
    {"name": "reptile"},
    {"name": "fednova", "effective_steps": 2.0},
)
_OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9},
    {"name": "adam"},
    {"name": "adagrad"},
    {"name": "yogi"},
    {"name": "adamw"},
)
_NETWORKS = ("lenet", "small_cnn", "opacus_cnn", "tfp_cnn", "tramer_cnn")
_NUM_USERS = 60
# What no sensible run has: one to three of these come beside what is drawn, with ``--extreme``.
_EXTREMES: dict[str, tuple[Any, ...]] = {
    "privacy__noise_multiplier": (1e-6, 1e-3, 0.01, 0.05, 50.0, 1e4),
    "privacy__delta": (1e-30, 1e-12, 0.9 / _NUM_USERS),
    "clip_norm": (1e-8, 1e-3, 30.0, 1e3, 1e8),
    "seed": (0, (1 << 31) - 1),
    "central__learning_rate": (1e-8, 5.0, 1e4),
    "federated__num_rounds": (1, 2),
    "federated__cohort_size": (1, 2, _NUM_USERS - 1),
    "federated__local_learning_rate": (1e-8, 5.0, 100.0, 1e4),
    "federated__central_learning_rate": (1e-6, 10.0, 1e3),
}


def write_digits(path: Path) -> None:
    """scikit-learn's digits as a store of MNIST's form, 28 x 28 pixels: 1,200 train, 100 test."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] * (255.0 / 16.0)
    large = torch.nn.functional.interpolate(images, (28, 28), mode="bilinear")[:, 0]
    inputs, splits = large.round().clamp(0, 255).to(torch.uint8).numpy(), {}
    for name, rows in (("train", slice(0, 1200)), ("test", slice(1200, 1300))):
        targets = digits.target[rows]
        splits[name] = Images(inputs[rows], targets, np.arange(len(targets)) % _NUM_USERS)
    about = {"task": "mnist", "variant": "digits", "source": "scikit-learn's digits, enlarged"}
    write_images(path, splits, FeatureOptions(), print, **about, class_names=[*"0123456789"])


def drawn(
    rng: np.random.Generator, mechanism: dict[str, Any], store: Path
) -> tuple[str, dict[str, Any]]:
    """Draw the setting of a run, and what differs from the tests' small one."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    changes: dict[str, Any] = {
        "seed": int(rng.integers(1 << 30)),
        "precision": one_of("float32", "float32", "bfloat16"),
        "privacy__epsilon": None,
        "privacy__accountant": one_of("rdp", "pld", "prv"),
        "evaluation__splits": [],
        "privacy__nonce": None,
        "privacy__noise_multiplier": float(one_of(0.5, 1.0, 2.0, 6.0)),
    }
    is_network = rng.random() < 1.0 / 3.0
    task: dict[str, Any] = {"name": "mnist", "data": str(store)}
    if is_network:
        changes |= {"model": {"name": one_of(*_NETWORKS)}, "channels_last": one_of(False, True)}
    if mechanism["name"] == "dp_sgd":
        if is_network:
            changes |= {"task": task, "central__learning_rate": one_of(0.1, 0.25, 0.5)}
        return "central_dp", {
            **changes,
            "central__sampling": one_of("poisson", "shuffled"),
            "central__optimizer": one_of({"name": "sgd"}, {"name": "sgd", "momentum": 0.9}),
            "central__physical_batch_size": one_of(8, 32),
            "central__num_epochs": 2,
        }
    if is_network:
        changes |= {
            "task": {**task, "partition": {"kind": "writers"}},
            "federated__local_learning_rate": one_of(0.05, 0.2, 0.5),
        }
    changes |= one_of(*_SCHEMES)
    changes |= {
        "privacy__mechanism": mechanism,
        "federated__engine": one_of("sequential", "vectorized", "auto"),
        "federated__algorithm": one_of(*_ALGORITHMS),
        "federated__central_optimizer": one_of(*_OPTIMIZERS),
        "federated__workers": one_of(1, 1, 1, 2),
        "federated__local_momentum": one_of(0.0, 0.0, 0.5),
        "federated__local_epochs": one_of(1, 2),
        "federated__central_learning_rate": 0.3,
    }
    if mechanism["name"] in ("local_gaussian", "privunit") or rng.random() < 0.5:
        changes["privacy__noise_cohort_size"] = None
    if mechanism["name"] == "privunit":
        changes |= {"privacy__noise_multiplier": float(one_of(0.25, 0.5, 1.0))}
    canaries = {"kind": one_of("one_shot", "one_run", "worst_case"), "count": 8}
    attack = {"kind": "label_flip", "corrupted_fraction": 0.2, "labels": "permutation"}
    beside = one_of({}, {}, {"privacy__audit": canaries}, {"attack": {**attack, "boost": 3.0}})
    return "private_federated", {**changes, **beside}


def extremes(rng: np.random.Generator, setting: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Draw extreme values for a setting's run, in the place of what it has."""
    other = "federated__" if setting == "central_dp" else "central__"
    keys = [key for key in _EXTREMES if not key.startswith(other)]
    found = {}
    for key in rng.choice(keys, int(rng.integers(1, 4)), replace=False):
        value = _EXTREMES[key][int(rng.integers(len(_EXTREMES[key])))]
        if key == "clip_norm":
            mechanism = changes.get("privacy__mechanism", {"name": "gaussian"})
            found["privacy__mechanism"] = {**mechanism, "clip_norm": value}
        else:
            found[str(key)] = value
    return found


def outcomes(
    seed: int,
    found: list[dict[str, Any]],
    store: Path,
    diverging: bool = False,
    extreme: bool = False,
) -> Iterator[dict[str, Any]]:
    """Run and audit sound settings, the mechanisms in turn, without end.

    Args:
        seed: Of the draws.
        found: What earlier ones came to.
        store: Of ``write_digits``.
        diverging: Whether to draw networks at large rates alone.
        extreme: Whether to put extreme values beside what is drawn.
    """
    draw = found[-1]["draw"] if found else -1
    for number in itertools.count(len(found)):
        while True:
            draw += 1
            rng = np.random.default_rng([seed, draw])
            setting, changes = drawn(rng, MECHANISMS[number % len(MECHANISMS)], store)
            if diverging and not _diverges(changes):
                continue
            if extreme:
                changes |= extremes(rng, setting, changes)
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
                try:
                    run(make_config(setting, **changes), Path(folder) / "run")
                except (PrivacyError, UserInputError):
                    continue
                done = audit_run(Path(folder) / "run", recompute="sample")
                break
        failed = {c.name: c.evidence for c in done.checks if c.outcome == "failed"}
        yield {
            "draw": draw,
            "mechanism": MECHANISMS[number % len(MECHANISMS)]["name"],
            "changes": {key: value for key, value in changes.items() if key != "task"},
            "words": done.words,
            "failed": failed,
        }


def _diverges(changes: dict[str, Any]) -> bool:
    """Whether local training makes much of a rounding: of a network in float32 at a large rate."""
    rate = changes.get("federated__local_learning_rate", changes.get("central__learning_rate", 0.0))
    return "model" in changes and changes["precision"] == "float32" and rate >= 0.1


def table(found: list[dict[str, Any]]) -> str:
    """A Markdown table of the outcomes by mechanism."""
    counts: dict[str, Counter[str]] = {}
    for one in found:
        words = "passed: recomputed" if "recomputed" in one["words"] else one["words"]
        counts.setdefault(one["mechanism"], Counter())[words] += 1
    heads = sorted({words for of in counts.values() for words in of})
    lines = [["mechanism", "runs", *heads], ["---", *["---:"] * (1 + len(heads))]]
    lines += [
        [name, str(of.total()), *(str(of[words]) for words in heads)]
        for name, of in sorted(counts.items())
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Audits of sound runs whose settings are drawn.")
    parser.add_argument("outcomes", metavar="OUTCOMES.jsonl", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--diverging", action="store_true", help="networks at rates of 0.1 and more alone"
    )
    parser.add_argument("--extreme", action="store_true", help="with values that no row has")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PFL_BENCH_CACHE"] = "off"
    text = given.outcomes.read_text(encoding="utf-8") if given.outcomes.exists() else ""
    found = [json.loads(line) for line in text.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "digits.h5"
        write_digits(store)
        left = given.count - len(found)
        runs = outcomes(given.seed, found[:], store, given.diverging, given.extreme)
        for one in itertools.islice(runs, left):
            found.append(one)
            with given.outcomes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")
            print(len(found), one["words"], *one["failed"], flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
