"""The generated mini FLAIR: FLAIR's format to the letter, its skew, and pictures that differ."""

from __future__ import annotations

import io
import json
import multiprocessing
import shlex
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.flair.drawing import FINE_TO_COARSE, GLYPHS, Camera, draw_picture
from tasks.flair.generate import (
    COARSE,
    FEWEST_FOR_PROCESSES,
    FINE,
    RAREST_SHARE,
    SPLIT_SHARE,
    Batch,
    Options,
    Plan,
    choose_processes,
    draw_in_order,
    generate,
    image_counts,
    make_plan,
)
from tasks.flair.published import COARSE_IMAGES
from tests.helpers import REPOSITORY

SMALL = Options(num_users=20, num_images=90, seed=4, num_tarballs=2, image_size=64)
STATISTICS = REPOSITORY.parent / "shared" / "data" / "flair" / "published_statistics.json"
SPLITS = ("train", "val", "test")
NEXT = ["data", "prepare", "flair", "--source", "my mini", "--out", "flair-mini.h5"]


def silent(what: str, done: int, total: int | None) -> None:
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_tarballs(folder: Path) -> list[tuple[str, Image.Image]]:
    found = []
    for path in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(path) as tarball:
            for member in tarball:
                file = tarball.extractfile(member)
                assert file is not None
                found.append((member.name, Image.open(io.BytesIO(file.read()))))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("flair") / "new" / "mini"
    generate(out, SMALL, silent)
    return out


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Options())


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    folder: Path, tmp_path: Path
) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    again.mkdir()
    generate(again, SMALL, silent)
    generate(other, SMALL.model_copy(update={"seed": 5}), silent)
    assert contents(again) == contents(folder)
    # Both calls may fall into one second: gzip's header (RFC 1952) must hold no time at all.
    assert all(c[4:8] == bytes(4) for n, c in contents(folder).items() if n.endswith(".gz"))
    assert contents(other).keys() == contents(folder).keys()
    fixed = {"label_relationship.txt"}
    assert all(contents(other)[n] != c for n, c in contents(folder).items() if n not in fixed)


def test_the_number_of_processes_changes_no_byte(tmp_path: Path) -> None:
    options = Options(num_users=40, num_images=700, num_tarballs=2, image_size=32)
    for number in (1, 3):
        chosen = options.model_copy(update={"num_processes": number})
        generate(tmp_path / str(number), chosen, silent)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_few_pictures_are_drawn_by_one_process() -> None:
    assert choose_processes(None, FEWEST_FOR_PROCESSES - 1) == 1
    assert choose_processes(None, FEWEST_FOR_PROCESSES) >= 1
    assert choose_processes(5, 10) == 5


def test_a_process_that_is_killed_is_said() -> None:
    batch = Batch(0, 0, [["cat"]], [0], 32)

    def batches() -> Iterator[Batch]:
        yield from [batch] * 8  # by then both processes have begun
        for process in multiprocessing.active_children():
            process.kill()
        yield from [batch] * 50

    drawn = draw_in_order(batches(), 2)
    with pytest.raises(DataError, match="one of 2 processes that draw has ended"):
        list(drawn)
    assert not multiprocessing.active_children()


def test_an_interrupted_call_ends_its_processes(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "mini", SMALL.model_copy(update={"num_processes": 2}), interrupt)
    assert list(tmp_path.iterdir()) == []
    assert not multiprocessing.active_children()


def test_grain_and_colours_never_pass_black_or_white() -> None:
    """The sum of both is taken modulo 256."""
    rng = np.random.default_rng(3)
    bright = Camera(np.full(3, 9.0), np.full(3, 255.0), noise=4.0, tilt=0.0)
    dark = Camera(np.zeros(3), np.zeros(3), noise=4.0, tilt=0.0)
    for camera, middle in ((bright, 239), (dark, 16)):
        content = draw_picture([], camera, rng, 256)
        pixels = np.asarray(Image.open(io.BytesIO(content)), dtype=np.float64)
        assert abs(pixels.mean() - middle) < 1
        assert 2.5 < pixels.std() < 5


def test_the_folder_is_the_published_one_and_says_that_it_is_generated(folder: Path) -> None:
    assert sorted(contents(folder)) == [
        "GENERATED.txt",
        "label_relationship.txt",
        "labels_and_metadata.json",
        "small_images-00.tar.gz",
        "small_images-01.tar.gz",
    ]
    assert "not FLAIR" in (folder / "GENERATED.txt").read_text(encoding="utf-8")
    assert [path.name for path in folder.parent.iterdir()] == ["mini"]


def test_each_entry_has_its_image_in_one_tarball(folder: Path) -> None:
    entries = json.loads((folder / "labels_and_metadata.json").read_text(encoding="utf-8"))
    images = read_tarballs(folder)
    assert len(images) == len(entries) == 90
    assert Counter(name for name, _ in images) == Counter(
        f"small_images/{entry['image_id']}.jpg" for entry in entries
    )
    assert {(i.format, i.mode, i.size) for _, i in images} == {("JPEG", "RGB", (64, 64))}
    for entry in entries:
        assert list(entry) == ["user_id", "image_id", "labels", "fine_grained_labels", "partition"]
        assert entry["image_id"].isdigit()
        # As published, both levels agree, and both are in alphabetical order.
        parents = {FINE_TO_COARSE[fine] for fine in entry["fine_grained_labels"]}
        assert entry["labels"] == sorted(parents)
        assert entry["fine_grained_labels"] == sorted(set(entry["fine_grained_labels"]))


def test_images_are_of_the_published_size_unless_told(tmp_path: Path) -> None:
    generate(tmp_path, Options(num_users=10, num_images=10), silent)
    images = read_tarballs(tmp_path)
    assert {image.size for _, image in images} == {(256, 256)}
    assert len({image.tobytes() for _, image in images}) == 10


def test_splits_divide_the_users(folder: Path) -> None:
    entries = json.loads((folder / "labels_and_metadata.json").read_text(encoding="utf-8"))
    partitions: dict[str, set[str]] = {}
    for entry in entries:
        partitions.setdefault(entry["user_id"], set()).add(entry["partition"])
    assert all(len(names) == 1 for names in partitions.values())
    counts = Counter(name for names in partitions.values() for name in names)
    assert counts == {"train": 16, "val": 2, "test": 2}


def test_the_relationship_file_joins_every_label(folder: Path) -> None:
    lines = (folder / "label_relationship.txt").read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split(" -> ") for line in lines)
    assert len(lines) == len(pairs) == 51
    assert Counter(pairs.values()) == dict.fromkeys(COARSE_IMAGES, 3)
    # As in FLAIR, each coarse label's name is also that of one of its fine labels.
    assert all(pairs[coarse] == coarse for coarse in COARSE_IMAGES)


def test_the_proportions_are_those_of_the_published_statistics() -> None:
    if not STATISTICS.exists():
        pytest.skip("needs ../shared/data/flair/published_statistics.json")
    published = json.loads(STATISTICS.read_text(encoding="utf-8"))
    assert published["coarse_counts"] == COARSE_IMAGES


def test_labels_are_as_frequent_as_published_and_in_every_split(plan: Plan) -> None:
    published = np.array([COARSE_IMAGES[name] for name in COARSE]) / 429_078
    shares = plan.coarse.mean(axis=0)
    raised = np.maximum(published, RAREST_SHARE)
    # Loose, because a user of hundreds of images moves a label's share by several points.
    assert np.abs(shares - raised).max() < 0.12
    assert np.corrcoef(shares, raised)[0, 1] > 0.95
    assert plan.coarse.any(axis=1).all()
    assert plan.coarse.sum(axis=1).mean() == pytest.approx(2.79, abs=0.3)
    assert plan.fine.sum(axis=1).mean() == pytest.approx(4.61, abs=0.5)
    split_of = np.array(plan.splits)[plan.owners]
    for split in SPLITS:
        images = split_of == split
        assert plan.coarse[images].mean(axis=0).min() >= SPLIT_SHARE
        assert plan.fine[images].any(axis=0).all()
        assert 0.05 < images.mean() < 0.9


@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_plans_have_every_label_in_every_split(seed: int) -> None:
    small = make_plan(Options(num_users=10, num_images=10, seed=seed))
    split_of = np.array(small.splits)[small.owners]
    assert Counter(small.splits) == {"train": 8, "val": 1, "test": 1}
    assert all(small.fine[split_of == split].any(axis=0).all() for split in SPLITS)
    assert len(set(small.image_ids)) == len(set(small.user_ids)) == 10


def test_users_differ_in_size_as_flairs_do(plan: Plan) -> None:
    counts = np.sort(np.bincount(plan.owners))[::-1]
    assert (len(counts), counts.sum()) == (600, 4800)
    # Golden: FLAIR's median is 2 images, its mean 8.3.
    assert np.median(counts) == 2
    assert counts[0] > 200
    assert counts[:60].sum() > 0.5 * counts.sum()


@given(num_users=st.integers(10, 3000), images_a_user=st.floats(1.0, 60.0))
def test_image_counts_sum_up_and_leave_nobody_out(num_users: int, images_a_user: float) -> None:
    num_images = int(num_users * images_a_user)
    counts = image_counts(num_users, num_images)
    assert counts.shape == (num_users,)
    assert counts.sum() == num_images
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()


def test_users_differ_in_taste(plan: Plan) -> None:
    def spread(owners: np.ndarray) -> float:
        large = np.flatnonzero(np.bincount(owners) >= 20)
        shares = np.stack([plan.coarse[owners == user].mean(axis=0) for user in large])
        return float(shares.std(axis=0).mean())

    partitioned = np.random.default_rng(0).permutation(plan.owners)
    assert spread(plan.owners) > 2.5 * spread(partitioned)


def test_users_differ_in_their_camera(folder: Path) -> None:
    entries = json.loads((folder / "labels_and_metadata.json").read_text(encoding="utf-8"))
    owner = {f"small_images/{e['image_id']}.jpg": e["user_id"] for e in entries}
    colours: dict[str, list[np.ndarray]] = {}
    for name, image in read_tarballs(folder):
        colours.setdefault(owner[name], []).append(np.median(image, axis=(0, 1)))
    several = [np.stack(own) for own in colours.values() if len(own) >= 3]
    within = np.mean([own.std(axis=0).mean() for own in several])
    between = np.stack([own.mean(axis=0) for own in several]).std(axis=0).mean()
    assert between > 1.2 * within


def test_every_fine_label_is_drawn_and_looks_like_no_other() -> None:
    def draw(*labels: str) -> np.ndarray:
        # The same draws for all: pictures differ in their glyph alone.
        camera = Camera(np.ones(3), np.full(3, 128.0), noise=0.0, tilt=0.0)
        content = draw_picture(labels, camera, np.random.default_rng(1), 64)
        return np.asarray(Image.open(io.BytesIO(content)), dtype=np.float64)

    ground = draw()
    pictures = {name: draw(name) for name in GLYPHS}
    assert tuple(sorted(pictures)) == FINE
    for name, picture in pictures.items():
        assert (np.abs(picture - ground).max(axis=2) > 30).mean() > 0.01, name
    for one, other in combinations(GLYPHS, 2):
        changed = np.abs(pictures[one] - pictures[other]).max(axis=2) > 30
        assert changed.mean() > 0.01, (one, other)


def test_a_folder_with_files_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match="not empty"):
        generate(tmp_path, SMALL, silent)
    for out in (tmp_path / "mine.txt", tmp_path / "mine.txt" / "mini"):
        with pytest.raises(DataError, match=r"mine\.txt is a file"):
            generate(out, SMALL, silent)
    assert contents(tmp_path) == {"mine.txt": b"mine"}


def test_an_interrupted_call_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        assert total == 90
        if done == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "mini", SMALL, interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_users": 9}, "num_users"),
        ({"num_users": 40, "num_images": 30}, "every user has at least one"),
        ({"num_users": 10, "num_images": 30, "num_tarballs": 31}, "every tarball"),
        ({"num_tarballs": 101}, "num_tarballs"),
        ({"image_size": 31}, "image_size"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Options(**options)


@pytest.mark.parametrize("size", [[], ["image_size=64"]], ids=["published", "small"])
def test_the_command_prints_facts_and_a_next_command_that_works(
    size: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["num_users=10", "num_images=30", *size]
    assert main(["data", "generate", "flair", "--out", "my mini", *options]) == 0
    *facts, last = capsys.readouterr().out.splitlines()
    assert any("not FLAIR" in line for line in facts)
    assert 'users: {"train": 8, "val": 1, "test": 1}' in facts
    program = "next: pfl-bench "
    assert last.startswith(program)
    following = shlex.split(last.removeprefix(program))
    assert following == [*NEXT, *size]
    assert main(following) == 0
    with Store(tmp_path / "flair-mini.h5") as store:
        assert store.facts.variant == "flair-generated-2"
        assert sum(store.split(name).num_examples for name in SPLITS) == 30
        assert store.facts.extra["fine_labels"] == list(FINE)
        assert [COARSE[i] for i in store.facts.extra["fine_to_coarse"]] == [
            FINE_TO_COARSE[name] for name in FINE
        ]
