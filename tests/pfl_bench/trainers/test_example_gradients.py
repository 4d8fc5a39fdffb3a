"""Gradients of single examples are autograd's, whatever network and layout of images."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pfl_bench import plugins
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.prefetch import MicroBatch
from pfl_bench.config.training import CentralOptions
from pfl_bench.federated.parts import build_model, build_task
from pfl_bench.trainers.dp_sgd import PrivateSteps
from pfl_bench.types import ConfigError, Examples
from privacy.plan.budget import Budget
from privacy.plan.example_level import ExampleLevelRequest, make_example_level_plan
from privacy.recording.step_observation import StepObserver
from tasks.common.classification import CrossEntropy
from tasks.common.images.models import strided_cnn, tanh_cnn
from tasks.common.images.task import ImageTask, Scale
from tasks.common.vision.normalization import small_cnn
from tasks.common.vision.scattering import scatter_model
from tests.helpers import make_config


class Twice(nn.Module):
    """Uses its linear layer twice, so that an example's gradient is no single outer product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(12, 12), nn.Linear(12, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.layer(self.layer(inputs.flatten(1)).tanh()))
        return logits


class Changed(CrossEntropy):
    """A task with a loss of its own, which inherits the losses of examples of another."""

    def __init__(self, own: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.own = own

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.own(outputs, targets)


class Words(nn.Module):
    """A linear layer of several rows an example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs[:, 0]).mean(1)  # type: ignore[no-any-return]


class Centred(nn.Module):
    """Drops inputs and takes the mean of a batch off by functions, which Opacus does not see."""

    def __init__(self, dropout: float, part: float) -> None:
        super().__init__()
        self.layer, self.dropout, self.part = nn.Linear(64, 10), dropout, part

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = functional.dropout(inputs.flatten(1), self.dropout, self.training)
        logits: torch.Tensor = self.layer(rows - self.part * rows.mean(0))
        return logits


class Idle(Twice):
    """Has a parameter that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(2, 2)


class Scaled(Words):
    """Multiplies its outputs by a parameter that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(inputs)


NETWORKS = {
    "scaled": (Scaled, (1, 3, 4)),
    "used twice": (Twice, (1, 3, 4)),
    "rows": (Words, (1, 3, 4)),
    "strided": (lambda: strided_cnn(10, 3, nn.ReLU), (1, 28, 28)),
    "tanh": (lambda: tanh_cnn(10), (3, 32, 32)),
    "group norm": (lambda: small_cnn(10), (3, 24, 24)),
    "features": (lambda: scatter_model("scatter_linear", (81, 7, 7), 10, None), (81, 7, 7)),
    "convolved features": (lambda: scatter_model("scatter_cnn", (81, 7, 7), 10, 27), (81, 7, 7)),
}
CPU, CLIP, BATCH, RATE = torch.device("cpu"), 0.7, 6, 0.5


def one_by_one(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of the examples' clipped gradients, each computed alone."""
    parameters, total = list(module.parameters()), 0.0
    for place in range(len(inputs)):
        part = slice(place, place + 1)
        loss = functional.cross_entropy(module(inputs[part]), targets[part])
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        total = total + flat * min(1.0, CLIP / (float(flat.norm()) + 1e-6))
    assert isinstance(total, torch.Tensor)
    return total


def step(
    model: FlatModel,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *parts: slice,
    channels_last: bool = False,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    losses: str = "",
) -> tuple[torch.Tensor, float, int]:
    """Take a step without noise in micro-batches.

    Gives the sums of gradients and of losses, and how many examples were lost.
    """
    before = [p.detach().clone() for p in model.parameters]
    request = ExampleLevelRequest(
        100, BATCH, 1, CLIP, Budget(None, 0.0, 1e-5, "rdp"), model.num_parameters
    )
    task: Any = ImageTask("test", {}, None, transform=Scale())  # type: ignore[arg-type]
    if loss is not None:
        task = Changed(loss) if losses == "inherited" else SimpleNamespace(loss=loss)
    if losses == "function":
        task.example_losses = lambda outputs, targets: outputs.sum(1)
    options = CentralOptions(num_epochs=1, batch_size=BATCH, learning_rate=RATE)
    optimizer = torch.optim.SGD(model.parameters, lr=RATE)
    forward = Forward(model.module, task, CPU, "float32", channels_last)
    plan, observer = make_example_level_plan(request), StepObserver(model.slices, BATCH)
    steps = PrivateSteps(plan, model, optimizer, task, forward, options, observer)
    taken = [
        steps.take(
            MicroBatch(
                0,
                len(targets[part]),
                part is parts[-1],
                Examples(inputs[part], targets[part]),
                None,
            )
        )
        for part in parts
    ]
    steps.close()
    moved = [(b - p.detach()).flatten() for b, p in zip(before, model.parameters, strict=True)]
    total, lost = sum(float(loss) for loss, _ in taken), sum(lost for _, lost in taken)
    return torch.cat(moved) * BATCH / RATE, total, lost


@pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_along_the_sum_of_clipped_gradients(network: str, channels_last: bool) -> None:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    inputs, targets = torch.rand(BATCH, *shape), torch.arange(BATCH)
    model = FlatModel(build(), CPU, channels_last)
    expected = one_by_one(model.module, inputs, targets)
    with torch.no_grad():
        loss = float(functional.cross_entropy(model.module(inputs), targets, reduction="sum"))
    parts = (slice(0, 4), slice(4, BATCH))
    moved, total, lost = step(model, inputs, targets, *parts, channels_last=channels_last)
    assert lost == 0
    assert total == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
@pytest.mark.parametrize("network", ["features", "strided", "scaled"])
def test_an_example_of_no_finite_norm_counts_nothing(network: str, value: float) -> None:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    inputs, targets = torch.rand(BATCH, *shape), torch.arange(BATCH)
    model = FlatModel(build(), CPU, False)
    others = [0, 1, 3, 5]
    expected = one_by_one(model.module, inputs[others], targets[others])
    inputs[[2, 4]] *= value
    moved, _, lost = step(model, inputs, targets, slice(0, BATCH))
    assert lost == 2
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=2e-5)


def _weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean that weighs examples by their labels."""
    return functional.cross_entropy(outputs, targets, weight=torch.linspace(0.1, 1.0, 10))


@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (Twice, _weighted, "is not the mean of its examples' losses"),
        (Idle, None, "takes no part in the loss"),
    ],
    ids=["loss", "idle parameter"],
)
@pytest.mark.parametrize("first", [1, 3])
def test_what_bounds_no_gradient_of_an_example_is_refused(
    module: Callable[[], nn.Module],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    words: str,
    first: int,
) -> None:
    """By the first micro-batch of more than one example, which alone can show it."""
    torch.manual_seed(0)
    inputs, targets = torch.rand(BATCH, 1, 3, 4), torch.arange(BATCH)
    model = FlatModel(module(), CPU, False)
    with pytest.raises(ConfigError, match=words):
        step(model, inputs, targets, slice(0, first), slice(first, BATCH), loss=loss)


@pytest.mark.parametrize("losses", ["", "inherited", "function"])
def test_a_loss_is_refused_by_the_batch_that_shows_that_it_weighs_examples(losses: str) -> None:
    weights = torch.ones(10)
    weights[BATCH - 1] = 10.0

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, weight=weights)

    torch.manual_seed(0)
    inputs, targets = torch.rand(BATCH, 1, 3, 4), torch.arange(BATCH)
    parts = (slice(0, 2), slice(2, 4), slice(4, BATCH))
    given: Any = {"loss": loss, "losses": losses}
    step(FlatModel(Twice(), CPU, False), inputs, targets % 3, *parts, **given)
    with pytest.raises(ConfigError, match="is not the mean of its examples' losses"):
        step(FlatModel(Twice(), CPU, False), inputs, targets, *parts, **given)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_model_that_mixes_examples_is_refused(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a plug-in: Opacus' validator looks at the types of layers alone."""
    part, private = 0.0, make_config("central_dp")
    task = build_task(private, CPU)
    monkeypatch.setattr(plugins, "build", lambda *given: Centred(dropout, part))
    build_model(private, task, CPU)
    part = 0.5
    build_model(make_config("central"), task, CPU)
    with pytest.raises(ConfigError, match="layer layer mixes the examples"):
        build_model(private, task, CPU)
