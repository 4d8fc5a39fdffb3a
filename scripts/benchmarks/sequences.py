"""Federated rounds of LEAF's LSTMs: ours, a bare PyTorch loop, and PyPI's ``pfl``.

The bare loop and ``pfl`` train what one writes by hand for the model: a dense ``nn.Embedding``,
``nn.LSTM`` and ``nn.Linear`` from the same initial weights. Our layers have one bias where
``nn.LSTM`` has two, so the second stays at zero there: all sides compute the same thing, and are
compared. ``pfl`` runs its simulated backend with its ``FederatedAveraging`` on its
``PyTorchModel``, as its recipes do, its users' tensors in memory as the bare loop's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import OurSide, Seconds, Side, in_turn, spread, write_report
from benchmarks.femnist import Batches, summarise, table
from benchmarks.femnist import Workload as BatchesOf
from benchmarks.pfl_side import PflSide, Privacy, is_installed
from tasks.leaf.lstm import StackedLstm

CLIP_NORM, NOISE_MULTIPLIER, SEED = 0.4, 1.0, 0
# Largest difference of a side's first central step from the bare loop's, relative to the step.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Workload:
    """A task with LEAF's LSTM, and how its clients train.

    Attributes:
        task: Name of the task.
        cohort_size: Clients a round.
        batch_size: Sequences a step.
        learning_rate: Local rate: small, so that rounding does not grow over a client's steps.
        gradient_clip: Bound of the gradient's global norm; None for none.
        last_step: Whether the model's outputs are those of a sequence's last step alone.
    """

    task: str
    cohort_size: int
    batch_size: int
    learning_rate: float
    gradient_clip: float | None
    last_step: bool


def configuration(store: Path, load: Workload, private: bool) -> dict[str, Any]:
    """A run of our own that does what the other sides do."""
    tree: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "seed": SEED,
        "device": "cpu",
        "task": {"name": load.task, "data": str(store)},
        "model": {"name": "stacked_lstm"},
        "federated": {
            "num_rounds": 1000,
            "cohort_size": load.cohort_size,
            "sampling": "poisson" if private else "fixed_size",
            "local_batch_size": load.batch_size,
            "local_learning_rate": load.learning_rate,
            "local_gradient_clip_global_norm": load.gradient_clip,
        },
        "evaluation": {"final_splits": []},
    }
    if private:
        tree["privacy"] = {
            "mechanism": {"name": "gaussian", "clip_norm": CLIP_NORM},
            "population_size": 1_000_000,
            "hypothetical_population": True,
            "noise_multiplier": NOISE_MULTIPLIER,
        }
    return tree


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


class BareSide:
    """What one writes by hand: a loop over users and batches, nothing logged or accounted."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        batches: Batches,
        load: Workload,
        private: bool,
    ) -> None:
        self._module, self._loss, self._batches = module, loss, batches
        self._load, self._private = load, private
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._central = [p.detach().clone() for p in self._parameters]

    def round(self, index: int) -> None:
        total = [torch.zeros_like(p) for p in self._central]
        cohort = self._batches.of_round(index)
        self._module.train()
        for _, inputs, targets in cohort:
            self._train(inputs, targets)
            with torch.no_grad():
                pairs = zip(self._parameters, self._central, strict=True)
                update = [p - start for p, start in pairs]
                scale = 1.0
                if self._private:
                    norm = torch.stack([u.norm() for u in update]).norm()
                    scale = min(1.0, CLIP_NORM / float(norm))
                for accumulated, part in zip(total, update, strict=True):
                    accumulated.add_(part, alpha=scale)
        self._step(total, self._load.cohort_size if self._private else len(cohort), index)

    def _train(self, inputs: Tensor, targets: Tensor) -> None:
        with torch.no_grad():
            for parameter, start in zip(self._parameters, self._central, strict=True):
                parameter.copy_(start)
        optimizer = torch.optim.SGD(self._parameters, lr=self._load.learning_rate)
        size = self._load.batch_size
        for batch, labels in zip(inputs.split(size), targets.split(size), strict=True):
            optimizer.zero_grad()
            self._loss(self._module(batch), labels).backward()
            if self._load.gradient_clip is not None:
                nn.utils.clip_grad_norm_(self._parameters, self._load.gradient_clip)
            optimizer.step()

    @torch.no_grad()
    def _step(self, total: list[Tensor], cohort_size: int, index: int) -> None:
        rng = self._batches.noise_of_round(index)
        for start, part in zip(self._central, total, strict=True):
            if self._private:
                noise = rng.standard_normal(part.numel())
                noise *= NOISE_MULTIPLIER * CLIP_NORM
                part.add_(torch.from_numpy(noise).float().view(part.shape))
            start.add_(part, alpha=1 / cohort_size)

    def vector(self) -> Tensor:
        return torch.cat([p.reshape(-1) for p in self._central])


class _Pfl(PflSide):
    """``pfl``, whose vector leaves out what is not trained."""

    def vector(self) -> Tensor:
        trained = [p for p in self._module.parameters() if p.requires_grad]
        return torch.cat([p.detach().reshape(-1) for p in trained])


def pfl_side(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Batches,
    load: Workload,
    private: bool,
) -> PflSide:
    """``pfl`` on the same batches, its tensors in memory as the bare loop's."""

    def train_loss(inputs: Tensor, targets: Tensor, **_: Any) -> Tensor:
        module.train()
        return loss(module(inputs), targets)

    module.loss, module.metrics = train_loss, lambda *_, **__: {}  # type: ignore[assignment]
    data: dict[int, tuple[Tensor, Tensor]] = {}

    def cohort(index: int) -> list[int]:
        data.clear()
        data.update({user: (x, y) for user, x, y in batches.of_round(index)})
        return [*data]

    local = {
        "local_batch_size": load.batch_size,
        "local_num_epochs": 1,
        "local_learning_rate": load.learning_rate,
        "local_max_grad_norm": load.gradient_clip,
    }
    trained = [p for p in module.parameters() if p.requires_grad]
    central = torch.optim.SGD(trained, lr=1.0)
    privacy = Privacy(CLIP_NORM, NOISE_MULTIPLIER) if private else None
    return _Pfl(module, cohort, data.__getitem__, central, local, privacy)


def measure(
    load: Workload, private: bool, store: Path, repeats: int, folder: Path
) -> dict[str, Any]:
    """Time the sides in turn and check that they computed the same thing.

    Raises:
        SystemExit: A side computed something else.
    """
    ours = OurSide(configuration(store, load, private), folder)
    of = BatchesOf("stacked_lstm", load.cohort_size, load.batch_size, load.learning_rate)
    batches = Batches(ours, of, private)
    before = ours.vector()
    modules = [PlainLstm(ours.model.module, load.last_step) for _ in range(2)]
    sides: dict[str, Side] = {
        "pfl-bench": ours,
        "bare": BareSide(modules[0], ours.task.loss, batches, load, private),
    }
    if is_installed():
        sides["pfl"] = pfl_side(modules[1], ours.task.loss, batches, load, private)
    seconds = {side: Seconds() for side in sides}
    agreement: dict[str, float] = {}
    steps: list[int] = []
    for index in range(1, repeats + 2):
        batches.of_round(index)
        for name in in_turn(sides, index):
            # Round 1 warms up.
            timed = seconds[name] if index > 1 else Seconds()
            timed.add(partial(sides[name].round, index), ours.device)
        if index > 1:
            steps.append(int(ours.scalars["train/num_steps"]))
            continue
        # The noise of pfl is its own, so it is compared only where there is none.
        reference = sides["bare"].vector()
        moved = float((reference - before).norm())
        for name in ("pfl-bench", "pfl"):
            if name in sides and not (name == "pfl" and private):
                difference = float((sides[name].vector() - reference).norm()) / moved
                agreement[name] = difference
                if not difference <= TOLERANCE:
                    raise SystemExit(f"{load.task}: {name} computed something else: {difference}")
    result = summarise(load.task, private, {k: v.wall for k, v in seconds.items()}, agreement)
    result["steps"] = steps
    result["step_milliseconds"] = {
        name: 1e3 * sum(taken.wall) / sum(steps) for name, taken in seconds.items()
    }
    # Processor time too: it is all that tells something where others use the machine.
    for other in sides:
        for clock in ("wall", "processor"):
            theirs, own = (getattr(seconds[side], clock) for side in (other, "pfl-bench"))
            ratios = [their / mine for their, mine in zip(theirs, own, strict=True)]
            result[f"speed_to_{other}_{clock}"] = spread(ratios)
    return result


def full_table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [table(results), ""]
    for result in results:
        private = "private" if result["private"] else "not private"
        each = ", ".join(f"{name} {ms:.1f}" for name, ms in result["step_milliseconds"].items())
        line = f"{result['workload']}, {private}: ms a local step, all included: {each}"
        for other in ("bare", "pfl"):
            for clock in ("wall", "processor"):
                if speed := result.get(f"speed_to_{other}_{clock}"):
                    line += (
                        f"; speed to {other} ({clock}) {speed['median']:.2f} "
                        f"({speed['min']:.2f}-{speed['max']:.2f})"
                    )
        lines.append(line + ".")
    worst = max(value for result in results for value in result["agreement"].values())
    lines += ["", f"Largest difference of a first central step, of the step: {worst:.1e}."]
    return "\n".join(lines)


def run(description: str, load: Workload, make_store: Callable[[Path], None]) -> None:
    """Read the command line, time the sides with and without privacy, report."""
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
            run_folder.mkdir()
            results.append(measure(load, private, store, arguments.repeats, run_folder))
            print(full_table(results[-1:]).split("\n", 2)[2], file=sys.stderr, flush=True)
    write_report(Path(arguments.out), arguments.repeats, results)
    print(full_table(results))
