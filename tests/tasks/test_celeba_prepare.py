from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError
from tasks.celeba.files import read_identities
from tasks.celeba.generate import NAMES, SKINS, Looks, draw_face, generate
from tasks.celeba.generate import Options as GenerateOptions
from tasks.celeba.prepare import IMAGES, PEOPLE, Options, column_names, prepare, table1
from tasks.common.leaf.table1 import CELEBA

ATTRIBUTES_FILE, IDENTITY_FILE = "list_attr_celeba.txt", "identity_CelebA.txt"


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def generated(out: Path, **options: Any) -> dict[str, Any]:
    return generate(out, GenerateOptions(**options), silent)


def prepared(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    return prepare(source, out, Options(**options), silent)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("celeba") / "raw"
    generated(folder, num_users=8, images_per_user=6)
    return folder


@pytest.fixture
def source(published: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged, without the mark of generated data."""
    shutil.copytree(published, tmp_path / "raw")
    (tmp_path / "raw" / "GENERATED.txt").unlink()
    return tmp_path / "raw"


def rows_of(folder: Path) -> dict[str, tuple[str, dict[str, int]]]:
    """Celebrity and attributes of each image, read anew."""
    lines = (folder / ATTRIBUTES_FILE).read_text().splitlines()
    names = lines[1].split()
    identities = dict(line.split() for line in (folder / IDENTITY_FILE).read_text().splitlines())
    return {
        words[0]: (
            identities[words[0]],
            {name: (int(value) + 1) // 2 for name, value in zip(names, words[1:], strict=True)},
        )
        for words in map(str.split, lines[2:])
    }


def edit(path: Path, change: Callable[[list[str]], None]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


def test_a_celebrity_s_number_may_have_leading_zeros(tmp_path: Path) -> None:
    path = tmp_path / IDENTITY_FILE
    path.write_text("1.jpg 7\n2.jpg 07\n")
    assert read_identities(path) == {"1.jpg": "7", "2.jpg": "7"}


def test_every_image_is_stored_as_published_with_its_attributes(
    source: Path, tmp_path: Path
) -> None:
    facts = prepared(source, tmp_path / "out.h5", min_examples=0)
    rows = rows_of(source)
    by_bytes = {(source / "img_align_celeba" / name).read_bytes(): name for name in rows}
    assert len(by_bytes) == len(rows)
    seen = []
    with Store(tmp_path / "out.h5") as store:
        columns = dict(zip(NAMES, column_names(NAMES), strict=True))
        assert set(store.fields) == {"image", "targets", *columns.values()} - {"smiling"}
        assert store.names("targets") == ["not smiling", "smiling"]
        assert store.facts.input_shape == (3, 84, 84)
        for split in map(store.split, store.split_names):
            for user, celebrity in enumerate(split.client_ids()):
                for place in range(split.offsets[user], split.offsets[user + 1]):
                    name = by_bytes[split.read("image", place, place + 1)[0].tobytes()]
                    owner, values = rows[name]
                    assert celebrity == owner
                    assert split.read("targets", place, place + 1)[0] == values["Smiling"]
                    for attribute, column in columns.items():
                        if attribute != "Smiling":
                            found = split.read(column, place, place + 1)[0]
                            assert found == values[attribute], attribute
                    seen.append(name)
    assert sorted(seen) == sorted(rows)
    assert facts["variant"] == "celeba-partial"
    assert facts["problems"] == {}


def test_columns_have_legal_names_of_their_own() -> None:
    names = column_names(NAMES)
    assert len(set(names)) == 40
    assert names[0] == "attribute_5_o_clock_shadow"
    assert names[31] == "smiling"


def test_a_damaged_image_of_a_zip_is_counted_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    generated(folder, num_users=8, images_per_user=6, archive="zip")
    archive = folder / "img_align_celeba.zip"
    with zipfile.ZipFile(archive) as members:
        member = members.infolist()[1]
    content = bytearray(archive.read_bytes())
    # The member's own header, before its bytes, no longer begins as one.
    content[member.header_offset] ^= 0xFF
    archive.write_bytes(content)
    facts = prepared(folder, tmp_path / "out.h5", min_examples=0)
    name = member.filename.rpartition("/")[2]
    (problem,) = facts["problems"].values()
    assert problem["images"] == 1
    assert name in problem["first"][0]


def test_a_zip_is_read_without_unpacking_and_gives_the_same_store(
    published: Path, tmp_path: Path
) -> None:
    generated(tmp_path / "zipped", num_users=8, images_per_user=6, archive="zip")
    assert not (tmp_path / "zipped" / "img_align_celeba").exists()
    digests = []
    for folder in (published, tmp_path / "zipped"):
        prepared(folder, tmp_path / "out.h5", split_by="user")
        with Store(tmp_path / "out.h5") as store:
            digests.append(store.facts.checksum)
    assert digests[0] == digests[1]


def test_celebrities_with_few_images_are_dropped_and_counted(source: Path, tmp_path: Path) -> None:
    sizes: dict[str, int] = {}
    for celebrity, _ in rows_of(source).values():
        sizes[celebrity] = sizes.get(celebrity, 0) + 1
    least = max(sizes.values())
    few = {celebrity for celebrity, count in sizes.items() if count < least}
    assert few
    assert Options().min_examples == 5  # LEAF's
    facts = prepared(source, tmp_path / "out.h5", min_examples=least)
    with Store(tmp_path / "out.h5") as store:
        kept = {user for name in store.split_names for user in store.split(name).client_ids()}
    assert kept == set(sizes) - few
    assert facts["users_dropped"] == len(few)
    # The table is of celebrities with five images, whatever is dropped.
    assert facts["table1"]["users"] == sum(count >= 5 for count in sizes.values())


def test_another_label(source: Path, tmp_path: Path) -> None:
    prepared(source, tmp_path / "out.h5", label="male")
    with Store(tmp_path / "out.h5") as store:
        assert store.names("targets") == ["not male", "male"]
        assert "smiling" in store.fields
        assert "male" not in store.fields
    with pytest.raises(ConfigError, match="did you mean 'Smiling'"):
        prepared(source, tmp_path / "out.h5", label="smilling")


def test_single_images_with_problems_are_left_out_counted_and_named(
    source: Path, tmp_path: Path
) -> None:
    images = source / "img_align_celeba"
    before = prepared(source, tmp_path / "out.h5", min_examples=0)
    (images / "000001.jpg").unlink()
    data = (images / "000002.jpg").read_bytes()
    (images / "000002.jpg").write_bytes(data[: len(data) // 2])
    (images / "000003.jpg").write_bytes(b"not a picture")
    edit(source / IDENTITY_FILE, lambda lines: lines.pop(3))

    def drop(lines: list[str]) -> None:
        lines.pop(6)  # 000005.jpg
        lines[0] = str(int(lines[0]) - 1)

    edit(source / ATTRIBUTES_FILE, drop)
    facts = prepared(source, tmp_path / "out.h5", min_examples=0)
    problems = facts["problems"]
    assert {kind: found["images"] for kind, found in problems.items()} == {
        "missing": 1,
        "unreadable": 2,
        "without_attributes": 1,
        "without_identity": 1,
    }
    assert problems["missing"]["first"] == ["000001.jpg"]
    cut, other = problems["unreadable"]["first"]
    assert cut.startswith("000002.jpg (")
    assert other == "000003.jpg (it is no picture)"
    assert problems["without_identity"]["first"] == ["000004.jpg"]
    assert problems["without_attributes"]["first"] == ["000005.jpg"]
    count = sum(split["examples"] for split in facts["splits"].values())
    assert count == sum(split["examples"] for split in before["splits"].values()) - 5


def set_line(number: int, text: str) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        lines[number - 1] = text

    return change


VALUES = " ".join(["-1"] * 40)
OTHER_NAMES = " ".join(["Image", *(f"Name_{number}" for number in range(39))])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (ATTRIBUTES_FILE, set_line(1, "9"), "line 1 announces 9 images, but"),
        (ATTRIBUTES_FILE, set_line(1, "000001.jpg -1"), "line 1: '000001.jpg -1' is not a number"),
        (ATTRIBUTES_FILE, set_line(2, "Smiling Smiling"), "line 2: needs the attributes' names"),
        (ATTRIBUTES_FILE, set_line(2, OTHER_NAMES), "the column 'image'"),
        (ATTRIBUTES_FILE, set_line(5, "000003.jpg 1 -1"), "line 5: 000003.jpg has 2 values"),
        (ATTRIBUTES_FILE, set_line(5, f"000003.jpg 0 {VALUES[3:]}"), "line 5: 000003.jpg has the"),
        (ATTRIBUTES_FILE, set_line(5, f"000001.jpg {VALUES}"), "line 5: 000001.jpg comes a second"),
        (ATTRIBUTES_FILE, set_line(5, f"../x.jpg {VALUES}"), "line 5: '../x.jpg' is not the plain"),
        (ATTRIBUTES_FILE, lambda lines: lines.pop(), "announces"),
        (IDENTITY_FILE, set_line(3, "000003.jpg"), "line 3: '000003.jpg' is not an image's file"),
        (IDENTITY_FILE, set_line(3, "000003.jpg x"), "line 3: '000003.jpg x'"),
        (IDENTITY_FILE, set_line(3, "000001.jpg 2"), "line 3: 000001.jpg comes a second time"),
        (IDENTITY_FILE, lambda lines: lines.clear(), "holds no line"),
    ],
)
def test_damaged_tables_are_refused_with_file_and_line(
    source: Path, tmp_path: Path, name: str, change: Callable[[list[str]], None], words: str
) -> None:
    edit(source / name, change)
    with pytest.raises(DataError) as caught:
        prepared(source, tmp_path / "out.h5")
    assert name in str(caught.value)
    assert words in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_missing_files_and_a_damaged_zip_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    (source / ATTRIBUTES_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not text in ASCII"):
        prepared(source, out)
    (source / ATTRIBUTES_FILE).unlink()
    with pytest.raises(DataError, match=f"no file {ATTRIBUTES_FILE}"):
        prepared(source, out)


def test_images_that_are_not_there_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    shutil.rmtree(source / "img_align_celeba")
    with pytest.raises(DataError, match=r"neither a folder img_align_celeba/ nor .*\.zip"):
        prepared(source, out)
    (source / "img_align_celeba.zip").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DataError, match="cannot be read"):
        prepared(source, out)
    with zipfile.ZipFile(source / "img_align_celeba.zip", "w") as archive:
        archive.writestr("other.txt", b"x")
    with pytest.raises(DataError, match=r"no image of \d+ can be used.*missing"):
        prepared(source, out)


def test_the_publishers_own_folders_are_searched(source: Path, tmp_path: Path) -> None:
    prepared(source, tmp_path / "flat.h5")
    nested = tmp_path / "nested"
    for place, name in (("Anno", ATTRIBUTES_FILE), ("Anno", IDENTITY_FILE)):
        (nested / place).mkdir(parents=True, exist_ok=True)
        shutil.move(source / name, nested / place / name)
    shutil.move(source / "img_align_celeba", nested / "Img" / "img_align_celeba")
    prepared(nested, tmp_path / "nested.h5")
    assert (tmp_path / "flat.h5").read_bytes() == (tmp_path / "nested.h5").read_bytes()


def test_counts_of_the_whole_data_are_compared_with_leafs() -> None:
    few, left_out = PEOPLE - CELEBA.users, IMAGES - CELEBA.samples
    # 834 celebrities with fewer than five images have the 2,311 that LEAF leaves out.
    small = [3] * (left_out - 2 * few) + [2] * (3 * few - left_out)
    mean, more = divmod(CELEBA.samples, CELEBA.users)
    kept = [*[mean + 1] * more, *[mean] * (CELEBA.users - more)]
    facts = table1([*small, *kept])
    assert [line.partition(":")[0] for line in facts["differs_from_published"]] == ["sd"]
    assert facts["table1"]["counted"] == "images of celebrities with at least 5"
    # Celebrities with few images are in what CelebA's page counts, not in LEAF's.
    facts = table1([*small[1:], *kept])
    assert facts["differs_from_published"][:2] == [
        f"images: {IMAGES - small[0]:,} here, 202,599 published",
        "celebrities: 10,176 here, 10,177 published",
    ]
    part = table1([5, 7, 4])
    assert part["differs_from_published"] is None
    counts = {key: part["table1"][key] for key in ("users", "samples", "mean", "sd")}
    assert counts == {"users": 2, "samples": 12, "mean": 6.0, "sd": 1.0}


def test_generated_files_have_the_published_form(published: Path) -> None:
    lines = (published / ATTRIBUTES_FILE).read_text().splitlines()
    images = sorted((published / "img_align_celeba").iterdir())
    assert int(lines[0]) == len(lines) - 2 == len(images)
    assert len(lines[1].split()) == 40
    # Numbers take two places, as in "000001.jpg -1  1  1".
    assert lines[2][:11] == "000001.jpg "
    assert len(lines[2]) == len("000001.jpg") + 3 * 40
    assert images[0].name == "000001.jpg"
    with Image.open(images[0]) as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (178, 218), "RGB")
    assert "not CelebA" in (published / "GENERATED.txt").read_text()
    partition = (published / "list_eval_partition.txt").read_text().splitlines()
    assert len(partition) == len(images)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        generated(tmp_path / name, num_users=2, images_per_user=2, seed=seed, archive="zip")
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"
    ]
    assert files[0] == files[1]
    assert files[0]["img_align_celeba.zip"] != files[2]["img_align_celeba.zip"]


def test_a_smile_changes_the_mouth_alone() -> None:
    looks = Looks(SKINS[0], "Black_Hair", False, False, False, 1.0, 0.5)

    def pixels(smiling: bool) -> np.ndarray:
        data = draw_face(looks, smiling, False, np.random.default_rng(3), (178, 218))
        return np.asarray(Image.open(io.BytesIO(data))).astype(int)

    differs = np.abs(pixels(True) - pixels(False)).max(axis=2) > 100
    rows, columns = np.nonzero(differs)
    assert len(rows) > 50
    assert rows.min() > 218 * 0.55
    assert rows.max() < 218 * 0.8
    assert 178 * 0.3 < columns.min() < columns.max() < 178 * 0.7


def test_generated_celebrities_are_artificial_and_differ(published: Path, tmp_path: Path) -> None:
    facts = prepared(published, tmp_path / "out.h5", min_examples=0)
    assert facts["variant"] == "celeba-generated"
    assert facts["artificial_users"] is True
    rows = rows_of(published)
    looks: dict[str, set[int]] = {}
    for celebrity, values in rows.values():
        looks.setdefault(celebrity, set()).add(values["Male"] * 2 + values["Eyeglasses"])
    assert all(len(found) == 1 for found in looks.values())
    assert len(set().union(*looks.values())) > 1


def test_generating_into_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is not empty"):
        generated(tmp_path)
    with pytest.raises(DataError, match="is a file"):
        generated(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def leaf_document(folder: Path, celebrities: list[str] | None = None) -> dict[str, Any]:
    """What LEAF's script makes of the lists: names of files, and 0.0 or 1.0."""
    users: dict[str, dict[str, list[Any]]] = {}
    for image, (celebrity, attributes) in rows_of(folder).items():
        if celebrities is None or celebrity in celebrities:
            own = users.setdefault(celebrity, {"x": [], "y": []})
            own["x"].append(image)
            own["y"].append(float(attributes["Smiling"]))
    counts = [len(own["x"]) for own in users.values()]
    return {"users": list(users), "num_samples": counts, "user_data": users}


@pytest.fixture
def leaf_source(source: Path) -> Path:
    """LEAF's JSON beside the images, without the publisher's lists."""
    (source / "all_data.json").write_text(json.dumps(leaf_document(source)))
    for name in (ATTRIBUTES_FILE, IDENTITY_FILE):
        (source / name).rename(source.parent / name)
    return source


def test_leafs_json_gives_what_the_lists_give(source: Path, tmp_path: Path) -> None:
    prepared(source, tmp_path / "lists.h5")
    (source / "all_data.json").write_text(json.dumps(leaf_document(source)))
    # The lists, from which LEAF makes its JSON, go first.
    assert prepared(source, tmp_path / "both.h5")["form"] == "published"
    asked = prepared(source, tmp_path / "json.h5", form="leaf-json")
    for name in (ATTRIBUTES_FILE, IDENTITY_FILE):
        (source / name).unlink()
    facts = prepared(source, tmp_path / "alone.h5")
    assert facts == asked
    assert facts["form"] == "leaf-json"
    with Store(tmp_path / "lists.h5") as lists, Store(tmp_path / "alone.h5") as found:
        assert list(found.fields) == ["image", "targets"]
        for name in lists.split_names:
            one, other = lists.split(name), found.split(name)
            assert one.client_ids() == other.client_ids()
            assert np.array_equal(one.offsets, other.offsets)


def test_leafs_targets_stay_with_their_images(leaf_source: Path, tmp_path: Path) -> None:
    missing = sorted((leaf_source / "img_align_celeba").iterdir())[3]
    missing.unlink()
    facts = prepared(leaf_source, tmp_path / "out.h5", min_examples=0)
    assert facts["problems"] == {"missing": {"images": 1, "first": [missing.name]}}
    wanted: dict[str, list[tuple[bytes, int]]] = {}
    for user, own in json.loads((leaf_source / "all_data.json").read_text())["user_data"].items():
        for name, target in zip(own["x"], own["y"], strict=True):
            if name != missing.name:
                content = (leaf_source / "img_align_celeba" / name).read_bytes()
                wanted.setdefault(user, []).append((content, int(target)))
    found: dict[str, list[tuple[bytes, int]]] = {}
    with Store(tmp_path / "out.h5") as store:
        for split in map(store.split, store.split_names):
            for user, client_id in enumerate(split.client_ids()):
                span = split.offsets[user : user + 2].tolist()
                rows = zip(split.read("image", *span), split.read("targets", *span), strict=True)
                found.setdefault(client_id, []).extend((i.tobytes(), int(t)) for i, t in rows)
    assert {u: sorted(own) for u, own in found.items()} == {
        u: sorted(own) for u, own in wanted.items()
    }


def test_leafs_split_stays_as_published(leaf_source: Path, tmp_path: Path) -> None:
    document = json.loads((leaf_source / "all_data.json").read_text())
    (leaf_source / "all_data.json").unlink()
    users = document["users"]
    for split, own in (("train", users[:5]), ("test", users[5:])):
        data = {user: document["user_data"][user] for user in own}
        counts = [len(data[user]["x"]) for user in own]
        (leaf_source / split).mkdir()
        (leaf_source / split / f"all_data_{split}.json").write_text(
            json.dumps({"users": own, "num_samples": counts, "user_data": data})
        )
    facts = prepared(leaf_source, tmp_path / "out.h5", min_examples=0)
    assert facts["split"] == {"by": "user", "as": "published"}
    with Store(tmp_path / "out.h5") as store:
        assert sorted(store.split("test").client_ids()) == sorted(users[5:])
    with pytest.raises(ConfigError, match="train_fraction: the source is split by its publisher"):
        prepared(leaf_source, tmp_path / "no.h5", train_fraction=0.5)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("x", "../000001.jpg", "image 2 of 'x' is '../000001.jpg'"),
        ("x", [0.5] * 784, "image 2 of 'x' is"),
        ("y", 2, "target 2 of 'y' is 2; it must be 0"),
        ("y", None, "target 2 of 'y' is None"),
        ("y", True, "target 2 of 'y' is True"),
    ],
)
def test_wrong_json_is_named(
    leaf_source: Path, tmp_path: Path, key: str, value: Any, words: str
) -> None:
    path = leaf_source / "all_data.json"
    document = json.loads(path.read_text())
    user = document["users"][1]
    document["user_data"][user][key][2] = value
    path.write_text(json.dumps(document))
    with pytest.raises(DataError) as caught:
        prepared(leaf_source, tmp_path / "out.h5")
    assert f"{path}, user '{user}': {words}" in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_json_with_an_image_twice_or_another_label_is_refused(
    leaf_source: Path, tmp_path: Path
) -> None:
    path = leaf_source / "all_data.json"
    document = json.loads(path.read_text())
    with pytest.raises(ConfigError, match="LEAF's JSON tells Smiling alone"):
        prepared(leaf_source, tmp_path / "out.h5", label="Male")
    first, second = document["users"][:2]
    names = document["user_data"][first]["x"]
    kept, names[0] = names[0], names[1]
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=f"user '{first}': image {names[1]} is 2 times in 'x'"):
        prepared(leaf_source, tmp_path / "out.h5")
    names[0] = kept
    document["user_data"][second]["x"][0] = document["user_data"][first]["x"][0]
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=f"user '{second}': image .* is in .*user '{first}' too"):
        prepared(leaf_source, tmp_path / "out.h5")
