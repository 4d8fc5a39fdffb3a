"""Fixtures shared by all tests."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys

# Two test processes on two cores: more threads of one would only wait for one another, at full
# speed. It is read when torch is imported, here and in all processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
# Hundreds of processes of tests import the packages: without bytecode each would compile them anew.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, settings

from pfl_bench.client import machine
from pfl_bench.federated.workers import multiprocess
from pfl_bench.runs import environment
from pfl_bench.runs.auditing import seeds
from tests import warm
from tests.helpers import make_tree

# Until all tests are collected: what is imported stays, so that there is no garbage to look for.
gc.disable()
sys.dont_write_bytecode = False
# A busy machine must not fail a property; where a run is to be repeatable, so are its examples.
settings.register_profile(
    "pfl-bench",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pfl-bench")
# No test depends on times that the user's own runs have kept, or adds to them.
os.environ["PFL_BENCH_CACHE"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fast``, which ``scripts/test.sh --fast`` gives."""
    parser.addoption("--fast", action="store_true", help="leave out the slow tests of times.json")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long ones first, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("--fast"):
        slow = json.loads(Path(__file__).with_name("times.json").read_text())["slow"]
        kept, out = [], []
        for item in items:
            is_slow = item.get_closest_marker("slow") or item.nodeid.partition("[")[0] in slow
            (out if is_slow else kept).append(item)
        config.hook.pytest_deselected(items=out)
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """All that was imported stays: garbage is not looked for in it, some hundred times."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries look at their own garbage when the process ends."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Small stores of every task, each written when it is first asked for; to be read alone."""
    from tests.contracts import small_stores

    folder = tmp_path_factory.mktemp("stores")

    def find(task: str) -> Path:
        path = folder / f"{task}.h5"
        if not path.exists():
            getattr(small_stores, f"write_{task}")(path)
        return path

    return find


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a small configuration file: ``config_file("central", seed=4)``."""

    def write(setting: str, **changes: Any) -> Path:
        path = tmp_path / f"{setting}.yaml"
        path.write_text(yaml.safe_dump(make_tree(setting, **changes)), encoding="utf-8")
        return path

    return write


def _read_once(covers_all_code: Callable[[], bool]) -> Callable[[], bool]:
    known: list[bool] = []

    @functools.wraps(covers_all_code)
    def covers() -> bool:
        if known and not machine.plugin_digests():
            return True
        found = covers_all_code()
        if found:
            known.append(found)
        return found

    return covers


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_waited_for_twice() -> Iterator[None]:
    """No test pulls the plug, so none waits for the disk; git is asked once what is checked out.

    Worker processes have their libraries imported. Audits read all files of the code once, but
    where there are plug-ins, and in ``test_audit_of_shared_bugs``: no other test edits the code.
    """
    context = SimpleNamespace(get_context=lambda method: warm.Context())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(environment, "_git", functools.cache(environment._git))
        patch.setattr(multiprocess, "multiprocessing", context)
        patch.setattr(seeds, "covers_all_code", _read_once(seeds.covers_all_code))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes on two cores: more threads would only wait for one another."""
    torch.set_num_threads(1)
