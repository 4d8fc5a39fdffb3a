"""Steps along sparse gradients, and along products, are those along dense ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client import factored_gradients as products
from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.factored_gradients import FactoredGradient, FactoredGradients
from pfl_bench.client.flat_model import FlatModel, clip_each, clip_global, descend
from pfl_bench.client.forward import Forward
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import DataFacts, Examples, LocalTraining

VOCABULARY, LENGTH, COUNT = 40, 6, 11
LOCAL = LocalTraining(epochs=2, batch_size=4, learning_rate=0.3)
SETTINGS = {
    "plain": LOCAL,
    "clip_each": replace(LOCAL, gradient_clip_norm=0.05),
    "clip_global": replace(LOCAL, gradient_clip_global_norm=0.1),
    "clip_global_beyond": replace(LOCAL, gradient_clip_global_norm=1e3),
    "proximal": replace(LOCAL, proximal_weight=0.7),
}


class Words(nn.Module):
    """Next-token scores of words, with what a step can meet: repeats, and a weight unused."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5, sparse=sparse)
        self.hidden = nn.Linear(5, 7)
        self.output = nn.Linear(7, VOCABULARY)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(self.embedding(tokens)).tanh())
        return logits


class Data:
    """One user with sequences of few words, and the loss."""

    name, num_users, num_examples = "train", 1, COUNT
    offsets = np.array([0, COUNT])
    metrics: tuple[str, ...] = ()
    split_names = ("train",)
    facts = DataFacts("made by a test", "test", "sha256:0", VOCABULARY, (LENGTH,), "user")

    def __init__(self, repeats: bool) -> None:
        rng = np.random.default_rng(1)
        # A third of the words, so that most of a batch's come twice; or none twice in a sequence.
        words = rng.integers(0, VOCABULARY // 3, (COUNT, LENGTH))
        if not repeats:
            words = np.stack([rng.permutation(VOCABULARY)[:LENGTH] for _ in range(COUNT)])
        self.inputs = torch.from_numpy(words)
        self.targets = torch.from_numpy(rng.integers(0, VOCABULARY, (COUNT, LENGTH)))

    def client_ids(self) -> list[str]:
        return ["only"]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        return Examples(self.inputs, self.targets)

    def read_range(self, start: int, stop: int) -> Examples:
        return Examples(self.inputs[start:stop], self.targets[start:stop])

    def read_examples(self, indices: Any, rng: np.random.Generator) -> Examples:
        return Examples(self.inputs[indices], self.targets[indices])

    def split(self, name: str) -> Data:
        return self

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def make_module(sparse: bool) -> nn.Module:
    torch.manual_seed(0)
    return Words(sparse)


def update(module: nn.Module, local: LocalTraining, repeats: bool = True) -> Tensor:
    data = Data(repeats)
    model = FlatModel(module, torch.device("cpu"))
    forward = Forward(model.module, data, model.device)
    engine = SequentialEngine(Options(), model, data, forward, local, seed=7)
    (result,) = engine.train(np.array([0]), 1, model.vector.clone())
    return result.update.clone()


def by_hand(module: nn.Module, local: LocalTraining) -> Tensor:
    """The same client with ``torch.optim`` and ``torch.nn.utils``."""
    data = Data(repeats=True)
    parameters = list(module.parameters())
    start = nn.utils.parameters_to_vector(parameters).detach().clone()
    optimizer = torch.optim.SGD(parameters, lr=local.learning_rate)
    rng = stream(7, Purpose.LOCAL_TRAINING, 1, 0)
    for _ in range(local.epochs):
        order = torch.from_numpy(rng.permutation(COUNT))
        for chosen in order.split(local.batch_size):
            optimizer.zero_grad()
            loss = data.loss(module(data.inputs[chosen]), data.targets[chosen])
            loss.backward()
            if local.gradient_clip_norm is not None:
                for parameter in parameters:
                    if parameter.grad is not None:
                        nn.utils.clip_grad_norm_(parameter, local.gradient_clip_norm)
            if local.gradient_clip_global_norm is not None:
                nn.utils.clip_grad_norm_(parameters, local.gradient_clip_global_norm)
            with torch.no_grad():
                now = nn.utils.parameters_to_vector(parameters)
                pull = local.learning_rate * local.proximal_weight * (start - now)
                nn.utils.vector_to_parameters(now + pull, parameters)
            optimizer.step()
    return nn.utils.parameters_to_vector(parameters).detach() - start


@pytest.fixture(params=["products", "no_products"])
def with_products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the layers here are large enough for their gradients to be left as products."""
    chosen: bool = request.param == "products"
    monkeypatch.setattr(products, "SMALLEST", 1 if chosen else 1 << 30)
    return chosen


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_a_client_does_what_plain_pytorch_does(
    name: str, sparse: bool, with_products: bool
) -> None:
    expected = by_hand(make_module(sparse=False), SETTINGS[name])
    got = update(make_module(sparse), SETTINGS[name])
    assert float(expected.norm()) > 1e-3
    # clip_grad_norm_ adds 1e-6 to a norm before it divides by it.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "clip_global_beyond", "proximal"])
def test_sparse_steps_that_are_not_clipped_are_bit_equal_to_dense_ones(
    name: str, with_products: bool
) -> None:
    # Where a word comes twice, its gradients are summed up in another order.
    local = replace(SETTINGS[name], batch_size=1)
    dense, sparse = (update(make_module(kind), local, repeats=False) for kind in (False, True))
    assert torch.equal(dense, sparse)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch 2.11
def test_only_the_rows_of_a_batch_are_touched() -> None:
    weight = torch.full((1000, 4), torch.nan)
    weight[[3, 7]] = 1.0
    rows = torch.tensor([[3, 7, 3]])
    gradient = torch.sparse_coo_tensor(rows, torch.ones(3, 4), (1000, 4), check_invariants=True)
    descend([weight], [gradient], rate=0.25)
    assert torch.equal(weight[3], torch.full((4,), 0.5))
    assert torch.equal(weight[7], torch.full((4,), 0.75))
    assert int(weight.isnan().all(dim=1).sum()) == 998


def sparse_gradient(values: list[float]) -> Tensor:
    """Rows 2 and 0; row 2 twice, so that its parts add up."""
    rows = torch.tensor([[2, 0, 2]])
    parts = torch.tensor(values).reshape(3, 1)
    return torch.sparse_coo_tensor(rows, parts, (5, 1), check_invariants=True)


NUMBERS = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(NUMBERS, min_size=3, max_size=3),
    dense=st.lists(NUMBERS, min_size=1, max_size=4),
    factors=st.lists(NUMBERS, min_size=4, max_size=4),
    bound=st.floats(0.01, 1000),
)
def test_clipping_is_that_of_the_dense_gradients(
    values: list[float], dense: list[float], factors: list[float], bound: float
) -> None:
    left, right = torch.tensor(factors[:2]).reshape(1, 2), torch.tensor(factors[2:]).reshape(1, 2)
    mixed = (sparse_gradient(values), torch.tensor(dense), FactoredGradient(left, right))
    plain = (mixed[0].to_dense(), mixed[1], mixed[2].dense())
    for clip in (clip_each, clip_global):
        got, expected = clip(mixed, bound), clip(plain, bound)
        for gradient, other in zip(got, expected, strict=True):
            full = (
                gradient.dense() if isinstance(gradient, FactoredGradient) else gradient.to_dense()
            )
            torch.testing.assert_close(full, other, rtol=1e-4, atol=1e-5)
    whole = torch.cat([g.flatten() for g in plain])
    clipped = torch.cat([g.flatten() for g in clip_global(plain, bound)])
    norm = float(whole.norm())
    torch.testing.assert_close(clipped, whole * min(1.0, bound / max(norm, bound)))
    assert float(clipped.norm()) <= bound * (1 + 1e-5)


def test_gradients_within_the_bound_are_left_as_they_are() -> None:
    gradients = (torch.tensor([3.0, 0.0]), sparse_gradient([2.0, 0.0, 2.0]))
    for bound, untouched in ((5.0, True), (4.9, False)):
        clipped = clip_global(gradients, bound)
        assert all((a is b) is untouched for a, b in zip(clipped, gradients, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_stays_so_and_takes_the_others_along(value: float) -> None:
    gradients = (torch.tensor([value, 1.0]), torch.ones(2), sparse_gradient([1.0, 1.0, 1.0]))
    for gradient in clip_global(gradients, 1.0):
        assert (
            gradient.coalesce().values().isnan().all()
            if gradient.is_sparse
            else (gradient.isnan().all())
        )


@pytest.mark.parametrize("count", [1, 3, 200])
def test_norm_of_a_product_is_that_of_the_matrix(count: int) -> None:
    torch.manual_seed(count)
    product = FactoredGradient(torch.randn(count, 30), torch.randn(count, 50))
    torch.testing.assert_close(product.norm(), product.dense().norm(), rtol=1e-5, atol=0.0)
    none = FactoredGradient(torch.zeros(count, 30), torch.randn(count, 50))
    assert float(none.norm()) == 0.0
    one = FactoredGradient(torch.tensor([[torch.nan] + [0.0] * 29]), torch.ones(1, 50))
    assert one.norm().isnan()


class Odd(nn.Module):
    """Layers whose gradient is not one product: used twice, used by its weight, tied, frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(VOCABULARY, VOCABULARY)
        self.tied = nn.Linear(VOCABULARY, VOCABULARY, bias=False)
        self.tied_too = nn.Linear(VOCABULARY, VOCABULARY)
        self.tied_too.weight = self.tied.weight
        self.outside = nn.Linear(VOCABULARY, VOCABULARY)
        self.frozen = nn.Linear(VOCABULARY, VOCABULARY).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        one_hot = functional.one_hot(tokens, VOCABULARY).float()
        hidden = self.tied_too(self.twice(self.twice(self.tied(one_hot)).tanh()))
        return self.frozen(self.outside(hidden) + functional.linear(one_hot, self.outside.weight))


@pytest.mark.parametrize("name", SETTINGS)
def test_odd_uses_of_a_layer_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    local = replace(SETTINGS[name], learning_rate=0.05)
    torch.manual_seed(0)
    states = [Odd() for _ in range(2)]
    states[1].load_state_dict(states[0].state_dict())
    monkeypatch.setattr(products, "SMALLEST", 1)
    got = update(states[0], local)
    monkeypatch.setattr(products, "SMALLEST", 1 << 30)
    torch.testing.assert_close(got, update(states[1], local), rtol=1e-4, atol=1e-6)


def test_layers_get_their_own_passes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SMALLEST", 1)
    layer = nn.Linear(3, 4)
    kept = FactoredGradients(layer, list(layer.parameters()))
    with kept:
        gradients = torch.autograd.grad(
            layer(torch.ones(2, 3)).sum(), list(layer.parameters()), allow_unused=True
        )
        assert gradients[0] is None
        product, bias = kept.take(gradients)
    assert isinstance(product, FactoredGradient)
    assert torch.equal(product.dense(), torch.full((4, 3), 2.0))
    assert isinstance(bias, Tensor)
    assert torch.equal(bias, torch.full((4,), 2.0))
    with pytest.raises(RuntimeError, match="shapes"), kept:
        layer(torch.ones(2, 5))
    assert "forward" not in vars(layer)
    (weight, _) = torch.autograd.grad(layer(torch.ones(2, 3)).sum(), list(layer.parameters()))
    assert torch.equal(weight, torch.full((4, 3), 2.0))
