from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from pfl_bench.config.loading import resolve
from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, DataFacts, HasColumns, TransformsBatches
from tasks.celeba import generate, models, prepare, task
from tasks.common.vision import decoding


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("celeba")
    generate.generate(folder / "raw", generate.Options(num_users=10, images_per_user=5), silent)
    options = prepare.Options(split_by="user", min_examples=3)
    prepare.prepare(folder / "raw", folder / "celeba.h5", options, silent)
    return folder / "celeba.h5"


def open_task(store: Path, **options: Any) -> task.CelebaTask:
    return task.build(task.Options(data=str(store), **options))


@pytest.mark.parametrize(
    ("resample", "pillow"),
    [("bicubic", Image.Resampling.BICUBIC), ("nearest", Image.Resampling.NEAREST)],
)
def test_images_are_resized_as_leaf_resizes_them(
    store: Path, resample: str, pillow: Image.Resampling
) -> None:
    split = open_task(store, resample=resample).split("train")
    examples = split.read_user(0, np.random.default_rng(0))
    assert examples.inputs.dtype == torch.uint8
    assert examples.targets.dtype == torch.int64
    with Store(store) as opened:
        stored = opened.split("train")
        start, stop = int(stored.offsets[0]), int(stored.offsets[1])
        images = stored.read("image", start, stop)
        assert examples.targets.tolist() == stored.read("targets", start, stop).tolist()
    assert len(examples) == len(images)
    for pixels, data in zip(examples.inputs, images, strict=True):
        with Image.open(io.BytesIO(data.tobytes())) as image:
            wanted = np.asarray(image.convert("RGB").resize((84, 84), pillow))
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), wanted)


def test_pixels_become_numbers_by_the_batch(store: Path) -> None:
    inputs = torch.tensor([0, 255, 102], dtype=torch.uint8).view(1, 3, 1, 1)
    scaled, raw = open_task(store), open_task(store, pixels="raw")
    assert isinstance(scaled, TransformsBatches)
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    draws = scaled.transform.draw(1, rng)
    assert rng.bit_generator.state == state
    for given in (draws, None):
        numbers = scaled.transform(inputs, given)
        assert numbers.flatten().tolist() == pytest.approx([-1.0, 1.0, -0.2])
        assert raw.transform(inputs, given).flatten().tolist() == [0.0, 255.0, 102.0]
    assert numbers.dtype == torch.float32


def test_kept_images_are_the_same_and_too_many_are_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew = open_task(store, size=20).split("train").read_range(0, 10)
    kept = open_task(store, size=20, keep_decoded=True).split("train")
    assert torch.equal(kept.read_range(0, 10).inputs, anew.inputs)
    assert torch.equal(kept.read_range(0, 10).inputs, anew.inputs)
    monkeypatch.setattr(decoding, "KEPT_BYTES_LIMIT", 1000)
    with pytest.raises(ConfigError, match=r"task\.keep_decoded: .*task\.size"):
        open_task(store, size=20, keep_decoded=True)


def test_attributes_are_columns(store: Path) -> None:
    opened = open_task(store, max_examples_per_user=2)
    assert isinstance(opened, HasColumns)
    assert {"male", "young", "targets", "attribute_5_o_clock_shadow"} <= set(opened.column_names)
    assert "image" not in opened.column_names
    assert opened.column_values("targets") == ["not smiling", "smiling"]
    assert opened.column_values("male") is None
    males = opened.read_column("train", "male", 0, opened.split("train").num_examples)
    offsets = opened.split("train").offsets
    each = [set(males[start:stop]) for start, stop in pairwise(offsets)]
    assert all(len(values) == 1 for values in each)
    assert len(opened.split("train").read_user(0, np.random.default_rng(0))) == 2
    assert opened.facts.class_names == ("not smiling", "smiling")
    assert opened.facts.artificial_users
    assert opened.facts.input_shape == (3, 84, 84)


def test_a_damaged_image_and_a_missing_store_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data prepare celeba"):
        open_task(tmp_path / "none.h5")
    with StoreWriter(
        tmp_path / "x.h5",
        task="celeba",
        variant="celeba-partial",
        source="made by a test",
        split_by="user",
        num_classes=2,
        input_shape=(3, 84, 84),
        fields={"image": FieldSpec("uint8", ragged=True), "targets": FieldSpec("uint8")},
    ) as writer:
        writer.set_names("targets", ["not smiling", "smiling"])
        image = [np.arange(9, dtype=np.uint8)]
        writer.append("train", "1", image=image, targets=np.ones(1, np.uint8))
    with pytest.raises(DataError, match=r"x\.h5 cannot be decoded"):
        open_task(tmp_path / "x.h5").split("train").read_range(0, 1)


@pytest.mark.parametrize(
    ("options", "num_parameters"),
    [
        # Four convolutions, four GroupNorms, a linear layer on 6 x 6 x 32.
        ({"name": "leaf_cnn"}, (27 + 3 * 288 + 4) * 32 + 4 * 64 + 2 * (36 * 32 + 1)),
        ({"name": "leaf_cnn", "normalization": "none"}, 31_202 - 4 * 64),
        (
            {"name": "cnn"},
            (75 + 1) * 32 + (32 * 25 + 1) * 64 + (64 * 21 * 21 + 1) * 2048 + 2049 * 2,
        ),
    ],
)
def test_models_have_the_sizes_of_leafs(
    store: Path, options: dict[str, Any], num_parameters: int
) -> None:
    module = models.build(models.Options(**options), open_task(store).facts)
    assert sum(parameter.numel() for parameter in module.parameters()) == num_parameters
    assert not list(module.buffers())
    assert module(torch.zeros(2, 3, 84, 84)).shape == (2, 2)


def test_docstrings_state_the_measured_sizes() -> None:
    assert "31,202" in (models.leaf_cnn.__doc__ or "")
    assert "57,862,594" in (models.cnn.__doc__ or "")


def test_an_image_is_judged_alone(store: Path) -> None:
    torch.manual_seed(0)
    module = models.build(models.Options(name="leaf_cnn"), open_task(store, size=21).facts)
    images = torch.randn(4, 3, 21, 21)
    singles = torch.cat([module(image[None]) for image in images])
    assert torch.allclose(module(images), singles, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "leaf_cnn", "groups": 5}, "does not divide"),
        ({"name": "leaf_cnn", "normalization": "none", "groups": 4}, "leave it out"),
        ({"name": "leaf_cnn", "normalization": "batch"}, "group"),
        ({"name": "cnn", "normalization": "none"}, "no normalisation"),
        ({"name": "resnet18"}, "leaf_cnn"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        models.Options(**options)


def test_foreign_data_are_refused() -> None:
    facts = DataFacts("x", "digits", "sha256:0", 10, (1, 28, 28), "user")
    with pytest.raises(ConfigError, match=r"\(3, size, size\).*digits"):
        models.build(models.Options(name="leaf_cnn"), facts)


def make_tree(store: Path, **sections: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "small",
        "device": "cpu",
        "task": {"name": "celeba", "data": str(store), "size": 24},
        "model": {"name": "leaf_cnn"},
        **sections,
    }


def test_both_kinds_of_private_training_run(store: Path, tmp_path: Path) -> None:
    federated = make_tree(
        store,
        federated={
            "num_rounds": 1,
            "cohort_size": 4,
            "local_batch_size": 5,
            "local_learning_rate": 0.01,
        },
        privacy={
            "mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "population_size": 100,
            "hypothetical_population": True,
            "epsilon": 20.0,
        },
    )
    central = make_tree(
        store,
        central={"num_epochs": 1, "batch_size": 10, "learning_rate": 0.1, "data_workers": 1},
        privacy={"mechanism": {"name": "gaussian", "clip_norm": 1.0}, "epsilon": 50.0},
    )
    units = []
    for name, tree in (("federated", federated), ("central", central)):
        summary = run(resolve(tree, Path("row.yaml"), ()), tmp_path / name)
        assert summary["num_parameters"] == summary["privacy"]["num_parameters"]
        units.append(summary["privacy"]["unit"])
    assert units == ["user", "example"]
