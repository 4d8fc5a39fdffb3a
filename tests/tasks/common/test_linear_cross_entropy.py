"""The cross-entropy of a linear layer's outputs against PyTorch's functions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.common.lstm import linear_cross_entropy as module
from tasks.common.lstm.linear_cross_entropy import FEWEST_ROWS, FEWEST_WEIGHTS, linear_cross_entropy

INPUTS = 32
OUTPUTS = FEWEST_WEIGHTS // INPUTS


def layer_and_rows(count: int = 20, bias: bool = True) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(INPUTS, OUTPUTS, bias=bias)
    return layer, torch.randn(count, INPUTS), torch.randint(0, OUTPUTS, (count,))


def library(layer: nn.Linear, rows: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(
        functional.linear(rows, layer.weight, layer.bias), targets, reduction="sum"
    )


def has_own_passes(loss: Tensor) -> bool:
    return "LinearCrossEntropy" in type(loss.grad_fn).__name__


@pytest.mark.parametrize("count", [FEWEST_ROWS, 46, 70])
@pytest.mark.parametrize(
    "shift",
    [
        pytest.param(0.0, id="as_drawn"),
        pytest.param(58.0, id="sums_of_1e28"),
        pytest.param(78.0, id="sums_of_1e37"),
        pytest.param(-60.0, id="sums_of_1e-23"),
        pytest.param(300.0, id="overflow"),
        pytest.param(-300.0, id="underflow"),
    ],
)
def test_loss_and_gradients_are_those_of_the_library(count: int, shift: float) -> None:
    layer, rows, targets = layer_and_rows(count)
    with torch.no_grad():
        layer.bias += shift
    rows.requires_grad_()
    wanted_of = [rows, layer.weight, layer.bias]
    loss, wanted = linear_cross_entropy(layer, rows, targets), library(layer, rows, targets)
    assert has_own_passes(loss)
    # A logit of 300 has five digits after the point, whoever computes with it.
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-6 * abs(shift) * count)
    for ours, theirs in zip(
        torch.autograd.grad(loss * 0.3, wanted_of),
        torch.autograd.grad(wanted * 0.3, wanted_of),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_one_row_beyond_the_range_does_not_spoil_the_others() -> None:
    layer, rows, targets = layer_and_rows()
    rows[3] *= 1e3
    rows.requires_grad_()
    loss, wanted = linear_cross_entropy(layer, rows, targets), library(layer, rows, targets)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-3)
    (ours,) = torch.autograd.grad(loss, rows)
    (theirs,) = torch.autograd.grad(wanted, rows)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shift", [50.0, 58.0, 78.0])
def test_a_small_gradient_is_not_rounded_away(shift: float) -> None:
    layer, rows, targets = layer_and_rows()
    with torch.no_grad():
        layer.bias += shift
    (ours,) = torch.autograd.grad(linear_cross_entropy(layer, rows, targets) * 1e-7, layer.bias)
    (theirs,) = torch.autograd.grad(library(layer, rows, targets), layer.bias)
    torch.testing.assert_close(ours * 1e7, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_stays_visible(value: float) -> None:
    layer, rows, targets = layer_and_rows()
    rows[3, 5] = value
    assert has_own_passes(linear_cross_entropy(layer, rows, targets))
    assert not linear_cross_entropy(layer, rows, targets).isfinite()


@pytest.mark.parametrize("count", [FEWEST_ROWS - 1, FEWEST_ROWS])
@pytest.mark.parametrize("target", [-100, -1, OUTPUTS])
def test_a_target_that_is_no_output_is_refused(target: int, count: int) -> None:
    layer, rows, targets = layer_and_rows(count)
    targets[7] = target
    with pytest.raises(IndexError):
        linear_cross_entropy(layer, rows, targets)


def test_the_weight_is_kept_as_a_product_where_products_are_asked_for() -> None:
    layer, rows, targets = layer_and_rows()
    kept: list[tuple[str, Tensor, Tensor]] = []
    vars(layer)["keep_factors"] = lambda *product: kept.append(product)
    loss = linear_cross_entropy(layer, rows, targets)
    of_weight, of_bias = torch.autograd.grad(loss, [layer.weight, layer.bias], allow_unused=True)
    assert of_weight is None
    ((name, left, right),) = kept
    assert name == "weight"
    wanted = torch.autograd.grad(library(layer, rows, targets), [layer.weight, layer.bias])
    torch.testing.assert_close([left.t() @ right, of_bias], list(wanted), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_has_no_gradient(frozen: str) -> None:
    layer, rows, targets = layer_and_rows()
    layer.get_parameter(frozen).requires_grad_(False)
    vars(layer)["keep_factors"] = lambda name, *_: kept.append(name)
    kept: list[str] = []
    linear_cross_entropy(layer, rows.requires_grad_(), targets).backward()
    assert kept == (["weight"] if frozen == "bias" else [])
    assert layer.get_parameter(frozen).grad is None
    assert rows.grad is not None


def test_a_second_backward_pass_is_refused() -> None:
    layer, rows, targets = layer_and_rows()
    loss = linear_cross_entropy(layer, rows, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_what_the_library_does_faster_or_alone_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, rows, targets = layer_and_rows()
    few, none = slice(FEWEST_ROWS - 1), slice(0)
    for part in (few, none):
        loss = linear_cross_entropy(layer, rows[part], targets[part])
        assert not has_own_passes(loss)
        torch.testing.assert_close(loss, library(layer, rows[part], targets[part]))
    with torch.no_grad():
        torch.testing.assert_close(
            linear_cross_entropy(layer, rows, targets), library(layer, rows, targets)
        )
    with torch.autocast("cpu", torch.bfloat16):
        assert not has_own_passes(linear_cross_entropy(layer, rows, targets))
    without_bias, rows, targets = layer_and_rows(bias=False)
    assert not has_own_passes(linear_cross_entropy(without_bias, rows, targets))
    with pytest.raises(ValueError, match="batch_size"):
        linear_cross_entropy(layer, rows, targets[:1])
    monkeypatch.setattr(module, "FEWEST_WEIGHTS", FEWEST_WEIGHTS + 1)
    assert not has_own_passes(linear_cross_entropy(layer, rows, targets))


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_layer_that_does_more_than_its_class_says_is_called() -> None:
    layer, rows, targets = layer_and_rows()
    doubled = Doubled(INPUTS, OUTPUTS)
    doubled.load_state_dict(layer.state_dict())
    hooked, patched = layer_and_rows()[0], layer_and_rows()[0]
    hooked.register_forward_hook(lambda layer, given, outputs: 2 * outputs)
    forward = patched.forward
    patched.forward = lambda given: 2 * forward(given)  # type: ignore[method-assign]
    logits = functional.linear(rows, layer.weight, layer.bias)
    wanted = functional.cross_entropy(2 * logits, targets, reduction="sum")
    for other in (doubled, hooked, patched):
        torch.testing.assert_close(linear_cross_entropy(other, rows, targets), wanted)


def test_transforms_of_functions_see_through_it() -> None:
    layer, _, _ = layer_and_rows()
    rows, targets = torch.randn(2, 20, INPUTS), torch.randint(0, OUTPUTS, (2, 20))

    def loss_of(rows: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(layer, rows, targets)

    gradients = torch.func.vmap(torch.func.grad(loss_of))(rows, targets)
    for place in range(2):
        alone = rows[place].clone().requires_grad_()
        (wanted,) = torch.autograd.grad(library(layer, alone, targets[place]), alone)
        torch.testing.assert_close(gradients[place], wanted, rtol=1e-4, atol=1e-6)
