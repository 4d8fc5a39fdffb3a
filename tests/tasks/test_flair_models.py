from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.model_checks import batchnorm_layers
from pfl_bench.types import ConfigError, DataFacts
from tasks.common.vision.normalization import (
    FrozenStatisticsNorm,
    batchnorm_names,
    freeze_statistics,
    num_groups,
    use_group_norm,
)
from tasks.flair import models
from tasks.flair.models import LowRankAdapter


def facts(num_classes: int = 17, side: int = 64) -> DataFacts:
    return DataFacts("drawn by a test", "test", "sha256:0", num_classes, (3, side, side), "user")


def build(num_classes: int = 17, side: int = 64, seed: int = 0, **options: object) -> nn.Module:
    torch.manual_seed(seed)
    return models.build(models.Options(**options), facts(num_classes, side))  # type: ignore[arg-type]


def images(count: int, side: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def num_trained(module: nn.Module) -> int:
    return FlatModel(module, torch.device("cpu")).num_parameters


# Counted by hand from He et al. 2016, table 1. Kernels: 3*64*49; 4*64*64*9; (64*128 + 3*128*128)*9
# + 64*128; the same at 128, 256 and at 256, 512; scales and biases 2*4,800.
TRUNK = 9_408 + 147_456 + 524_288 + 2_097_152 + 8_388_608 + 9_600


@pytest.mark.parametrize(
    ("num_classes", "num_parameters"),
    [(17, 11_185_233), (1_628, 12_011_676), (1, 11_177_025)],
)
def test_resnet18_has_the_published_size(num_classes: int, num_parameters: int) -> None:
    assert num_parameters == TRUNK + 513 * num_classes
    assert num_trained(build(num_classes, name="resnet18")) == num_parameters


LIGHT = {
    "resnet18": 64,
    "resnet50": 64,
    "mobilenet_v3_small": 64,
    "efficientnet_b0": 64,
    "densenet121": 64,
    "shufflenet_v2_x0_5": 64,
    "regnet_y_400mf": 64,
    "mnasnet0_5": 64,
    "googlenet": 64,
    "convnext_tiny": 64,
    "swin_t": 64,
    "vit_b_16": 224,
    models.SMALL_CNN: 32,
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_network_gives_each_image_its_logits_whatever_else_is_in_the_batch(name: str) -> None:
    module = build(5, LIGHT[name], name=name)
    assert module.training
    assert not batchnorm_names(module)
    assert not batchnorm_layers(module)
    module.eval()
    batch = images(2, LIGHT[name])
    with torch.no_grad():
        together, alone = module(batch), module(batch[1:])
    assert together.shape == (2, 5)
    assert not torch.equal(together[0], together[1])
    torch.testing.assert_close(together[1:], alone, rtol=0, atol=1e-3 * float(alone.std()))


def test_a_binary_task_has_one_logit() -> None:
    assert build(1, 32, name="small_cnn")(images(3, 32)).shape == (3, 1)


def test_every_batchnorm_becomes_a_groupnorm_of_32_groups_with_its_epsilon() -> None:
    layers = [m for m in build(name="resnet18").modules() if isinstance(m, nn.GroupNorm)]
    assert len(layers) == 20
    assert {layer.num_groups for layer in layers} == {32}
    assert {layer.eps for layer in layers} == {1e-5}
    others = [m for m in build(name="mobilenet_v3_small").modules() if isinstance(m, nn.GroupNorm)]
    assert {layer.eps for layer in others} == {1e-3}
    assert {(m.num_channels, m.num_groups) for m in others} >= {(16, 8), (24, 12), (96, 32)}


@given(st.integers(1, 4_096))
def test_groups_divide_the_channels_and_hold_two_or_more(channels: int) -> None:
    groups = num_groups(channels)
    assert 1 <= groups <= 32
    assert channels % groups == 0
    assert groups == 1 or channels // groups >= 2


def test_groups_where_32_do_not_fit() -> None:
    assert [num_groups(c) for c in (512, 96, 24, 16, 7, 2, 1)] == [32, 32, 12, 8, 1, 1, 1]


def moved_batchnorm(layer: nn.BatchNorm1d | nn.BatchNorm2d, *size: int) -> nn.Module:
    torch.manual_seed(0)
    for _ in range(3):
        layer(torch.randn(*size) * 3 + 1)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2)
        layer.bias.uniform_(-1, 1)
    return layer.eval()


@pytest.mark.parametrize(
    ("layer", "size"),
    [(nn.BatchNorm2d(6, eps=1e-3), (4, 6, 5, 5)), (nn.BatchNorm1d(6), (4, 6))],
)
def test_frozen_statistics_give_what_batchnorm_gives_in_evaluation(
    layer: nn.BatchNorm1d | nn.BatchNorm2d, size: tuple[int, ...]
) -> None:
    reference = moved_batchnorm(layer, *size)
    module = nn.Sequential(moved_batchnorm(layer, *size))
    freeze_statistics(module)
    assert isinstance(module[0], FrozenStatisticsNorm)
    module.train()
    inputs = torch.randn(*size).requires_grad_()
    ours, theirs = module(inputs), reference(inputs)
    assert torch.equal(ours, theirs)
    direction = torch.randn_like(ours)
    wanted = torch.autograd.grad(theirs, [inputs, *reference.parameters()], direction)
    given = torch.autograd.grad(ours, [inputs, *module.parameters()], direction)
    assert all(torch.equal(a, b) for a, b in zip(wanted, given, strict=True))


def test_a_layer_whose_statistics_would_stay_is_refused() -> None:
    module = nn.Sequential(nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True))
    with pytest.raises(ConfigError, match=r"model\.name.*running statistics \(1\)"):
        use_group_norm(module)
    with pytest.raises(ConfigError, match=r"model\.normalization.*group"):
        freeze_statistics(nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet81"}, "no network 'resnet81'; did you mean 'resnet18'"),
        ({"name": "xyz"}, r"no network 'xyz'\. There are small_cnn and torchvision's"),
        ({"name": "fasterrcnn_resnet50_fpn"}, "no image classifier"),
        ({"name": "quantized_resnet18"}, "no image classifier"),
        ({"name": "squeezenet1_1"}, r"ReLU, so none could say 'no'"),
        ({"name": "vit_b_32"}, r"\(3, 64, 64\): Wrong image height.*task\.crop.*224"),
        ({"name": "inception_v3"}, r"does not take images of shape \(3, 64, 64\)"),
        ({"name": "resnet18", "normalization": "frozen"}, "no statistics to freeze"),
        ({"name": "resnet18", "init": "imagenet"}, "model.normalization=frozen"),
        ({"name": "alexnet", "train": "film"}, r"normalisation layers, but the network .* none"),
        ({"name": "small_cnn", "train": "lora", "lora_rank": 256}, r"model\.lora_rank.*lower it"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet18", "weights": "file.pth"}, "init: imagenet"),
        ({"name": "small_cnn", "init": "imagenet"}, "no published weights"),
        ({"name": "small_cnn", "normalization": "frozen"}, "no published weights"),
        ({"name": "resnet18", "lora_rank": 0}, "greater than or equal to 1"),
    ],
)
def test_options_that_contradict_one_another_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        models.Options(**options)  # type: ignore[arg-type]


def test_too_small_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'small_cnn' does not take images of shape \(3, 4, 4\)"):
        build(side=4, name="small_cnn")


HEAD = 513 * 17
# layer4: kernels of TRUNK's last stage, and five layers of 512 scales and biases.
LAST_BLOCK = 8_388_608 + 5 * 2 * 512
# Rank 4: 4 * (inputs of a kernel + outputs) of the stem, stage 1, and stages 2 to 4.
ADAPTERS = 4 * (
    (147 + 64)
    + 4 * (576 + 64)
    + ((576 + 128) + 3 * (1_152 + 128) + (64 + 128))
    + ((1_152 + 256) + 3 * (2_304 + 256) + (128 + 256))
    + ((2_304 + 512) + 3 * (4_608 + 512) + (256 + 512))
)
TRAINED = {
    "all": TRUNK + HEAD,
    "head": HEAD,
    "last_block": LAST_BLOCK + HEAD,
    "film": 9_600 + HEAD,
    "lora": ADAPTERS + HEAD,
}


@pytest.mark.parametrize("train", TRAINED)
def test_each_filter_trains_as_many_parameters_as_counted_by_hand(train: str) -> None:
    assert num_trained(build(name="resnet18", train=train)) == TRAINED[train]


def test_the_adapters_grow_with_their_rank() -> None:
    assert num_trained(build(name="resnet18", train="lora", lora_rank=1)) == ADAPTERS // 4 + HEAD


def is_trained(train: str, name: str) -> bool:
    """What a filter trains of the ResNet, told by names."""
    if name.startswith("fc."):
        return True
    return {
        "all": True,
        "head": False,
        "last_block": name.startswith("layer4."),
        "film": ".bn" in f".{name}" or ".downsample.1." in name,
        "lora": name.endswith((".down.weight", ".up.weight")),
    }[train]


@pytest.mark.parametrize("train", TRAINED)
def test_training_moves_what_the_filter_names_and_nothing_else(train: str) -> None:
    module = build(3, 32, name="resnet18", train=train)
    flat = FlatModel(module, torch.device("cpu"))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    inputs, targets = images(4, 32), torch.eye(4, 3)
    # The zero half of an adapter holds the gradient of the other back for a step.
    for _ in range(2):
        loss = functional.binary_cross_entropy_with_logits(module(inputs), targets)
        gradients = torch.autograd.grad(loss, flat.parameters)
        torch._foreach_add_(flat.slices, gradients, alpha=-0.1)
    after = module.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if is_trained(train, name)}


@pytest.mark.parametrize(
    ("train", "without_graph", "with_graph"),
    [("head", "layer4", "fc"), ("last_block", "layer3", "layer4"), ("lora", None, "conv1")],
)
def test_frozen_layers_before_the_trained_ones_build_no_graph(
    train: str, without_graph: str | None, with_graph: str
) -> None:
    module = build(name="resnet18", train=train)
    graphs: dict[str, bool] = {}
    for name, layer in module.named_children():
        layer.register_forward_hook(
            lambda _layer, _inputs, output, name=name: graphs.update({name: output.requires_grad})
        )
    module(images(2, 64))
    assert graphs[with_graph]
    assert without_graph is None or not graphs[without_graph]


@pytest.mark.parametrize(
    ("name", "side", "first"),
    [
        ("densenet121", 64, "features.denseblock4.denselayer1.norm1.weight"),
        ("mobilenet_v3_small", 64, "classifier.0.weight"),
        ("efficientnet_b0", 64, "features.8.0.weight"),
        ("swin_t", 64, "features.7.0.norm1.weight"),
        ("vit_b_16", 224, "encoder.layers.encoder_layer_11.ln_1.weight"),
        ("small_cnn", 32, "8.weight"),
    ],
)
def test_the_last_block_and_all_that_follows_it_is_trained(
    name: str, side: int, first: str
) -> None:
    module = build(side=side, name=name, train="last_block")
    names = [key for key, _ in module.named_parameters()]
    trained = [key for key, parameter in module.named_parameters() if parameter.requires_grad]
    assert trained == names[names.index(first) :]


def test_adapters_begin_as_the_network_without_them() -> None:
    plain, adapted = build(name="resnet18"), build(name="resnet18", train="lora")
    assert torch.equal(plain(images(2, 64)), adapted(images(2, 64)))


def fill(module: nn.Module) -> None:
    """Give the zero halves of the adapters values."""
    torch.manual_seed(7)
    for layer in module.modules():
        if isinstance(layer, LowRankAdapter):
            nn.init.normal_(layer.up.weight, std=0.05)


def test_adapters_add_a_matrix_of_their_rank_to_each_weight() -> None:
    plain, adapted = build(name="resnet18"), build(name="resnet18", train="lora", lora_rank=2)
    fill(adapted)
    assert not torch.allclose(plain(images(2, 64)), adapted(images(2, 64)), atol=1e-2)
    with torch.no_grad():
        for name, layer in adapted.named_modules():
            if isinstance(layer, LowRankAdapter):
                change = layer.up.weight.flatten(1) @ layer.down.weight.flatten(1)  # type: ignore[operator]
                assert torch.linalg.matrix_rank(change) == 2
                weight = plain.get_submodule(name).weight
                weight += change.view_as(weight)
    torch.testing.assert_close(plain(images(2, 64)), adapted(images(2, 64)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4, bias=True), (2, 8, 9, 9)),
        (nn.Conv2d(6, 10, 3, dilation=2, padding="same", padding_mode="reflect"), (2, 6, 9, 9)),
        (nn.Linear(6, 10), (2, 5, 6)),
    ],
)
def test_an_adapter_fits_its_layer(layer: nn.Conv2d | nn.Linear, size: tuple[int, ...]) -> None:
    inputs = torch.randn(*size)
    wanted = layer(inputs)
    adapter = LowRankAdapter(layer, 2)
    torch.testing.assert_close(adapter(inputs), wanted)
    fill(adapter)
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    ups, downs = (half.weight.flatten(1).chunk(groups) for half in (adapter.up, adapter.down))
    with torch.no_grad():
        change = torch.cat([up @ down for up, down in zip(ups, downs, strict=True)])
        layer.weight += change.view_as(layer.weight)
        given = adapter.up(adapter.down(inputs))
    torch.testing.assert_close(given, layer(inputs) - wanted, rtol=1e-4, atol=1e-5)


def test_layers_no_larger_than_their_adapter_get_none() -> None:
    module = build(name="mobilenet_v3_small", train="lora")
    adapted = [m.layer for m in module.modules() if isinstance(m, LowRankAdapter)]
    assert len(adapted) > 20
    assert not [m for m in adapted if isinstance(m, nn.Conv2d) and m.groups == m.in_channels]


@pytest.mark.parametrize(("name", "side"), [("vit_b_32", 224), ("swin_t", 64)])
def test_attention_that_reads_its_projections_weights_gets_no_adapter(name: str, side: int) -> None:
    module = build(3, side, name=name, train="lora")
    adapted = {key for key, layer in module.named_modules() if isinstance(layer, LowRankAdapter)}
    assert any("mlp" in key for key in adapted)
    assert not {key for key in adapted if key.endswith(("out_proj", "qkv", "attn.proj"))}
    loss = module(images(2, side)).square().mean()
    trained = [p for p in module.parameters() if p.requires_grad]
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, trained))


@pytest.mark.parametrize("train", ["all", "lora"])
def test_channels_last_changes_nothing(train: str) -> None:
    module = build(name="resnet18", train=train)
    fill(module)
    wanted = module(images(2, 64))
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    given = module(images(2, 64).to(memory_format=torch.channels_last))
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["small_cnn", "resnet18"])
def test_the_weights_are_drawn_from_torchs_generator(name: str) -> None:
    first, again, other = (build(seed=seed, name=name, train="lora") for seed in (3, 3, 4))
    states = [model.state_dict() for model in (first, again, other)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert any(not torch.equal(value, states[2][key]) for key, value in states[0].items())


def test_small_cnn_has_the_size_that_its_docstring_says() -> None:
    # Kernels and biases 448, 4,640 and 18,496; scales and biases 2*112; the head 65*17.
    assert num_trained(build(17, 32, name="small_cnn")) == 448 + 4_640 + 18_496 + 224 + 65 * 17
    assert "24,913 parameters" in str(models.small_cnn.__doc__)
    for side in (24, 64):
        assert build(side=side, name="small_cnn")(images(2, side)).shape == (2, 17)


def coloured_shapes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """One or two figures a picture; labels: square, disc, cross, red, green, blue."""
    generator = torch.Generator().manual_seed(seed)
    side, radius = 32, 6
    pictures = torch.rand(count, 3, side, side, generator=generator) * 0.3
    labels = torch.zeros(count, 6)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    for picture, label in zip(pictures, labels, strict=True):
        for _ in range(int(torch.randint(1, 3, (), generator=generator))):
            shape, colour = torch.randint(0, 3, (2,), generator=generator).tolist()
            middle = torch.randint(8, side - 8, (2,), generator=generator)
            down, right = (rows - middle[0]).abs(), (columns - middle[1]).abs()
            inside = (down < radius) & (right < radius)
            figure = [inside, down**2 + right**2 < radius**2, inside & ((down < 2) | (right < 2))]
            ink = torch.full((3, 1), 0.1)
            ink[colour] = 0.9
            picture[:, figure[shape]] = ink
            label[[shape, 3 + colour]] = 1
    return (pictures - 0.3) / 0.25, labels


def test_small_cnn_learns_shapes_and_colours() -> None:
    inputs, targets = coloured_shapes(600, 1)
    unseen, answers = coloured_shapes(200, 2)
    module = build(6, 32, name="small_cnn")
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(12):
        for batch in torch.randperm(len(inputs)).split(16):
            optimizer.zero_grad()
            outputs = module(inputs[batch])
            functional.binary_cross_entropy_with_logits(outputs, targets[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = ((module(unseen) > 0) == (answers > 0)).float().mean(0)
    always = torch.maximum(answers.mean(0), 1 - answers.mean(0))
    assert float(right[3:].min()) > 0.95, right
    assert float(right[:3].mean()) > float(always[:3].mean()) + 0.15, (right, always)
