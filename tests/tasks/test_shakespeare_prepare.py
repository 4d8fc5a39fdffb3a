from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError, HasColumns, Task
from tasks.shakespeare import works
from tasks.shakespeare.prepare import Options, prepare
from tasks.shakespeare.task import Options as TaskOptions
from tasks.shakespeare.task import build
from tasks.shakespeare.works import join_lines
from tests.helpers import REPOSITORY
from tests.tasks.shakespeare_texts import (
    ADA,
    ADA_AGAIN,
    BOB,
    BOB_AGAIN,
    EVE,
    FAY,
    TEXT,
    decode,
    leaf_json,
    write_text,
)

REAL = REPOSITORY.parent / "shared" / "data" / "shakespeare" / "t8.shakespeare.txt.gz"
YARD, ERRORS = "THE TALE OF THE YARD; OR, ENGINES", "THE COMEDY OF ERRORS"
ROLES = {
    "THE_TALE_OF_THE_YARD__OR__ENGINES_ADA": ADA + ADA_AGAIN,
    "THE_TALE_OF_THE_YARD__OR__ENGINES_BOB": BOB + BOB_AGAIN,
    "THE_COMEDY_OF_ERRORS_EVE": EVE,
    "THE_COMEDY_OF_ERRORS_FAY": FAY,
}
TEXTS = {name: join_lines(lines) for name, lines in ROLES.items()}
SIZES = {name: len(text) - 80 for name, text in TEXTS.items()}


def quiet(what: str, done: int, total: int | None) -> None:
    """Progress that nobody sees."""


def run(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    return prepare(source, out, Options(**options), quiet)


def examples_of(path: Path) -> dict[str, dict[str, list[tuple[str, str, str]]]]:
    """Of each split and user (window, next character, play)."""
    found: dict[str, dict[str, list[tuple[str, str, str]]]] = {}
    with Store(path) as store:
        plays = store.names("play")
        for name in store.split_names:
            split = store.split(name)
            inputs = split.read("inputs", 0, split.num_examples)
            targets = split.read("targets", 0, split.num_examples)
            play = split.read("play", 0, split.num_examples)
            own = found.setdefault(name, {})
            for user, client in enumerate(split.client_ids()):
                own[client] = [
                    (decode(inputs[i]), decode(targets[i : i + 1]), plays[play[i]])
                    for i in range(split.offsets[user], split.offsets[user + 1])
                ]
    return found


def windows_of(text: str) -> list[tuple[str, str]]:
    return [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]


def test_the_whole_text_becomes_windows_by_role(tmp_path: Path) -> None:
    facts = run(
        write_text(tmp_path / "in"), tmp_path / "out.h5", train_fraction=1.0, val_fraction=0.0
    )
    found = examples_of(tmp_path / "out.h5")
    assert list(found) == ["train"]
    assert found["train"].keys() == ROLES.keys()
    for name, text in TEXTS.items():
        play = YARD if "YARD" in name else ERRORS
        assert found["train"][name] == [(*window, play) for window in windows_of(text)]
    assert facts["table1"]["users"] == 4
    assert facts["table1"]["samples"] == sum(SIZES.values())
    assert facts["differs_from_published"] is None  # a part, by the number of its windows
    assert facts["roles_with_fewer_lines_than_3"] == 1
    assert facts["roles_with_at_most_80_characters"] == 1
    assert facts["plays"] == 2
    assert facts["text"]["edition"] == "another edition"
    assert "2 plays were found where it has 36" in facts["warning"]


def test_a_split_follows_the_text_and_shares_no_character(tmp_path: Path) -> None:
    text = " ".join(f"{number} is a number." for number in range(60))
    users = {"P_A": ("P", text), "Q_B": ("Q", text[:150])}
    (tmp_path / "all_data.json").write_text(json.dumps(leaf_json(users)))
    options = {"train_fraction": 0.6, "val_fraction": 0.2}
    facts = run(tmp_path, tmp_path / "out.h5", **options)
    found = examples_of(tmp_path / "out.h5")
    windows = windows_of(text)
    count = len(windows)
    train, val = round(0.6 * count), round(0.8 * count)
    expected = {
        "train": windows[:train],
        "val": windows[train + 80 : val],
        "test": windows[val + 80 :],
    }
    for name, own in expected.items():
        assert [example[:2] for example in found[name]["P_A"]] == own
    assert list(found["val"]) == list(found["test"]) == ["P_A"]  # Q_B is too short for them
    assert len(found["train"]["Q_B"]) == round(0.6 * 70)
    assert facts["windows_left_out_for_overlap_before_sampling"] == {
        "val": 80 + 14,
        "test": 80 + 14,
    }
    assert facts["split"]["remove_overlap"] is True
    loose = run(tmp_path, tmp_path / "loose.h5", remove_overlap=False, **options)
    assert loose["splits"]["test"] == {"users": 2, "examples": (count - val) + 14}
    assert loose["windows_left_out_for_overlap_before_sampling"] == {"val": 0, "test": 0}


def test_published_splits_stay_as_they_are(tmp_path: Path) -> None:
    text = "".join(f"{number} bells. " for number in range(30))
    for name, part in (("train", text[:150]), ("test", text[150:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(json.dumps(leaf_json({"P_A": ("P", part)})))
    facts = run(tmp_path, tmp_path / "out.h5")
    found = examples_of(tmp_path / "out.h5")
    assert [e[:2] for e in found["test"]["P_A"]] == windows_of(text[150:])
    assert facts["split"] == {"by": "example", "as": "published"}
    assert facts["overlap"].startswith("as published")
    with pytest.raises(ConfigError, match="train_fraction"):
        run(tmp_path, tmp_path / "no.h5", train_fraction=0.5)
    assert not (tmp_path / "no.h5").exists()


def test_windows_in_no_order_are_left_out_or_taken_as_they_are(tmp_path: Path) -> None:
    data = leaf_json({"P_A": ("P", "abcdefghij" * 20), "P_B": ("P", "0123456789 " * 20)})
    order = np.random.default_rng(0).permutation(120)
    own = data["user_data"]["P_A"]
    data["user_data"]["P_A"] = {key: [own[key][place] for place in order] for key in "xy"}
    (tmp_path / "all_data.json").write_text(json.dumps(data))
    facts = run(tmp_path, tmp_path / "out.h5")
    assert facts["users_left_out_as_out_of_order"] == 1
    assert examples_of(tmp_path / "out.h5")["train"].keys() == {"P_B"}
    facts = run(tmp_path, tmp_path / "loose.h5", remove_overlap=False)
    assert facts["splits"]["train"]["users"] == 2
    for key in ("users", "num_samples", "hierarchies"):
        del data[key][1]
    del data["user_data"]["P_B"]
    (tmp_path / "all_data.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="the windows of 1 are in no order; give a") as caught:
        run(tmp_path, tmp_path / "none.h5")
    assert "smaller number" not in str(caught.value)  # nothing is smaller than min_examples = 0


def test_roles_are_dropped_drawn_and_dealt(tmp_path: Path) -> None:
    source = write_text(tmp_path / "in")
    smallest = min(SIZES, key=SIZES.__getitem__)
    facts = run(source, tmp_path / "a.h5", min_examples=SIZES[smallest] + 1)
    assert facts["users_dropped"] == 1
    assert smallest not in examples_of(tmp_path / "a.h5")["train"]
    facts = run(source, tmp_path / "b.h5", num_users=2, split_seed=3)
    assert facts["splits"]["train"]["users"] == 2
    facts = run(source, tmp_path / "c.h5", split_by="user", train_fraction=0.5, val_fraction=0.25)
    found = examples_of(tmp_path / "c.h5")
    assert {name: len(own) for name, own in found.items()} == {"train": 2, "val": 1, "test": 1}
    assert sum(len(e) for own in found.values() for e in own.values()) == sum(SIZES.values())
    facts = run(source, tmp_path / "d.h5", partition="iid", iid_users=3)
    assert facts["splits"]["train"]["users"] == 3
    assert facts["artificial_users"] is True
    natural = run(source, tmp_path / "e.h5")
    assert facts["splits"]["train"]["examples"] == natural["splits"]["train"]["examples"]
    with pytest.raises(ConfigError, match="split_seed"):
        run(source, tmp_path / "f.h5", split_seed=1)
    with pytest.raises(DataError, match="min_examples = 100000 drops 4; choose a smaller number"):
        run(source, tmp_path / "f.h5", min_examples=100_000)


def test_wrong_sources_are_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no public form of Shakespeare.*etext 100.*LEAF JSON"):
        _flat(lambda: run(tmp_path / "empty", tmp_path / "out.h5"))
    source = write_text(tmp_path / "two")
    write_text(source, name="more.txt")
    with pytest.raises(DataError, match=r"several texts: more\.txt, plays\.txt"):
        run(source, tmp_path / "out.h5")
    (tmp_path / "json").mkdir()
    data = leaf_json({"P_A": ("P", "abcdefghij" * 20)})
    data["user_data"]["P_A"]["x"][7] = "short"
    (tmp_path / "json" / "all_data.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"all_data\.json, user 'P_A': example 7 has x of 5 char"):
        run(tmp_path / "json", tmp_path / "out.h5")
    for number in range(2):
        again = leaf_json({"P_A": ("P", "abcdefghij" * 9)})
        (tmp_path / "json" / f"all_data_{number}.json").write_text(json.dumps(again))
    (tmp_path / "json" / "all_data.json").unlink()
    with pytest.raises(DataError, match=r"_1\.json, user 'P_A': has come in another file already"):
        run(tmp_path / "json", tmp_path / "out.h5")
    kept = ("THE ", "ACT ", "by ")
    short = "\n".join(x if x.startswith(kept) else x[:10] for x in TEXT.splitlines())
    with pytest.raises(DataError, match="hold no role with an example; get them anew"):
        run(write_text(tmp_path / "short", short), tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()
    folders = ["empty", "json", "short", "two"]
    assert sorted(path.name for path in tmp_path.iterdir()) == folders


def test_a_text_much_longer_than_the_works_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(works, "MAX_BYTES", 1 << 20)
    source = write_text(tmp_path / "in", "x" * ((1 << 20) + 1))
    with pytest.raises(DataError, match=r"plays\.txt: holds more than 1 MiB; the complete works"):
        run(source, tmp_path / "out.h5")


def _flat(call: Any) -> None:
    """Call; an error's lines become one."""
    try:
        call()
    except DataError as error:
        raise DataError(" ".join(str(error).split())) from None


def test_the_command_line_ends_with_2_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_text(tmp_path / "in", "Take an egg.\nBoil it.\n", "recipes.txt")
    out = tmp_path / "out.h5"
    code = main(["data", "prepare", "shakespeare", "--source", str(source), "--out", str(out)])
    assert code == 2
    assert "recipes.txt: no play found" in capsys.readouterr().err
    assert not out.exists()


def test_the_task_gives_what_models_take(tmp_path: Path) -> None:
    run(write_text(tmp_path / "in"), tmp_path / "out.h5", train_fraction=0.5, remove_overlap=False)
    task = build(TaskOptions(data=str(tmp_path / "out.h5"), max_examples_per_user=10))
    typed: Task = task  # the type checker holds the Protocols
    columns: HasColumns = task
    assert typed.metrics == ("classification",)
    assert task.facts.num_classes == 80
    assert task.facts.input_shape == (80,)
    assert task.facts.artificial_users is False
    split = task.split("train")
    examples = split.read_range(0, 5)
    assert examples.inputs.dtype == examples.targets.dtype == torch.int64
    assert examples.inputs.shape == (5, 80)
    own = split.read_user(0, np.random.default_rng(0))
    assert len(own) == 10
    assert "play" in columns.column_names
    assert columns.column_values("play") == [ERRORS, YARD]
    assert columns.read_column("train", "play", 0, 2).tolist() == [0, 0]
    logits = torch.randn(5, 80)
    assert torch.equal(
        task.loss(logits, examples.targets), functional.cross_entropy(logits, examples.targets)
    )


@pytest.mark.skipif(not REAL.is_file(), reason="the real text is not in ../shared/data/shakespeare")
def test_the_real_text_gives_table_1_but_for_one_role(tmp_path: Path) -> None:
    facts = run(REAL.parent, tmp_path / "out.h5", num_users=118)
    assert facts["text"] == {
        "file": REAL.name,
        "md5": works.EDITION_MD5,
        "edition": "January 1994",
    }
    assert "warning" not in facts
    stats = facts["table1"]
    assert stats["users"] == 1129 + 1
    assert stats["samples"] == 4_226_158 + 48
    assert stats["mean"] == pytest.approx(3740.01, abs=0.005)
    assert stats["sd"] == pytest.approx(6210.49, abs=0.005)
    assert stats["skewness"] == pytest.approx(3.354, abs=0.0005)
    assert stats["histogram"]["users"] == [706, 126, 72, 56, 38, 33, 31, 16, 8, 11]
    assert facts["plays"] == works.EDITION_PLAYS
    assert facts["other_characters"] == 0
    assert facts["splits"]["train"]["users"] == 118


@pytest.mark.skipif(not REAL.is_file(), reason="the real text is not in ../shared/data/shakespeare")
def test_without_one_role_of_48_windows_table_1_is_exact() -> None:
    sizes = {}
    text, _ = works.read_text(REAL)
    for play in works.parse(text, "real"):
        for role, lines in play.roles.items():
            count = len(join_lines(lines)) - 80
            if len(lines) >= 3 and count > 0:
                sizes[play.title, role] = count
    of_48 = [name for name, count in sizes.items() if count == 48]
    assert of_48 == [
        ("KING HENRY THE EIGHTH", "VAUX"),
        ("THE TRAGEDY OF TITUS ANDRONICUS", "GOTH"),
    ]
    del sizes[of_48[1]]
    counts = np.array(list(sizes.values()))
    published = (1129, 4_226_158, 3743.28, 6212.26)
    assert (len(counts), counts.sum(), round(counts.mean(), 2), round(counts.std(), 2)) == published
