"""Times the multi-label metrics beside scikit-learn's loop over classes, on FLAIR's test size.

Both sides rank the same generated scores, in turn, in one process, and must agree. Peak memory is
that of a process of its own, which does what an evaluation does.

    python scripts/bench.py metrics --repeats 3
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.common import Machine, write_json
from pfl_bench.metrics._average_precision import count_classes
from pfl_bench.metrics._scores import Scores
from pfl_bench.metrics.multilabel import THRESHOLDS, MultiLabel

# FLAIR's test images and fine labels; labels an image in the paper.
NUM_EXAMPLES, NUM_CLASSES, LABELS_AN_IMAGE = 43_960, 1_628, 4.61
BATCH_SIZE, SEED = 512, 0
MIB = 1 << 20


def batches(num_examples: int, num_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Generated logits that know something of targets whose frequencies fall as Zipf's law."""
    generator = torch.Generator().manual_seed(SEED)
    frequency = 1 / torch.arange(1, num_classes + 1)
    frequency *= min(LABELS_AN_IMAGE, float(frequency.sum())) / frequency.sum()
    for start in range(0, num_examples, BATCH_SIZE):
        shape = (min(BATCH_SIZE, num_examples - start), num_classes)
        targets = (torch.rand(shape, generator=generator) < frequency).float()
        yield torch.randn(shape, generator=generator) - 2 + 2 * targets, targets


def take_in(num_examples: int, num_classes: int) -> tuple[MultiLabel, float]:
    """A metric that has seen all batches, and the seconds that its updates took."""
    metric = MultiLabel(tuple(str(index) for index in range(num_classes)))
    seconds = 0.0
    for logits, targets in batches(num_examples, num_classes):
        started = time.perf_counter()
        metric.update(logits, targets)
        seconds += time.perf_counter() - started
    return metric, seconds


def memory_above_scores(num_examples: int, num_classes: int) -> float:
    """MiB above the scores at the peak of taking in and computing, in this fresh process."""
    small, _ = take_in(10, num_classes)
    small.compute()
    before = _peak_bytes()
    metric, _ = take_in(num_examples, num_classes)
    metric.compute()
    return (_peak_bytes() - before - num_examples * num_classes * 4) / MIB


def run(
    repeats: int, num_examples: int = NUM_EXAMPLES, num_classes: int = NUM_CLASSES
) -> dict[str, Any]:
    """Measure.

    Args:
        repeats: Times that each side runs; medians are reported.
        num_examples: Examples.
        num_classes: Classes.

    Returns:
        Sizes, seconds of each side, the largest difference of a class's average precision and the
        peak memory above the scores in MiB.

    Raises:
        SystemExit: The sides do not agree to 1e-6.
    """
    # First, while this process is small: a child's peak starts from what its parent holds.
    size = [str(num_examples), str(num_classes)]
    bench = str(Path(__file__).parents[1] / "bench.py")
    command = [sys.executable, bench, "metrics", "--memory-of", *size]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    metric, updating = take_in(num_examples, num_classes)
    scores, truth = _by_class(num_examples, num_classes)
    sides: dict[str, Callable[[], Any]] = {
        "average_precision": lambda: _exact(metric._scores),
        "compute": metric.compute,
        "scikit_learn": lambda: _scikit_learn(scores, truth),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, side in sides.items():
            started = time.perf_counter()
            results[name] = side()
            seconds[name].append(time.perf_counter() - started)
    present = truth.any(axis=1)
    ours, theirs = results["average_precision"][present], results["scikit_learn"][present]
    difference = float(np.abs(ours - theirs).max())
    if not difference <= 1e-6:
        raise SystemExit(f"average precision differs from scikit-learn's by {difference:.2e}")
    return {
        "num_examples": num_examples,
        "num_classes": num_classes,
        "num_positives": int(truth.sum()),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "difference": difference,
        "mib_above_scores": float(json.loads(done.stdout)),
        "seconds": {"update": [updating], **seconds},
    }


def table(report: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    result = report["result"]
    words = {
        "scikit_learn": "scikit-learn, `average_precision_score` class by class",
        "average_precision": "exact average precision and counts of each class",
        "compute": "all metrics (`compute`)",
        "update": "taking in (`update`, loss included)",
    }
    reference = result["seconds"]["scikit_learn"]
    lines = [
        f"{result['num_examples']:,} examples, {result['num_classes']:,} classes, "
        f"{result['num_positives']:,} positives; {result['threads']} threads; scikit-learn's loop "
        "in the same round is 1",
        "",
        "| what | s: median (min-max) | ratio: median (min-max) |",
        "|---|---|---|",
    ]
    for name, word in words.items():
        seconds = result["seconds"][name]
        # Taking in is timed once, before the first round.
        ratios = [own / other for own, other in zip(seconds, reference, strict=False)]
        lines.append(f"| {word} | {_spread(seconds, 2)} | {_spread(ratios, 3)} |")
    lines += [
        "",
        f"Largest difference of a class: {result['difference']:.1e}. "
        f"Peak memory above the scores: {result['mib_above_scores']:.0f} MiB.",
    ]
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _exact(scores: Scores) -> NDArray[np.float64]:
    return count_classes(scores, THRESHOLDS).average_precision


def _scikit_learn(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> NDArray[np.float64]:
    from sklearn.metrics import average_precision_score

    pairs = zip(truth, scores, strict=True)
    # A class without positives is 0 with a warning there; it is compared with nothing.
    values = [average_precision_score(t, s) if t.any() else np.nan for t, s in pairs]
    return np.array(values)


def _by_class(num_examples: int, num_classes: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Scores and targets, shape (K, N): contiguous for each class, which scikit-learn likes."""
    scores = np.empty((num_classes, num_examples), np.float32)
    truth = np.empty((num_classes, num_examples), np.bool_)
    start = 0
    for logits, targets in batches(num_examples, num_classes):
        rows = slice(start, start + len(logits))
        scores[:, rows], truth[:, rows] = logits.T.numpy(), targets.T.numpy() == 1
        start = rows.stop
    return scores, truth


def _peak_bytes() -> int:
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--examples", type=int, default=NUM_EXAMPLES)
    parser.add_argument("--classes", type=int, default=NUM_CLASSES)
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    parser.add_argument("--memory-of", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of is not None:
        print(memory_above_scores(*arguments.memory_of))
        return
    machine = Machine()
    result = run(arguments.repeats, arguments.examples, arguments.classes)
    report = {"subject": "metrics", "machine": machine.describe(), "result": result}
    if arguments.json is not None:
        write_json(arguments.json, report)
    print(table(report))
