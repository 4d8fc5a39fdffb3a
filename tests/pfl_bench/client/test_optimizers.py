from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from pfl_bench.client import optimizers
from pfl_bench.client.optimizers import build_optimizer, optimizer_form, rate_factor
from pfl_bench.config.training import OptimizerOptions, ScheduleOptions
from pfl_bench.runs.checkpoint import differences

NAMES = ["sgd", "adam", "adamw", "adagrad", "yogi"]


@pytest.mark.parametrize("name", NAMES)
def test_each_optimizer_descends_a_quadratic(name: str) -> None:
    point = torch.tensor([3.0, -2.0])
    optimizer = build_optimizer(OptimizerOptions(name=name), [point], 0.1)  # type: ignore[arg-type]
    for _ in range(300):
        point.grad = 2 * point
        optimizer.step()
    assert float(point.norm()) < 1.5


@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad"])
def test_torch_s_optimizers_have_the_settings_that_are_given(name: str) -> None:
    options = OptimizerOptions(  # type: ignore[call-arg]
        name=name,  # type: ignore[arg-type]
        beta1=0.5, beta2=0.75, epsilon=0.1, weight_decay=0.25,
    )  # fmt: skip
    own, reference = torch.tensor([3.0, -2.0]), torch.tensor([3.0, -2.0])
    optimizer = build_optimizer(options, [own], 0.125)
    kinds = {
        "adam": partial(torch.optim.Adam, betas=(0.5, 0.75)),
        "adamw": partial(torch.optim.AdamW, betas=(0.5, 0.75)),
        "adagrad": torch.optim.Adagrad,
    }
    other = kinds[name]([reference], lr=0.125, eps=0.1, weight_decay=0.25)
    for _ in range(3):
        own.grad, reference.grad = own**2, reference**2
        optimizer.step()
        other.step()
    torch.testing.assert_close(own, reference)


@pytest.mark.parametrize(("decay", "start"), [(0.0, 1e-6), (0.1, 1e-6), (0.0, 1e-8)])
def test_yogi_takes_the_steps_of_the_paper(decay: float, start: float) -> None:
    """Reddi et al. 2021, algorithm 2, worked by hand for two steps in one dimension."""
    beta1, beta2, tau, rate = 0.9, 0.99, 1e-3, 0.1
    options = OptimizerOptions(
        name="yogi",
        beta1=beta1,
        beta2=beta2,
        epsilon=tau,
        initial_second_moment=start,
        weight_decay=decay,
    )
    x, m, v = 0.5, 0.0, start
    point = torch.full((1,), x, dtype=torch.float64)
    optimizer = build_optimizer(options, [point], rate)
    for given in (-0.5, 0.02):
        gradient = given + decay * x
        m = beta1 * m + (1 - beta1) * gradient
        square = gradient**2
        sign = (v > square) - (v < square)
        v = v - (1 - beta2) * square * sign
        x = x - rate * m / (v**0.5 + tau)
        point.grad = torch.tensor([given], dtype=torch.float64)
        optimizer.step()
        assert float(point) == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize("shape", [(), (7,), (10, 2)])
def test_yogi_steps_alike_whatever_its_blocks(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    options = OptimizerOptions(name="yogi", weight_decay=0.1)
    points = []
    for rows in (1 << 20, 4):
        monkeypatch.setattr(optimizers, "BLOCK_ROWS", rows)
        points.append(start.clone())
        optimizer = build_optimizer(options, [points[-1]], 0.1)
        for gradient in gradients:
            points[-1].grad = gradient.clone()
            optimizer.step()
    assert torch.equal(*points)
    assert not torch.equal(points[0], start)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_optimizer_goes_on_bit_for_bit(name: str) -> None:
    options = OptimizerOptions(name=name, momentum=0.9 if name == "sgd" else 0.0)  # type: ignore[arg-type]
    torch.manual_seed(0)
    gradients = torch.randn(6, 5)
    straight, resumed = torch.zeros(5), torch.zeros(5)
    first = build_optimizer(options, [straight], 0.1)
    second = build_optimizer(options, [resumed], 0.1)
    for step, gradient in enumerate(gradients):
        straight.grad, resumed.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
        if step == 2:
            state = second.state_dict()
            second = build_optimizer(options, [resumed], 0.1)
            second.load_state_dict(state)
    assert torch.equal(straight, resumed)


def test_warmup_and_decays() -> None:
    linear = ScheduleOptions(warmup=4, decay="linear", final_fraction=0.1)
    assert [rate_factor(linear, s, 14) for s in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert rate_factor(linear, 9, 14) == pytest.approx(0.55)
    assert rate_factor(linear, 14, 14) == pytest.approx(0.1)
    cosine = ScheduleOptions(decay="cosine", final_fraction=0.2)
    assert [rate_factor(cosine, s, 10) for s in (5, 10)] == pytest.approx([0.6, 0.2])
    cosine = ScheduleOptions(decay="cosine")
    assert rate_factor(cosine, 5, 10) == pytest.approx(0.5)
    assert rate_factor(cosine, 10, 10) == pytest.approx(0.0)
    exponential = ScheduleOptions(decay="exponential", final_fraction=0.01)
    assert rate_factor(exponential, 5, 10) == pytest.approx(0.1)
    step = ScheduleOptions(decay="step", step_every=3, step_factor=0.5)
    assert [rate_factor(step, s, 9) for s in (1, 3, 4, 7)] == [1.0, 1.0, 0.5, 0.25]
    late = ScheduleOptions(warmup=2, decay="step", step_every=3, step_factor=0.5)
    assert [rate_factor(late, s, 9) for s in (1, 2, 3, 5, 6)] == [0.5, 1.0, 1.0, 1.0, 0.5]
    assert rate_factor(ScheduleOptions(), 7, 9) == 1.0


def test_an_exponential_decay_to_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="final_fraction"):
        ScheduleOptions(decay="exponential")


def test_epsilon_hat_is_keras_adam() -> None:
    """Keras: w -= lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon); golden by hand."""
    options = OptimizerOptions(name="adam", epsilon=0.01, epsilon_hat=True)
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimizer = build_optimizer(options, [weight], 0.1)
    expected = weight.clone().numpy()
    first, second = np.zeros(2), np.zeros(2)
    rng = np.random.default_rng(0)
    for step in range(1, 8):
        gradient = rng.standard_normal(2) * 0.01
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        expected -= rate * first / (np.sqrt(second) + 0.01)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-10)
        if step == 3:
            # Resumed in the middle, it goes on alike.
            state = optimizer.state_dict()
            optimizer = build_optimizer(options, [weight], 0.1)
            optimizer.load_state_dict(state)


def test_epsilon_hat_makes_first_steps_small_where_epsilon_rules() -> None:
    def first_step(epsilon_hat: bool) -> float:
        options = OptimizerOptions(name="adam", epsilon=0.01, epsilon_hat=epsilon_hat)
        weight = torch.zeros(1, dtype=torch.float64)
        weight.grad = torch.full_like(weight, 3e-5)
        build_optimizer(options, [weight], 0.1).step()
        return abs(float(weight))

    assert first_step(False) / first_step(True) == pytest.approx(31.6, rel=0.02)


def test_settings_of_other_optimizers_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon_hat is for adam alone"):
        OptimizerOptions(name="sgd", epsilon_hat=True)
    with pytest.raises(ValueError, match="initial_second_moment is for yogi alone"):
        OptimizerOptions(name="adam", initial_second_moment=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        OptimizerOptions(),
        OptimizerOptions(momentum=0.9),
        OptimizerOptions(name="adagrad"),
        OptimizerOptions(name="adam"),
        OptimizerOptions(name="adam", epsilon_hat=True),
        OptimizerOptions(name="adamw"),
        OptimizerOptions(name="yogi"),
    ],
    ids=lambda options: f"{options.name}{options.momentum or ''}{options.epsilon_hat or ''}",
)
def test_the_form_is_that_of_the_state_after_a_step(options: OptimizerOptions) -> None:
    """An audit holds checkpoints against it: nothing of the state lacks, nothing is left open."""
    tensors = [torch.ones(3), torch.ones(2, 2)]
    form = optimizer_form(options, tensors)
    optimizer = build_optimizer(options, tensors, 0.1)
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    state = optimizer.state_dict()
    assert not [*differences(state, form, is_closed=True)]
    assert {key: {*kept} for key, kept in form["state"].items()} == {
        key: {*kept} for key, kept in state["state"].items()
    }
    assert None not in form["param_groups"][0].values()
