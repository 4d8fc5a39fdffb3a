"""What a command imports before it does its work, asked of a fresh process; nothing is timed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers import REPOSITORY

HELP = """
import contextlib, io, sys
from pfl_bench.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
"""
# Up to the first round of a row: configuration, data, model.
ROW = """
import pathlib, sys
import torch
from pfl_bench.runs import runner
from pfl_bench.federated.parts import build_model, build_task
from pfl_bench.config.loading import load_config
resolved = load_config(pathlib.Path(sys.argv[1]))
task = build_task(resolved, torch.device("cpu"))
build_model(resolved, task, torch.device("cpu"))
"""


def loaded(code: str, argument: str, suspects: tuple[str, ...]) -> list[str]:
    """Run code in a fresh process; which of the suspects it has imported."""
    show = f"\nprint([name for name in {suspects!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + show, argument],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    names: list[str] = done.stdout.strip("[]\n").replace("'", "").split(", ")
    return [name for name in names if name]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_the_standard_library_alone(option: str) -> None:
    heavy = ("torch", "numpy", "pydantic", "yaml", "h5py", "filelock", "wandb", "submitit")
    assert loaded(HELP, option, (*heavy, "argparse")) == ["argparse"]


def test_a_row_imports_what_it_needs_alone() -> None:
    row = "configs/demo/federated.yaml"
    others = ("sklearn", "scipy", "pandas", "matplotlib", "torchvision", "opacus", "wandb")
    assert loaded(ROW, row, (*others, "dp_accounting", "submitit", "torch")) == ["torch"]


@pytest.mark.parametrize("command", ["audit", "sweep"])
def test_a_path_that_leads_nowhere_is_refused_before_the_imports(command: str) -> None:
    code = f"import sys; from pfl_bench.cli.main import main; main([{command!r}, sys.argv[1]])"
    assert loaded(code, "nowhere", ("torch",)) == []


BEGUN = ["run", "table", "sweep", "report", "leaderboard", "audit", "check-plugin"]
FIRST = """
import sys
import pfl_bench.cli.speech as speech
from pfl_bench.cli.main import main
def say(text):
    print(text, [name for name in ("torch", "pydantic", "matplotlib") if name in sys.modules])
    sys.exit()
speech.say = say
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", BEGUN)
def test_what_begins_is_said_before_the_imports(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST, command, "some/where"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"pfl-bench {command}: reading some/where []\n"
