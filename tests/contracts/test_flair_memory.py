"""FLAIR's rows on a CPU: what a process holds at most, and that nothing of a run stays in it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.federated import parts
from pfl_bench.federated.parts import build_model
from pfl_bench.runs import runner
from tests.contracts.small_stores import write_flair
from tests.contracts.test_configs import CONFIGS, shortened
from tests.helpers import REPOSITORY, TREES, make_config

MOST_MB = 2000
# What evaluation may add to a model in memory, however many pictures a batch has.
MOST_EVALUATION_MB = 800
ROWS = ("table1/private_random_fine_corrected", "table1/central_random_coarse")
# So many pictures at once would take 1100 MB of ResNet-18's activations, a batch of 512 3700 MB.
PICTURES = {"train": 2, "val": 1, "test": 60}
# The largest resident set is asked of the kernel by a name that an exec resets; that of
# ``getrusage`` may be the parent's.
SCRIPT = """
import gc, json, sys
from pathlib import Path
import torch
from pfl_bench.federated.parts import build_forward, build_model, build_task
from pfl_bench.config.loading import load_config
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.runs.runner import run

def peak_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))

gc.disable()  # what is freed by it is freed at any time, or late
torch.set_num_threads(1)
rows, store, out = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
for number, (row, overrides) in enumerate(rows * 2):
    run(load_config(Path(row), overrides), out / str(number))
of_rows = peak_mb()
resolved = load_config(Path(rows[0][0]), [f"task.data={store}", "device=cpu"])
assert resolved.config.evaluation.batch_size == 512
cpu = torch.device("cpu")
task = build_task(resolved, cpu)
model = build_model(resolved, task, cpu)
forward = build_forward(resolved, task, model)
evaluator = Evaluator(resolved.config, task, model, forward, None)
Path("/proc/self/clear_refs").write_text("5")  # forget the peak
before = peak_mb()
evaluated = evaluator.evaluate(["test"])[0]
print(json.dumps([of_rows, before, peak_mb(), evaluated["test/num_examples"]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's /proc")
def test_rows_and_the_evaluation_of_full_pictures_fit_two_gigabytes(tmp_path: Path) -> None:
    small, full = tmp_path / "small.h5", tmp_path / "full.h5"
    write_flair(small)
    write_flair(full, 256, PICTURES)
    paths = [CONFIGS / "flair" / f"{name}.yaml" for name in ROWS]
    rows = [(str(path), shortened(path, {"flair": small})) for path in paths]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(rows), str(full), str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    of_rows, before, of_evaluation, examples = json.loads(done.stdout)
    assert examples == 150
    assert of_rows < MOST_MB
    assert of_evaluation < MOST_MB
    assert of_evaluation - before < MOST_EVALUATION_MB


@pytest.mark.parametrize("setting", TREES)
def test_the_model_of_a_finished_run_is_freed_at_once(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[weakref.ref[FlatModel]] = []

    def build(*arguments: object) -> FlatModel:
        model = build_model(*arguments)  # type: ignore[arg-type]
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(parts, "build_model", build)
    gc.collect()
    gc.disable()
    try:
        runner.run(make_config(setting), tmp_path / "run")
        assert [model() for model in models] == [None]
    finally:
        gc.enable()
