"""Networks and features of DP-SGD's standard tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.data import open_store
from pfl_bench.plugins import MODEL, build
from pfl_bench.trainers.private_statistics import release_statistics
from pfl_bench.types import ConfigError, DataFacts, Examples, NormalizesByStatistics
from privacy.noise.feature_statistics import FeatureStatistics
from tasks.common.images.models import FixedNormalization, Options, draw_he_normal
from tasks.common.images.store import FeatureOptions, Images, write_images
from tasks.common.vision.pictures import IMAGENET_MEAN, IMAGENET_STD
from tasks.common.vision.scattering import COEFFICIENTS, Standardized, scattering

CPU = torch.device("cpu")
# By kymatio 0.3.0, ScatteringTorch2D(J=2), of the images of ``pattern``: the sum, and some places.
KYMATIO: dict[tuple[int, int], tuple[float, dict[tuple[int, int, int], float]]] = {
    (1, 28): (
        62.490807,
        {
            (0, 0, 0): 0.520189,
            (3, 2, 5): 0.032816,
            (9, 6, 6): 0.010326,
            (16, 3, 3): 0.024744,
            (17, 0, 6): 0.0051,
            (40, 5, 1): 0.001931,
            (80, 4, 4): 0.004596,
        },
    ),
    (3, 32): (
        247.110566,
        {
            (0, 0, 0): 0.423259,
            (9, 6, 6): 0.012183,
            (17, 0, 6): 0.005164,
            (80, 4, 4): 0.004387,
            (100, 1, 2): 0.011776,
            (242, 7, 7): 0.006497,
        },
    ),
}


def facts(shape: tuple[int, ...]) -> DataFacts:
    return DataFacts("test", "mnist", "sha256:0", 10, shape, "user")


def pattern(channels: int, side: int) -> torch.Tensor:
    numbers = torch.arange(side * side * channels).reshape(1, channels, side, side)
    return (numbers * 7919 % 251 / 251).float()


@pytest.mark.parametrize("size", KYMATIO)
def test_scattering_is_kymatio_s(size: tuple[int, int]) -> None:
    channels, side = size
    total, places = KYMATIO[size]
    images = pattern(channels, side)
    features = scattering(torch.cat([images] * 20))
    assert features.shape == (20, channels * COEFFICIENTS, side // 4, side // 4)
    # Its filters are scaled by a pi of 3.1415.
    assert float(features[0].sum()) == pytest.approx(total, rel=1e-4)
    for place, value in places.items():
        assert float(features[19][place]) == pytest.approx(value, abs=3e-5)


def test_scattering_refuses_sides_that_it_was_not_made_for() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        scattering(torch.zeros(1, 1, 30, 30))


@pytest.mark.parametrize(
    ("options", "shape", "parameters"),
    [
        ({"name": "opacus_cnn"}, (1, 28, 28), 26_010),
        ({"name": "tfp_cnn"}, (1, 28, 28), 26_010),
        ({"name": "tramer_cnn"}, (1, 28, 28), 26_010),
        ({"name": "tramer_cnn"}, (3, 32, 32), 550_570),
        ({"name": "scatter_linear"}, (81, 7, 7), 39_700),
        ({"name": "scatter_linear", "groups": 27}, (81, 7, 7), 39_700),
        ({"name": "scatter_linear"}, (243, 8, 8), 155_530),
        ({"name": "scatter_cnn"}, (81, 7, 7), 33_066),
        ({"name": "scatter_cnn", "groups": 27}, (81, 7, 7), 33_066),
        ({"name": "scatter_cnn"}, (243, 8, 8), 187_210),
    ],
)
def test_sizes_are_the_sources(
    options: dict[str, Any], shape: tuple[int, ...], parameters: int
) -> None:
    model: nn.Module = build(MODEL, "mnist", Options(**options), facts(shape))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.rand(3, *shape)).shape == (3, 10)


def test_models_refuse_other_data() -> None:
    for name, shape in (("opacus_cnn", (3, 32, 32)), ("scatter_linear", (1, 28, 28))):
        with pytest.raises(ConfigError, match=f"'{name}' of task mnist takes"):
            build(MODEL, "mnist", Options(name=name), facts(shape))
    with pytest.raises(ValueError, match="does not divide 81"):
        Options(name="scatter_linear", groups=4)


def test_weights_are_drawn_as_keras_he_normal_draws_them() -> None:
    layer = nn.Conv2d(20, 400, 5)
    draw_he_normal(nn.Sequential(layer))
    deviation = (2.0 / (20 * 25)) ** 0.5
    assert float(layer.weight.detach().std()) == pytest.approx(deviation, rel=0.01)
    # Cut off at two standard deviations of what is cut.
    assert float(layer.weight.detach().abs().max()) <= 2 * deviation / 0.8796
    assert not layer.bias.any()


def test_features_are_normalised_by_the_given_statistics() -> None:
    model = Standardized(81, nn.Sequential(nn.Flatten(), nn.Linear(81 * 49, 10)))
    assert isinstance(model, NormalizesByStatistics)
    inputs = torch.rand(40, 81, 7, 7) * 3 + torch.arange(81).view(1, -1, 1, 1)
    means, squares = model.moments(inputs)
    mean = means.mean(0)
    variance = squares.mean(0) - mean**2
    variance[5] = 0.0
    model.set_statistics(mean.double(), variance.double())
    with torch.no_grad():
        weight, bias = model.parameters()
        weight.fill_(1.0)
        bias.zero_()
        # Of the sum of all channels, nothing is left but what rounding leaves, and channel 5.
        whole = model(inputs).mean()
        inputs[:, 5] += 1000.0
        assert torch.equal(whole, model(inputs).mean())
    assert abs(float(whole)) < 1e-2


def test_released_statistics_are_those_of_all_training_examples() -> None:
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(rng.normal(size=(2500, 3, 1, 1)), 2.0, (2500, 3, 2, 2)))
    model = FlatModel(Standardized(3, nn.Sequential(nn.Flatten(), nn.Linear(12, 2))), CPU)
    split: Any = SimpleNamespace(
        num_examples=2500, read_examples=lambda block, _: Examples(inputs[block], inputs[block])
    )
    forward: Any = SimpleNamespace(prepare=lambda given, draws: given)
    request = FeatureStatistics(1e-9, 1e3, 1e3)
    record = release_statistics(request, model, split, forward, np.random.default_rng(1))
    means = inputs.mean(dim=(0, 2, 3))
    torch.testing.assert_close(model.module.mean, means.float(), rtol=0, atol=1e-6)
    variances = inputs.square().mean(dim=(0, 2, 3)) - means**2
    torch.testing.assert_close(model.module.scale, variances.rsqrt().float(), rtol=1e-4, atol=0)
    assert record["mean"]["count"] == record["square"]["count"] == 3


def test_prepared_features_are_those_of_normalised_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    splits = {"train": Images(images, np.arange(6)), "test": Images(images[:2], np.arange(2))}
    about = {"task": "cifar10", "variant": "cifar10", "source": "noise"}
    told: list[int] = []

    def progress(what: str, done: int, total: int | None) -> None:
        told.append(done)

    about |= {"class_names": [*"0123456789"], "normalization": (IMAGENET_MEAN, IMAGENET_STD)}
    write_images(tmp_path / "pixels.h5", splits, FeatureOptions(), progress, **about)
    stored = open_store(str(tmp_path / "pixels.h5"), "cifar10").split("train").read("inputs", 0, 6)
    np.testing.assert_array_equal(stored, images)
    assert told == []
    options = FeatureOptions(features="scattering")
    write_images(tmp_path / "store.h5", splits, options, progress, **about)
    assert told == [6, 2]
    store = open_store(str(tmp_path / "store.h5"), "cifar10")
    assert store.facts.variant == "cifar10-scattering"
    stored = store.split("train").read("inputs", 0, 6)
    pixels = FixedNormalization(IMAGENET_MEAN, IMAGENET_STD)(torch.from_numpy(images).float() / 255)
    np.testing.assert_allclose(stored, scattering(pixels).numpy(), rtol=1e-3, atol=1e-4)
    assert stored.dtype == np.float16
