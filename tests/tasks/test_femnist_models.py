from __future__ import annotations

import pytest
import torch

from pfl_bench.client.model_checks import batchnorm_layers
from pfl_bench.types import ConfigError, DataFacts
from tasks.femnist import models


def facts(num_classes: int, input_shape: tuple[int, ...] = (1, 28, 28)) -> DataFacts:
    return DataFacts("made by a test", "test", "sha256:0", num_classes, input_shape, "example")


@pytest.mark.parametrize(
    ("name", "num_classes", "num_parameters"),
    [
        # LEAF's network: counted from models/femnist/cnn.py; Reddi et al. 2021, table 4.
        ("leaf_cnn", 62, 6_603_710),
        ("leaf_cnn", 10, 6_497_162),
        ("cnn", 62, 1_206_590),
        ("cnn", 10, 1_199_882),
        # torchvision's ResNet-18 with 62 classes, less two input channels of 7 x 7 x 64.
        ("resnet18", 62, 11_208_318 - 2 * 7 * 7 * 64),
        ("softmax", 62, 48_670),
        ("softmax", 10, 7_850),
    ],
)
def test_models_have_the_published_size_and_give_logits(
    name: str, num_classes: int, num_parameters: int
) -> None:
    model = models.build(models.Options(name=name), facts(num_classes))  # type: ignore[arg-type]
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, num_classes)


def test_only_the_network_of_reddi_et_al_has_dropout() -> None:
    inputs = torch.rand(3, 1, 28, 28)
    for name, random in (
        ("leaf_cnn", False),
        ("cnn", True),
        ("resnet18", False),
        ("softmax", False),
    ):
        model = models.build(models.Options(name=name), facts(62))  # type: ignore[arg-type]
        assert torch.equal(model(inputs), model(inputs)) is not random
        model.eval()
        assert torch.equal(model(inputs), model(inputs))


def test_no_layer_of_resnet18_keeps_statistics_of_examples() -> None:
    model = models.build(models.Options(name="resnet18"), facts(62))
    assert batchnorm_layers(model) == ()
    assert list(model.buffers()) == []


def test_data_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\(1, 28, 28\).*\(64,\)"):
        models.build(models.Options(name="cnn"), facts(10, (64,)))
