from __future__ import annotations

import io
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from torchvision.transforms import v2

from pfl_bench.data import Store
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.types import ConfigError, DataError, ReadsOnDevice, TransformsBatches
from tasks.common.vision.pictures import IMAGENET_MEAN, IMAGENET_STD
from tasks.flair.decoding import CropFlipNormalize, Decoder, num_components
from tasks.flair.task import FlairTask, Options, build
from tests.tasks.flair_store import COARSE, FINE, encode, picture, write_store

SIDE = 64


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("flair") / "small.h5", SIDE)


def open_task(store: Path, **options: Any) -> FlairTask:
    return build(Options(data=str(store), **{"crop": 32, **options}))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pixels(store: Path, split: str, index: int) -> torch.Tensor:
    """One picture, decoded by Pillow."""
    with Store(store) as opened:
        data = opened.split(split).read("image", index, index + 1)[0].tobytes()
    return torch.from_numpy(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).copy()).permute(
        2, 0, 1
    )


def test_a_user_s_examples_are_the_stored_ones(store: Path) -> None:
    split = open_task(store).split("train")
    examples = split.read_user(3, rng())
    assert examples.inputs.shape == (9, 3, SIDE, SIDE)
    assert examples.inputs.dtype == torch.uint8
    start = int(split.offsets[3])
    for row in range(9):
        # Decoders round the inverse cosine transform differently, by a grey level or so.
        difference = examples.inputs[row].int() - pixels(store, "train", start + row).int()
        assert int(difference.abs().max()) <= 3
    with Store(store) as opened:
        labels = opened.split("train").read("coarse", start, start + 9)
    assert [row.nonzero().flatten().tolist() for row in examples.targets] == [
        own.tolist() for own in labels
    ]


@pytest.mark.parametrize(("labels", "names"), [("coarse", COARSE), ("fine", FINE)])
def test_facts_name_the_classes(store: Path, labels: str, names: tuple[str, ...]) -> None:
    facts = open_task(store, labels=labels).facts
    assert facts.class_names == names
    assert facts.num_classes == len(names)
    assert facts.input_shape == (3, 32, 32)
    assert facts.extra["generated"] is True
    assert "coarse_labels" not in facts.extra


def test_binary_is_the_column_of_its_label(store: Path) -> None:
    coarse = open_task(store).split("train").read_range(0, 20).targets
    for column, name in enumerate(COARSE):
        task = open_task(store, labels="binary", binary_label=name)
        assert task.facts.class_names == (name,)
        assert torch.equal(task.split("train").read_range(0, 20).targets, coarse[:, [column]])


def test_an_unknown_binary_label_is_answered_with_the_nearest(store: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'structure'"):
        open_task(store, labels="binary", binary_label="structures")


def test_a_large_user_gives_a_fresh_subset_each_time(store: Path) -> None:
    split = open_task(store, max_examples_per_user=4).split("train")
    whole = open_task(store).split("train").read_user(3, rng()).inputs
    subsets = [split.read_user(3, rng(seed)).inputs for seed in (1, 1, 2)]
    assert all(len(subset) == 4 for subset in subsets)
    assert torch.equal(subsets[0], subsets[1])
    assert not torch.equal(subsets[0], subsets[2])
    for one in subsets[2]:
        assert any(torch.equal(one, other) for other in whole)
    # A small user is read whole, and draws nothing.
    stream = rng()
    assert len(split.read_user(1, stream)) == 5 or len(split.read_user(1, stream)) == 4
    small, untouched = rng(), rng()
    split.read_user(2, small)
    assert small.integers(1 << 30) == untouched.integers(1 << 30)


def test_iid_keeps_sizes_and_pictures_and_mixes_the_owners(store: Path) -> None:
    natural, iid = (open_task(store, partition=p) for p in ("natural", "iid"))
    assert iid.facts.variant == "flair-generated-iid"
    before, after = natural.split("train"), iid.split("train")
    assert np.array_equal(before.offsets, after.offsets)
    assert not set(before.client_ids()) & set(after.client_ids())

    def fingerprints(split: Any) -> list[list[int]]:
        users = [split.read_user(user, rng()).inputs for user in range(split.num_users)]
        return [[int(one.long().sum()) for one in user] for user in users]

    first, second = fingerprints(before), fingerprints(after)
    assert sorted(chain(*first)) == sorted(chain(*second))
    assert [sorted(user) for user in first] != [sorted(user) for user in second]
    assert fingerprints(open_task(store, partition="iid").split("train")) == second
    assert (
        fingerprints(open_task(store, partition="iid", partition_seed=1).split("train")) != second
    )
    # Evaluation data stay whose they are.
    assert fingerprints(iid.split("val")) == fingerprints(natural.split("val"))


def test_all_three_ways_of_reading_agree(store: Path) -> None:
    for options in ({}, {"partition": "iid"}, {"keep_decoded": True}, {"resize": 40}):
        split = open_task(store, **options).split("train")
        whole = split.read_range(0, split.num_examples)
        order = rng().permutation(split.num_examples)
        chosen = split.read_examples(order, rng())
        assert torch.equal(chosen.inputs, whole.inputs[order])
        assert torch.equal(chosen.targets, whole.targets[order])
        start, stop = int(split.offsets[3]), int(split.offsets[4])
        assert torch.equal(split.read_user(3, rng()).inputs, whole.inputs[start:stop])
        again = split.read_examples(np.array([4, 4, 0]), rng())
        assert torch.equal(again.inputs, whole.inputs[[4, 4, 0]])
        assert len(split.read_examples(np.array([], dtype=np.int64), rng())) == 0


@pytest.mark.parametrize("index", [-1, 20])
def test_examples_outside_are_refused(store: Path, index: int) -> None:
    split = open_task(store).split("train")
    with pytest.raises(IndexError, match="examples 0 to 19"):
        split.read_examples(np.array([index]), rng())
    with pytest.raises(IndexError, match="users 0 to 4"):
        split.read_user(5, rng())


def test_resizing_is_pillow_s_antialiased_one(store: Path) -> None:
    split = open_task(store, resize=32).split("val")
    small = split.read_range(0, 1).inputs[0]
    whole = Image.fromarray(pixels(store, "val", 0).permute(1, 2, 0).numpy())
    expected = np.asarray(whole.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(small.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 4


def test_a_crop_larger_than_the_picture_is_refused(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.crop: 224 .* 64 pixels"):
        build(Options(data=str(store)))
    with pytest.raises(ConfigError, match=r"task\.crop: 32 .* 24 pixels"):
        open_task(store, resize=24)


def test_keeping_too_much_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.common.vision.decoding.KEPT_BYTES_LIMIT", 30 * 3 * SIDE**2)
    open_task(store, keep_decoded=True)
    monkeypatch.setattr("tasks.common.vision.decoding.KEPT_BYTES_LIMIT", 30 * 3 * SIDE**2 - 1)
    with pytest.raises(ConfigError, match="keep_decoded: 30 pictures"):
        open_task(store, keep_decoded=True)


def test_grey_cmyk_and_png_are_decoded_to_rgb(tmp_path: Path) -> None:
    colour = picture(rng(), SIDE)
    grey = np.asarray(Image.fromarray(colour).convert("L"))
    stream = io.BytesIO()
    Image.fromarray(colour).convert("CMYK").save(stream, "JPEG", quality=95)
    cmyk = np.frombuffer(stream.getvalue(), dtype=np.uint8)
    odd = {("val", 0): encode(grey), ("val", 1): cmyk, ("val", 2): encode(colour, "PNG")}
    store = write_store(tmp_path / "odd.h5", SIDE, pictures=odd)
    inputs = open_task(store).split("val").read_range(0, 3).inputs
    assert torch.equal(inputs[0, 0], inputs[0, 1])
    assert np.abs(inputs[0, 0].numpy().astype(int) - grey).max() <= 8
    assert np.abs(inputs[1].permute(1, 2, 0).numpy().astype(int) - colour).mean() < 16
    assert np.array_equal(inputs[2].permute(1, 2, 0).numpy(), colour)
    assert [num_components(odd["val", i].tobytes()) for i in range(3)] == [1, 4, None]


@pytest.mark.parametrize("damage", ["cut", "noise", "size"])
def test_a_damaged_picture_is_named(tmp_path: Path, damage: str) -> None:
    whole = encode(picture(rng(), SIDE))
    bad = {
        "cut": whole[:40],
        "noise": rng().integers(0, 256, 500, dtype=np.uint8),
        "size": encode(picture(rng(), SIDE // 2)),
    }[damage]
    store = write_store(tmp_path / "bad.h5", SIDE, pictures={("train", 7): bad})
    split = open_task(store).split("train")
    split.read_range(0, 7)
    with pytest.raises(DataError, match="split 'train', example 7"):
        split.read_range(0, 20)


def test_the_store_of_another_task_and_no_store_are_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data prepare flair"):
        open_task(tmp_path / "absent.h5")
    with pytest.raises(DataError, match=r"no split 'dev'.*train, val, test"):
        open_task(store).split("dev")


def test_a_gpu_that_the_model_is_not_on_is_not_decoded_on(store: Path) -> None:
    task = open_task(store, decode="gpu")
    assert isinstance(task, ReadsOnDevice)
    with pytest.raises(ConfigError, match=r"task\.decode"):
        task.use_device(torch.device("cpu"))
    open_task(store, decode="auto").use_device(torch.device("cpu"))


@pytest.mark.parametrize(("decode", "ran_on"), [("auto", "cuda"), ("cpu", "cuda"), ("auto", "cpu")])
def test_an_audit_does_not_compare_what_nvjpeg_has_decoded(
    decode: str, ran_on: str, store: Path
) -> None:
    """One grey level of a few pixels is more than rounding explains."""
    environment = {"private_seed": {"parts": {"arithmetic": {"device": ran_on}}}}
    unused, task = cast("Any", None), open_task(store, decode=decode)
    reason = OpenedRun(store, unused, environment, unused, (task, unused)).other_reading
    assert bool(reason) == ((decode, ran_on) == ("auto", "cuda"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nvjpeg_decodes_to_nearly_the_same_pixels(store: Path) -> None:
    on_gpu = open_task(store)
    on_gpu.use_device(torch.device("cuda"))
    expected = open_task(store).split("train").read_range(0, 20).inputs.int()
    found = on_gpu.split("train").read_range(0, 20).inputs
    assert found.device.type == "cuda"
    assert int((found.cpu().int() - expected).abs().max()) <= 8


def test_the_loss_is_the_mean_over_pictures_and_labels(store: Path) -> None:
    task = open_task(store)
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    targets = task.split("train").read_range(0, 6).targets
    p = outputs.double().sigmoid()
    by_hand = -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()
    assert float(task.loss(outputs, targets)) == pytest.approx(float(by_hand), rel=1e-5)
    singles = [task.loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(6)]
    assert float(torch.stack(singles).mean()) == pytest.approx(float(by_hand), rel=1e-5)


# The transform -----------------------------------------------------------------------------------


def batch(count: int = 5, side: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)


def normalised(pictures: torch.Tensor) -> torch.Tensor:
    return v2.functional.normalize(pictures.float() / 255, list(IMAGENET_MEAN), list(IMAGENET_STD))


def test_training_cuts_flips_and_normalises_as_torchvision_does() -> None:
    transform, inputs = CropFlipNormalize(40, 32, augment=True), batch(64)
    draws = transform.draw(64, rng())
    out = transform(inputs, draws)
    assert out.dtype == torch.float32
    for row, (top, left, mirrored, upside_down) in enumerate(draws.tolist()):
        expected = v2.functional.crop(inputs[row], top, left, 32, 32)
        if mirrored:
            expected = v2.functional.horizontal_flip(expected)
        if upside_down:
            expected = v2.functional.vertical_flip(expected)
        torch.testing.assert_close(out[row], normalised(expected[None])[0], rtol=1e-5, atol=1e-5)
    assert (
        transform._cut_at_once(inputs, draws)
        .float()
        .sub(transform._cut_one_by_one(inputs, draws))
        .abs()
        .max()
        == 0
    )


def test_draws_are_uniform_over_crops_and_flips() -> None:
    draws = CropFlipNormalize(40, 32, augment=True).draw(20_000, rng()).numpy()
    for column, values in ((0, 9), (1, 9), (2, 2), (3, 2)):
        counts = np.bincount(draws[:, column], minlength=values)
        assert len(counts) == values
        # Five standard deviations of a binomial count.
        sd = np.sqrt(20_000 / values * (1 - 1 / values))
        assert np.abs(counts - 20_000 / values).max() < 5 * sd
    assert abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.05


def test_evaluation_sees_the_whole_picture_scaled() -> None:
    transform, inputs = CropFlipNormalize(40, 32, augment=True), batch()
    scaled = functional.interpolate(
        inputs.float(), size=(32, 32), mode="bilinear", align_corners=False
    )
    expected = v2.functional.normalize(scaled / 255, list(IMAGENET_MEAN), list(IMAGENET_STD))
    torch.testing.assert_close(transform(inputs, None), expected, rtol=1e-4, atol=1e-4)
    same = CropFlipNormalize(40, 40, augment=True)
    torch.testing.assert_close(same(inputs, None), normalised(inputs), rtol=1e-4, atol=1e-5)


def test_without_augmentation_training_sees_what_evaluation_sees() -> None:
    transform, inputs = CropFlipNormalize(40, 32, augment=False), batch()
    used, untouched = rng(), rng()
    draws = transform.draw(5, used)
    assert used.integers(1 << 30) == untouched.integers(1 << 30)
    assert torch.equal(transform(inputs, draws), transform(inputs, None))


def test_the_inputs_are_left_as_they_are() -> None:
    transform, inputs = CropFlipNormalize(40, 40, augment=True), batch()
    before = inputs.clone()
    transform(inputs, transform.draw(5, rng()))
    transform(inputs, None)
    assert torch.equal(inputs, before)


def test_the_task_transforms_batches(store: Path) -> None:
    assert isinstance(open_task(store), TransformsBatches)


def test_nothing_is_decoded_of_nothing() -> None:
    assert Decoder("cpu", 64, 32).decode([], []).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"), "memory"),
        (RuntimeError("Failed to decode jpeg stream: 5"), "memory"),
        (RuntimeError("Failed to decode jpeg stream: 3"), "damaged"),
    ],
)
def test_memory_that_ends_in_nvjpeg_is_no_damaged_picture(
    cause: RuntimeError, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode_jpeg(*given: Any, **named: Any) -> list[torch.Tensor]:
        raise cause

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode_jpeg)
    if not torch.cuda.is_available():
        stream = SimpleNamespace(device=torch.device("cuda", 0))
        monkeypatch.setattr("torch.cuda.Stream", lambda device: stream)
    decoder, buffer = Decoder("auto", 8, None), io.BytesIO()
    decoder.use_device(torch.device("cuda"))
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    encoded = np.frombuffer(bytearray(buffer.getvalue()), np.uint8)
    raised = torch.OutOfMemoryError if expected == "memory" else DataError
    with pytest.raises(raised, match=expected):
        decoder.decode([encoded], ["image 1"])
