"""The documents name what exists: files, links, headings, commands and rows."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from pfl_bench.cli.main import _parse
from pfl_bench.cli.parsers import build_parser
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_files import kind_of, rows_below
from pfl_bench.config.sweeps import load_sweep
from tests.helpers import REPOSITORY

# Paths of other projects' repositories.
_PEERS = re.compile(r"<!-- peers' errors: begin -->.*?<!-- peers' errors: end -->", re.DOTALL)
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(
    r"(?<![\w./<>-])((?:pfl_bench|privacy|tasks|tests|scripts|configs|docs)/[\w./-]*+)(?![<*{])"
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Files that CONTRIBUTING.md has the reader write, and names that stand for any file.
_EXAMPLE = re.compile(r"^```\w+ (\S+)", re.MULTILINE)
_PLACEHOLDERS = {"CONFIG.yaml", "ROW.yaml", "SWEEP.yaml", "my_row.yaml", "row.yaml", "FOLDER"}
_STANDS_FOR = {"Z": "1", "N": "1", "K": "1", "SOURCE": "generated"}


def documents() -> list[Path]:
    """The Markdown files of the project."""
    folders = ("docs", "tasks", "configs", "scripts", "tests")
    found = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.md")]
    return sorted([*REPOSITORY.glob("*.md"), *found])


DOCUMENTS = documents()
each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)


def missing_paths(text: str, written: set[str]) -> set[str]:
    """Paths of ours in a text that are neither files, folders, nor written by a walkthrough."""
    named = {name.rstrip("/.-") for name in _PATH.findall(_PEERS.sub("", text))}
    # Metrics have such names too: privacy/epsilon_simulated.
    named = {name for name in named if "." in name or not name.startswith("privacy/")}
    return {name for name in named - written if not (REPOSITORY / name).exists()}


def headings(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def broken_links(path: Path, text: str) -> set[str]:
    """Relative links of a document whose file or heading does not exist."""
    broken = set()
    for link in _LINK.findall(_FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path if not name else (path.parent / name)
        if not target.exists() or (
            anchor and anchor not in headings(target.read_text(encoding="utf-8"))
        ):
            broken.add(link)
    return broken


def commands(text: str) -> list[list[str]]:
    """The arguments of each complete ``pfl-bench`` command of a document."""
    lines = []
    for language, block in _FENCE.findall(text):
        if language in ("", "bash", "sh"):
            lines += block.replace("\\\n", " ").splitlines()
    inline = re.findall(r"`(pfl-bench [^`]*)`", _FENCE.sub("", text))
    lines += [" ".join(code.split()) for code in inline if " --" in code]
    split = [shlex.split(line, comments=True) for line in lines if "pfl-bench " in line]
    whole = [words for words in split if words[0] == "pfl-bench" and "..." not in words]
    return [
        [_STANDS_FOR.get(word, word) for word in words[1:]]
        for words in whole
        if not any(word[0] in "[<" for word in words)
    ]


def written_by(text: str) -> set[str]:
    """Files that a page has its reader write, by a block or by ``copy``, and their folders."""
    copied = [words[2] for words in commands(text) if words[0] == "copy"]
    files = [Path(name) for name in [*_EXAMPLE.findall(text), *copied]]
    return {str(place) for path in files for place in (path, *path.parents)}


def missing_row(arguments: list[str]) -> str | None:
    """The row, folder or sweep that a command names and that is not bundled."""
    if arguments[0] not in ("run", "table", "sweep"):
        return None
    name = arguments[1]
    if name in _PLACEHOLDERS or "<" in name:
        return None
    there = (REPOSITORY / "configs" / name.removeprefix("configs/")).exists()
    return None if there else name


@each_document
def test_paths_in_the_documents_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        pytest.skip("says what was there at its time")
    assert missing_paths(text, set(_EXAMPLE.findall(text))) == set()


@each_document
def test_links_in_the_documents_lead_somewhere(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == set()


@each_document
def test_commands_in_the_documents_are_understood(path: Path) -> None:
    """Options are the command's, rows are bundled, and values of settings are YAML."""
    text = path.read_text(encoding="utf-8")
    written = written_by(text)
    for arguments in commands(text):
        try:
            _parse(build_parser(), arguments)
        except SystemExit:
            pytest.fail(f"{path.name}: pfl-bench {shlex.join(arguments)}")
        row = missing_row(arguments)
        assert row is None or row in written, row
        for word in arguments:
            yaml.safe_load(word.partition("=")[2].replace("...", "x"))


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a command and of the commands below it."""
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found |= {name for below in action.choices.values() for name in options_of(below)}
    return found


def test_options_in_the_table_of_commands_are_the_commands() -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `pfl-bench (\S+)(.*)$", text, re.MULTILINE)
    (parsers,) = [one for one in build_parser()._actions if isinstance(one.choices, dict)]
    assert isinstance(parsers.choices, dict)
    assert {command for command, _ in lines} == set(parsers.choices)
    for command, line in lines:
        named = set(re.findall(r"--[a-z][a-z-]*", line))
        assert named <= options_of(parsers.choices[command]), command


def test_the_sweep_in_the_page_of_commands_is_one(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "commands.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml sweeps/rates.yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ways = re.findall(r"^\| `((?:random|halving|optuna): .*?)` ", text, re.MULTILINE)
    assert len(ways) == 3
    for way in ["", *ways]:
        file = tmp_path / "rates.yaml"
        file.write_text(f"{block}{way}\n", encoding="utf-8")
        assert load_sweep(file).grid.keys() == yaml.safe_load(block)["grid"].keys()


def test_first_lines_of_bundled_rows_are_commands_that_are_understood() -> None:
    files = sorted((REPOSITORY / "configs").rglob("*.yaml"))
    rows = [path for path in files if kind_of(path) != "declaration"]
    assert len(rows) > 100
    for row in rows:
        line = row.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        command = line.partition("; ")[0].split("   ")[0]
        program, *arguments = shlex.split(command, comments=True)
        assert program == "pfl-bench", row
        _parse(build_parser(), arguments)
        assert missing_row(arguments) is None, row


def test_the_page_of_qmnist_836_counts_its_private_rows() -> None:
    page = (REPOSITORY / "docs" / "how_to" / "qmnist_836.md").read_text(encoding="utf-8")
    folders = [REPOSITORY / "configs/qmnist_836" / name for name in ("table1", "mechanisms")]
    rows = [load_config(row).config for folder in folders for row in rows_below(folder).values()]
    private = sum(row.privacy is not None for row in rows)
    assert re.findall(r"audits of (\d+) private runs", page) == [str(private)]


def test_scripts_in_the_documents_are_executable_by_bash() -> None:
    for script in sorted((REPOSITORY / "scripts").glob("*.sh")):
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_what_is_missing_is_found() -> None:
    text = "`privacy/no_such.py`, scripts/bench.py, `configs/<name>.yaml` and benchmark/x/y.py"
    assert missing_paths(text, set()) == {"privacy/no_such.py"}
    assert missing_paths(text, {"privacy/no_such.py"}) == set()
    page = REPOSITORY / "docs" / "privacy.md"
    links = "[a](attacks.md) [b](no.md) [c](audit.md#the-ledger) [d](#no-heading) [e](https://x)"
    assert broken_links(page, links) == {"no.md", "#no-heading"}
    text = "```bash\npfl-bench audit DIR --jsn\n```\n`pfl-bench run no/row.yaml --seed 1`\n"
    wrong, row = commands(text)
    with pytest.raises(SystemExit):
        _parse(build_parser(), wrong)
    assert missing_row(row) == "no/row.yaml"
    page = "```yaml rows/a.yaml\n```\n```bash\npfl-bench copy demo/central.yaml b.yaml\n```\n"
    assert written_by(page) >= {"rows/a.yaml", "rows", "b.yaml"}


def test_the_table_of_the_readme_is_the_one_that_the_demo_prints() -> None:
    """Columns, rows, references and epsilons; what is measured differs by machine and noise."""
    script = (REPOSITORY / "scripts" / "demo.sh").read_text(encoding="utf-8")
    (columns,) = re.findall('--columns "(.*?)"', script)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", readme, re.MULTILINE)
    ]
    assert shown[0] == columns.split(",")
    rows = [load_config(path).config for path in rows_below(REPOSITORY / "configs/demo").values()]
    (expected,) = zip(*(row.expected for row in rows), strict=True)
    assert all(entry.measured_here for entry in expected)
    assert [(line[0], line[2]) for line in shown[2 : 2 + len(rows)]] == [
        (f"{row.name} [{note}]", f"{entry.value:.4f} ± {entry.sd:.4f} ({entry.seeds} seeds)")
        for note, (row, entry) in enumerate(zip(rows, expected, strict=True), start=1)
    ]
    for row, line in zip(rows, shown[2 : 2 + len(rows)], strict=True):
        assert (line[3] == line[4] == "-") == (row.privacy is None)
        assert row.privacy is None or line[3].startswith(f"{row.privacy.epsilon:g} (delta ")
