"""The Dockerfile: instructions that there are, files that exist, and shell that the shell reads."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch

from tests.helpers import REPOSITORY

KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Each instruction's word and the rest, its continued lines joined."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n", "", lines)
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def test_each_instruction_is_one_that_docker_knows() -> None:
    words = [word for word, _ in instructions()]
    assert set(words) <= KNOWN
    # Before the first FROM, Docker allows ARG alone.
    assert words[: words.index("FROM")] == ["ARG"]
    arguments = [rest.partition("=")[0] for word, rest in instructions() if word == "ARG"]
    assert arguments == ["PYTHON", "TORCH_INDEX", "EXTRAS"]


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = set()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            copied |= set(rest.split()[:-1])
    assert all((REPOSITORY / name).exists() for name in copied)
    assert copied == sent
    assert ignored[0] == "**"


def test_the_shell_reads_each_command() -> None:
    commands = [rest for word, rest in instructions() if word == "RUN"]
    assert len(commands) == 3
    for command in commands:
        subprocess.run(["sh", "-n", "-c", command], check=True)


def test_all_that_the_wheel_needs_is_copied() -> None:
    """The packages, and what pyproject.toml names."""
    copied = {name for word, rest in instructions() if word == "COPY" for name in rest.split()}
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    needed = set(re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', project, re.MULTILINE))
    assert needed == {"README.md", "LICENSE"}
    assert needed | {"pfl_bench", "privacy", "tasks", "configs", "setup.py"} <= copied
    assert not [name for name in copied if fnmatch(name, "*.toml.*")]
