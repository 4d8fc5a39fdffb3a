"""Federated rounds of LEAF's LSTMs: ours, a bare PyTorch loop, and PyPI's ``pfl``.

See ``sides``. The bare loop and ``pfl`` train what one writes by hand for the model: a dense
``nn.Embedding``, ``nn.LSTM`` and ``nn.Linear`` from the same initial weights. Our layers have one
bias where ``nn.LSTM`` has two, so the second stays at zero there: all sides compute the same thing,
and are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import summarise, table, write_report
from benchmarks.sides import Agreement, Measured, Workload, measure, our_sides
from tasks.leaf.lstm import StackedLstm

AGREEMENT = Agreement(tolerance=1e-3, of_step=True)


class PlainLstm(nn.Module):
    """The model in PyTorch's own layers.

    Args:
        ours: Gives the sizes and the weights.
        last_step: Whether to score the last step alone.
    """

    def __init__(self, ours: nn.Module, last_step: bool) -> None:
        super().__init__()
        embedding, stack, output = ours.embedding, ours.lstm, ours.output
        assert isinstance(embedding, nn.Embedding)
        assert isinstance(stack, StackedLstm)
        assert isinstance(output, nn.Linear)
        self.embedding = nn.Embedding(embedding.num_embeddings, embedding.embedding_dim)
        layers = list(stack.layers)
        size = output.in_features
        self.lstm = nn.LSTM(embedding.embedding_dim, size, len(layers), batch_first=True)
        self.output = nn.Linear(size, output.out_features)
        self._last_step = last_step
        with torch.no_grad():
            self.embedding.weight.copy_(embedding.weight)
            self.output.weight.copy_(output.weight)
            self.output.bias.copy_(output.bias)
            for place, layer in enumerate(layers):
                weights = {"weight_ih": layer.weight_ih, "weight_hh": layer.weight_hh}
                for name, value in {**weights, "bias_ih": layer.bias}.items():
                    getattr(self.lstm, f"{name}_l{place}").copy_(value)
                second = getattr(self.lstm, f"bias_hh_l{place}")
                second.zero_().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of each step, or of the last."""
        outputs, _ = self.lstm(self.embedding(inputs))
        logits: Tensor = self.output(outputs[:, -1] if self._last_step else outputs)
        return logits


def _steps(measured: Measured) -> dict[str, Any]:
    """Time of a local step."""
    steps = measured.steps
    milliseconds = {
        name: 1e3 * sum(taken.wall) / sum(steps) for name, taken in measured.seconds.items()
    }
    return {"steps": steps, "step_milliseconds": milliseconds}


def full_table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [table(results), ""]
    for result in results:
        private = "private" if result["private"] else "not private"
        each = ", ".join(f"{name} {ms:.1f}" for name, ms in result["step_milliseconds"].items())
        lines.append(f"{result['workload']}, {private}: ms a local step, all included: {each}.")
    worst = max(value for result in results for value in result["agreement"].values())
    lines += ["", f"Largest difference of a first central step, of the step: {worst:.1e}."]
    return "\n".join(lines)


def run(
    description: str, load: Workload, last_step: bool, make_store: Callable[[Path], None]
) -> None:
    """Read the command line, time the sides with and without privacy, report.

    Args:
        description: For the command's help.
        load: What the sides train.
        last_step: Whether the model's outputs are those of a sequence's last step alone.
        make_store: Writes the data.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--private", choices=("yes", "no", "both"), default="both")
    parser.add_argument("--out", default=f"bench-{load.task}.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kinds = {"yes": (True,), "no": (False,), "both": (False, True)}[arguments.private]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "generated.h5"
        make_store(store)
        for private in kinds:
            run_folder = Path(folder) / f"private-{private}"
            own = our_sides(store, load, private, run_folder)
            plain = partial(PlainLstm, last_step=last_step)
            measured = measure(load, private, own, plain, arguments.repeats, AGREEMENT)
            times = summarise(load.task, private, measured.seconds, measured.agreement)
            results.append({**times, **_steps(measured)})
            print(full_table(results[-1:]).split("\n", 2)[2], file=sys.stderr, flush=True)
    write_report(Path(arguments.out), arguments.repeats, results)
    print(full_table(results))
