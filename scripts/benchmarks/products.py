"""Which of large weights and a few rows comes first in a product: see ``weights_come_first``."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.common import Machine
from pfl_bench.products import weights_come_first

# Inputs and outputs of the linear layers of FEMNIST's two networks and of Reddit's LSTM.
LAYERS = ((9216, 128), (3136, 2048), (256, 10_000))
ROWS = (5, 7, 10, 16, 20, 32, 50)


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    layers = [f"{inputs} x {outputs}" for inputs, outputs in LAYERS]
    print(f"| rows | {' | '.join(layers)} |\n|---|{'---|' * len(layers)}")
    for rows in ROWS:
        cells = []
        for inputs, outputs in LAYERS:
            taken = " (taken)" if weights_come_first(rows, outputs) else ""
            cells.append(f"{_ratio(inputs, outputs, rows, repeats):.2f}{taken}")
        print(f"| {rows} | {' | '.join(cells)} |")
    machine = Machine().describe()
    print(f"\n{machine['processor']}, load {machine['load_before']}")


if __name__ == "__main__":
    main()
