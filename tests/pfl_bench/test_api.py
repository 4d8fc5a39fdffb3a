"""The Python API: rows in, results out, nothing printed."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pfl_bench
from pfl_bench.federated.parts import build_model, build_task
from pfl_bench.types import ConfigError, RunFolderError, UserInputError
from tests import warm
from tests.helpers import REPOSITORY, central_of

Capture = pytest.CaptureFixture[str]


def test_the_example_of_the_documentation_runs_and_prints_nothing(
    tmp_path: Path, capfd: Capture
) -> None:
    row = pfl_bench.load_row("demo/private_federated.yaml", federated__num_rounds=3)
    assert row.config.federated is not None
    assert row.config.federated.num_rounds == 3
    result = pfl_bench.run_row(row, tmp_path / "run")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert 0 < result.metrics["test/accuracy"] < 1
    assert result.statement is not None
    assert result.statement.actual.epsilon > result.statement.simulated.epsilon
    assert pfl_bench.audit(result.folder).verdict == "passed"
    assert [line["round"] for line in result.history] == [1, 2, 3]
    assert result.expected[0]["verdict"] == "not the row"
    again = pfl_bench.run_row(row, tmp_path / "run")
    assert again.summary == result.summary == pfl_bench.load_run(tmp_path / "run").summary


def test_the_state_dict_is_the_evaluated_model_s(tmp_path: Path) -> None:
    row = pfl_bench.load_row("demo/federated.yaml", federated__num_rounds=2)
    result = pfl_bench.run_row(row, tmp_path)
    state = result.state_dict()
    flat = torch.cat([value.flatten() for value in state.values()])
    assert torch.equal(flat, central_of(tmp_path))
    cpu = torch.device("cpu")
    module = build_model(row, build_task(row, cpu), cpu).module
    module.load_state_dict(state)


def test_a_run_of_clients_own_models_has_no_model_of_all(tmp_path: Path) -> None:
    changes = {"local__num_epochs": 1, "local__num_clients": 2, "local__learning_rates": [0.1]}
    result = pfl_bench.run_row(pfl_bench.load_row("leaf/quick/local.yaml", **changes), tmp_path)
    with pytest.raises(RunFolderError, match="each client has a model of its own"):
        result.model()


def test_overrides_are_values_not_texts() -> None:
    row = pfl_bench.load_row(
        "demo/federated.yaml",
        name="null",
        federated__local_learning_rate=1e-5,
        federated__algorithm={"name": "fedprox", "proximal_weight": 0.25},
        evaluation__splits=[],
    )
    assert row.config.name == "null"
    assert row.config.federated is not None
    assert row.config.federated.local_learning_rate == 1e-5
    assert row.tree["federated"]["algorithm"] == {"name": "fedprox", "proximal_weight": 0.25}
    assert row.config.evaluation.splits == []


def test_a_table_is_run_and_then_read(tmp_path: Path) -> None:
    short = {"federated__num_rounds": 1, "evaluation__splits": []}
    rows = tmp_path / "rows"
    rows.mkdir()
    text = (REPOSITORY / "configs/demo/federated.yaml").read_text()
    for name in ("a", "b"):
        (rows / f"{name}.yaml").write_text(text.replace("demo-federated", name))
    results = pfl_bench.run_table(rows, seeds=2, out=tmp_path / "runs", **short)
    assert [(run.summary["name"], run.summary["seed"]) for run in results] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1)
    ]  # fmt: skip
    seconds = [run.summary["seconds"] for run in results]
    again = pfl_bench.run_table(rows, seeds=2, out=tmp_path / "runs", **short)
    assert [run.summary["seconds"] for run in again] == seconds


def test_tables_of_one_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``pfl-bench table`` has them: two bundled folders are called table1."""
    monkeypatch.chdir(tmp_path)
    ran: list[Path] = []

    def stop(row: object, out: Path, **_: object) -> None:
        ran.append(out)
        raise RunFolderError("far enough")

    monkeypatch.setattr(pfl_bench.api, "run_row", stop)
    for folder in ("flair/table1", "qmnist_836/table1"):
        with pytest.raises(RunFolderError, match="far enough"):
            pfl_bench.run_table(folder)
    assert [path.parents[1] for path in ran] == [
        Path("runs/flair/table1"), Path("runs/qmnist_836/table1")
    ]  # fmt: skip


def test_values_of_numpy_torch_and_paths_are_settings(tmp_path: Path) -> None:
    row = pfl_bench.load_row(
        "demo/federated.yaml",
        plugins=(),
        federated__num_rounds=np.int64(3),
        federated__local_learning_rate=np.float64(0.1),
        federated__central_learning_rate=torch.tensor(0.5),
        federated__algorithm={"name": "fedprox", "proximal_weight": np.float32(0.25)},
        evaluation__splits=("val",),
        task__partition_seed=torch.tensor(4),
    )
    federated = row.config.federated
    assert federated is not None
    assert (federated.num_rounds, federated.local_learning_rate) == (3, 0.1)
    assert federated.central_learning_rate == 0.5
    assert row.tree["federated"]["algorithm"] == {"name": "fedprox", "proximal_weight": 0.25}
    assert row.config.evaluation.splits == ["val"]
    assert row.tree["task"]["partition_seed"] == 4
    with pytest.raises(ConfigError, match=r"override name=\[0.0, 0.0, 0.0\]: must be text"):
        pfl_bench.load_row("demo/federated.yaml", name=np.zeros(3))
    with pytest.raises(ConfigError, match="federated__num_rounds: object is no value of a row"):
        pfl_bench.load_row("demo/federated.yaml", federated__num_rounds=object())
    holds_itself: dict[str, Any] = {}
    holds_itself["federated"] = [holds_itself]
    with pytest.raises(ConfigError, match="federated: is nested too deep, or holds itself"):
        pfl_bench.load_row("demo/federated.yaml", federated=holds_itself)
    data = pfl_bench.load_row("femnist/digits/federated.yaml", task__data=tmp_path / "a b.h5")
    assert data.tree["task"]["data"] == str(tmp_path / "a b.h5")


def test_an_interpreter_offers_the_names_before_they_are_loaded() -> None:
    script = "import pfl_bench, sys; print(dir(pfl_bench)); print('pfl_bench.api' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    offered, is_loaded = done.stdout.splitlines()
    assert set(pfl_bench.__all__) <= set(ast.literal_eval(offered))
    assert is_loaded == "False"


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such row file"):
        pfl_bench.load_row("nothing.yaml")
    with pytest.raises(ConfigError, match="is a view"):
        pfl_bench.load_row("leaf/quick/view.yaml")
    with pytest.raises(ConfigError, match="num_round"):
        pfl_bench.load_row("demo/federated.yaml", federated__num_round=1)
    with pytest.raises(RunFolderError, match="no finished run"):
        pfl_bench.load_run(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'run'"):
        _ = pfl_bench.run  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [5, {}, b"run", "a" * 5000, "a\0b", "\ud800"], ids=repr)
def test_an_argument_that_is_no_path_is_named(wrong: Any) -> None:
    row = "demo/federated.yaml"
    calls = {
        "name": lambda: pfl_bench.load_row(wrong),
        "row": lambda: pfl_bench.run_row(wrong),
        "out": lambda: pfl_bench.run_row(row, wrong),
        "folder": lambda: pfl_bench.audit(wrong),
        "plugins": lambda: pfl_bench.load_row(row, plugins=[wrong]),
    }
    for argument, call in calls.items():
        with pytest.raises(UserInputError, match=rf"^{argument}: "):
            call()
    for call in (pfl_bench.load_run, pfl_bench.run_table):
        with pytest.raises(UserInputError, match=r"^folder: "):
            call(wrong)


def test_an_argument_of_another_type_or_choice_is_named() -> None:
    with pytest.raises(UserInputError, match=r"^row: None is no path"):
        pfl_bench.FederatedTrainer(None)  # type: ignore[arg-type]
    with pytest.raises(UserInputError, match=r"^plugins: 'methods' is no list"):
        pfl_bench.load_row("demo/federated.yaml", plugins="methods")
    for seeds in (0, "3", None, 10_001):
        with pytest.raises(UserInputError, match=r"^seeds: "):
            pfl_bench.run_table("demo", seeds)  # type: ignore[arg-type]
    with pytest.raises(UserInputError, match=r"^recompute: 'most'"):
        pfl_bench.audit("run", recompute="most")  # type: ignore[arg-type]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, pfl_bench; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert set(pfl_bench.__all__) == {
        name for name in pfl_bench.__all__ if getattr(pfl_bench, name) is not None
    }


def test_the_history_is_a_table_where_pandas_is(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    row = pfl_bench.load_row("demo/federated.yaml", federated__num_rounds=2)
    frame = pfl_bench.run_row(row, tmp_path).history_frame()
    assert list(frame.index) == [1, 2]
    assert "train/loss" in frame.columns


def test_a_trainer_left_open_does_not_lock_its_own_notebook_out(tmp_path: Path) -> None:
    row = pfl_bench.load_row("demo/federated.yaml", federated__num_rounds=3)
    first = pfl_bench.FederatedTrainer(row, tmp_path / "run")
    assert "model" not in repr(next(first))
    again = pfl_bench.FederatedTrainer(row, tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"unfinished run .* add resume=True .* with out="):
        next(again)
    second = pfl_bench.FederatedTrainer(row, tmp_path / "run", resume=True)
    assert next(second).index == 1  # no checkpoint was due
    for call in (lambda: next(first), first.fit):
        with pytest.raises(RunFolderError, match="was closed, by itself or by a later one"):
            call()
    # One that could not be made is nothing to close.
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            pfl_bench.FederatedTrainer("demo/central.yaml", tmp_path / "central")
        assert refused.tb is not None
    whole = pfl_bench.run_row(row, tmp_path / "whole")
    assert second.fit().metrics == whole.metrics
    # So does a call that runs all the rounds.
    third = pfl_bench.FederatedTrainer(row, tmp_path / "third")
    next(third)
    assert pfl_bench.run_row(row, tmp_path / "third", resume=True).metrics == whole.metrics


def test_an_interrupted_loop_does_not_look_like_one_that_has_ended(tmp_path: Path) -> None:
    def interrupt(end: object) -> None:
        raise KeyboardInterrupt

    row = pfl_bench.load_row("demo/federated.yaml", federated__num_rounds=2)
    trainer = pfl_bench.FederatedTrainer(row, tmp_path / "run", on_round_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    with pytest.raises(RunFolderError, match="resume=True"):
        list(trainer)
    assert len(pfl_bench.FederatedTrainer(row, tmp_path / "run", resume=True).fit().history) == 2


def test_threads_run_one_after_another(tmp_path: Path) -> None:
    # At once, one drew the other's initial weights, and standard error stayed away.
    row = pfl_bench.load_row("demo/federated.yaml", federated__num_rounds=1)
    thread = threading.Thread(target=pfl_bench.run_row, args=(row, tmp_path / "second"))

    def meanwhile(end: object) -> None:
        thread.start()
        thread.join(1.0)
        assert not (tmp_path / "second").exists()

    before = sys.stderr
    first = pfl_bench.FederatedTrainer(row, tmp_path / "first", on_round_end=meanwhile).fit()
    thread.join()
    assert pfl_bench.load_run(tmp_path / "second").metrics == first.metrics
    assert sys.stderr is before


def test_messages_name_arguments_of_calls(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "algorithms"
    folder.mkdir(parents=True)
    text = (REPOSITORY / "pfl_bench/federated/algorithms/fedavg.py").read_text(encoding="utf-8")
    (folder / "own.py").write_text(text, encoding="utf-8")
    code = (
        "import pfl_bench; from pfl_bench.types import UserInputError\n"
        f"plugins = [{str(tmp_path / 'mine')!r}]\n"
        "row = pfl_bench.load_row('demo/federated.yaml', plugins=plugins, federated__num_rounds=1,"
        " federated__algorithm={'name': 'own'})\n"
        f"pfl_bench.run_row(row, {str(tmp_path / 'run')!r})\n"
    )
    warm.python("-c", code, cwd=REPOSITORY, check=True)
    with pytest.raises(UserInputError, match=r"plugins=\[") as refused:
        pfl_bench.load_run(tmp_path / "run").model()
    assert "--plugins" not in str(refused.value)
    with pytest.raises(UserInputError, match="`pfl-bench run --out` wrote"):
        pfl_bench.audit(tmp_path / "none")


def test_a_script_that_its_workers_would_run_again_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import pfl_bench\n"
        "row = pfl_bench.load_row('demo/federated.yaml', federated__num_rounds=1,"
        " federated__workers=2)\n"
        "pfl_bench.run_row(row, out='out')\n"
    )
    ran = warm.python("-m", "script", cwd=tmp_path)
    assert ran.returncode == 1
    assert "ConfigError: this worker process imports the script" in ran.stderr
    assert "worker 1 (process" in ran.stderr
    assert "its own error, if any, stands above" in ran.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
