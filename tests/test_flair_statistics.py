"""scripts/flair_statistics.py, against direct computation on small stores of real JPEGs."""

import io
import json
import statistics as standard
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from scipy.stats import wasserstein_distance

from pfl_bench.cli.main import main as pfl_bench
from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.types import ConfigError, DataError
from tests.docs.following import script
from tests.helpers import REPOSITORY

SCRIPT, emd, labels = (
    script(name) for name in ("flair_statistics", "flair.distances", "flair.labels")
)
NOTICE, format_statistics = SCRIPT.NOTICE, SCRIPT.format_statistics
DESCRIBED, DESCRIPTION, NOTEBOOK = labels.DESCRIBED, labels.DESCRIPTION, labels.NOTEBOOK
PAPER, compare = labels.PAPER, labels.compare

COARSE = ["art", "food", "structure"]
FINE = ["art", "bread", "building", "house"]
FLAIR = REPOSITORY.parent / "shared" / "data" / "flair"


def encoded(pixels, form="JPEG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **({"quality": 90} if form == "JPEG" else {}))
    return np.frombuffer(buffer.getvalue(), np.uint8)


def write(path, users, coarse=COARSE, fine=FINE, variant="flair-partial", generated=False):
    """Write a store of [(split, user, [(image id, bytes, coarse names, fine names)])]."""
    ragged = {
        name: FieldSpec(dtype, ragged=True)
        for name, dtype in [
            ("image", "uint8"),
            ("coarse", "uint8"),
            ("fine", "uint16"),
            ("image_id", "uint8"),
        ]
    }
    extra = {"coarse_labels": coarse, "fine_labels": fine, "generated": generated}
    with StoreWriter(
        path,
        task="flair",
        variant=variant,
        source="made by a test",
        split_by="user",
        num_classes=len(coarse),
        input_shape=(3, 256, 256),
        fields=ragged,
        extra=extra,
    ) as writer:
        for split, user, images in users:
            names, data, own_coarse, own_fine = zip(*images, strict=True)
            writer.append(
                split,
                user,
                image=list(data),
                coarse=[np.array([coarse.index(n) for n in own], np.uint8) for own in own_coarse],
                fine=[np.array([fine.index(n) for n in own], np.uint16) for own in own_fine],
                image_id=[np.frombuffer(name.encode(), np.uint8) for name in names],
            )
    return path


def small_users(rng, tint=60):
    """Users with one to six small pictures, each user with a brightness of his own."""
    users = []
    for number in range(24):
        own = int(rng.integers(0, tint + 1))
        images = []
        for image in range(int(rng.integers(1, 7))):
            pixels = rng.integers(own, own + 120, (8, 12, 3)).astype(np.uint8)
            coarse = sorted(
                rng.choice(COARSE, rng.integers(1, 4), replace=False, p=[0.2, 0.3, 0.5])
            )
            fine = sorted(rng.choice(FINE, rng.integers(1, 5), replace=False))
            form = "PNG" if image == 3 else "JPEG"
            images.append((f"{number}-{image}", encoded(pixels, form), coarse, fine))
        users.append((("train", "val", "test")[number % 3], f"user-{number:02d}", images))
    return users


def statistics(store, *options):
    return SCRIPT.statistics(store, SCRIPT.parse([str(store.path), *options]))


def naive_histogram(data, channels):
    picture = Image.open(io.BytesIO(data.tobytes())).convert("RGB")
    pixels = np.asarray(picture).astype(np.float64)
    if channels == "luminance":
        pixels = np.rint(pixels @ [0.299, 0.587, 0.114])[..., None]
    return np.stack(
        [
            np.histogram(pixels[..., c], bins=256, range=(0, 256))[0] / pixels[..., c].size
            for c in range(pixels.shape[-1])
        ]
    )


def naive_distances(groups, everything):
    average = np.mean(everything, axis=0)
    levels = np.arange(256)
    return [
        np.mean(
            [
                wasserstein_distance(levels, levels, own, other)
                for own, other in zip(np.mean(group, axis=0), average, strict=True)
            ]
        )
        for group in groups
    ]


@pytest.fixture
def small(tmp_path):
    users = small_users(np.random.default_rng(1))
    return users, write(tmp_path / "s.h5", users)


def test_counts_against_direct_computation(small):
    users, path = small
    with Store(path) as store:
        result = statistics(store, "--no-emd")
    assert json.loads(json.dumps(result)) == result
    images = [image for _, _, own in users for image in own]
    assert (result["users"], result["images"]) == (24, len(images))
    described = result["described"]
    for level, place in (("coarse", 2), ("fine", 3)):
        counts = Counter(label for image in images for label in image[place])
        assert result[level]["counts"] == dict(counts)
        assert list(result[level]["counts"].values()) == sorted(counts.values(), reverse=True)
        having = [{label for image in own for label in image[place]} for _, _, own in users]
        for label, share in result[level]["share_of_users"].items():
            assert share == pytest.approx(sum(label in labels for labels in having) / 24)
        check_description(
            described[f"{level} labels of an image"], [len(image[place]) for image in images]
        )
        check_description(
            described[f"distinct {level} labels of a user"], [len(labels) for labels in having]
        )
    check_description(described["images of a user"], [len(own) for _, _, own in users])


def check_description(description, values):
    quartiles = standard.quantiles(values, n=4, method="inclusive")
    expected = [standard.mean(values), standard.stdev(values), min(values), *quartiles, max(values)]
    assert [description[part] for part in DESCRIPTION] == pytest.approx(expected)


def test_labels_that_few_users_have_are_rare(tmp_path):
    picture = encoded(np.zeros((8, 8, 3), np.uint8))
    users = [
        (
            "train",
            f"{user:04d}",
            [("a", picture, ["art"], ["art", *(["house"] if not user else [])])],
        )
        for user in range(1001)
    ]
    with Store(write(tmp_path / "s.h5", users)) as store:
        result = statistics(store, "--no-emd")
    # One user of 1,001 is less than 0.1%; "bread" and "building" are on nobody.
    assert result["fine"]["rare"] == 3
    assert result["fine"]["share_of_users"]["house"] == pytest.approx(1 / 1001)
    assert result["fine"]["counts"]["bread"] == 0
    assert "3 of them on less than 0.1% of users" in format_statistics(result)


@pytest.mark.parametrize("channels", ["rgb", "luminance"])
def test_distances_against_scipy(small, channels, monkeypatch):
    users, path = small
    # Small blocks, so that users and reads are cut in many ways.
    monkeypatch.setattr(emd, "_SUMMED_AT_ONCE", 5)
    monkeypatch.setattr(emd, "_DECODED_AT_ONCE", 3)
    monkeypatch.setattr(emd, "_READ_EXAMPLES", 4)
    by_split = {
        name: [own for split, _, own in users if split == name] for name in ("train", "val", "test")
    }
    groups = [
        [naive_histogram(image[1], channels) for image in own if "structure" in image[2]]
        for name in ("train", "val", "test")
        for own in by_split[name]
    ]
    groups = [group for group in groups if group]
    everything = [histogram for group in groups for histogram in group]
    with Store(path) as store:
        images = emd.find_images([store.split(name) for name in store.split_names], 2)
        pixels = emd.pixel_histograms(images, channels, 2)
    assert np.diff(images.bounds).tolist() == [len(group) for group in groups]
    assert len(groups) < 24
    # A luminance half way between two levels may be rounded to either.
    assert np.abs(np.cumsum(pixels - np.array(everything), axis=-1)).sum(axis=-1).max() < (
        0.1 if channels == "luminance" else 1e-4
    )
    cut = np.split(pixels.astype(np.float64), images.bounds[1:-1])
    assert emd.distances(pixels, images.bounds) == pytest.approx(
        naive_distances(cut, pixels), rel=1e-5
    )
    order = np.random.default_rng(0).permutation(len(pixels))
    cut = np.split(pixels[order].astype(np.float64), images.bounds[1:-1])
    moved = emd.distances(pixels, images.bounds, order)
    assert moved == pytest.approx(naive_distances(cut, pixels), rel=1e-5)


def test_a_shift_of_brightness_is_the_distance():
    # Half of the users at level 100, half at 140: the average is half way between in earth moved.
    histograms = np.zeros((4, 1, 256), np.float32)
    histograms[:2, 0, 100] = histograms[2:, 0, 140] = 1
    assert emd.distances(histograms, np.arange(5)) == pytest.approx([20] * 4)
    assert emd.distances(histograms, np.array([0, 4])) == pytest.approx([0])


def test_random_partitions_have_the_sizes_that_they_should(monkeypatch):
    seen = []
    monkeypatch.setattr(
        emd,
        "distances",
        lambda pixels, bounds, order=None: seen.append((bounds, order)) or np.ones(3),
    )
    bounds = np.array([0, 1, 2, 11])
    emd.compare_partitions(np.ones((11, 1, 256), np.float32), bounds, 2, np.random.default_rng(0))
    assert [np.diff(own).tolist() for own, _ in seen] == [
        [1, 1, 9],
        *[[3, 4, 4]] * 2,
        *[[1, 1, 9]] * 2,
    ]
    assert seen[0][1] is None
    orders = [order for _, order in seen[1:]]
    assert all(sorted(order.tolist()) == list(range(11)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("tint", [0, 130])
def test_users_with_a_look_of_their_own_are_told_from_chance(tmp_path, tint):
    users = small_users(np.random.default_rng(2), tint)
    with Store(write(tmp_path / "s.h5", users)) as store:
        everything = statistics(store, "--emd-partitions=20")
    result, commonest = everything["emd"], next(iter(everything["coarse"]["counts"]))
    means = {kind: part["mean"] for kind, part in result["partitions"].items()}
    ratio = means["actual"] / means["real_sizes"]
    assert ratio > 1.3 if tint else ratio == pytest.approx(1, abs=0.25)
    # Small users scatter more than users of average size: the paper's blue and green lines.
    assert means["real_sizes"] > means["equal_size"]
    for part in result["partitions"].values():
        assert sum(part["share"]) + part["beyond"] == pytest.approx(1)
        assert len(part["share"]) == len(result["edges"]) - 1
    assert len(result["partitions"]["real_sizes"]["mean_of_draw"]) == 20
    assert result["label"] == commonest


def test_seed_threads_and_subset_of_users(small):
    _, path = small
    with Store(path) as store:
        whole = statistics(store)["emd"]
        assert statistics(store, "--threads=1")["emd"] == whole
        other = statistics(store, "--seed=1")["emd"]
        assert other["partitions"]["actual"] == whole["partitions"]["actual"]
        assert other["partitions"]["equal_size"] != whole["partitions"]["equal_size"]
        few = statistics(store, "--emd-users=5")["emd"]
        assert (few["users"], few["images"] < whole["images"]) == (5, True)
        assert statistics(store, "--emd-users=5")["emd"] == few
        assert statistics(store, "--emd-users=500")["emd"] == whole
        assert statistics(store, "--emd-label=art")["emd"]["label"] == "art"


def test_a_subset_of_users_keeps_their_images_whole():
    places = np.stack([np.zeros(11, np.int64), np.arange(11)], axis=1)
    images = emd.LabelledImages((), places, np.array([0, 3, 4, 9, 11]))
    owned = {(0, 1, 2), (3,), (4, 5, 6, 7, 8), (9, 10)}
    for seed in range(10):
        some = images.some_users(2, np.random.default_rng(seed))
        groups = np.split(some.places[:, 1], some.bounds[1:-1])
        assert len(groups) == 2
        assert {tuple(group.tolist()) for group in groups} < owned


def test_a_label_without_images_has_no_distances(tmp_path):
    picture = encoded(np.zeros((8, 8, 3), np.uint8))
    users = [("train", "u", [("a", picture, ["art"], ["art"])])]
    with Store(write(tmp_path / "s.h5", users)) as store:
        assert statistics(store, "--emd-label=food")["emd"] is None
        alone = statistics(store)
    assert alone["emd"]["partitions"]["actual"]["mean"] == 0
    assert alone["described"]["images of a user"]["std"] is None
    assert " - " in format_statistics(alone)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    good = encoded(np.zeros((8, 8, 3), np.uint8))
    bad = np.frombuffer(b"no image at all", np.uint8)
    users = [("train", "u", [("a", good, ["art"], ["art"]), ("b-17", bad, ["art"], ["art"])])]
    with Store(write(tmp_path / "s.h5", users)) as store:
        with pytest.raises(
            DataError, match=r"image b-17 \(example 1\) cannot be decoded.*--no-emd"
        ):
            statistics(store)
        assert statistics(store, "--no-emd")["emd"] is None


def test_an_unknown_label_and_a_damaged_store_are_refused(small, tmp_path):
    users, path = small
    with Store(path) as store, pytest.raises(ConfigError, match="there are: art, food, structure"):
        statistics(store, "--emd-label=strukture")
    damaged = write(tmp_path / "d.h5", users)
    import h5py

    with h5py.File(damaged, "r+") as file:
        file["train/fine"][0] = 9
    with (
        Store(damaged) as store,
        pytest.raises(DataError, match=r"fine label 9 is not within 0\.\.3"),
    ):
        statistics(store, "--no-emd")


def test_generated_pictures_are_named_in_text_and_on_every_picture(tmp_path, capsys):
    users = small_users(np.random.default_rng(3))[:9]
    path = write(tmp_path / "s.h5", users, variant="flair-generated", generated=True)
    plots = tmp_path / "plots"
    assert SCRIPT.main([str(path), "--emd-partitions", "2", "--plots", str(plots)]) == 0
    printed = capsys.readouterr()
    assert NOTICE.upper() in printed.out
    assert "earth mover's distance" in printed.out
    found = sorted(plots.iterdir())
    assert [file.stem for file in found] == [
        "coarse_labels",
        "examples_per_user",
        "fine_labels",
        "labels",
        "pixel_distances",
        "quantity_skew",
        "users_per_label",
    ]
    for file in found:
        with Image.open(file) as picture:
            assert picture.text["Description"] == NOTICE
            assert "flair-generated" in picture.text["Title"]
    assert SCRIPT.main([str(path), "--json", "--no-emd"]) == 0
    own = json.loads(capsys.readouterr().out)["task_statistics"]
    assert (own["notice"], own["published"], own["emd"]) == (NOTICE, None, None)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--emd-lable=art", "unrecognized arguments: --emd-lable"),
        ("--emd-users=0", "--emd-users: 0 is not allowed: at least 1"),
        ("--emd-partitions=1001", "--emd-partitions: 1001 is not allowed: 1 to 1000"),
        ("--threads=two", "--threads: invalid"),
        ("--emd-histogram=hsv", "invalid choice: 'hsv'"),
    ],
)
def test_wrong_options_are_exit_2(small, option, words, capsys):
    with pytest.raises(SystemExit) as ended:
        SCRIPT.main([str(small[1]), option])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_what_the_store_does_not_have_is_exit_2(small, tmp_path, capsys):
    for arguments, words in (
        ([str(small[1]), "--emd-label", "moon"], "no such coarse label"),
        ([str(tmp_path / "no.h5"), "--plots", str(tmp_path / "plots")], "no.h5"),
    ):
        assert SCRIPT.main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "Traceback" not in error
    assert not (tmp_path / "plots").exists()


def test_they_come_after_those_of_every_store(small, capsys):
    _, path = small
    printed = []
    for command, arguments in ((pfl_bench, ["data", "stats"]), (SCRIPT.main, ["--no-emd"])):
        for form in ([], ["--json"]):
            assert command([*arguments, str(path), *form]) == 0
            printed.append(capsys.readouterr().out)
    assert printed[2].startswith(printed[0])
    every, own = json.loads(printed[1]), json.loads(printed[3])
    assert own == {**every, "task_statistics": own["task_statistics"]}
    # Both count coarse labels, one by number and one by name.
    counts = every["all_splits"]["labels"]["counts"]
    named = {COARSE[int(label)]: count for label, count in counts.items()}
    assert named == own["task_statistics"]["coarse"]["counts"]


def published_statistics():
    """Statistics that have exactly the published numbers."""
    shares = {"structure": PAPER["users with structure, share"][0], "religion": 0.0143}
    fine = dict(NOTEBOOK["fine"]) | {f"fine-{number}": 1 for number in range(1608)}
    return {
        "images": NOTEBOOK["images"],
        "users": NOTEBOOK["users"],
        "coarse": {"counts": dict(NOTEBOOK["coarse"]), "share_of_users": shares, "rare": 0},
        "fine": {"counts": fine, "share_of_users": {}, "rare": 1255},
        "described": {
            name: dict(zip(DESCRIPTION, values, strict=True)) for name, values in DESCRIBED.items()
        },
        "largest_share": 0.02345,
    }


def test_published_numbers_agree_to_their_last_digit():
    here = published_statistics()
    rows = compare(here)
    assert len(rows) == 4 + 17 + 20 + 35 + 4
    assert all(row["agrees"] for row in rows)
    here["described"]["images of a user"]["std"] += 4e-7
    assert all(row["agrees"] for row in compare(here))
    here["described"]["images of a user"]["std"] += 4e-7
    here["coarse"]["counts"]["religion"] += 1
    here["largest_share"] = 0.0236
    del here["fine"]["counts"]["grass"]
    differ = [row["quantity"] for row in compare(here) if not row["agrees"]]
    assert differ == [
        "fine labels",
        "images with coarse label religion",
        "images with fine label grass",
        "images of a user: std",
        "largest users with half of the images, share",
    ]


def test_a_store_that_claims_to_be_flair_is_compared(tmp_path):
    users = small_users(np.random.default_rng(4))
    with Store(write(tmp_path / "s.h5", users, variant="flair")) as store:
        text = format_statistics(statistics(store, "--no-emd"))
    assert " of 80 published numbers agree" in text
    assert "  images: " in text
    assert "here, 429078 published" in text


@pytest.mark.skipif(not FLAIR.is_dir(), reason="the shared data set folder is absent")
def test_the_published_numbers_are_those_of_the_shared_file():
    published = json.loads((FLAIR / "published_statistics.json").read_text(encoding="utf-8"))
    assert published["coarse_counts"] == NOTEBOOK["coarse"]
    assert published["top20_fine_counts"] == NOTEBOOK["fine"]
    assert (published["images"], published["users"]) == (NOTEBOOK["images"], NOTEBOOK["users"])
    keys = (
        "per_image_coarse",
        "per_image_fine",
        "per_user_images",
        "per_user_distinct_coarse",
        "per_user_distinct_fine",
    )
    for key, values in zip(keys, DESCRIBED.values(), strict=True):
        assert [published[key][part] for part in DESCRIPTION] == values


@pytest.mark.skipif(not FLAIR.is_dir(), reason="the shared data set folder is absent")
def test_real_pictures(tmp_path):
    entries = json.loads((FLAIR / "labels_and_metadata_35.json").read_text(encoding="utf-8"))
    coarse = sorted({label for entry in entries for label in entry["labels"]})
    fine = sorted({label for entry in entries for label in entry["fine_grained_labels"]})
    users = {}
    for entry in entries:
        data = (FLAIR / "small_images" / f"{entry['image_id']}.jpg").read_bytes()
        labels = sorted(entry["labels"]), sorted(entry["fine_grained_labels"])
        image = (entry["image_id"], np.frombuffer(data, np.uint8), *labels)
        users.setdefault(entry["user_id"], []).append(image)
    rows = [("train", user, images) for user, images in users.items()]
    with Store(write(tmp_path / "s.h5", rows, coarse, fine)) as store:
        result = statistics(store)
    assert (result["images"], result["users"]) == (35, 15)
    counts = Counter(label for entry in entries for label in entry["labels"])
    assert result["coarse"]["counts"] == dict(counts)
    distances = result["emd"]
    assert distances["images"] == counts[distances["label"]] == max(counts.values())
    assert 0 < distances["partitions"]["actual"]["mean"] < 128
    ratio = (
        distances["partitions"]["actual"]["mean"] / distances["partitions"]["real_sizes"]["mean"]
    )
    assert 0.5 < ratio < 2
