"""Gradients of single examples are autograd's, whatever network and layout of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.prefetch import MicroBatch
from pfl_bench.config.training import CentralOptions
from pfl_bench.trainers.dp_sgd import PrivateSteps
from pfl_bench.types import Examples
from privacy.plan.budget import Budget
from privacy.plan.example_level import ExampleLevelRequest, make_example_level_plan
from privacy.step_observation import StepObserver
from tasks.common.images.task import ImageTask
from tasks.common.images.transform import Scale
from tasks.common.vision.dp_cnn import strided_cnn, tanh_cnn
from tasks.common.vision.scatter_linear import scatter_linear
from tasks.common.vision.small_cnn import small_cnn

NETWORKS = {
    "strided": (lambda: strided_cnn(10, 3, nn.ReLU), (1, 28, 28)),
    "tanh": (lambda: tanh_cnn(10), (3, 32, 32)),
    "group norm": (lambda: small_cnn(10), (3, 24, 24)),
    "features": (lambda: scatter_linear((81, 7, 7), 10, None), (81, 7, 7)),
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


@pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_along_the_sum_of_clipped_gradients(network: str, channels_last: bool) -> None:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    inputs, targets = torch.rand(BATCH, *shape), torch.arange(BATCH)
    model = FlatModel(build(), CPU, channels_last)
    expected = one_by_one(model.module, inputs, targets)
    before = [p.detach().clone() for p in model.parameters]
    request = ExampleLevelRequest(
        100, BATCH, 1, CLIP, Budget(None, 0.0, 1e-5, "rdp"), model.num_parameters
    )
    task = ImageTask("test", {}, None, transform=Scale())  # type: ignore[arg-type]
    options = CentralOptions(num_epochs=1, batch_size=BATCH, learning_rate=RATE)
    optimizer = torch.optim.SGD(model.parameters, lr=RATE)
    forward = Forward(model.module, task, CPU, "float32", channels_last)
    plan, observer = make_example_level_plan(request), StepObserver(model.slices, BATCH)
    steps = PrivateSteps(plan, model, optimizer, task, forward, options, observer)
    # Two micro-batches of one step.
    for part, last in ((slice(0, 4), False), (slice(4, BATCH), True)):
        examples = Examples(inputs[part], targets[part])
        _, lost = steps.take(MicroBatch(0, len(examples), last, examples, None))
        assert lost == 0
    steps.close()
    moved = torch.cat(
        [(b - p.detach()).flatten() for b, p in zip(before, model.parameters, strict=True)]
    )
    np.testing.assert_allclose(moved * BATCH / RATE, expected, rtol=1e-3, atol=2e-5)
