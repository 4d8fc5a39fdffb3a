"""LEAF's LSTMs against ``torch.nn.LSTM``, and the models of the tasks that use them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.types import ConfigError, DataFacts
from tasks.common.lstm import stacked_lstm as lstm
from tasks.common.lstm.stacked_lstm import LstmLayer, StackedLstm
from tasks.reddit import models as reddit
from tasks.shakespeare import models as shakespeare

# Sequences, steps, input size, units: a path of its own, oneDNN's for many steps and for few units.
SHAPES = [(5, 10, 200, 256), (2, 40, 8, 256), (3, 4, 7, 9), (2, 1, 3, 256)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the rows; on more, no layer has passes of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def facts(num_classes: int, *input_shape: int) -> DataFacts:
    return DataFacts("made by a test", "test", "sha256:0", num_classes, input_shape, "example")


def torch_lstm(ours: StackedLstm) -> nn.LSTM:
    """PyTorch's layers with the same weights; their second bias is zero and is not trained."""
    layers = list(ours.layers)
    first = layers[0].weight_ih
    assert isinstance(first, Tensor)
    theirs = nn.LSTM(first.shape[1], first.shape[0] // 4, len(layers), batch_first=True)
    with torch.no_grad():
        for place, layer in enumerate(layers):
            for name in ("weight_ih", "weight_hh"):
                getattr(theirs, f"{name}_l{place}").copy_(getattr(layer, name))
            getattr(theirs, f"bias_ih_l{place}").copy_(layer.bias)
            getattr(theirs, f"bias_hh_l{place}").zero_().requires_grad_(False)
    return theirs


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_are_those_of_torch(shape: tuple[int, int, int, int]) -> None:
    count, steps, size, units = shape
    torch.manual_seed(0)
    ours = StackedLstm(size, units, 2)
    theirs = torch_lstm(ours)
    inputs = torch.randn(count, steps, size, requires_grad=True)
    weight = torch.randn(count, steps, units)
    outputs, expected = ours(inputs), theirs(inputs)[0]
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    gradients = torch.autograd.grad((outputs * weight).sum(), [inputs, *ours.parameters()])
    wanted = torch.autograd.grad((expected * weight).sum(), [inputs, *trained])
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs), expected, rtol=1e-5, atol=1e-6)


def test_plain_operations_are_the_same_layer() -> None:
    torch.manual_seed(0)
    layer = LstmLayer(6, 256)
    inputs = torch.randn(3, 5, 6)
    plain = lstm._plain(inputs, layer.weight_ih, layer.weight_hh, layer.bias)
    torch.testing.assert_close(layer(inputs), plain, rtol=1e-5, atol=1e-6)


def test_short_sequences_of_large_layers_take_their_own_path() -> None:
    # As the last operation of the layer; outputs of oneDNN's are transposed too.
    assert "Recurrence" in type(LstmLayer(4, 256)(torch.randn(2, 10, 4)).grad_fn).__name__
    for units, steps in ((256, lstm.FEW_STEPS), (lstm.LARGE_HIDDEN_SIZE - 1, 10)):
        grad_fn = LstmLayer(4, units)(torch.randn(2, steps, 4)).grad_fn
        assert "Recurrence" not in type(grad_fn).__name__
    torch.set_num_threads(2)
    assert "Recurrence" not in type(LstmLayer(4, 256)(torch.randn(2, 10, 4)).grad_fn).__name__


@pytest.mark.parametrize("size", [3, 256])
def test_gradients_of_single_examples_are_exact(size: int) -> None:
    torch.manual_seed(0)
    options = reddit.Options(name="stacked_lstm", embedding_size=5, hidden_size=size, num_layers=2)
    module = reddit.build(options, facts(12, 6))
    tokens, targets = torch.randint(0, 12, (3, 6)), torch.randint(0, 12, (3, 6))
    singles = []
    for row in range(3):
        logits = module(tokens[row : row + 1])
        loss = functional.cross_entropy(logits[0], targets[row], reduction="sum")
        single = torch.autograd.grad(loss, list(module.parameters()))
        singles.append([g.to_dense() if g.is_sparse else g for g in single])
    wrapped = GradSampleModule(module, loss_reduction="mean")
    logits = wrapped(tokens)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / 3
    with warnings.catch_warnings():
        # Opacus' hook on the first layer, whose inputs have no gradient; PyTorch 2.6 says nothing.
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        loss.backward()
    for place, parameter in enumerate(module.parameters()):
        expected = torch.stack([single[place] for single in singles])
        samples = parameter.grad_sample  # type: ignore[attr-defined]
        torch.testing.assert_close(samples, expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_for_training_and_for_every_layer() -> None:
    torch.manual_seed(0)
    model = StackedLstm(4, 256, num_layers=1, dropout=0.5)
    inputs = torch.randn(2, 10, 4)
    dropped = (model(inputs) == 0).float().mean()
    assert 0.45 < dropped < 0.55
    model.eval()
    assert not (model(inputs) == 0).any()


def test_weights_start_where_leaf_starts_them() -> None:
    torch.manual_seed(0)
    words = reddit.build(reddit.Options(name="stacked_lstm"), facts(500, 10))
    for name, parameter in words.named_parameters():
        if "lstm" in name and name.endswith("bias"):
            assert not parameter.any()
        else:
            assert 0.099 < float(parameter.detach().abs().max()) <= 0.1, name
    letters = shakespeare.build(shakespeare.Options(name="stacked_lstm"), facts(80, 80))
    bounds = {
        "embedding.weight": (6 / (80 + 8)) ** 0.5,
        "lstm.layers.0.weight_ih": (6 / (8 + 256 + 1024)) ** 0.5,
        "lstm.layers.1.weight_hh": (6 / (256 + 256 + 1024)) ** 0.5,
        "output.weight": (6 / (256 + 80)) ** 0.5,
    }
    parameters = dict(letters.named_parameters())
    for name, bound in bounds.items():
        assert 0.97 * bound < float(parameters[name].detach().abs().max()) <= bound, name
    forget = torch.zeros(1024)
    forget[256:512] = 1.0
    assert torch.equal(parameters["lstm.layers.0.bias"].detach(), forget)
    assert not parameters["output.bias"].any()


def test_models_have_the_published_sizes_and_give_logits() -> None:
    words = reddit.build(reddit.Options(name="stacked_lstm"), facts(10_000, 10))
    # 10,000 x 200; (200 + 256) x 1,024 + 1,024; (256 + 256) x 1,024 + 1,024; 257 x 10,000
    assert sum(p.numel() for p in words.parameters()) == 5_563_280
    assert words(torch.randint(0, 10_000, (2, 10))).shape == (2, 10, 10_000)
    letters = shakespeare.build(shakespeare.Options(name="stacked_lstm"), facts(80, 80))
    # 80 x 8; (8 + 256) x 1,024 + 1,024; (256 + 256) x 1,024 + 1,024; 257 x 80
    assert sum(p.numel() for p in letters.parameters()) == 817_872
    assert letters(torch.randint(0, 80, (2, 80))).shape == (2, 80)


def test_only_tokens_before_a_step_move_its_output() -> None:
    torch.manual_seed(0)
    model = reddit.build(reddit.Options(name="stacked_lstm"), facts(50, 10))
    tokens = torch.randint(0, 50, (1, 10))
    changed = tokens.clone()
    changed[0, 6] = (tokens[0, 6] + 1) % 50
    first, second = model(tokens), model(changed)
    assert torch.equal(first[0, :6], second[0, :6])
    assert not torch.equal(first[0, 6], second[0, 6])


@pytest.mark.parametrize("module", [reddit, shakespeare])
def test_data_that_are_no_sequences_are_refused(module: object) -> None:
    options = module.Options(name="stacked_lstm")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"\(1, 28, 28\)"):
        module.build(options, facts(62, 1, 28, 28))  # type: ignore[attr-defined]


def test_layers_are_trained_as_views_of_a_flat_vector() -> None:
    torch.manual_seed(0)
    module = shakespeare.build(shakespeare.Options(name="stacked_lstm"), facts(80, 80))
    windows = torch.randint(0, 80, (2, 80))
    before = module(windows)
    model = FlatModel(module, torch.device("cpu"))
    torch.testing.assert_close(module(windows), before)
    model.vector.zero_()
    assert not module(windows).any()


def test_floating_point_operations_are_counted() -> None:
    torch.manual_seed(0)
    layer = LstmLayer(20, 256)
    counter = FlopCounterMode(display=False)
    with counter:
        outputs = layer(torch.randn(3, 10, 20))
        torch.autograd.grad(outputs.sum(), list(layer.parameters()))
    # Forward: a multiplication and an addition a weight, step and sequence. Backward: as much for
    # the weights' gradients, and for the hidden states' but not for the inputs'; the hidden state
    # before the first step is zero: nothing comes of it, and nothing goes back to it.
    from_inputs, from_hidden = 2 * 3 * 20 * 1024, 2 * 3 * 256 * 1024
    assert counter.get_total_flops() == 20 * from_inputs + (9 + 9 + 9) * from_hidden


def test_mixed_precision_trains() -> None:
    torch.manual_seed(0)
    module = reddit.build(reddit.Options(name="stacked_lstm"), facts(50, 10))
    tokens = torch.randint(0, 50, (3, 10))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = module(tokens)
    torch.testing.assert_close(mixed.float(), module(tokens), rtol=0.05, atol=0.01)
    gradients = torch.autograd.grad(mixed.float().square().sum(), list(module.parameters()))
    assert all(bool(g.to_dense().any()) for g in gradients)
