"""Whole runs on the digits: what they leave, and that they can be repeated and resumed."""

from __future__ import annotations

import json
import math
import subprocess
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from pfl_bench.config.loading import load_config
from pfl_bench.config.row_files import rows_below
from pfl_bench.federated.parts import build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import read_json, read_metrics
from pfl_bench.metrics import lower_is_better
from pfl_bench.runs.preview import preview
from pfl_bench.runs.published import compare
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, RunFolderError, RunSummary, WorkerError
from privacy.amplification import Participation
from privacy.errors import BudgetExceededError
from privacy.ledger import read_ledger
from tests.helpers import REPOSITORY, TREES, central_of, make_config

SETTINGS = sorted(TREES)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_leaves_the_whole_folder(setting: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = run(make_config(setting), out)
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["setting"] == setting
    assert summary["status"] == "finished"
    assert 0.2 < summary["metrics"]["test/accuracy"] <= 1
    assert {name.partition("/")[0] for name in summary["metrics"]} == {"test"}
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["round"] for row in rows] == list(range(1, summary["rounds"] + 1))
    assert all("val/accuracy" in row for row in rows[1::2])
    environment = json.loads((out / "environment.json").read_text())
    assert environment["data"]["checksum"].startswith("sha256:")
    assert environment["packages"]["torch"] == torch.__version__.partition("+")[0]
    recorded = yaml.safe_load((out / "config.yaml").read_text())
    assert recorded == make_config(setting).tree
    is_private = setting in ("private_federated", "central_dp")
    assert (out / "privacy.json").exists() == is_private
    assert (out / "ledger.jsonl").exists() == is_private
    if is_private:
        assert len(read_ledger(out / "ledger.jsonl")) == summary["rounds"]
        assert json.loads((out / "privacy.json").read_text()) == summary["privacy"]
        assert summary["privacy"]["status"] == "final"


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    setting: str, tmp_path: Path
) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(make_config(setting, seed=seed), tmp_path / name)
    assert torch.equal(central_of(tmp_path / "a"), central_of(tmp_path / "b"))
    assert not torch.equal(central_of(tmp_path / "a"), central_of(tmp_path / "c"))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_a_run_cut_after_a_checkpoint_resumes_to_the_same_bits(
    setting: str, model: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"model__name": model, "evaluation__select_best": "val/accuracy"}
    changes["checkpoint"] = {"every": 2, "keep": 10}
    if setting in ("federated", "private_federated"):
        changes["federated__central_optimizer"] = {"name": "yogi"}
        changes["federated__central_schedule"] = {"warmup": 2, "decay": "cosine"}
        changes["federated__central_learning_rate"] = 0.03
    else:
        changes["central__optimizer"] = {"name": "adam"}
        changes["central__learning_rate"] = 0.01
    config = make_config(setting, **changes)
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    whole = run(config, straight)
    run(config, cut)
    # What a kill some steps after the checkpoint of step 2 leaves behind.
    (cut / "summary.json").unlink()
    for path in (cut / "checkpoints").iterdir():
        if path.name != "step-00000002.pt":
            path.unlink()
    with pytest.raises(RunFolderError, match="--resume"):
        run(config, cut)
    resumed = run(config, cut, resume=True)
    assert torch.equal(central_of(cut), central_of(straight))
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["selected"] == whole["selected"]
    rounds = [row["round"] for row in read_metrics(cut / "metrics.jsonl")]
    assert rounds == list(range(1, whole["rounds"] + 1))
    if setting in ("private_federated", "central_dp"):
        first, second = (read_ledger(f / "ledger.jsonl") for f in (straight, cut))
        assert first == second


def test_a_resumed_run_took_the_time_of_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("central", central__num_epochs=2, checkpoint={"every": 1, "keep": 10})
    # It ticks each time that the run, and nobody else, asks.
    ticks = {name: partial(next, count(0.0, 100.0)) for name in ("monotonic", "perf_counter")}
    clock = SimpleNamespace(**ticks)
    monkeypatch.setattr("pfl_bench.runs.runner.time", clock)
    whole = run(config, tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["time/round_seconds"] for row in rows] == [100.0, 100.0]
    (tmp_path / "summary.json").unlink()
    (tmp_path / "checkpoints" / "step-00000002.pt").unlink()
    assert run(config, tmp_path, resume=True)["seconds"] == whole["seconds"] > 0


def test_a_run_whose_worker_dies_keeps_the_rounds_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = FederatedTrainer.advance

    def dying(trainer: FederatedTrainer, index: int) -> dict[str, float]:
        if index == 3:
            raise WorkerError("it is gone")
        return advance(trainer, index)

    monkeypatch.setattr(FederatedTrainer, "advance", dying)
    with pytest.raises(WorkerError):
        run(make_config("federated", checkpoint__every=100), tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002.pt"]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    config = make_config("federated")
    first = run(config, tmp_path / "run")
    stamp = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns
    assert run(config, tmp_path / "run") == first
    assert run(config, tmp_path / "run", resume=True) == first
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns == stamp


def test_a_finished_private_run_that_lost_its_record_is_refused(tmp_path: Path) -> None:
    config = make_config("private_federated", federated__num_rounds=1)
    run(config, tmp_path / "run")
    for name in ("privacy.json", "ledger.jsonl"):
        (tmp_path / "run" / name).rename(tmp_path / name)
        with pytest.raises(RunFolderError, match=f"private run without {name}"):
            run(config, tmp_path / "run")
        (tmp_path / name).rename(tmp_path / "run" / name)


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run(make_config("federated"), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"federated\.num_rounds \(6 -> 7\)"):
        run(make_config("federated", federated__num_rounds=7), tmp_path / "run", resume=True)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"thesis\.tex"):
        run(make_config("federated"), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name[0] != ".") == ["thesis.tex"]


def test_logging_may_change_between_start_and_resumption(tmp_path: Path) -> None:
    config = make_config("federated")
    run(config, tmp_path / "run")
    changed = make_config("federated", logging__wandb__project="elsewhere")
    assert run(changed, tmp_path / "run")["rounds"] == 6


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x80\x04\x95not a checkpoint"])
def test_a_damaged_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    config = make_config("federated")
    run(config, tmp_path)
    (tmp_path / "summary.json").unlink()
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    newest.write_bytes(content)
    with pytest.raises(RunFolderError, match=newest.name):
        run(config, tmp_path, resume=True)


def test_a_checkpoint_with_a_pickle_is_not_executed(tmp_path: Path) -> None:
    config = make_config("federated")
    run(config, tmp_path)
    (tmp_path / "summary.json").unlink()
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"version": 1, "trap": Trap()}, newest)
    with pytest.raises(RunFolderError, match="damaged"):
        run(config, tmp_path, resume=True)
    assert not (tmp_path / "sprung").exists()


def test_a_budget_stops_the_run_before_it_is_exceeded(tmp_path: Path) -> None:
    config = make_config(
        "private_federated", privacy__noise_multiplier=2.5, privacy__epsilon=2.0,
        federated__num_rounds=50,
    )  # fmt: skip
    summary = run(config, tmp_path)
    assert summary["status"] == "budget_exhausted"
    done = summary["rounds"]
    assert 0 < done < 50
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == done
    assert summary["privacy"]["simulated"]["epsilon"] <= 2.0
    assert summary["privacy"]["rounds"] == done
    # One more round would have exceeded it.
    from privacy.calibration import epsilon_of_rounds

    delta = summary["privacy"]["simulated"]["delta"]
    assert (
        epsilon_of_rounds(Participation.named("poisson", 60, 30), 2.5, done + 1, delta, "rdp") > 2.0
    )


def test_the_population_can_be_said_to_be_the_data_s_users(tmp_path: Path) -> None:
    config = make_config("private_federated", privacy__population_size="training_users")
    summary = run(config, tmp_path)
    assert summary["privacy"]["simulated"]["population_size"] == 60


def test_a_central_budget_stops_at_whole_epochs(tmp_path: Path) -> None:
    config = make_config(
        "central_dp", privacy__noise_multiplier=1.0, privacy__epsilon=1.5, central__num_epochs=40
    )
    planned = preview(config, tmp_path).statement
    assert planned is not None
    summary = run(config, tmp_path)
    assert summary["status"] == "budget_exhausted"
    assert summary["privacy"]["simulated"]["epsilon"] <= 1.5
    # Steps of a part of an epoch are not taken, and are not planned.
    assert planned.simulated.epsilon == summary["privacy"]["simulated"]["epsilon"]


def test_a_central_budget_of_less_than_an_epoch_is_refused(tmp_path: Path) -> None:
    config = make_config("central_dp", privacy__noise_multiplier=1.0, privacy__epsilon=1.0)
    with pytest.raises(BudgetExceededError, match="epoch 1 would end at step 38; the budget eps"):
        run(config, tmp_path)


def test_every_so_many_rounds_are_evaluated_and_saved_and_the_last_ones(tmp_path: Path) -> None:
    config = make_config(
        "private_federated", federated__num_rounds=5, checkpoint={"every": 3, "keep": 9}
    )
    summary = run(config, tmp_path)
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert saved == ["step-00000003.pt", "step-00000005.pt"]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["round"] for row in rows if "val/accuracy" in row] == [2, 4, 5]
    for side in ("simulated", "actual"):
        epsilons = [row[f"privacy/epsilon_{side}"] for row in rows if "val/accuracy" in row]
        assert epsilons == sorted(set(epsilons))
        assert epsilons[-1] == summary["privacy"][side]["epsilon"]


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("private_federated", {"privacy__noise_multiplier": 2.5, "privacy__epsilon": 1.0}),
        ("central_dp", {"privacy__noise_multiplier": 1.0, "privacy__epsilon": 1.5}),
    ],
)
def test_the_last_model_that_a_budget_allows_is_evaluated_and_may_be_selected(
    setting: str, changes: dict[str, float], tmp_path: Path
) -> None:
    length = "federated__num_rounds" if setting == "private_federated" else "central__num_epochs"
    config = make_config(
        setting, **changes, **{length: 40}, evaluation__every=40,
        evaluation__select_best="val/accuracy",
    )  # fmt: skip
    summary = run(config, tmp_path)
    assert summary["status"] == "budget_exhausted"
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["round"] for row in rows if "val/accuracy" in row] == [summary["rounds"]]
    assert summary["selected"] == summary["best"]["val/accuracy"]["round"] == summary["rounds"]
    epsilon = rows[-1]["privacy/epsilon_simulated"]
    assert epsilon == summary["privacy"]["simulated"]["epsilon"]


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_clients_that_diverge_contribute_nothing_and_are_named(
    setting: str, tmp_path: Path
) -> None:
    # A rate of 1e38 overflows every client's float32 parameters.
    config = make_config(
        setting, model__name="mlp", federated__local_learning_rate=1e38, federated__num_rounds=2,
        federated__local_epochs=3,
    )  # fmt: skip
    summary = run(config, tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[0]["train/num_nonfinite"] == rows[0]["train/cohort_size"]
    assert "client 'train-00" in (tmp_path / "run.log").read_text()
    assert "not finite" in (tmp_path / "run.log").read_text()
    assert math.isfinite(summary["metrics"]["test/loss"])
    assert torch.isfinite(central_of(tmp_path)).all()


def test_evaluating_train_leaves_the_loss_of_the_local_steps_its_own_name(tmp_path: Path) -> None:
    for name, splits in (("a", ["val"]), ("b", ["train", "val"])):
        run(make_config("federated", evaluation__splits=splits), tmp_path / name)
    plain, both = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("a", "b"))
    assert [row["train/step_loss"] for row in both] == [row["train/loss"] for row in plain]
    assert both[-1]["train/loss"] != plain[-1]["train/loss"]
    assert "train/loss" not in both[0]


def test_selection_keeps_the_best_model_also_across_a_cut(tmp_path: Path) -> None:
    config = make_config(
        "federated", evaluation__select_best="val/accuracy", evaluation__every=1,
        federated__local_learning_rate=30.0, federated__num_rounds=8,
        checkpoint={"every": 7, "keep": 2}, evaluation__final_splits=["val", "test"],
    )  # fmt: skip
    summary = run(config, tmp_path)
    accuracies = [float(str(r["val/accuracy"])) for r in read_metrics(tmp_path / "metrics.jsonl")]
    assert summary["selected"] == accuracies.index(max(accuracies)) + 1 < 7
    assert summary["metrics"]["val/accuracy"] == max(accuracies) > accuracies[-1]
    (tmp_path / "summary.json").unlink()
    (tmp_path / "checkpoints" / "step-00000008.pt").unlink()
    resumed = run(config, tmp_path, resume=True)
    assert resumed["selection"] == summary["selection"]
    assert resumed["metrics"] == summary["metrics"]


def test_an_unmeasured_selection_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"val/f1.*val/accuracy"):
        run(make_config("federated", evaluation__select_best="val/f1"), tmp_path)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("test/acuracy", r"expected\.0\.metric: 'test/acuracy' is not measured; did you mean "
         r"'test/accuracy'\? There are: test/accuracy, "),
        # Of a split that is evaluated while training alone, and of one that does not exist.
        ("val/accuracy", r"'val/accuracy' is not measured; did you mean .*There are: test/"),
        ("dev/accuracy", r"'dev/accuracy' is not measured.* There are: .*test/loss"),
        ("accuracy", r"'accuracy' is not measured.* There are: .*test/loss"),
    ],
)  # fmt: skip
def test_an_unmeasured_expected_metric_is_refused(metric: str, words: str, tmp_path: Path) -> None:
    """It was said to be not measured after the training."""
    entry = {"metric": metric, "value": 0.5, "tolerance": 1.0, "source": "table 1"}
    with pytest.raises(ConfigError, match=words):
        run(make_config("federated", expected=[entry]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("metric", ["test/client_accuracy_p10", "test/loss_by_client"])
def test_expected_metrics_may_be_over_clients(metric: str, tmp_path: Path) -> None:
    entry = {
        "metric": metric,
        "value": 0.5,
        "sd": 0.0,
        "seeds": 2,
        "tolerance": 100.0,
        "source": "table 1",
    }
    config = make_config("federated", expected=[entry], federated__num_rounds=1)
    assert run(config, tmp_path)["expected"][0]["verdict"] == "reproduced"


def test_a_split_that_the_data_lack_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no split 'dev'"):
        run(make_config("federated", evaluation__splits=["dev"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_expected_numbers_get_a_verdict() -> None:
    def entry(value: float, **more: Any) -> dict[str, Any]:
        source = {
            "metric": "test/accuracy",
            "sd": 0.0,
            "seeds": 2,
            "tolerance": 0.01,
            "source": "table 1",
        }
        return {"value": value, **source, **more}

    entries = [
        entry(0.905),
        entry(0.95),
        entry(0.905, variants=["other"]),
        entry(0.9, metric="test/f1"),
        entry(0.905, split_by="user"),
        entry(0.905, split_by="example"),
        entry(0.905, num_users=66),
        entry(0.905, num_users=67),
    ]
    config = make_config("federated", expected=entries).config
    data = {"split_by": "user", "num_users": {"train": 60}}
    named = {"name": "row", "setting": "federated", "variant": "digits", "seed": 0}
    measured = {**named, "metrics": {"test/accuracy": 0.9}, "expected": []}
    rows = compare(config, RunSummary.of({**measured, "data": data}))
    verdicts = [row.verdict for row in rows]
    other = "not comparable"
    of_data = ["reproduced", other, "reproduced", other]
    assert verdicts == ["reproduced", "differs", other, other, *of_data]
    assert "split by user" in rows[5].why
    assert "the data have 60 training users; the published number is of 67" in rows[7].why
    older = compare(config, RunSummary.of({**measured, "data": {"split_by": "user"}}))
    assert [row.verdict for row in older[6:]] == [other, other]


def test_a_run_says_of_how_many_users_it_is(tmp_path: Path) -> None:
    entry = {
        "metric": "test/accuracy",
        "value": 0.5,
        "sd": 0.0,
        "seeds": 2,
        "tolerance": 1.0,
        "source": "table 1",
    }
    expected = [{**entry, "num_users": 60}, {**entry, "num_users": 600}]
    summary = run(make_config("federated", federated__num_rounds=1, expected=expected), tmp_path)
    task = build_task(make_config("federated"), torch.device("cpu"))
    counted = {name: task.split(name).num_users for name in task.split_names}
    assert summary["data"]["num_users"] == counted
    assert counted["train"] == 60 != counted["val"]
    assert [row["verdict"] for row in summary["expected"]] == ["reproduced", "not comparable"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federated__weighting": "examples"}, "weighting by examples"),
        ({"federated__sampling": "fixed_size", "privacy__accountant": "prv"}, "fixed-size"),
        ({"privacy__noise_cohort_size": 61}, "noise_cohort_size"),
        ({"privacy__population_size": 1000}, "hypothetical_population"),
        ({"federated__cohort_size": 61}, "cohort_size"),
        ({"privacy__mechanism__count_noise_stddev": 0.01}, "count"),
    ],
)
def test_plans_that_would_be_wrong_are_refused_before_training(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=words):
        run(make_config("private_federated", **changes), out)
    assert not out.exists()
    # The mended row may use the same folder.
    assert run(make_config("private_federated"), out)["rounds"] == 6


@pytest.mark.parametrize(
    ("metric", "low"),
    [
        ("val/loss", True),
        ("val/perplexity", True),
        ("val/loss_by_client", True),
        ("val/client_loss_p90", True),
        ("val/client_loss_weighted_p50", True),
        ("val/stratum_play_loss_mean", True),
        ("val/client_accuracy_sd", True),
        ("val/client_accuracy_weighted_sd", True),
        ("val/accuracy", False),
        ("val/accuracy_by_client", False),
        ("val/client_accuracy_p10", False),
        ("loss/accuracy", False),
    ],
)
def test_the_better_of_two_values_is_known_by_the_name(metric: str, low: bool) -> None:
    assert lower_is_better(metric) == low


@pytest.mark.parametrize("metric", ["val/loss_by_client", "val/client_loss_p90"])
def test_a_model_selected_by_clients_losses_has_the_lowest(metric: str, tmp_path: Path) -> None:
    budget = {"metric": metric, "value": 1.0}
    config = make_config(
        "federated",
        evaluation__select_best=metric,
        evaluation__every=1,
        evaluation__budgets=[budget],
    )
    summary = run(config, tmp_path)
    values = [row[metric] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert summary["selection"]["value"] == min(values) < values[0]
    reached = [value for value in values if value <= 1.0]
    assert summary["budgets"][0]["value"] == (reached[0] if reached else None)


@pytest.mark.parametrize("row", ["federated", "private_federated"])
def test_threads_that_read_ahead_change_nothing(row: str, tmp_path: Path) -> None:
    run(make_config(row), tmp_path / "a")
    run(make_config(row, federated__data_workers=3), tmp_path / "b")
    assert torch.equal(central_of(tmp_path / "a"), central_of(tmp_path / "b"))


def test_the_commit_that_a_run_computes_by_is_recorded(tmp_path: Path) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a checkout")
    run(make_config("federated", federated__num_rounds=1), tmp_path)
    recorded = read_json(tmp_path / "environment.json")
    assert recorded is not None
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert recorded["git"]["commit"] == head


def test_bundled_demo_rows_load() -> None:
    rows = rows_below(REPOSITORY / "configs/demo").values()
    assert [row.stem for row in rows] == [
        "central", "central_dp", "federated", "private_federated"
    ]  # fmt: skip
    for row in rows:
        assert load_config(row).config.name.startswith("demo-")
