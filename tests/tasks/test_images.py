"""Tasks on images: stores in published order, and the clients that a row makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from pfl_bench.federated.parts import build_model, build_task
from pfl_bench.types import ConfigError, DataError
from tasks.cifar10.task import Options as Cifar10Options
from tasks.cifar10.task import build as build_cifar10
from tasks.common.images.models import lenet
from tasks.common.images.store import FeatureOptions, Images, write_images
from tasks.common.images.task import CropFlip, ImageTask
from tasks.mnist.task import Options, build
from tests.equivalence.engines import CPU, configure

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def mnist(stores: Callable[[str], Path]) -> Path:
    return stores("mnist")


def stored(path: Path, split: str, field: str) -> np.ndarray:
    with Store(path) as store:
        return store.split(split).read(field, 0, store.split(split).num_examples)


def mnist_task(path: Path, **options: Any) -> ImageTask:
    partition = options.pop("partition", None)
    parsed = Options.model_validate({"data": str(path), "partition": partition, **options})
    return build(parsed)


def test_a_store_keeps_the_published_order(mnist: Path) -> None:
    task = mnist_task(mnist)
    assert task.split_names == ("train", "test")
    split = task.split("train")
    assert split.client_ids() == ["train"]
    found = split.read_range(0, split.num_examples)
    assert found.inputs.dtype == torch.uint8
    assert found.inputs.shape == (360, 1, 28, 28)
    assert np.array_equal(found.inputs[:, 0].numpy(), stored(mnist, "train", "inputs"))
    assert np.array_equal(found.targets.numpy(), stored(mnist, "train", "targets"))
    assert task.facts.variant == "generated"
    assert task.facts.input_shape == (1, 28, 28)
    assert task.facts.class_names == tuple("0123456789")
    scaled = task.transform(found.inputs[:2], None)
    assert torch.equal(scaled, found.inputs[:2] / 255)


def test_artificial_clients_divide_train_alone(mnist: Path) -> None:
    partition = {"kind": "labels", "num_clients": 10, "labels_per_client": 2, "seed": 1}
    task = mnist_task(mnist, partition=partition)
    train, test = task.split("train"), task.split("test")
    assert (train.num_users, test.num_users) == (10, 1)
    assert task.facts.artificial_users
    assert task.facts.variant == "generated-labels"
    inputs, targets = stored(mnist, "train", "inputs"), stored(mnist, "train", "targets")
    kept = {image.tobytes(): int(label) for image, label in zip(inputs, targets, strict=True)}
    assert len(kept) == 360
    for client in range(10):
        own = train.read_user(client, RNG)
        assert len(own.targets.unique()) == 2
        for image, label in zip(own.inputs.numpy(), own.targets.tolist(), strict=True):
            assert kept.pop(image.tobytes()) == label
    assert not kept
    again = mnist_task(mnist, partition=partition).facts
    assert again.extra["clients"] == task.facts.extra["clients"]
    other = mnist_task(mnist, partition={**partition, "seed": 2}).facts
    assert other.extra["clients"] != again.extra["clients"]
    assert other.checksum == again.checksum


def test_writers_are_real_clients(mnist: Path) -> None:
    task = mnist_task(mnist, partition={"kind": "writers"})
    assert not task.facts.artificial_users
    assert task.facts.variant == "generated-writers"
    train = task.split("train")
    assert train.client_ids() == [f"writer-{writer:04d}" for writer in range(12)]
    writers = stored(mnist, "train", "writer")
    for writer in range(12):
        own = train.read_user(writer, RNG).inputs[:, 0].numpy()
        assert np.array_equal(own, stored(mnist, "train", "inputs")[writers == writer])
    assert task.split("test").num_users == 6


def test_whole_writers_are_held_out_of_all_images(mnist: Path) -> None:
    options = {"splits": "writers", "val_fraction": 0.25, "test_fraction": 0.17}
    task = mnist_task(mnist, partition={"kind": "writers"}, **options)
    assert task.split_names == ("train", "val", "test")
    assert task.facts.variant == "generated-by-writer"
    users = {name: set(task.split(name).client_ids()) for name in task.split_names}
    assert [len(ids) for ids in users.values()] == [7, 3, 2]
    assert len(set.union(*users.values())) == 12
    assert sum(task.split(name).num_examples for name in task.split_names) == 420
    # The writers of test who also wrote images of train have all of them in one split.
    writers = np.concatenate([stored(mnist, name, "writer") for name in ("train", "test")])
    val = task.split("val")
    for place, name in enumerate(val.client_ids()):
        expected = int((writers == int(name.removeprefix("writer-"))).sum())
        assert int(np.diff(val.offsets)[place]) == expected
    other = mnist_task(mnist, partition={"kind": "writers"}, **options, split_seed=1)
    assert set(other.split("test").client_ids()) != users["test"]
    iid = mnist_task(mnist, partition={"kind": "iid", "num_clients": 5}, **options)
    assert iid.facts.variant == "generated-by-writer-iid"
    assert iid.split("train").num_users == 5
    assert iid.split("val").num_users == 1


def test_noise_grows_from_client_to_client_and_is_drawn_once(mnist: Path) -> None:
    partition = {"kind": "feature_noise", "num_clients": 4, "level": 0.4, "seed": 3}
    noisy = mnist_task(mnist, partition=partition).split("train")
    clean = mnist_task(mnist, partition={"kind": "iid", "num_clients": 4, "seed": 3}).split("train")
    for client in range(4):
        own, plain = noisy.read_user(client, RNG), clean.read_user(client, RNG)
        assert own.inputs.dtype == torch.float32
        added = own.inputs - plain.inputs / 255
        assert float(added.std()) == pytest.approx(0.1 * (client + 1), rel=0.02)
        assert abs(float(added.mean())) < 0.01
        assert torch.equal(own.inputs, noisy.read_user(client, RNG).inputs)
    task = mnist_task(mnist, partition=partition)
    assert torch.equal(task.transform(own.inputs, None), own.inputs)
    # What is evaluated has none.
    assert task.split("test").read_range(0, 2).inputs.dtype == torch.uint8


def test_crops_and_flips_are_those_of_a_padded_image() -> None:
    transform = CropFlip(8, padding=3)
    inputs = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
    draws = transform.draw(50, np.random.default_rng(1))
    assert draws.shape == (50, 3)
    assert draws.min(0).values.tolist() == [0, 0, 0]
    assert draws.max(0).values.tolist() == [6, 6, 1]
    padded = functional.pad(inputs.float(), (3, 3, 3, 3), mode="reflect") / 255
    found = transform(inputs, draws)
    for image, (top, left, flip), given in zip(padded, draws.tolist(), found, strict=True):
        cut = image[:, top : top + 8, left : left + 8]
        assert torch.equal(given, cut.flip(2) if flip else cut)
    assert torch.equal(transform(inputs, None), inputs / 255)


def test_only_training_images_of_cifar10_are_augmented(stores: Callable[[str], Path]) -> None:
    path = str(stores("cifar10"))
    task = build_cifar10(Cifar10Options(data=path, augment=True))
    inputs = task.split("train").read_range(0, 20).inputs
    assert inputs.shape == (20, 3, 32, 32)
    draws = task.transform.draw(20, np.random.default_rng(1))
    assert not torch.equal(task.transform(inputs, draws), inputs / 255)
    assert torch.equal(task.transform(inputs, None), inputs / 255)
    plain = build_cifar10(Cifar10Options(data=path))
    draws = plain.transform.draw(20, np.random.default_rng(1))
    assert torch.equal(plain.transform(inputs, draws), inputs / 255)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"augment": True}, "task.augment: of pixels alone, .*-scattering.*features=pixels"),
        (
            {"partition": {"kind": "feature_noise", "num_clients": 2, "level": 0.1}},
            r"task\.partition: kind 'feature_noise': of pixels alone",
        ),
    ],
)
def test_features_are_neither_augmented_nor_made_noisy(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    write_images(
        tmp_path / "s.h5",
        {"train": Images(np.zeros((2, 3, 8, 8), np.uint8), np.arange(2, dtype=np.uint8))},
        FeatureOptions(features="scattering"),
        lambda what, done, total: None,
        task="cifar10",
        variant="made",
        source="made for a test",
        class_names=("a", "b"),
    )
    with pytest.raises(ConfigError, match=told):
        build_cifar10(Cifar10Options.model_validate({"data": str(tmp_path / "s.h5"), **options}))


class Published(nn.Module):
    """The network as it is described: activations before pooling, rows of a fixed width."""

    def __init__(self, ours: nn.Sequential) -> None:
        super().__init__()
        self.weighted = [layer for layer in ours if isinstance(layer, nn.Conv2d | nn.Linear)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first, second, *dense = self.weighted
        images = functional.max_pool2d(functional.relu(first(images)), 2)
        images = functional.max_pool2d(functional.relu(second(images)), 2)
        rows = images.reshape(len(images), -1)
        for layer in dense[:-1]:
            rows = functional.relu(layer(rows))
        return dense[-1](rows)


@pytest.mark.parametrize(("channels", "side", "parameters"), [(1, 28, 44_426), (3, 32, 62_006)])
def test_lenet_is_the_published_network(channels: int, side: int, parameters: int) -> None:
    network = lenet(channels, side, 10)
    assert sum(p.numel() for p in network.parameters()) == parameters
    shapes = [tuple(p.shape) for p in network.parameters() if p.ndim > 1]
    width = 16 * ((side - 12) // 4) ** 2
    assert shapes == [(6, channels, 5, 5), (16, 6, 5, 5), (120, width), (84, 120), (10, 84)]
    images = torch.rand(4, channels, side, side)
    assert torch.equal(network(images), Published(network)(images))


@pytest.mark.parametrize(
    ("task", "model", "parameters"),
    [
        ("mnist", "softmax", 7_850),
        # McMahan et al. 2017, section 3, and FLGo's.
        ("mnist", "mcmahan_cnn", 1_663_370),
        ("fashion_mnist", "small_cnn", 24_170),
        ("cifar10", "softmax", 30_730),
        ("cifar10", "small_cnn", 24_458),
    ],
)
def test_models_fit_the_tasks(
    stores: Callable[[str], Path], task: str, model: str, parameters: int
) -> None:
    resolved = configure({"name": task, "data": str(stores(task))}, {"name": model})
    built = build_task(resolved, CPU)
    flat = build_model(resolved, built, CPU)
    assert flat.num_parameters == parameters
    inputs = built.transform(built.split("test").read_range(0, 3).inputs, None)
    assert flat.module(inputs).shape == (3, 10)


def test_statistics_count_each_client_s_classes(
    mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = "partition={kind: labels, num_clients: 10, labels_per_client: 1}"
    command = ["data", "stats", str(mnist), partition, "clients=3"]
    assert main([*command, "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    assert "ARTIFICIAL CLIENTS: THEY STAND FOR NO PERSON" in printed
    assert "train: 10 clients of 36 to 36 images, mean 36.00, sd 0.00" in printed
    lines = printed.splitlines()
    for client in range(3):
        (line,) = [text for text in lines if text.startswith(f"client-{client} ")]
        assert line.split()[1:] == [*("36" if k == client else "0" for k in range(10)), "36"]
    assert "and 7 clients more" in printed
    assert any("images_by_class" in path.name for path in (tmp_path / "plots").iterdir())
    assert main([*command[:3], "partition={kind: writers}"]) == 0
    printed = capsys.readouterr().out
    assert "ARTIFICIAL" not in printed
    assert "writer-0011" in printed
    assert main([*command[:3], "partition={kind: dirichlet, num_clients: 10}"]) == 2
    assert "partition.alpha: required, but missing" in capsys.readouterr().err
    assert main([*command[:3], "partition={kind: shards}"]) == 2
    assert "a section whose kind is one of 'iid', 'dirichlet', 'labels'" in capsys.readouterr().err


def test_writers_who_are_not_known_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    images = Images(np.zeros((20, 28, 28), np.uint8), np.arange(20) % 10)
    other = Images(np.ones((20, 28, 28), np.uint8), np.arange(20) % 10)
    about = {"task": "mnist", "variant": "mnist", "source": "zeros", "class_names": [*"0123456789"]}
    write_images(path, {"train": images, "test": other}, FeatureOptions(), print, **about)
    for options in ({"partition": {"kind": "writers"}}, {"splits": "writers"}):
        with pytest.raises(ConfigError, match="does not know who wrote what"):
            mnist_task(path, **options)
    with pytest.raises(DataError, match="is a folder"):
        write_images(tmp_path, {"train": images}, FeatureOptions(), print, **about)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"splits": "writers", "val_fraction": 0.5, "test_fraction": 0.5}, "no writer for train"),
        ({"val_fraction": 0.2}, "val_fraction: for splits 'writers' alone"),
        ({"split_seed": 3}, "split_seed: for splits 'writers' alone"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Options.model_validate({"data": "x.h5", **options})
