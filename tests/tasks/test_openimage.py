from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pfl_bench.config.loading import resolve
from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, DataFacts, TransformsBatches
from tasks.openimage import generate, models, prepare, task
from tasks.openimage.task import MEAN, STD, FlipNormalize


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openimage") / "raw"
    options = generate.Options(num_users=10, examples_per_user=6, num_labels=3, side=32)
    facts = generate.generate(folder, options, silent)
    assert facts["prepare_options"] == []
    return folder


@pytest.fixture(scope="module")
def store(raw: Path) -> Path:
    out = raw.parent / "openimage.h5"
    prepare.prepare(raw, out, prepare.Options(), silent)
    return out


def open_task(store: Path, **options: Any) -> task.OpenImageTask:
    return task.build(task.Options(data=str(store), **options))


def test_pictures_keep_their_bytes_and_are_decoded_when_read(raw: Path, store: Path) -> None:
    examples = open_task(store, size=24).split("test").read_range(0, 1)
    assert examples.inputs.dtype == torch.uint8
    assert examples.inputs.shape == (1, 3, 24, 24)
    with Store(store) as opened:
        split = opened.split("test")
        client = split.client_ids()[0]
        content = split.read("image", 0, 1)[0].tobytes()
    assert content == (raw / "test" / f"{int(client):05d}_0000.jpg").read_bytes()
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    scaled = np.asarray(picture.resize((24, 24), Image.Resampling.BILINEAR))
    assert np.array_equal(examples.inputs[0].permute(1, 2, 0).numpy(), scaled)


def test_the_store_says_what_the_data_are(store: Path) -> None:
    opened = open_task(store)
    assert opened.facts.variant == "openimage-generated"
    assert opened.facts.artificial_users
    assert opened.facts.class_names == ("Ball", "Ring", "Kite")
    assert opened.facts.input_shape == (3, 256, 256)
    assert opened.facts.split_by == "user"
    assert opened.facts.extra["table5"]["all"]["clients"] == 10
    assert isinstance(opened, TransformsBatches)


def test_generating_is_repeatable(raw: Path, tmp_path: Path) -> None:
    options = generate.Options(num_users=10, examples_per_user=6, num_labels=3, side=32)
    generate.generate(tmp_path / "again", options, silent)
    paths = sorted(path.relative_to(raw) for path in raw.rglob("*") if path.is_file())
    assert len(paths) > 20
    assert all((tmp_path / "again" / p).read_bytes() == (raw / p).read_bytes() for p in paths)
    with pytest.raises(DataError, match="not empty"):
        generate.generate(tmp_path / "again", options, silent)


def test_training_mirrors_and_evaluation_does_not() -> None:
    transform = FlipNormalize(augment=True)
    pixels = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    plain = transform(pixels, None)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(plain, (pixels / 255.0 - mean) / std, atol=1e-5, rtol=1e-5)
    mirrored = transform(pixels, torch.tensor([[0], [1]]))
    assert torch.equal(mirrored[0], plain[0])
    assert torch.equal(mirrored[1], plain[1].flip(2))
    draws = transform.draw(400, np.random.default_rng(0))
    assert 150 < int(draws.sum()) < 250
    rng = np.random.default_rng(0)
    assert int(FlipNormalize(augment=False).draw(9, rng).sum()) == 0
    assert rng.random() == np.random.default_rng(0).random()


def test_iid_clients_share_all_training_pictures_equally(store: Path) -> None:
    natural, iid = open_task(store, size=16), open_task(store, size=16, partition="iid")
    assert iid.facts.variant == "openimage-generated-iid"
    ours, theirs = iid.split("train"), natural.split("train")
    assert ours.num_users == theirs.num_users
    sizes = np.diff(ours.offsets)
    assert sizes.sum() == theirs.num_examples
    assert sizes.max() - sizes.min() <= 1
    assert ours.client_ids()[1] == "iid-1"
    rng = np.random.default_rng(0)
    users = [ours.read_user(user, rng) for user in range(ours.num_users)]
    partitioned = torch.cat([user.inputs for user in users])
    assert torch.equal(partitioned, ours.read_range(0, ours.num_examples).inputs)
    plain = theirs.read_range(0, theirs.num_examples).inputs
    assert not torch.equal(partitioned, plain)
    assert sorted(x.numpy().tobytes() for x in partitioned) == sorted(
        x.numpy().tobytes() for x in plain
    )
    targets = torch.cat([user.targets for user in users]).numpy()
    assert np.array_equal(iid.read_column("train", "targets", 0, len(targets)), targets)
    assert torch.equal(
        iid.split("test").read_range(0, 2).inputs, natural.split("test").read_range(0, 2).inputs
    )
    for wrong in (lambda: ours.read_user(99, rng), lambda: ours.read_examples(np.array([-1]), rng)):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError, match="not within"):
        ours.read_range(0, 10_000)


def test_a_large_iid_client_gives_a_fresh_subset(store: Path) -> None:
    split = open_task(store, size=16, partition="iid", max_examples_per_user=2).split("train")
    first, second = (split.read_user(0, np.random.default_rng(seed)) for seed in (0, 1))
    assert len(first) == len(second) == 2


def test_kept_pictures_are_the_same(store: Path) -> None:
    kept = open_task(store, size=16, keep_decoded=True).split("train")
    plain = open_task(store, size=16).split("train").read_range(0, 4)
    for _ in range(2):
        assert torch.equal(kept.read_range(0, 4).inputs, plain.inputs)


def test_a_damaged_picture_is_named(raw: Path, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    for path in raw.rglob("*"):
        if path.is_file():
            target = source / path.relative_to(raw)
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_bytes(path.read_bytes())
    (source / "GENERATED.txt").unlink()
    lines = (source / "client_data_mapping" / "train.csv").read_text().splitlines()
    name = lines[3].split(",")[1]
    cut = (source / "train" / name).read_bytes()
    (source / "train" / name).write_bytes(cut[: len(cut) // 2])
    with pytest.raises(DataError, match=f"train.csv, line 4: the sample .*{name} cannot be read"):
        prepare.prepare(source, tmp_path / "s.h5", prepare.Options(), silent)
    assert not (tmp_path / "s.h5").exists()
    (source / "train" / name).write_bytes(b"text")
    with pytest.raises(DataError, match=r"cannot be read \(it is no picture in JPEG or PNG\)"):
        prepare.prepare(source, tmp_path / "s.h5", prepare.Options(), silent)
    facts = prepare.prepare(
        source, tmp_path / "s.h5", prepare.Options(bad_samples="leave_out"), silent
    )
    assert facts["variant"] == "openimage-partial"
    assert facts["bad_samples"]["left_out"] == 1


def test_a_store_with_a_broken_picture_says_so(tmp_path: Path) -> None:
    fields = {"image": FieldSpec("uint8", ragged=True), "targets": FieldSpec("uint16")}
    with StoreWriter(
        tmp_path / "s.h5",
        task="openimage",
        variant="v",
        source="made",
        split_by="user",
        num_classes=1,
        input_shape=(3, 256, 256),
        fields=fields,
    ) as writer:
        writer.set_names("targets", ["Tree"])
        image = [np.frombuffer(b"no picture", np.uint8)]
        writer.append("train", "a", image=image, targets=np.zeros(1, np.uint16))
    with pytest.raises(DataError, match="cannot be decoded"):
        open_task(tmp_path / "s.h5").split("train").read_range(0, 1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("shufflenet_v2_x2_0", 6_566_200), ("mobilenet_v2", 2_987_348), ("small_cnn", 62_548)],
)
def test_models_have_published_sizes_and_keep_no_statistics(name: str, parameters: int) -> None:
    facts = DataFacts("made", "v", "sha256:0", 596, (3, 64, 64), "user")
    model = models.build(models.Options(name=name), facts)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert list(model.buffers()) == []
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 596)


def test_a_model_refuses_other_data() -> None:
    facts = DataFacts("made", "grey", "sha256:0", 4, (28, 28), "user")
    with pytest.raises(ConfigError, match="takes inputs of shape"):
        models.build(models.Options(name="mobilenet_v2"), facts)


def test_a_private_row_runs(store: Path, tmp_path: Path) -> None:
    tree = {
        "version": 1,
        "name": "small",
        "device": "cpu",
        "task": {"name": "openimage", "data": str(store), "size": 24},
        "model": {"name": "small_cnn"},
        "federated": {
            "num_rounds": 2,
            "cohort_size": 3,
            "local_epochs": 3,
            "local_steps": 3,
            "local_batch_size": 4,
            "local_learning_rate": 0.1,
        },
        "privacy": {
            "mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "population_size": "training_users",
            "noise_multiplier": 1.0,
        },
        "evaluation": {"every": 2, "splits": ["val"]},
    }
    summary = run(resolve(tree, Path("small.yaml"), ()), tmp_path / "run")
    assert summary["rounds"] == 2
    assert 0 <= summary["metrics"]["test/accuracy"] <= 1
