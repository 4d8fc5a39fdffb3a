"""The steps of ``scripts/gpu_check.py``: each gives what it found, or raises."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks import decoding, femnist, gpu_convolutions, niid_cells, reddit, shakespeare
from benchmarks.common import Machine, OurSide
from benchmarks.femnist import FEMNIST
from benchmarks.gpu_profile import profile_rounds
from benchmarks.workload import Job, Workload, configuration

ROOT = Path(__file__).resolve().parents[2]
DEMO = ("central", "central_dp", "federated", "private_federated")
# Examples of a plain step, whose rate is the limit.
LARGE_BATCH = {"cuda": "4096", "cpu": "256"}
REPEATED = ["federated.num_rounds=8", "checkpoint.every=2", "evaluation.every=8"]
# Slots that no memory of ``MEMORY_BYTES`` holds: FEMNIST's CNN has 1.2 million parameters.
TOO_MANY_SLOTS, MEMORY_BYTES = 1024, 3 * 2**30
# Failed tests that are named; messages stand before them.
MOST_NAMES = 10
FORTY = partial(femnist.make_store, num_users=40)
SIXTY = partial(femnist.make_store, num_users=60)


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        what: What it finds out.
        limit_s: Seconds after which it has failed.
        needs_gpu: Whether it is skipped without one.
        run: Gives what it found, of a device's name and an empty folder.
    """

    what: str
    limit_s: int
    needs_gpu: bool
    run: Callable[[str, Path], Any]


def pick_device(asked: str) -> str:
    """The device that is meant: "cuda" or "cpu".

    Raises:
        SystemExit: A GPU was asked for, and PyTorch finds none.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: PyTorch finds no GPU here; leave --device out")
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def run_step(name: str, device: str, folder: Path) -> Any:
    """Result of a step.

    Args:
        name: Of ``STEPS``.
        device: "cuda" or "cpu".
        folder: An empty one, for its files.
    """
    found = STEPS[name].run(device, folder)
    if device == "cuda":
        found["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    return found


def _environment(device: str, folder: Path) -> dict[str, Any]:
    found = {**Machine().describe(), "python": sys.version.split()[0]}
    del found["command"]
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "bfloat16": torch.cuda.is_bf16_supported(),
        }
    return found


def _demo(precision: str, device: str, folder: Path) -> dict[str, Any]:
    """The demo's rows: metrics and seconds, or what refused them."""
    from pfl_bench.api import load_row, run_row
    from pfl_bench.types import ConfigError

    found: dict[str, Any] = {}
    for name in DEMO:
        try:
            row = load_row(f"demo/{name}.yaml", device=device, precision=precision)
        except ConfigError as error:
            # Example-level DP is in float32 alone.
            found[name] = {"refused": str(error)}
            continue
        result = run_row(row, folder / name)
        found[name] = {
            "test/accuracy": result.metrics["test/accuracy"],
            "seconds": result.summary["seconds"],
            "expected": result.expected,
        }
    return found


def _cuda_tests(device: str, folder: Path) -> dict[str, Any]:
    """Results of ``pytest -m cuda``: models and engines on the GPU beside the CPU among it."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "cuda", "-p", "no:cacheprovider"]
    path = folder / "tests.xml"
    command += [f"--junitxml={path}", "--tb=line", "-n", str(min(8, os.cpu_count() or 1))]
    # Not captured: where the step is not done in time, what it has said by then is kept.
    done = subprocess.run(command, cwd=ROOT, check=False)
    cases = ElementTree.parse(path).getroot().iter("testcase") if path.exists() else ()
    found: dict[str, list[str]] = {}
    for case in cases:
        ends = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        end = next((ends[part.tag] for part in case if part.tag in ends), "passed")
        found.setdefault(end, []).append(f"{case.get('classname')}::{case.get('name')}")
    if done.returncode != 0:
        raise SystemExit(json.dumps(found.get("failed", [])[:MOST_NAMES]))
    return {"pytest": ", ".join(f"{len(names)} {end}" for end, names in found.items()), **found}


def _run_command(out: Path, device: str, *more: str) -> list[str]:
    command = [sys.executable, "-m", "pfl_bench", "run", "demo/private_federated.yaml"]
    nonce = ["privacy.nonce=gpu-check", f"device={device}", "num_threads=1"]
    return [*command, *nonce, *REPEATED, "--out", str(out), *more]


def _repeat(device: str, folder: Path) -> dict[str, Any]:
    """One private run twice, and once killed and resumed: their ledgers must be the same."""
    ledgers = {}
    for name in ("first", "second"):
        subprocess.run(_run_command(folder / name, device), cwd=ROOT, check=True)
        ledgers[name] = (folder / name / "ledger.jsonl").read_text(encoding="utf-8")
    path = folder / "killed" / "ledger.jsonl"
    child = subprocess.Popen(_run_command(folder / "killed", device), cwd=ROOT)
    while child.poll() is None and not (path.exists() and path.read_text().count("\n") > 4):
        time.sleep(0.002)
    killed = child.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    child.wait()
    subprocess.run(_run_command(folder / "killed", device, "--resume"), cwd=ROOT, check=True)
    ledgers["killed and resumed"] = path.read_text(encoding="utf-8")
    if len(set(ledgers.values())) != 1:
        raise SystemExit("the ledgers of runs that must be the same differ")
    return {"runs": list(ledgers), "was_killed": killed, "lines": ledgers["first"].count("\n")}


def _repeat_model(
    load: Workload, make: Callable[[Path], None], device: str, folder: Path
) -> dict[str, Any]:
    """Two private rounds of a model, twice from one seed: the bits must be the same."""
    vectors = []
    for name in ("first", "second"):
        place = folder / name
        place.mkdir()
        side = _our_side(load, device, place, make)
        for number in (1, 2):
            side.round(number)
        vectors.append(side.vector())
        side.close()
    if not torch.equal(*vectors):
        raise SystemExit(f"the models differ by up to {(vectors[0] - vectors[1]).abs().max():.3g}")
    return {"parameters": len(vectors[0])}


def _our_side(
    load: Workload,
    device: str,
    folder: Path,
    make: Callable[[Path], None] = SIXTY,
    notice: Callable[[str], None] = lambda text: None,
    **job: Any,
) -> OurSide:
    """Our trainer on generated data; private unless ``job`` says otherwise."""
    store = folder / "generated.h5"
    make(store)
    (folder / "run").mkdir()
    told = Job(str(store), load, device=device, **{"private": True, **job})
    return OurSide(configuration(told), folder / "run", notice)


def _synchronizations(device: str, folder: Path) -> dict[str, Any]:
    """Number of times that the host waits for the GPU in a round, by engine."""
    found = {}
    for engine in ("sequential", "vectorized"):
        place = folder / engine
        place.mkdir()
        side = _our_side(FEMNIST["softmax"], device, place, engine=engine)
        side.round(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            side.round(2)
            torch.cuda.set_sync_debug_mode("default")
        places = [f"{Path(w.filename).name}:{w.lineno}" for w in caught]
        counts = {at: places.count(at) for at in dict.fromkeys(places)}
        most = sorted(counts.items(), key=lambda item: -item[1])[:10]
        clients = int(side.scalars["train/cohort_size"])
        found[engine] = {"a_round": len(places), "clients": clients, "most": dict(most)}
        side.close()
    return found


def _out_of_memory(device: str, folder: Path) -> dict[str, Any]:
    """The vectorized engine, told to take more slots than fit, must halve them and go on."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(MEMORY_BYTES / total)
    notices: list[str] = []
    load = replace(FEMNIST["cnn"], cohort_size=TOO_MANY_SLOTS)
    options = {"private": False, "engine": "vectorized", "slots": TOO_MANY_SLOTS}
    make = partial(femnist.make_store, num_users=TOO_MANY_SLOTS, mean_examples=20)
    side = _our_side(load, device, folder, make, notices.append, **options)
    side.round(1)
    said = [text for text in notices if "out of memory" in text]
    if not said:
        raise SystemExit(f"{TOO_MANY_SLOTS} slots fitted into {MEMORY_BYTES} bytes")
    return {"clients": int(side.scalars["train/cohort_size"]), "notices": said}


def _bench(subject: str, more: list[str], device: str, folder: Path) -> dict[str, Any]:
    """A round's benchmark: seconds of each side, and examples a second beside the limit."""
    path = folder / "bench.json"
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), subject, "--device", device]
    command += ["--peers", "pfl", "--json", str(path), *more]
    if subject != "flair":
        command += ["--private", "yes", "--large-batch", LARGE_BATCH[device]]
        command += ["--engine", "vectorized"] if device == "cuda" else []
    if device == "cpu":
        command += ["--repeats", "1"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return {"results": json.loads(path.read_text(encoding="utf-8"))["results"]}


def _profile(
    load: Workload, make: Callable[[Path], None], device: str, folder: Path
) -> dict[str, Any]:
    """Times of our rounds, with as many slots as the engine takes itself."""
    return profile_rounds(_our_side(load, device, folder, make, engine="vectorized"))


def _bench_step(what: str, subject: str, limit_s: int, *more: str, needs_gpu: bool = True) -> Step:
    return Step(what, limit_s, needs_gpu, partial(_bench, subject, list(more)))


# Clients a round that fill a GPU.
COHORTS = {"softmax": 100, "cnn": 60, "leaf_cnn": 50, "reddit": 50, "shakespeare": 40}
PROFILED = {
    **{name: (load, femnist.make_store) for name, load in FEMNIST.items()},
    "reddit": (reddit.LOAD, reddit.make_store),
    "shakespeare": (shakespeare.LOAD, shakespeare.make_store),
}


def _of(name: str) -> tuple[str, ...]:
    """The cohort of a workload, and as many rounds of it as a step has time for."""
    only = ("--only", name) if name in FEMNIST else ()
    return *only, "--cohort", str(COHORTS[name]), "--repeats", "3"


# Of which a round takes a GPU's loop of one client after another some seconds.
FLAIR = ["--only", "fine_tuned-private", "--users", "150", "--cohort", "60"]
FLAIR += ["--repeats", "2", "--no-compiled"]
FLAIR += ["--engine", "sequential", "vectorized", "--precision"]


# In the order in which they run: what breaks first, then speed.
STEPS = {
    "environment": Step("versions and hardware", 60, False, _environment),
    "demo-float32": Step("the demo's rows", 90, False, partial(_demo, "float32")),
    "demo-tf32": Step("the same in TF32", 90, True, partial(_demo, "tf32")),
    "demo-bfloat16": Step("the same in bfloat16", 90, True, partial(_demo, "bfloat16")),
    "tests": Step("pytest -m cuda", 180, True, _cuda_tests),
    "repeat": Step("a run twice, killed and resumed", 150, False, _repeat),
    "repeat-cnn": Step(
        "FLAIR's small CNN twice", 120, False, partial(_repeat_model, FEMNIST["cnn"], FORTY)
    ),
    "repeat-lstm": Step(
        "LEAF's LSTM for characters twice",
        90,
        False,
        partial(_repeat_model, shakespeare.LOAD, shakespeare.make_store),
    ),
    "synchronizations": Step("host waits a round", 60, True, _synchronizations),
    "out-of-memory": Step("slots that do not fit", 60, True, _out_of_memory),
    "decoding": Step("JPEGs a second", 60, False, decoding.rates),
    "bench-softmax": _bench_step(
        "softmax regression", "femnist", 60, *_of("softmax"), needs_gpu=False
    ),
    "bench-cnn": _bench_step("FLAIR's small CNN", "femnist", 60, *_of("cnn")),
    "bench-leaf-cnn": _bench_step("LEAF's CNN", "femnist", 60, *_of("leaf_cnn")),
    "bench-reddit": _bench_step("LEAF's LSTM for words", "reddit", 60, *_of("reddit")),
    "bench-shakespeare": _bench_step(
        "LEAF's LSTM for characters", "shakespeare", 60, *_of("shakespeare")
    ),
    "bench-resnet18-tf32": _bench_step("FLAIR's ResNet-18", "flair", 90, *FLAIR, "tf32"),
    "bench-resnet18-bfloat16": _bench_step("in bfloat16", "flair", 90, *FLAIR, "bfloat16"),
    **{
        f"profile-{name.replace('_', '-')}": Step(
            "where a round's time goes",
            60,
            False,
            partial(_profile, replace(load, cohort_size=COHORTS[name]), make),
        )
        for name, (load, make) in PROFILED.items()
    },
    "profile-convolutions": Step(
        "ways to convolve slots' images", 60, True, gpu_convolutions.compare
    ),
    "niid-bench": Step(
        "published cells of NIID-Bench", niid_cells.LIMIT_S, True, niid_cells.run_cells
    ),
}
_SPEED = [name for name in STEPS if name.startswith(("bench-", "profile-", "niid-"))]
# Of which each is done in nine minutes.
HALVES = {"correctness": [name for name in STEPS if name not in _SPEED], "speed": _SPEED}
