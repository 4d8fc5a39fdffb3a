"""Products of large weights and a few rows: in which order, and how near to the core's limit."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.common import Machine, write_json
from pfl_bench.client.factored_gradients import weights_come_first

# Inputs and outputs of the linear layers of FEMNIST's two networks and of Reddit's LSTM.
LAYERS = ((9216, 128), (3136, 2048), (256, 10_000))
ROWS = (5, 7, 10, 16, 20, 32, 50)
# Of a batch of 5 sequences of 10 tokens, less the padding.
REDDIT_ROWS, SQUARE = 46, 1024


def _seconds(run: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _ratio(inputs: int, outputs: int, rows: int, repeats: int) -> float:
    """Median of how many times as fast the weights' coming first is."""
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    batch = torch.randn(rows, inputs)

    def weights_first() -> Tensor:
        return torch.mm(weight, batch.t()).t().contiguous().add_(bias)

    def rows_first() -> Tensor:
        return functional.linear(batch, weight, bias)

    torch.testing.assert_close(weights_first(), rows_first(), rtol=1e-3, atol=1e-2)
    return statistics.median(_seconds(rows_first) / _seconds(weights_first) for _ in range(repeats))


def _rates(repeats: int) -> dict[str, float]:
    """Billion operations a second, at best, of Reddit's output layer and of a square product."""
    rows, (inputs, outputs) = REDDIT_ROWS, LAYERS[-1]
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    batch, slopes = torch.randn(rows, inputs), torch.randn(outputs, rows)
    square = torch.randn(SQUARE, SQUARE)
    runs: dict[str, tuple[Callable[[], Tensor], int]] = {
        "outputs, inputs times weights": (
            lambda: functional.linear(batch, weight, bias),
            rows * inputs * outputs,
        ),
        "outputs, weights times inputs": (
            lambda: torch.mm(weight, batch.t()).add_(bias.unsqueeze(1)),
            rows * inputs * outputs,
        ),
        "gradient of the inputs": (lambda: torch.mm(slopes.t(), weight), rows * inputs * outputs),
        "step of the weights": (
            lambda: torch.addmm(weight, slopes, batch, alpha=-1e-9, out=weight),
            rows * inputs * outputs,
        ),
        f"square, {SQUARE}": (lambda: torch.mm(square, square), SQUARE**3),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, (run, _) in runs.items():
            best[name] = min(best[name], _seconds(run))
    return {name: 2e-9 * size / best[name] for name, (_, size) in runs.items()}


def table(report: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    ratios = report["ratios"]
    lines = [f"| rows | {' | '.join(ratios)} |", f"|---|{'---|' * len(ratios)}"]
    for index, rows in enumerate(ROWS):
        cells = [f"{own[index]:.2f}" for own in ratios.values()]
        for place, (_, outputs) in enumerate(LAYERS):
            cells[place] += " (taken)" if weights_come_first(rows, outputs) else ""
        lines.append(f"| {rows} | {' | '.join(cells)} |")
    lines += ["", f"| {REDDIT_ROWS} rows, Reddit's output layer | billion operations a second |"]
    lines += ["|---|---|", *(f"| {name} | {rate:.0f} |" for name, rate in report["rates"].items())]
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = Machine()
    ratios = {
        f"{inputs} x {outputs}": [_ratio(inputs, outputs, rows, options.repeats) for rows in ROWS]
        for inputs, outputs in LAYERS
    }
    rates = _rates(options.repeats)
    report = {"subject": "products", "machine": machine.describe()}
    report |= {"repeats": options.repeats, "ratios": ratios, "rates": rates}
    if options.json is not None:
        write_json(options.json, report)
    print(table(report))


if __name__ == "__main__":
    main()
