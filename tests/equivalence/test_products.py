"""Gradients that are kept as products against autograd's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client import factored_gradients as products
from pfl_bench.client.factored_gradients import FactoredGradient, FactoredGradients
from pfl_bench.client.flat_model import FlatModel, clip_each, clip_global, descend
from tasks.common.lstm import stacked_lstm as lstm
from tasks.common.lstm.stacked_lstm import LstmLayer, StackedLstm


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(products, "SMALLEST", 1)
    monkeypatch.setattr(lstm, "LARGE_HIDDEN_SIZE", 1)
    threads = torch.get_num_threads()
    # On more, no LSTM has passes of its own.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Tied(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8, sparse=sparse)
        self.layer = nn.Linear(8, 9, bias=False)
        self.layer.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.embedding(inputs).tanh())
        return outputs


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.layer(inputs).tanh())
        return outputs @ self.layer.weight if inputs.ndim == 3 else outputs


class OfParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(6, 8))
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.prompt) * inputs
        return outputs


class LstmOfParameter(nn.Module):
    """Its inputs lie in memory as a layer wants them, so that it takes them as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(4, 3, 8))
        self.lstm = LstmLayer(8, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(self.prompt.transpose(0, 1)) * inputs
        return outputs


class LstmTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = LstmLayer(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(self.lstm(inputs).tanh())
        return outputs @ self.lstm.weight_hh.t()


def half_frozen() -> nn.Module:
    layer = LstmLayer(8, 5)
    layer.weight_ih.requires_grad_(False)
    return layer


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 7), nn.ReLU(inplace=True), nn.Linear(7, 5, bias=False))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "relu_in_place": (in_place, lambda: torch.randn(6, 8)),
    "three_axes": (in_place, lambda: torch.randn(3, 4, 8)),
    "not_contiguous": (in_place, lambda: torch.randn(4, 3, 8).transpose(0, 1)),
    "one_row": (lambda: nn.Linear(8, 7), lambda: torch.randn(8)),
    "twice": (Twice, lambda: torch.randn(6, 8)),
    "outside_too": (Twice, lambda: torch.randn(2, 3, 8)),
    "tied": (lambda: Tied(False), lambda: torch.randint(0, 9, (6,))),
    "tied_sparse": (lambda: Tied(True), lambda: torch.randint(0, 9, (6,))),
    "of_a_parameter": (OfParameter, lambda: torch.randn(6, 8)),
    "lstm": (lambda: StackedLstm(8, 5, 2), lambda: torch.randn(3, 4, 8)),
    "lstm_of_one_sequence": (lambda: StackedLstm(8, 5, 2), lambda: torch.randn(1, 4, 8)),
    "lstm_of_one_step": (lambda: StackedLstm(8, 5, 2), lambda: torch.randn(3, 1, 8)),
    "lstm_of_a_gradient": (
        lambda: nn.Sequential(nn.Linear(8, 7), StackedLstm(7, 5, 1)),
        lambda: torch.randn(1, 4, 8),
    ),
    "lstm_half_frozen": (half_frozen, lambda: torch.randn(3, 4, 8)),
    "lstm_of_a_parameter": (LstmOfParameter, lambda: torch.randn(3, 4, 5)),
    "lstm_twice_and_outside": (LstmTwice, lambda: torch.randn(3, 4, 8)),
}


@pytest.mark.parametrize("bound", [None, 0.05])
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_autograd(case: str, bound: float | None) -> None:
    torch.manual_seed(0)
    build, draw = CASES[case]
    model, inputs = FlatModel(build(), torch.device("cpu")), draw()
    dense = [
        gradient.to_dense()
        for gradient in torch.autograd.grad(model.module(inputs).square().mean(), model.parameters)
    ]
    if bound is not None:
        dense = list(clip_each(dense, bound))
    wanted = [w - 0.5 * gradient for w, gradient in zip(model.slices, dense, strict=True)]
    kept = FactoredGradients(model.module, model.parameters)
    with kept:
        loss = model.module(inputs).square().mean()
        gradients = kept.take(torch.autograd.grad(loss, model.parameters, allow_unused=True))
    found = [gradient for gradient in gradients if gradient is not None]
    clipped = found if bound is None else list(clip_each(found, bound))
    descend(model.slices, clipped, 0.5)
    torch.testing.assert_close(model.slices, wanted, rtol=1e-5, atol=1e-7)
    for layer in model.module.modules():
        assert "forward" not in vars(layer)
        assert getattr(layer, "keep_factors", None) is None


def test_an_lstm_gives_its_weights_as_products_if_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = FlatModel(StackedLstm(8, 5, 2), torch.device("cpu"))

    def found() -> list[str]:
        with FactoredGradients(model.module, model.parameters) as kept:
            loss = model.module(torch.randn(3, 4, 8)).square().mean()
            taken = kept.take(torch.autograd.grad(loss, model.parameters, allow_unused=True))
        return [type(gradient).__name__ for gradient in taken]

    assert found() == ["FactoredGradient", "FactoredGradient", "Tensor"] * 2
    # The first layer has 20 * (8 + 5 + 1) parameters, the second 20 * (5 + 5 + 1).
    monkeypatch.setattr(products, "SMALLEST", 280)
    assert found() == [
        "FactoredGradient",
        "FactoredGradient",
        "Tensor",
        "Tensor",
        "Tensor",
        "Tensor",
    ]


def test_products_of_one_left_factor_share_its_squares() -> None:
    torch.manual_seed(0)
    left, other = torch.randn(3, 40), torch.randn(3, 40)
    together = [
        FactoredGradient(left, torch.randn(3, 30)),
        FactoredGradient(left, torch.randn(3, 20)),
    ]
    together.append(FactoredGradient(other, torch.randn(3, 30)))
    squares: dict[int, Tensor] = {}
    for product in together:
        norm = float(product.norm(squares))
        assert norm == pytest.approx(float(product.dense().norm()), rel=1e-5)
    assert set(squares) == {id(left), id(other)}


def test_an_error_in_a_step_puts_the_layers_back() -> None:
    model = FlatModel(nn.Linear(8, 7), torch.device("cpu"))
    with (
        pytest.raises(RuntimeError),
        FactoredGradients(model.module, model.parameters),
    ):
        model.module(torch.randn(3, 5))
    assert not {"forward", "keep_factors"} & set(vars(model.module))


@pytest.mark.parametrize("left_over", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_the_norm_holds_where_rows_nearly_cancel(left_over: float) -> None:
    torch.manual_seed(1)
    left, right = torch.randn(1, 256), torch.randn(1, 1024)
    other = left_over * torch.randn(1, 256) - left
    product = FactoredGradient(torch.cat([left, other]), torch.cat([right, right]))
    exact = (product.left.double().t() @ product.right.double()).norm()
    assert float(product.norm()) == pytest.approx(float(exact), rel=1e-3)


def test_rows_whose_squares_overflow_are_clipped_by_their_product() -> None:
    product = FactoredGradient(torch.full((1, 20), 1e25), torch.full((1, 20), 1e-20))
    for clip in (clip_each, clip_global):
        (clipped,) = clip([product], 1.0)
        assert float(functional.normalize(clipped.dense().flatten(), dim=0)[0]) > 0
        assert float(clipped.dense().norm()) == pytest.approx(1.0, rel=1e-4)
