"""Each command's help ends with two examples that are right; shells complete what there is."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_bench import plugins
from pfl_bench.cli.completion import _NAMES, _completions
from pfl_bench.cli.data_parser import _meanings, option_lines
from pfl_bench.cli.examples import commands_of, examples
from pfl_bench.cli.main import _parse, main
from pfl_bench.cli.parsers import build_parser
from pfl_bench.config.row_files import bundled_configs, locate
from pfl_bench.types import RemoteFile
from tests.helpers import REPOSITORY

Capture = pytest.CaptureFixture[str]
COMMANDS = [words for words, _ in commands_of(build_parser())]


def help_of(*words: str, capsys: Capture) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words or "program")
def test_help_ends_with_two_examples_that_the_parser_takes(words: str, capsys: Capture) -> None:
    assert words in examples(), "give the command its two examples in pfl_bench/cli/examples.txt"
    *_, heading, first, second = help_of(*words.split(), capsys=capsys).splitlines()
    assert heading == "examples:"
    for line in (first, second):
        program, *arguments = shlex.split(line.split(">>")[0])
        assert program == "pfl-bench"
        assert arguments[: len(words.split())] == words.split()
        if arguments[-1] == "--help":
            assert "options of" in help_of(*arguments[:-1], capsys=capsys)
        else:
            assert _parse(build_parser(), arguments).module


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("attack", "default: RUN_DIR/attack, of a row runs/ROW/attack"),
        ("report", "default: report.html"),
        ("leaderboard", "default: leaderboard.html"),
    ],
)
def test_help_says_where_a_command_writes(command: str, default: str, capsys: Capture) -> None:
    assert default in " ".join(help_of(command, capsys=capsys).split())


@pytest.mark.parametrize("task", plugins.available(plugins.PREPARE))
def test_what_a_task_names_for_download_can_be_fetched(task: str, capsys: Capture) -> None:
    files = getattr(plugins.load(plugins.PREPARE, task), "FILES", ())
    assert all(isinstance(file, RemoteFile) for file in files)
    if not files and task != "hub":
        assert main(["data", "download", task]) == 2
        assert "this task has no download; its README" in capsys.readouterr().err


def test_bundled_rows_of_examples_are_there() -> None:
    named = [
        word
        for found in examples().values()
        for example in found
        for word in example.split()
        if (bundled_configs() / word.partition("/")[0]).is_dir()
    ]
    assert len(named) > 10
    for word in named:
        is_folder = (bundled_configs() / word).is_dir()
        assert locate(word, folder=is_folder).exists()


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("prepare", plugins.PREPARE),
        ("download", plugins.PREPARE),
        ("generate", plugins.GENERATE),
    ],
    ids=lambda value: str(value),
)
def test_help_on_data_names_the_tasks_and_a_task_s_options(
    action: str, kind: plugins.PluginKind, capsys: Capture
) -> None:
    text = " ".join(help_of("data", action, capsys=capsys).split())
    names = plugins.available(kind)
    assert f"tasks: {', '.join(names)}" in text
    for name in names:
        own = help_of("data", action, name, capsys=capsys)
        assert f"options of {name}:" in own
        options = "Download" if action == "download" else "Options"
        for option in getattr(getattr(plugins.load(kind, name), options, None), "model_fields", ()):
            assert f"\n  {option}=" in own
    with pytest.raises(SystemExit) as stopped:
        main(["data", action, "flare", "--help"])
    assert stopped.value.code == 2
    assert "did you mean 'flair'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in plugins.KINDS
        if kind.has_options
        for name in plugins.available(kind)
    ],
    ids=lambda value: value if isinstance(value, str) else value.word,
)
def test_every_option_of_every_plug_in_is_explained(kind: plugins.PluginKind, name: str) -> None:
    options = plugins.options_type(kind, name)
    lines = option_lines(options)
    assert max(map(len, lines)) <= 80
    assert set(options.model_fields) <= set(_meanings(options))
    heads = [line for line in lines if "=" in line and not line.startswith("   ")]
    assert [head.partition("=")[0].strip() for head in heads] == list(options.model_fields)


def asked(line: str) -> list[str]:
    """What a shell is answered, from a process of its own."""
    done = subprocess.run(
        ["bash", "-c", f"exec {shlex.quote(sys.executable)} -m pfl_bench 8>&1 9>&2 >/dev/null"],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [word.strip() for word in done.stdout.splitlines()]


def test_a_shell_is_answered_with_commands_options_rows_and_tasks() -> None:
    pytest.importorskip("argcomplete", reason="the extra completion is not installed")
    assert asked("pfl-bench sho") == ["show"]
    assert "--dry-run" in asked("pfl-bench run --d")
    assert "demo/private_federated.yaml" in asked("pfl-bench run demo/p")
    assert asked("pfl-bench data prepare fe") == ["femnist"]
    assert asked("pfl-bench run demo/federated.yaml federated.num_r") == ["federated.num_rounds="]


def test_names_that_are_completed_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = dict(commands_of(build_parser()))
    for (words, dest), names in _NAMES.items():
        assert dest in {action.dest for action in commands[words]._actions}
        found = list(names())
        assert found
        if dest in ("config", "row", "sweep", "folder"):
            assert all(locate(name, folder=dest == "folder").exists() for name in found)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.yaml").write_text("")
    answers = _completions(_NAMES["run", "config"], True, "demo/")
    assert "demo/mine.yaml" in answers
    assert "demo/central.yaml" in answers
    assert "demo/mine.yaml" not in _completions(_NAMES["run", "config"], False, "demo/")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_one_that_it_reads(
    shell: str, tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("argcomplete", reason="the extra completion is not installed")
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "_ARGCOMPLETE" in text
    assert "pfl-bench" in text
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text)
        check = [shell, "-n", str(script)]
        assert subprocess.run(check, capture_output=True, check=False).returncode == 0


def test_without_the_extra_the_mend_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete.shell_integration", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'pfl-bench[completion]'" in capsys.readouterr().err
