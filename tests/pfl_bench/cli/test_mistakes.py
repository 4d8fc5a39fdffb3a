"""Mistakes on the command line: each ends at once, in exit code 2 and words that help."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from pfl_bench.cli.main import explain, main
from pfl_bench.config.yaml_text import parse_yaml
from pfl_bench.runs.membership import ATTACK_VERSION
from tests.helpers import REPOSITORY

Capture = pytest.CaptureFixture[str]


def said(words: list[str], capsys: Capture) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "table", "sweep", "show", "attack"])
def test_key_value_is_not_said_to_be_required(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command])
    assert "key=value" not in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["report", "leaderboard", "audit", "run", "show", "table"])
def test_links_that_lead_in_a_circle(command: str, tmp_path: Path, capsys: Capture) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "loop" in said([command, str(loop)], capsys)


@pytest.mark.parametrize("command", ["report", "leaderboard"])
def test_folders_that_are_missing_are_told_before_a_page_that_exists(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "page.html").touch()
    text = said([command, "nowhere", "--out", str(tmp_path / "page.html")], capsys)
    assert "nowhere" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("row: a.yaml\ngrid: {seed: [1]}", "is a sweep, not a row; run it by `pfl-bench sweep"),
        ("view_of: demo\nrows: []", "is a view, not a row; run it by `pfl-bench table"),
        ("a:\n\tb: c", "found character '\\t' that cannot start any token; indent with spaces"),
        ("a: b: c", "not valid YAML: mapping values are not allowed here\n  at line 2, column 5"),
    ],
)
def test_a_file_that_is_no_row(keys: str, words: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine.yaml").write_text(f"version: 1\n{keys}\n", encoding="utf-8")
    text = said(["run", str(tmp_path / "mine.yaml")], capsys)
    assert words in text
    assert "unicode string" not in text


def test_a_name_like_no_other_gets_no_suggestion(capsys: Capture) -> None:
    assert "did you mean" not in said(["run", "nothere.yaml"], capsys)


def test_a_run_folder_that_is_a_file(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "out").touch()
    text = said(["run", str(config_file("federated")), "--out", str(tmp_path / "out")], capsys)
    assert "cannot be written (a file has this name, or part of it)" in text


def test_a_folder_of_a_table_that_is_a_file_is_told_once_before_a_row_runs(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    config_file("central", name="other")
    rows = config_file("federated").parent
    (tmp_path / "out").touch()
    text = said(["table", str(rows), "--out", str(tmp_path / "out")], capsys)
    assert text.count("out: no folder can be made here") == 1
    assert "failed" not in text
    assert "run 1 of" not in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ["--epsilon", "2"],
            "unrecognized arguments: --epsilon 2; settings of a row are written "
            "key=value: privacy.epsilon=2",
        ),
        (["--num-rounds=3"], "key=value: federated.num_rounds=3"),
        (["--privacy.epsilon", "2"], "key=value: privacy.epsilon=2"),
        (["--nothing-like", "2"], "key=value, such as privacy.epsilon=2"),
        (["--quiet", "federated.num_rounds", "3"], "key=value: federated.num_rounds=3"),
        (["--quiet", "nothing"], "key=value, such as privacy.epsilon=2"),
        (["--seeds", "3"], "--seeds 3; --seeds belongs to `pfl-bench table`;"),
    ],
)
def test_a_setting_that_is_written_as_an_option_is_told_how(
    given: list[str], words: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "demo/private_federated", *given])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["attack", "privacy explain"])
def test_each_command_that_takes_settings_tells_how(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), "demo/private_federated", "--epsilon", "2"])
    assert "key=value: privacy.epsilon=2" in capsys.readouterr().err


def test_a_flag_that_there_is_not_is_no_setting(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["show", "demo/private_federated", "--quiet"])
    assert capsys.readouterr().err.endswith(
        "unrecognized arguments: --quiet; --quiet belongs to `pfl-bench run` and `pfl-bench "
        "table`; `pfl-bench show --help` lists what it takes\n"
    )
    with pytest.raises(SystemExit, match="2"):
        main(["--quiet"])
    assert "; `pfl-bench --help` lists what it takes" in capsys.readouterr().err


def test_another_plugin_is_told_to_bring_its_whole_section(capsys: Capture) -> None:
    row = ["run", "demo/private_federated", "--dry-run"]
    text = said([*row, "privacy.mechanism.name=gaussian"], capsys)
    assert "privacy.mechanism.quantile: unknown key. Allowed here: clip_norm." in text
    advice = "To choose another privacy.mechanism, give the whole section: "
    assert text.endswith(f"{advice}'privacy.mechanism={{name: gaussian, ...}}'\n")
    assert "did you mean 'cuda'?" in said([*row, "device=gpu"], capsys)


def test_more_seeds_than_anybody_trains(capsys: Capture) -> None:
    text = said(["table", "demo", "--seeds", "99999999999"], capsys)
    assert "--seeds 99999999999: give 1 to 10000" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "grid: has 1,600,000,000 combinations, more than 10,000"),
        ({"random": {"runs": 10**9}}, "random.runs: must be a whole number >= 1 and <= 10000"),
        ({"grid": {"seed": 3}}, "grid.seed: must be a list of 1 or more items, or a section with"),
        ({"grid": {"seed": {"low": 2, "high": 1}}}, "grid.seed: low 2 must be below high 1"),
        ({"grid": {"seed": {"low": 2, "hgh": 3}}}, "grid.seed.hgh: unknown key"),
    ],
)
def test_a_grid_that_is_none(
    change: dict[str, object],
    words: str,
    config_file: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    row = config_file("federated")
    keys = ("num_rounds", "cohort_size", "local_epochs", "local_batch_size")
    grid = {f"federated.{key}": list(range(1, 201)) for key in keys}
    tree = {"version": 1, "row": row.name, "metric": "val/accuracy", "grid": grid, **change}
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(yaml.safe_dump(tree), encoding="utf-8")
    text = said(["sweep", str(sweep)], capsys)
    assert words in text
    assert "nullable" not in text


@pytest.mark.parametrize("text", ["010", "-07", "1:30", "00"])
def test_numbers_that_yaml_1_1_reads_in_another_base_are_text(text: str) -> None:
    assert parse_yaml(text) == text


def test_whole_numbers() -> None:
    given = "[0, -0, +5, 12, 1_000, 0x1F, 0b11]"
    assert parse_yaml(given) == [0, 0, 5, 12, 1000, 31, 3]


def test_options_of_another_mode(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    row, out = config_file("federated", federated__num_rounds=1), tmp_path / "out"
    assert main(["run", str(row), "--out", str(out)]) == 0
    capsys.readouterr()
    assert "--every belongs to --live" in said(["audit", str(out), "--every", "3"], capsys)
    assert "--user belongs to --kind gradient" in said(["attack", str(out), "--user", "1"], capsys)
    for option in (["--shadows", "8"], ["--confidence", "0.9"]):
        refused = said(["attack", str(out), "--kind", "gradient", *option], capsys)
        assert f"{option[0]} belongs to the other kinds" in refused
    assert "claims no privacy" in said(["audit", str(out), "--live"], capsys)


def test_traces_replace_no_other_archive(tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "model.pt"
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("weights", "precious")
    before, words = model.read_bytes(), ["data", "traces", "generated", "num_devices=3"]
    assert "another file of that name" in said([*words, "--out", str(model)], capsys)
    assert model.read_bytes() == before
    for _ in range(2):
        assert main([*words, "--out", str(tmp_path / "devices.npz")]) == 0


def test_names_that_are_not_utf_8(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "demo/federated", "--out", f"{tmp_path}/Z\udcfcrich"])
    assert r"Z\udcfcrich' is not UTF-8" in capsys.readouterr().err
    with pytest.raises(UnicodeEncodeError) as raised:
        "\udcfc".encode()
    assert "rename it, or a folder above" in str(explain(raised.value))


def test_a_folder_whose_name_begins_with_a_dash(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-x", "sound"):
        (tmp_path / name).mkdir()
    for words in (["report", "-x"], ["report", "sound", "-x"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert "to name it, write ./-x" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", "-y"])
    assert "write ./" not in capsys.readouterr().err


def test_a_locale_without_letters(tmp_path: Path) -> None:
    home = tmp_path / "größe"
    home.mkdir()
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env = {**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)}

    def pfl_bench(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pfl_bench", *words]
        return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)

    # A name beyond the locale, in an argument and in a row.
    row = home / "row.yaml"
    text = (REPOSITORY / "configs" / "demo" / "federated.yaml").read_text(encoding="utf-8")
    row.write_text(f"{text}\nplugins: [plugü]\n", encoding="utf-8")
    for words in (["run", "demo/federated", "--out", "größe"], ["show", "row.yaml"]):
        done = pfl_bench(*words)
        assert done.returncode == 2, done.stderr
        assert "this locale (ascii) lacks letters" in done.stderr
        assert "LC_ALL=C.UTF-8" in done.stderr
    # What is printed has letters beyond it, or beyond the output alone.
    for changed in (variables, {"PYTHONIOENCODING": "ascii"}):
        env = {**os.environ, **changed, "PYTHONPATH": str(REPOSITORY)}
        done = pfl_bench("show", "demo/federated", "--no-estimate")
        assert done.returncode == 0, done.stderr
        assert r"\xb1" in done.stdout


def test_a_closed_output(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["list", "tables"]) == 0
    sys.stdout.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["--version", "list tables"])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_output(command: str, buffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pfl_bench", *command.split()], stdout=full, check=False,
            stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": buffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "pfl-bench: no space is left on the device; free space or give another --out\n"
    )


def test_a_home_folder_and_a_name_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["copy", "demo/federated.yaml", "~/row.yaml"]) == 0
    row = tmp_path / "row.yaml"
    assert row.is_file()
    for words in ("run", "data stats", "report", "leaderboard", "privacy explain", "list rows"):
        assert f"{tmp_path}/no" in said([*words.split(), "~/no"], capsys)
    long = said(["run", str(row), "--out", f"{tmp_path}/new/{300 * 'x'}"], capsys)
    assert "give a shorter name with --out" in long


def test_a_configuration_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "config.yaml").mkdir()
    told = said(["run", "demo/federated", "--out", str(tmp_path), "--resume"], capsys)
    assert "damaged" not in told
    assert "cannot be read: it is no regular file" in told


def test_a_plugin_that_does_not_fit_on_the_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "text", str(path))

    monkeypatch.setattr("pfl_bench.cli.new.write_atomically", fail)
    told = said(["new", "metric", "mine", "--out", str(tmp_path / "mine")], capsys)
    assert "free space" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "has_space"), [(errno.EACCES, False), (errno.ENOSPC, True)])
def test_space_is_asked_for_where_it_lacks(number: int, has_space: bool) -> None:
    text = str(explain(OSError(number, "text", "config.yaml")))
    assert text.startswith("config.yaml: ")
    assert ("free space" in text) is has_space


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["demo/federated", "--dry-run"], "--dry-run looks at one process alone"),
        (["demo/central"], "this row is of the setting 'central'; run it without torchrun"),
        (["demo/federated", "federated.workers=2"], "federated.workers: torchrun has started"),
    ],
)
def test_what_torchrun_cannot_start(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    assert why in said(["run", *words, "--out", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("WORLD_SIZE", "", "the environment variable WORLD_SIZE='' is not a number of torchrun's"),
        ("RANK", "x", "the environment variable RANK='x' is not a number"),
        ("RANK", "5", "the environment variable RANK='5': ranks of WORLD_SIZE=2 end at 1"),
        ("MASTER_PORT", "here", "the environment variable MASTER_PORT='here' is not a number"),
    ],
)
def test_what_torchrun_never_sets(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for variable, text in (place | {name: value}).items():
        monkeypatch.setenv(variable, text)
    text = said(["run", "demo/federated", "--dry-run"], capsys)
    assert why in text
    assert "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT" in text


def test_a_folder_with_two_packages_of_plug_ins(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a_plugins", "b_plugins"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    text = said(["new", "algorithm", "mine", "--out", str(tmp_path)], capsys)
    assert f"--out {tmp_path}: has several packages of plug-ins (a_plugins, b_plugins)" in text
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"format_version": 99, "attacks": {}}, "damaged, or of another version; attack again"),
        (None, "the attack loss is of other settings than the run's; attack the run's folder"),
    ],
)
def test_a_run_with_another_attack_is_not_audited(
    content: object, why: str, config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    row = config_file("private_federated", federated__num_rounds=1)
    assert main(["run", str(row), "--out", str(out)]) == 0
    (out / "attack").mkdir()
    content = content or {"format_version": ATTACK_VERSION, "attacks": {"loss": {}}}
    (out / "attack" / "attack.json").write_text(json.dumps(content))
    text = said(["audit", str(out)], capsys)
    assert f"{out / 'attack' / 'attack.json'}: " in text
    assert why in text


def test_a_run_whose_words_nobody_reads_is_not_called_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe_is_closed(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("pfl_bench.cli.main._command", pipe_is_closed)
    for command, code in ((["list"], 0), (["run", "demo/federated"], 1)):
        monkeypatch.setattr("sys.stdout", io.StringIO())
        assert main(command) == code


def test_the_lock_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def refused(lock: FileLock) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", refused)
    told = said(["run", "demo/federated", "--out", str(tmp_path)], capsys)
    assert f"cannot be written (Permission denied: '{tmp_path / '.lock'}')" in told
