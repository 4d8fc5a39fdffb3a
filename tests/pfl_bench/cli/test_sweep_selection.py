"""A sweep whose choice has a price: what is drawn, recorded, stated and audited."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import dp_event, rdp

import pfl_bench
from pfl_bench.cli import run_many
from pfl_bench.cli.main import main
from pfl_bench.config.sweeps import load_sweep
from pfl_bench.report.records import records
from pfl_bench.report.results import format_epsilon
from pfl_bench.report.run_folder import read_run
from pfl_bench.report.words import describe
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.base_plan import planned
from pfl_bench.runs.folder import RunFolder
from pfl_bench.runs.rows import rows_of
from pfl_bench.runs.selection import (
    best_of,
    choice_problems,
    composed_epsilons,
    drawn_trials,
    is_lower_better,
    record_choice,
)
from pfl_bench.types import RunFolderError
from privacy.audit.evidence import gather
from privacy.audit.search import check_selection, plan_composition
from privacy.ledger import iterate_ledger
from privacy.tuning import Trials, selection_epsilon

Capture = pytest.CaptureFixture[str]
RATE = "federated.central_learning_rate"
NO_NONCE = {"privacy__nonce": None}
GEOMETRIC = {"distribution": "geometric", "mean": 3.0, "seed": 2}


@pytest.fixture
def sweep_file(tmp_path: Path, config_file: Callable[..., Path]) -> Callable[..., Path]:
    """Write a sweep with a selection over a small private row."""

    def write(
        setting: str = "private_federated", row_changes: dict[str, Any] = NO_NONCE, **changes: Any
    ) -> Path:
        mechanism = {"name": "gaussian", "clip_norm": 0.5}
        settings = {"federated__num_rounds": 2, "privacy__mechanism": mechanism}
        private = "private" in setting
        row = config_file(setting, name="base", **settings | row_changes if private else {})
        tree = {
            "version": 1,
            "row": row.name,
            "metric": "val/accuracy",
            "grid": {RATE: [1.0e-6, 1.0]},
            "selection": GEOMETRIC,
            **changes,
        }
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        return path

    return write


def read(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def test_the_selected_run_that_is_tested_has_the_price_in_tables_and_leaderboard(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "runs"
    assert main(["sweep", str(sweep_file()), "--out", str(out)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    (run,) = [line for line in lines if line.startswith("pfl-bench run")]
    (copy,) = [line for line in lines if line.startswith("cp ")]
    (report,) = [line for line in lines if line.startswith("pfl-bench report")]
    assert main(shlex.split(run)[1:]) == 0
    best = out / "best"
    assert shlex.split(copy)[1:] == [str(chosen_folder(out) / "selection.json"), str(best)]
    own = read(best / "privacy.json")["simulated"]["epsilon"]
    assert {line.epsilon_simulated for line in rows_of([read_run(best).summary])} == {own}
    shutil.copy(*shlex.split(copy)[1:])
    price = read(best / "selection.json")["epsilon"]
    tested = read_run(best)
    for line in rows_of([tested.summary]):
        assert (line.epsilon_simulated, line.epsilon_actual) == tuple(price.values())
        assert "epsilon is that of the best of a random number of trials" in line.note
    told = f"{format_epsilon(price['simulated'], None)} simulated"
    assert told not in (best / "report.html").read_text()
    assert main(shlex.split(report)[1:]) == 0
    assert told in (best / "report.html").read_text()
    capsys.readouterr()
    assert main(shlex.split(run)[1:]) == 0
    assert "epsilon is that of the best of a random number" in capsys.readouterr().out
    assert f"epsilon with the choice among trials {told}" in repr(pfl_bench.load_run(best))
    assert main(["privacy", "explain", str(best)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"epsilon with that choice, its price, is {told}" in said
    (entry,) = records([tested])
    assert entry.epsilon == price["simulated"] > own
    assert choice_problems(best) == []
    changed = read(best / "summary.json") | {"model_sha256": "0"}
    (best / "summary.json").write_text(json.dumps(changed))
    assert "whose model is not this run's" in (choice_problems(best) or [""])[0]
    (best / "selection.json").write_text('{"epsilon": 1.0}')
    with pytest.raises(RunFolderError, match=r"'epsilon' is 1\.0; expected an object"):
        read_run(best)


def chosen_folder(out: Path) -> Path:
    (record,) = out.glob("trial-*/selection.json")
    return record.parent


def test_the_best_trial_carries_the_price_and_the_audit_derives_it(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    path, out = sweep_file(), tmp_path / "runs"
    assert main(["sweep", str(path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    found = pfl_bench.sweep(path, out)
    assert "With the selection: epsilon (simulated)" in found.words
    assert printed.rstrip().endswith(found.words)
    assert repr(found).endswith(found.words)
    drawn = read(out / "selection.json")
    assert len(drawn["drawn"]) >= 2
    assert len({one["seed"] for one in drawn["drawn"]}) == len(drawn["drawn"])
    scores = {
        path.parent.name: read(path)["selection"]["value"] for path in out.glob("*/summary.json")
    }
    assert len(scores) == len(drawn["drawn"])
    folder = chosen_folder(out)
    assert scores[folder.name] == max(scores.values())
    record = read(folder / "selection.json")
    # Neither the number of trials nor what they were drawn from.
    assert not {"drawn", "seed", "chosen"} & set(record)
    assert record["selected"]["value"] == scores[folder.name]
    statement = read(folder / "privacy.json")
    for side in ("simulated", "actual"):
        said = statement[side]
        event = dp_event.GaussianDpEvent(said["noise_multiplier"])
        sampled = dp_event.PoissonSampledDpEvent(said["sampling_probability"], event)
        run = dp_event.SelfComposedDpEvent(sampled, statement["rounds"])
        accountant = rdp.RdpAccountant()
        accountant.compose(dp_event.RepeatAndSelectDpEvent(run, 3.0, 1.0))
        expected = accountant.get_epsilon(said["delta"])
        assert record["epsilon"][side] == pytest.approx(expected, rel=1e-9)
        assert record["epsilon"][side] > said["epsilon"]
    assert "epsilon (simulated)" in printed
    assert "Held-out users" in printed
    facts = dict(describe(read_run(folder).statement or {})["facts"])
    shown = facts["Epsilon with the choice among trials"]
    assert f"{record['epsilon']['actual']:.3g}"[:3] in shown
    assert shown.endswith("geometric number of trials, mean 3")
    done = audit_run(folder)
    (check,) = [check for check in done.checks if check.name == "selection"]
    assert (check.outcome, done.verdict) == ("passed", "passed")
    plan = record["plans"][0]
    one_round = {**record, "plans": [{**plan, "rounds": 1}]}
    compose, trials = done.inputs.composition, Trials.named("geometric", 3.0)
    for side in ("simulated", "actual"):
        short = plan_composition(compose, one_round["plans"][0], side)
        price = selection_epsilon([short], trials, record["delta"][side])
        one_round["epsilon"] = {**one_round["epsilon"], side: price}
    lies: dict[str, dict[str, Any]] = {
        "epsilon (actual) is recorded as": {
            "epsilon": {**record["epsilon"], "actual": 0.9 * record["epsilon"]["actual"]}
        },
        "epsilon (simulated) is recorded as": {"trials": {**record["trials"], "gamma": 0.5}},
        "delta (simulated) is": {"delta": {**record["delta"], "simulated": 0.1}},
        "mean is None": {"trials": {"distribution": "geometric"}},
        "cannot be derived": {"plans": []},
        "are none of the recorded plans": one_round,
        "was selected, not this one": {"selected": {**record["selected"], "run_seed": 1}},
    }
    assert "drawn again" in check.evidence
    assert "one run cannot show" in check_selection(record, None, done.inputs).evidence
    for words, wrong in {
        "other trials are recorded": {"drawn": [*drawn["drawn"], {**drawn["drawn"][0]}]},
        "not this run's": {},
    }.items():
        (out / "selection.json").write_text(json.dumps(drawn | wrong))
        if not wrong:
            other = next(path for path in out.glob("trial-*/summary.json") if path.parent != folder)
            changed = read(other)
            changed["selection"]["value"] = 2.0
            other.write_text(json.dumps(changed))
        (problem,) = choice_problems(folder) or [""]
        assert words in problem
        assert check_selection(record, None, done.inputs, [problem]).outcome == "failed"
    evidence = gather(iterate_ledger(folder / "ledger.jsonl"))
    for words, lie in lies.items():
        check = check_selection(record | lie, evidence, done.inputs)
        assert check.outcome == "failed"
        assert words in check.evidence


def test_a_sweep_that_was_killed_picks_the_same_trial(
    sweep_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sweep_file()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(["sweep", str(path), "--out", str(whole)]) == 0
    train, begun = run_many._train, []

    def killed(run_folder: Path, resolved: Any) -> dict[str, Any]:
        begun.append(run_folder)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return train(run_folder, resolved)

    monkeypatch.setattr(run_many, "_train", killed)
    assert main(["sweep", str(path), "--out", str(broken)]) == 130
    assert not list(broken.glob("trial-*/selection.json"))
    monkeypatch.setattr(run_many, "_train", train)
    assert main(["sweep", str(path), "--out", str(broken)]) == 0
    assert chosen_folder(broken).name == chosen_folder(whole).name
    assert read(broken / "selection.json") == read(whole / "selection.json")
    same = [read(chosen_folder(out) / "summary.json")["model_sha256"] for out in (whole, broken)]
    assert same[0] == same[1]


def test_another_selection_in_the_folder_is_refused(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "runs"
    drawn_trials(load_sweep(sweep_file()), out)
    before = (out / "selection.json").read_bytes()
    path = sweep_file(selection={**GEOMETRIC, "mean": 4.0})
    assert main(["sweep", str(path), "--out", str(out)]) == 2
    assert "another selection" in capsys.readouterr().err
    assert (out / "selection.json").read_bytes() == before
    less = {key: value for key, value in json.loads(before).items() if key != "drawn"}
    (out / "selection.json").write_text(json.dumps(less))
    with pytest.raises(RunFolderError, match=r"another selection \(drawn differ\)"):
        drawn_trials(load_sweep(sweep_file()), out)


def test_no_trial_releases_nothing(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    for seed in range(20):
        selection = {"distribution": "poisson", "mean": 1.0, "seed": seed}
        path = sweep_file(selection=selection)
        out = tmp_path / f"runs-{seed}"
        if not drawn_trials(load_sweep(path), out)[0]:
            break
    assert main(["sweep", str(path), "--out", str(out)]) == 0
    assert "is 0: nothing is trained or released" in capsys.readouterr().out
    assert [child.name for child in out.iterdir()] == ["selection.json"]


def test_points_are_drawn_uniformly_and_again_the_same(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    selection = {"distribution": "poisson", "mean": 400.0, "seed": 5}
    sweep = load_sweep(sweep_file(selection=selection))
    trials, record = drawn_trials(sweep, tmp_path / "one")
    counts = [sum(trial.number == point for trial in trials) for point in (1, 2)]
    assert min(counts) > 150
    assert drawn_trials(sweep, tmp_path / "two")[1] == record
    # Two trials of one point have noise of their own, by seeds that do not tell how many they are.
    seeds = {trial.resolved.config.seed for trial in trials}
    assert len(seeds) == len(trials)
    assert max(seeds) > 1000 * len(trials)
    # By the selection's seed, or else the row's.
    few = sweep_file(selection={**selection, "mean": 1.0, "seed": None})
    seed = drawn_trials(load_sweep(few), tmp_path / "few")[1]["seed"]
    assert (record["seed"], seed) == (5, sweep.base.config.seed)


def test_points_with_several_plans_are_all_accounted(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    population = {"privacy__population_size": 6000, "privacy__hypothetical_population": True}

    def record_of(name: str, row: dict[str, Any], values: list[float]) -> dict[str, Any]:
        grid = {"privacy.noise_multiplier": values, "privacy.epsilon": [None]}
        path = sweep_file(row_changes=NO_NONCE | row, grid=grid)
        return drawn_trials(load_sweep(path), tmp_path / name)[1]

    record = record_of("all", population, [4.0, 1.0, 2.0])
    assert len(record["plans"]) == 3
    alone = record_of("one", population, [1.0])
    for side in ("simulated", "actual"):
        assert record["delta"][side] == record["plans"][0][side]["delta"]
        assert record["epsilon"][side] == pytest.approx(alone["epsilon"][side], rel=0.01)
        assert record["epsilon"][side] >= alone["epsilon"][side]
    # Each setting has a delta of its own; the population is nothing to the actual one.
    assert record["delta"]["simulated"] < record["delta"]["actual"]
    assert record_of("own", {}, [1.0])["epsilon"]["actual"] == alone["epsilon"]["actual"]


def test_noise_of_each_round_alone_has_a_price_at_several_numbers_of_rounds(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = sweep_file(grid={"federated.num_rounds": [2, 3]})
    record = drawn_trials(load_sweep(path), tmp_path / "runs")[1]
    assert [plan["rounds"] for plan in record["plans"]] == [2, 3]


def test_what_is_recorded_of_a_choice_is_the_chosen_trial_s(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    trials, record = drawn_trials(load_sweep(sweep_file()), out)
    chosen = next(n for n, trial in enumerate(trials) if trial.values != trials[0].values)
    for number, trial in enumerate(trials, start=1):
        (out / trial.slug).mkdir()
        summary = {
            "selection": {"value": 0.5 if number == chosen + 1 else 0.25},
            "model_sha256": str(number),
        }
        (out / trial.slug / "summary.json").write_text(json.dumps(summary))
    record_choice(record, trials, chosen, 0.5, out)
    (path,) = out.glob("trial-*/selection.json")
    assert path.parent.name == trials[chosen].slug
    own = record["drawn"][chosen]
    assert read(path)["selected"] == {
        "combination": trials[chosen].values, "run_seed": own["seed"], "value": 0.5,
    }  # fmt: skip
    assert read(out / "selection.json")["chosen"] == own["trial"] == chosen + 1
    assert choice_problems(out / trials[chosen].slug) == []
    (problem,) = choice_problems(out / trials[0].slug) or [""]
    assert f"is that of trial {chosen + 1}, whose model is not this run's" in problem
    record["drawn"][0]["seed"] += 1
    (out / "selection.json").write_text(json.dumps(record))
    (problem,) = choice_problems(out / trials[chosen].slug) or [""]
    assert "other trials are recorded than its seed draws" in problem


def test_the_direction_of_a_metric_is_the_first_summary_s() -> None:
    directions = {"metric_directions": {"lower_is_better": ["strange"], "headlines": []}}
    assert is_lower_better("val/strange", [None, directions])
    assert not is_lower_better("val/strange", [None])


def test_noise_that_is_fitted_to_rounds_is_accounted_by_those_of_the_grid(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    mechanism = {"name": "buffered_toeplitz", "clip_norm": 0.5, "buffers": 2}
    row = {
        "federated__sampling": "cyclic_poisson",
        "federated__separation": 2,
        "privacy__mechanism": mechanism,
        "privacy__noise_multiplier": 20.0,
        "privacy__epsilon": None,
        **NO_NONCE,
    }

    def price(rounds_of_row: int, grid: dict[str, Any]) -> Any:
        path = sweep_file(row_changes=row | {"federated__num_rounds": rounds_of_row}, grid=grid)
        out = tmp_path / f"row-of-{rounds_of_row}"
        return drawn_trials(load_sweep(path), out)[1]["epsilon"]

    assert price(400, {"federated.num_rounds": [3]}) == price(3, {RATE: [1.0]})


@pytest.mark.parametrize(
    ("setting", "changes", "overrides", "words"),
    [
        ("federated", {}, [], "the row claims no privacy"),
        ("private_federated", {"grid": {"seed": [1, 2]}}, [], "a seed of its own"),
        ("private_federated", {"selection": {"distribution": "binomial"}}, [], "selection"),
        ("private_federated", {"selection": {"distribution": "poisson"}}, [], "give mean"),
        ("private_federated", {}, ["task.split_by=example"], "training users' own examples"),
        (
            "private_federated",
            {"metric": "train/accuracy"},
            ["evaluation.splits=[val, train]"],
            "train/accuracy is computed from the training data without noise",
        ),
        ("private_federated", {}, ["--only", "1"], "--only belongs to"),
        (
            "private_federated",
            {"grid": {"privacy.delta": [1e-3, 1e-4]}},
            [],
            "the points of the grid have several deltas (simulated: [0.0001, 0.001])",
        ),
        (
            "private_federated",
            {"grid": {"federated.num_rounds": [2, 3]}},
            ["privacy.mechanism={name: banded_matrix_factorization, clip_norm: 0.5, bands: 2}"],
            "the grid has several numbers of rounds, and the noise of banded_matrix_factorization",
        ),
        (
            "private_federated",
            {"halving": {"rounds": 1, "factor": 2}},
            [],
            "halving: a selection draws whole runs",
        ),
        (
            "private_federated",
            {"random": {"runs": 1, "seed": 1}},
            [],
            "random: a selection draws points of the grid itself",
        ),
    ],
)
def test_what_has_no_price_is_refused_before_any_run(
    sweep_file: Callable[..., Path],
    tmp_path: Path,
    setting: str,
    changes: dict[str, Any],
    overrides: list[str],
    words: str,
    capsys: Capture,
) -> None:
    path = sweep_file(setting, **changes)
    out = tmp_path / "runs"
    assert main(["sweep", str(path), *overrides, "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_the_first_among_equals_is_best() -> None:
    assert best_of([0.2, 0.5, 0.5], False) == 1
    assert best_of([0.2, float("nan"), 0.2], True) == 0
    assert best_of([float("nan")], True) is None


def test_without_a_selection_all_runs_compose(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "runs"
    path = sweep_file(selection=None)
    assert main(["sweep", str(path), "--out", str(out)]) == 0
    record = read(out / "composition.json")
    statements = [read(path) for path in out.glob("*/privacy.json")]
    assert record["runs"] == len(statements) == 2
    for side in ("simulated", "actual"):
        accountant = rdp.RdpAccountant()
        for statement in statements:
            said = statement[side]
            event = dp_event.GaussianDpEvent(said["noise_multiplier"])
            sampled = dp_event.PoissonSampledDpEvent(said["sampling_probability"], event)
            accountant.compose(sampled, statement["rounds"])
        expected = accountant.get_epsilon(said["delta"])
        assert record["epsilon"][side] == pytest.approx(expected, rel=1e-9)
    printed = capsys.readouterr().out
    assert "By composition" in printed
    assert "honest price" in printed
    # What the folder's other runs have released has its price, whatever the command is for.
    assert main(["sweep", str(path), "--out", str(out), "--only", "1"]) == 0
    assert read(out / "composition.json") == record
    assert "Privacy: 2 private runs" in capsys.readouterr().out


def test_runs_that_share_their_noise_have_no_price_together(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    path = sweep_file(row_changes={"privacy__nonce": "tests"}, selection=None)
    assert main(["sweep", str(path), "--out", str(out)]) == 0
    record = read(out / "composition.json")
    assert record["epsilon"] == {}
    assert "share their noise" in record["problems"]["actual"]
    assert record["covers"] == ""


def test_runs_compose_at_the_smallest_of_their_deltas_by_the_accountant_that_is_asked_for(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    # A nonce that is given is no reason where each run has a seed of its own.
    sweep = load_sweep(sweep_file(row_changes={"privacy__nonce": "tests"}, selection=None))
    trials = [sweep.trial(number, number, seed=number) for number in (1, 2)]
    plan = planned(trials[0].resolved, tmp_path / "run")

    def composed(*deltas: float, accountant: str = "pld") -> dict[str, Any]:
        statements = [
            plan | {side: plan[side] | {"delta": delta} for side in ("simulated", "actual")}
            for delta in deltas
        ]
        epsilons, problems = composed_epsilons(
            list(zip(trials, statements, strict=True)), accountant
        )
        assert problems == {}
        return epsilons

    small = composed(1e-4, 1e-4)
    assert composed(1e-3, 1e-4) == composed(1e-4, 1e-3) == small != composed(1e-3, 1e-3)
    loose = composed(1e-4, 1e-4, accountant="rdp")
    assert all(loose[side] > small[side] for side in ("simulated", "actual"))


def test_runs_that_are_not_finished_are_not_passed_over(
    sweep_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    """As one that another sweep of the folder is at: what it releases has a price, too."""
    path, out = sweep_file(selection=None), tmp_path / "runs"
    busy = out / load_sweep(path).combinations[0].slug
    with RunFolder(busy):
        assert main(["sweep", str(path), "--out", str(out)]) == 1
    record = read(out / "composition.json")
    assert (record["runs"], record["unfinished"]) == (1, 1)
    assert "1 more not finished: what these have released comes to it" in capsys.readouterr().out
