"""Records what one short run of every kind gives, and compares two records.

A change that only moves code keeps every number. To see it, record in a checkout of before and in
one of after, on one machine, and compare::

    python -m tests.equivalence.same_numbers record before.json      # in the one checkout
    python -m tests.equivalence.same_numbers record after.json       # in the other
    python -m tests.equivalence.same_numbers compare before.json after.json

Recorded are: each row under configs/ for one round on a dozen users, and runs of six rounds on the
digits, one a method, mechanism, engine and way to sample. Of each run: metrics, the digests of what
the mechanism released, the digests of central parameters, and the digest of the last weights. The
private seed is pinned by a nonce, since it takes in the code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PFL_BENCH_CACHE", "off")

import torch

from pfl_bench.config.loading import load_config
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from tests.contracts.small_rows import CONFIGS, ROWS, shortened, write_small_files
from tests.helpers import make_config

NONCE = "same numbers"
DEVICES = {"source": {"name": "generated", "seed": 1, "num_devices": 200}}
GAUSSIAN = {"name": "gaussian", "clip_norm": 0.5}


def _private(mechanism: str, **options: Any) -> dict[str, Any]:
    return {"privacy__mechanism": {"name": mechanism, "clip_norm": 0.5, **options}}


def _randomised(mechanism: str) -> dict[str, Any]:
    # Each client randomises its own update: all take part, and nothing is calibrated.
    return {
        **_private(mechanism),
        "federated__sampling": "full",
        "federated__cohort_size": 60,
        "privacy__noise_cohort_size": None,
    }


def _selected(name: str) -> dict[str, Any]:
    return {"systems": DEVICES, "federated__selection": {"name": name}}


# Name of the run: setting of tests/helpers, and what is changed in it.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "central": ("central", {}),
    "central/adamw": ("central", {"central__optimizer": {"name": "adamw", "weight_decay": 0.01}}),
    "central/mlp": ("central", {"model": {"name": "mlp"}}),
    "central_dp": ("central_dp", {}),
    "central_dp/mlp": ("central_dp", {"model": {"name": "mlp"}}),
    **{
        f"federated/{engine}/{workers}": (
            "federated",
            {"federated__engine": engine, "federated__workers": workers},
        )
        for engine in ("sequential", "vectorized")
        for workers in (1, 2)
    },
    **{
        f"private/{engine}/{workers}": (
            "private_federated",
            {"federated__engine": engine, "federated__workers": workers},
        )
        for engine in ("sequential", "vectorized")
        for workers in (1, 2)
    },
    **{
        f"{setting}/{options['name']}": (setting, {"federated__algorithm": options})
        for setting in ("federated", "private_federated")
        for options in (
            {"name": "fedprox", "proximal_weight": 0.1},
            {"name": "minibatch_sgd", "fraction": 0.5},
            {"name": "qfedavg", "q": 0.5},
            {"name": "reptile"},
            {"name": "scaffold"},
            {"name": "fednova"},
        )
        if setting == "federated" or options["name"] == "fedprox"
    },
    "federated/scaffold-niid_bench": (
        "federated",
        {
            "federated__algorithm": {"name": "scaffold", "variant": "niid_bench"},
            "federated__local_momentum": 0.5,
            "federated__weighting": "examples",
        },
    ),
    "private/fednova": (
        "private_federated",
        {"federated__algorithm": {"name": "fednova", "effective_steps": 3.0}},
    ),
    **{
        f"federated/central-{name}": (
            "federated",
            {
                "federated__central_optimizer": {"name": name, **more},
                "federated__central_learning_rate": 0.05,
            },
        )
        for name, more in (
            ("sgd", {"momentum": 0.9}),
            ("adam", {}),
            ("adamw", {"weight_decay": 0.01}),
            ("adagrad", {}),
            ("yogi", {}),
        )
    },
    "federated/schedules": (
        "federated",
        {
            "federated__local_schedule": {"decay": "exponential", "final_fraction": 0.1},
            "federated__central_schedule": {"warmup": 2, "decay": "cosine"},
            "federated__local_momentum": 0.5,
            "federated__local_weight_decay": 0.01,
            "federated__local_gradient_clip_global_norm": 1.0,
        },
    ),
    **{
        f"federated/{options['name']}": (
            "federated",
            {"federated__aggregation": options, "federated__sampling": "fixed_size"},
        )
        for options in (
            {"name": "coordinate_median"},
            {"name": "krum", "num_attackers": 2, "num_selected": 3},
            {"name": "trimmed_mean", "trimmed_fraction": 0.2},
        )
    },
    **{
        f"federated/compressed-{options['name']}": (
            "federated",
            {"federated__compression": options},
        )
        for options in (
            {"name": "top_k", "fraction": 0.1, "error_feedback": True},
            {"name": "quantization", "levels": 4},
            {"name": "count_sketch", "columns": 64, "k": 20},
        )
    },
    "federated/label_flip": (
        "federated",
        {"attack": {"kind": "label_flip", "corrupted_fraction": 0.3, "labels": "mirror"}},
    ),
    "federated/backdoor": (
        "federated",
        {
            "attack": {
                "kind": "backdoor",
                "corrupted_fraction": 0.3,
                "target_class": 1,
                "trigger_size": 2,
                "image_shape": [8, 8],
            }
        },
    ),
    **{f"federated/selected-{n}": ("federated", _selected(n)) for n in ("uniform", "oort")},
    "federated/adapted": (
        "federated",
        {
            "evaluation__adaptation": {
                "num_steps": 2,
                "batch_size": 4,
                "learning_rate": 0.1,
            }
        },
    ),
    "federated/examples": ("federated", {"federated__weighting": "examples"}),
    "federated/across_epochs": (
        "federated",
        {"federated__local_batches": "across_epochs", "federated__local_steps": 3},
    ),
    "private/gaussian": ("private_federated", {"privacy__mechanism": GAUSSIAN}),
    "private/fixed_size": (
        "private_federated",
        {
            "federated__sampling": "fixed_size",
            "privacy__mechanism": GAUSSIAN,
            "privacy__noise_cohort_size": None,
        },
    ),
    "private/full": (
        "private_federated",
        {
            "federated__sampling": "full",
            "federated__cohort_size": 60,
            "privacy__noise_cohort_size": None,
        },
    ),
    "private/cyclic": (
        "private_federated",
        {
            "privacy__mechanism": {**GAUSSIAN, "name": "banded_matrix_factorization", "bands": 2},
            "federated__sampling": "cyclic_poisson",
            "federated__separation": 2,
        },
    ),
    "private/tree": (
        "private_federated",
        {
            **_private("tree_aggregation", restart_every=3),
            "federated__sampling": "full",
            "federated__cohort_size": 60,
            "privacy__noise_cohort_size": None,
        },
    ),
    "private/laplace": ("private_federated", {**_randomised("laplace"), "privacy__epsilon": 500.0}),
    "private/local_gaussian": ("private_federated", _randomised("local_gaussian")),
    "private/privunit": (
        "private_federated",
        {**_randomised("privunit"), "privacy__epsilon": 500.0, "privacy__accountant": "pld"},
    ),
    "private/prv": ("private_federated", {"privacy__accountant": "prv"}),
    "private/pld": ("private_federated", {"privacy__accountant": "pld"}),
    **{
        f"private/canaries-{kind}": (
            "private_federated",
            {"privacy__audit": {"kind": kind, "count": 8}},
        )
        for kind in ("one_shot", "one_run", "worst_case")
    },
}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """What has to stay as it is of a run."""
    numbers: dict[str, Any] = {"metrics": summary["metrics"], "rounds": summary["rounds"]}
    ledger = folder / "ledger.jsonl"
    if ledger.exists():
        lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
        digests = [
            {k: v for k, v in line.items() if "sha256" in k or "digest" in k} for line in lines
        ]
        numbers["rounds recorded"] = sum(bool(found) for found in digests)
        numbers["released"] = _sha256(json.dumps(digests, sort_keys=True))
    state = load_latest(folder / "checkpoints")
    if state is not None:
        found: list[torch.Tensor] = []
        _tensors(state["trainer"], found)
        digest = hashlib.sha256()
        for tensor in found:
            digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy())
        numbers["weights"] = digest.hexdigest()
    return numbers


def _tensors(value: Any, found: list[torch.Tensor]) -> None:
    """The tensors of ``value``, in the order of their names."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            _tensors(value[key], found)
    elif isinstance(value, list | tuple):
        for part in value:
            _tensors(part, found)


def record_one(name: str, files: dict[str, Path]) -> dict[str, Any]:
    """Run a row (a path under configs/) or one of ``CASES``; gives what to compare."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            if name in CASES:
                setting, changes = CASES[name]
                pinned = (
                    {"privacy__nonce": NONCE}
                    if setting[-2:] == "dp" or "private" in setting
                    else {}
                )
                resolved = make_config(setting, **changes, **pinned)
            else:
                row = CONFIGS / name
                tree = load_config(row).tree
                overrides = shortened(tree, files)
                if tree["privacy"] is not None:
                    overrides.append(f"privacy.nonce={NONCE}")
                resolved = load_config(row, overrides)
            return _numbers(Path(folder), run(resolved, Path(folder)))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}


def record(out: Path, jobs: int) -> None:
    """Run everything and write what it gave to ``out``."""
    names = [*CASES, *(row.relative_to(CONFIGS).as_posix() for row in ROWS)]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(jobs) as pool:
        one = partial(record_one, files=write_small_files(Path(folder)))
        numbers = dict(zip(names, pool.map(one, names), strict=True))
    out.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    errors = {name: found["error"] for name, found in numbers.items() if "error" in found}
    print(f"{len(numbers)} runs recorded, {len(errors)} of them refused")
    for name, error in errors.items():
        print(f"  {name}: {error}")


def compare(before: Path, after: Path) -> int:
    """Print each run whose numbers differ; gives their count."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    different = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    for name in different:
        print(f"{name}\n  before: {old.get(name)}\n  after:  {new.get(name)}")
    print(f"{len(old)} runs, {len(different)} of them differ")
    return len(different)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--jobs", type=int, default=2, help="processes (2)")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.out, arguments.jobs)
        return 0
    return int(compare(arguments.before, arguments.after) > 0)


if __name__ == "__main__":
    sys.exit(main())
