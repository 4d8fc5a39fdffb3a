"""PyTorch's CUDA code under the library, on a runtime without a GPU: what runs there, at what cost.

One process runs tests marked ``cuda`` on it (see ``tests.cuda_stub``). It shows wrong devices and
generators, operations that cannot be repeated, float16, and how often a GPU is asked and waited
for. It does not show what real kernels and cuDNN compute, nor how fast.

``cuda_budgets.json`` has the most that each test may cost: launches a client's step, and waits and
copies of the host for each client in each round. A test that costs less by a tenth lowers its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.cuda_stub import build
from tests.helpers import REPOSITORY

TESTS = (
    "tests/equivalence/test_devices.py",
    "tests/equivalence/test_cuda_runs.py",
    "tests/equivalence/test_cuda_graphs.py",
    "tests/privacy/test_clipping.py",
    "tests/privacy/test_clipping_l1.py",
    "tests/privacy/recording/test_observation.py",
    "tests/pfl_bench/metrics/test_multilabel_streaming.py",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there"),
    pytest.mark.skipif(build.missing() is not None, reason=build.missing() or ""),
]
# Of the models, by one engine.
LEFT_OUT = "test_updates_are_those_of_the_cpu and sequential"
BUDGETS = Path(__file__).with_name("cuda_budgets.json")
# What is counted, by what it is counted for.
PER = {"steps": ("launches",), "clients": ("waits", "copies")}


def on_stub(folder: Path) -> dict[str, dict[str, Any]]:
    """Run the tests; what the plug-in reports, by test."""
    report = folder / "report.json"
    environment = {**environment_of(folder), "CUDA_STUB_REPORT": str(report)}
    options = ["-q", "-m", "cuda", "-k", f"not ({LEFT_OUT})", "-p", "tests.cuda_stub.plugin"]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder / 'tests'}"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
    return found


def environment_of(folder: Path) -> dict[str, str]:
    """Environment of a process on the device."""
    (folder / "library").mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(build.build(folder / "library")),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    # Not of the process that runs this test.
    return {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}


def costs(result: dict[str, Any]) -> dict[str, float]:
    """What a test cost for each step or client that it says it had."""
    return {
        f"{kind} per {unit}": result["counts"].get(kind, 0) / result["properties"][unit]
        for unit, kinds in PER.items()
        if unit in result["properties"]
        for kind in kinds
    }


def test_what_is_marked_cuda_passes_within_its_budgets(tmp_path: Path) -> None:
    results = on_stub(tmp_path)
    budgets = json.loads(BUDGETS.read_text(encoding="utf-8"))
    wrong, used = [], {}
    for test, result in results.items():
        name = test.partition("::")[2]
        if result["outcome"] != "passed":
            wrong.append(f"{name}: {result['outcome']}\n{result['message']}")
            continue
        if result["float16"]:
            wrong.append(f"{name}: computes in float16: {result['float16']}")
        for kind, cost in costs(result).items():
            used.setdefault(name, {})[kind] = cost
            most = budgets.get(name, {}).get(kind, 0)
            if cost > most:
                wrong.append(f"{name}: {kind}: {cost:.1f}, at most {most}; {result['waits_at']}")
    if os.environ.get("CUDA_BUDGETS"):
        Path(os.environ["CUDA_BUDGETS"]).write_text(json.dumps(used, indent=1))
    assert not wrong, "\n".join(wrong)
    assert used.keys() == budgets.keys()


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_two_ranks_with_a_device_each_have_the_bits_of_one(tmp_path: Path) -> None:
    environment = {**environment_of(tmp_path), "CUDA_STUB_DEVICES": "2"}
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    row = ["demo/private_federated.yaml", "device=cuda", "federated.num_rounds=3"]
    row += ["federated.engine=sequential", "evaluation.every=3", "privacy.nonce=ranks"]
    row += ["federated.cohort_size=20", "privacy.epsilon=null", "privacy.noise_multiplier=4.0"]
    found = []
    for number, starts in ((1, []), (2, ranks)):
        out = tmp_path / str(number)
        script = str(Path(build.__file__).with_name("rank.py"))
        command = [sys.executable, *starts, script, "run", *row, "--out", str(out)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        said = json.loads((out / "environment.json").read_text(encoding="utf-8"))
        found.append((summary["model_sha256"], summary["ledger_digest"]))
    assert said["processes"] == "2 ranks of torchrun"
    assert found[0] == found[1]
