"""Runs computed again from their start: sound ones agree to rounding, broken ones do not."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.cli.main import main
from pfl_bench.client.engines import sequential
from pfl_bench.config.loading import load_config
from pfl_bench.federated import cohort as training
from pfl_bench.federated.workers.messages import SharedTraining
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.auditing import recompute as recomputing
from pfl_bench.runs.auditing.opened import open_run
from pfl_bench.runs.auditing.recompute import Mode, Recomputation, recompute_run
from pfl_bench.runs.runner import run
from pfl_bench.types import Examples, LocalTraining
from privacy import mechanism as mechanisms
from privacy.audit.rounding import Allowed
from privacy.empirical.canaries import Canaries
from privacy.mechanisms.adaptive_gaussian import AdaptiveGaussian
from privacy.recording.central_record import CentralRecord
from privacy.reference.client import places
from privacy.reference.devices import processed
from privacy.reference.round import Round
from privacy.schemes import poisson
from tests.helpers import change_checkpoint, make_config

Patch = pytest.MonkeyPatch
ROUNDS = 4
ADAPTIVE = {"name": "adaptive_gaussian", "clip_norm": 0.5, "quantile": 0.3}
SETTINGS: dict[str, Any] = {
    "federated__num_rounds": ROUNDS,
    "federated__local_epochs": 2,
    "federated__local_batch_size": 8,
    "federated__engine": "sequential",
    "federated__workers": 1,
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 0.5,
    "checkpoint__every": 2,
    "evaluation__every": 1000,
    "evaluation__splits": [],
    "evaluation__final_splits": [],
}


def make(folder: Path, **changes: Any) -> Path:
    run(make_config("private_federated", **{**SETTINGS, **changes}), folder)
    return folder


def again(folder: Path, mode: Mode = "all", seconds: float = 60.0) -> Recomputation:
    opened = open_run(folder, load_config(folder / "config.yaml"))
    return recompute_run(opened, int(opened.recorded("private_seed", "value"), 16), mode, seconds)


def test_a_loss_of_steps_is_not_taken_for_that_of_the_evaluated_training_users(
    tmp_path: Path,
) -> None:
    """A sound run failed: both were called train/loss."""
    changes = {"evaluation__every": 2, "evaluation__splits": ["train", "val"]}
    found = again(make(tmp_path / "run", **changes))
    assert found.rounds == [1, 2, 3, 4]
    assert not found.problems


@pytest.mark.parametrize("mode", ["first", "all"])
def test_a_forged_number_of_epochs_ends_at_once(mode: Mode, sound: Path, tmp_path: Path) -> None:
    """An audit of a stranger's run had no end, and its memory grew."""
    shutil.copytree(sound, tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("local_epochs: 2", "local_epochs: 1000000000"), encoding="utf-8")
    found = again(tmp_path / "run", mode)
    assert [problem for problem in found.problems if "more local steps" in problem]
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert "does not say how many steps" in again(tmp_path / "run", mode).reasons[-1]


@pytest.mark.parametrize("name", ["systems/steps", "systems/examples", "train/num_steps"])
def test_other_work_of_clients_is_named(name: str, sound: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(sound, tmp_path / "run")) / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows[2][name] += 1.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (problem,) = again(tmp_path / "run").problems
    assert problem.startswith("round 3: ")
    assert f"{rows[2][name]} is recorded" in problem


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("most", [None, 1, 3, 50])
@pytest.mark.parametrize("fraction", [None, 0.3])
def test_examples_processed_are_those_of_all_batches(
    across: bool, most: int | None, fraction: float | None
) -> None:
    for count in (0, 1, 5, 16, 17):
        local = SimpleNamespace(
            epochs=3, batch_size=5, max_steps=most, batch_fraction=fraction,
            batches_across_epochs=across,
        )  # fmt: skip
        assert processed(count, local) == sum(end - at for _, at, end in places(count, local))


LAPLACE = {
    "privacy__mechanism": {"name": "laplace", "clip_norm": 8.0},
    "privacy__accountant": "pld",
}
FULL = {
    "federated__sampling": "full",
    "federated__cohort_size": 20,
    "task__num_users": 20,
    "privacy__population_size": 20,
    "privacy__noise_cohort_size": None,
}
CYCLIC = {"federated__sampling": "cyclic_poisson", "federated__separation": 2}
FLIP = {"kind": "label_flip", "corrupted_fraction": 0.2, "labels": "mirror"}
SLOW = {"federated__central_learning_rate": 0.05}


@pytest.mark.parametrize(
    "changes",
    [
        {
            **LAPLACE,
            "federated__local_momentum": 0.5,
            "federated__local_weight_decay": 0.01,
            "federated__central_optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
        },
        {
            "federated__sampling": "fixed_size",
            "federated__algorithm": {"name": "fedprox", "proximal_weight": 0.5},
            "federated__local_gradient_clip_norm": 0.3,
            "federated__central_optimizer": {"name": "adam"},
            **SLOW,
        },
        {
            **FULL,
            "federated__algorithm": {"name": "minibatch_sgd", "fraction": 0.5},
            "federated__local_epochs": 1,
            "federated__central_optimizer": {"name": "adam", "epsilon_hat": True},
            **SLOW,
        },
        {
            "federated__sampling": "truncated_poisson",
            "privacy__accountant": "pld",
            "privacy__epsilon": None,
            "privacy__noise_multiplier": 2.0,
            "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "federated__local_batches": "across_epochs",
            "federated__local_steps": 3,
            "federated__central_optimizer": {"name": "adamw", "weight_decay": 0.1},
            **SLOW,
        },
        {
            **CYCLIC,
            "federated__local_gradient_clip_global_norm": 0.3,
            "federated__central_optimizer": {"name": "adagrad"},
            **SLOW,
        },
        {
            "federated__engine": "vectorized",
            "federated__engine_lanes": 4,
            "federated__central_optimizer": {"name": "yogi"},
            "federated__central_schedule": {"decay": "cosine", "warmup": 2},
            "federated__local_schedule": {"decay": "exponential", "final_fraction": 0.1},
            **SLOW,
        },
        {"attack": {**FLIP, "every": 2, "boost": "replace"}},
    ],
    ids=["laplace", "fixed_size", "full", "truncated", "cyclic", "vectorized", "attackers"],
)
def test_a_sound_run_comes_to_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    done = again(make(tmp_path / "run", **changes))
    assert done.problems == []
    assert sorted(done.rounds) == [1, 2, 3, 4]
    assert done.reasons == []
    assert done.compared == [2, 4]
    assert done.far < 2e-6


def test_bfloat16_is_computed_again_as_far_as_its_rounding_allows(tmp_path: Path) -> None:
    done = again(make(tmp_path / "run", precision="bfloat16", privacy__mechanism=ADAPTIVE))
    assert done.problems == []
    assert done.rounds


def test_a_leak_is_seen_in_bfloat16(tmp_path: Path, monkeypatch: Patch) -> None:
    """A client starts a twentieth of the way to where the client before it has ended."""
    real, ends = sequential.SequentialEngine._train_client, list[torch.Tensor]()

    def train(self: Any, user: int, examples: Any, index: int, central: torch.Tensor) -> Any:
        start = central + 0.05 * (ends[-1] - central) if ends else central
        trained = real(self, user, examples, index, start)
        self._update.add_(start - central)
        ends.append(central + self._update)
        return trained

    with monkeypatch.context() as patch:
        patch.setattr(sequential.SequentialEngine, "_train_client", train)
        folder = make(tmp_path / "run", precision="bfloat16", federated__engine="sequential")
    assert "round 1: sum before noise: its norm" in " ".join(again(folder).problems)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "run", privacy__mechanism=ADAPTIVE)


@pytest.mark.parametrize(
    ("explained", "outcome"), [(5e-2, "passes"), (4e-3, "decides nothing"), (3e-4, "fails")]
)
def test_what_local_training_makes_of_rounding_has_a_long_tail(
    explained: float, outcome: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Sound runs of a network at rate 0.5 failed: a client diverged as in none of the trials."""
    real = sequential.SequentialEngine._train_client

    def train(self: Any, *arguments: Any) -> Any:
        trained = real(self, *arguments)
        self._update[0] += 0.005 * float(self._update.norm())
        return trained

    def measure(self: Allowed, *rounds: Round) -> None:
        self.total = self.length = self.clients = explained

    with monkeypatch.context() as patch:
        patch.setattr(sequential.SequentialEngine, "_train_client", train)
        folder = make(tmp_path / "run")
    monkeypatch.setattr(Allowed, "measure", measure)
    done = again(folder)
    assert bool(done.problems) == (outcome == "fails")
    hides = [reason for reason in done.reasons if "could hide a difference" in reason]
    assert bool(hides) == (outcome == "decides nothing")


def test_a_round_keeps_no_vector_of_a_client(sound: Path, monkeypatch: Patch) -> None:
    """A cohort of 100 took seven gigabytes: the memory of an audit is that of one client."""
    kept = list[int]()

    def watched(*arguments: Any) -> Round:
        made = recomputing_round(*arguments)
        for one in made.contributions:
            assert one.trained is not None
            kept.append(one.trained.update.untyped_storage().nbytes() + one.traces.nbytes)
        return made

    recomputing_round = recomputing.recompute
    monkeypatch.setattr(recomputing, "recompute", watched)
    assert again(sound).rounds == [1, 2, 3, 4]
    assert len(kept) > 40
    assert max(kept) <= 10 * 8  # two projections and eight coordinates


def test_the_adaptive_bound_is_the_same_to_the_last_digits(sound: Path) -> None:
    lines = [json.loads(line) for line in (sound / "ledger.jsonl").read_text().splitlines()]
    assert len({line["clip_norm"] for line in lines}) == ROUNDS
    changed = [*lines]
    changed[3] = {**lines[3], "clip_norm": lines[3]["clip_norm"] * (1.0 + 1e-8)}
    assert again(sound).problems == []
    # The bound is compared to 1e-9 of it; what reads the ledger is given a line that is altered.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfl_bench.runs.auditing.recompute.read_ledger", lambda path: changed)
        (problem, *_) = again(sound).problems
    assert problem.startswith("round 4: clipping bound:")


def test_first_and_sample_compute_what_they_say(sound: Path) -> None:
    assert again(sound, "first").rounds == [1]
    short = again(sound, "sample", 1e-6)
    assert (short.rounds, short.problems) == ([], [])
    assert "--recompute-seconds" in short.reasons[0]
    assert sorted(again(sound, "sample", 60.0).rounds) == [1, 2, 3, 4]


def test_a_sample_uses_the_time_that_late_checkpoints_leave(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    folder = make(tmp_path / "run", federated__num_rounds=8, checkpoint__every=1)
    calls = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(calls)))
    monkeypatch.setattr(recomputing, "time", clock)
    whole = again(folder, "all")
    sample = again(folder, "sample", whole.seconds * 0.7)
    # All but what is too short for another round.
    assert whole.seconds * 0.55 < sample.seconds <= whole.seconds * 0.7
    assert {1, 8} < set(sample.rounds) < set(whole.rounds)


def test_a_sample_begins_no_round_that_cannot_end_but_ends_one_that_can(
    sound: Path, monkeypatch: Patch
) -> None:
    """A round that took more than half of the time was given up twice, and none was computed."""
    calls = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(calls)))
    monkeypatch.setattr(recomputing, "time", clock)
    one = again(sound, "first")
    sample = again(sound, "sample", one.seconds * 1.6)
    assert len(sample.rounds) == 1
    # No client of another round is trained.
    assert sample.seconds < one.seconds * 1.4


def test_without_the_start_rounds_after_checkpoints_are_computed(
    sound: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("pfl_bench.runs.auditing.recompute._Work._knows_start", lambda self: False)
    done = again(sound)
    assert (sorted(done.rounds), done.problems) == ([3, 4], [])


def test_the_verdict_says_how_much_was_computed(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(sound), "--recompute", "all"]) == 0
    out = capsys.readouterr().out
    assert "PASSED: recomputed 4 of 4 rounds; " in out
    assert "The code that audits is the one that ran: sha256:" in " ".join(out.split())
    assert main(["audit", str(sound), "--json"]) == 0
    found = capsys.readouterr()
    assert "rounds are computed again, for 30 s at most" in found.err
    document = json.loads(found.out)
    assert (document["verdict"], document["recomputed"]["rounds"]) == ("passed", 4)
    assert document["recomputed"]["code"]["same"] is True
    done = audit_run(sound)
    assert (done.verdict, done.words) == ("passed", "passed on records alone")
    assert main(["audit", str(sound), "--recompute-seconds", "0"]) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy__audit": {"kind": "worst_case", "count": 10}, "privacy__mechanism": ADAPTIVE},
        {"privacy__audit": {"kind": "one_run", "count": 40}, **CYCLIC},
        {"privacy__audit": {"kind": "one_shot", "count": 10}},
        {
            "privacy__audit": {"kind": "one_run", "count": 20, "direction": "sphere"},
            "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5},
            "privacy__noise_cohort_size": None,
        },
    ],
    ids=["worst_case", "one_run", "one_shot", "local"],
)
def test_canaries_are_computed_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = make(tmp_path / "run", **changes)
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert sum(line["num_canaries"] for line in lines)
    done = again(folder)
    assert (done.problems, done.reasons, sorted(done.rounds)) == ([], [], [1, 2, 3, 4])


def test_a_canary_too_many_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    part = Canaries.taking_part

    def early(self: Canaries, number: int) -> Any:
        return part(self, number) | (np.arange(10) == 3)

    monkeypatch.setattr(Canaries, "taking_part", early)
    folder = make(tmp_path / "run", privacy__audit={"kind": "worst_case", "count": 10})
    assert any(": contributions: " in problem for problem in again(folder).problems)


# A step so long that training makes thousands of a rounding.
STEEP = {
    "federated__local_learning_rate": 5.0,
    "federated__local_epochs": 10,
    "federated__local_batch_size": 4,
    "federated__cohort_size": 4,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    "checkpoint__every": 1,
    # The sequential engine's steps round as the reference's do.
    "federated__engine": "vectorized",
    "checkpoint__keep": 4,
}


def test_what_training_makes_of_rounding_is_no_difference(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    folder = make(tmp_path / "run", **STEEP)
    done = again(folder)
    assert done.problems == []
    assert {1, 2, 3} <= set(done.rounds)
    real = Allowed.measure

    def diverged(self: Allowed, made: Round, trial: Round) -> None:
        trial.contributions[0] = replace(trial.contributions[0], norm=math.nan)
        real(self, made, trial)
        # As if this client had diverged here alone.
        made.contributions[0] = replace(made.contributions[0], norm=math.nan)

    with monkeypatch.context() as patch:
        patch.setattr(Allowed, "measure", diverged)
        done = again(folder)
        assert done.problems == []
        assert "could hide a difference" in " ".join(done.reasons)
    monkeypatch.setattr(Allowed, "measure", lambda self, made, disturbed: None)
    assert any("rounding explains" in problem for problem in again(folder).problems)


# Each plants a bug into the code that runs, and names the round and what of it shows.
Bug = Callable[[Patch], None]


def half_noise_at_the_end(patch: Patch) -> None:
    noised = mechanisms.noised_mean

    def quiet(total: Any, stddev: float, cohort: float, rng: Any) -> Any:
        class Source:
            def standard_normal(self, size: int | None = None) -> Any:
                drawn = rng.standard_normal(size)
                if size is not None:
                    drawn[-20:] *= 0.5
                return drawn

        return noised(total, stddev, cohort, Source())

    patch.setattr("privacy.mechanisms.adaptive_gaussian.noised_mean", quiet)


def noise_of_the_first_round(patch: Patch) -> None:
    stream = training.stream
    import pfl_bench.federated.round as rounds

    def opened(seed: int, purpose: int, number: int = 0, client: int = 0) -> Any:
        return stream(seed, purpose, 1 if purpose == 4 and number > 2 else number, client)

    patch.setattr(rounds, "stream", opened)


def weights_kept(patch: Patch) -> None:
    train = sequential.SequentialEngine._train_client

    def kept(self: Any, user: int, examples: Any, number: int, central: Any) -> Any:
        start = central if user % 7 else self._model.vector.clone()
        return train(self, user, examples, number, start)

    patch.setattr(sequential.SequentialEngine, "_train_client", kept)


def padding_leaks(patch: Patch) -> None:
    read = sequential.read_users

    def padded(*arguments: Any) -> Any:
        for who, examples in read(*arguments):
            inputs = torch.cat([examples.inputs, torch.zeros_like(examples.inputs[:1])])
            yield who, Examples(inputs, torch.cat([examples.targets, examples.targets[:1]]))

    patch.setattr(sequential, "read_users", padded)


def another_s_data(patch: Patch) -> None:
    read = sequential.read_users

    def swapped(split: Any, users: list[int], *arguments: Any) -> Any:
        others = [user - 1 if user % 5 == 1 else user for user in users]
        for user, (_, examples) in zip(users, read(split, others, *arguments), strict=True):
            yield user, examples

    patch.setattr(sequential, "read_users", swapped)


def user_of_every_round(patch: Patch) -> None:
    draw = poisson.draw_distinct

    def with_one(rng: Any, population: int, size: int) -> Any:
        return np.union1d(draw(rng, population, size), [0])

    patch.setattr(poisson, "draw_distinct", with_one)


def rate_doubled(patch: Patch) -> None:
    rate = LocalTraining.rate
    patch.setattr(LocalTraining, "rate", lambda self, number: 2.0 * rate(self, number))


def bound_half_larger(patch: Patch) -> None:
    from privacy.noise import clipped_sum

    clip = clipped_sum.add_clipped_
    patch.setattr(
        clipped_sum, "add_clipped_", lambda total, update, bound: clip(total, update, 1.5 * bound)
    )


def a_client_left_out(patch: Patch) -> None:
    add, rounds = training.UpdateAggregator.add, []

    def leave_out(
        self: Any, aggregate: Any, update: Any, weight: float, index: int, client: int
    ) -> Any:
        before = aggregate.total.clone()
        outcome = add(self, aggregate, update, weight, index, client)
        rounds.append(index)
        if rounds.count(2) == 3 and index == 2:
            aggregate.total.copy_(before)
        return outcome

    patch.setattr(training.UpdateAggregator, "add", leave_out)


def bound_moves_wrongly(patch: Patch) -> None:
    release = AdaptiveGaussian.release

    def moved(self: Any, aggregate: Any, rng: Any) -> Any:
        done = release(self, aggregate, rng)
        self._clip_norm *= 1.001
        return done

    patch.setattr(AdaptiveGaussian, "release", moved)


def noise_twice_in_a_round(patch: Patch) -> None:
    """Drawn from a generator of its own: of the right law, but not of the stream."""
    noised = mechanisms.noised_mean

    def other(total: Any, stddev: float, cohort: float, rng: Any) -> Any:
        rng.standard_normal(total.numel())
        return noised(total, stddev, cohort, np.random.default_rng(5))

    patch.setattr("privacy.mechanisms.adaptive_gaussian.noised_mean", other)


def central_step_along_the_clean_sum(patch: Patch) -> None:
    from pfl_bench.federated.trainer import FederatedTrainer

    step = FederatedTrainer._take_central_step
    patch.setattr(
        FederatedTrainer,
        "_take_central_step",
        lambda self, mean, index: step(self, 0.99 * mean, index),
    )


@pytest.mark.parametrize(
    ("bug", "number", "what"),
    [
        (half_noise_at_the_end, 1, "noise vector"),
        (noise_of_the_first_round, 3, "noise vector"),
        (noise_twice_in_a_round, 1, "noise vector"),
        (weights_kept, 1, "sum before noise"),
        (padding_leaks, 1, "sum before noise"),
        (another_s_data, 1, "sum before noise"),
        (user_of_every_round, 1, "cohort"),
        (rate_doubled, 1, "sum before noise"),
        (bound_half_larger, 1, "sum before noise"),
        (a_client_left_out, 2, "sum before noise"),
        (bound_moves_wrongly, 2, "clipping bound"),
        (central_step_along_the_clean_sum, 1, "next central parameters"),
    ],
)
def test_a_planted_bug_is_named_by_round_and_quantity(
    bug: Bug, number: int, what: str, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        folder = make(tmp_path / "run", privacy__mechanism=ADAPTIVE)
    done = again(folder)
    # Rounds from the start on, up to the first that differs.
    assert min(problem.split(":")[0] for problem in done.problems) == f"round {number}"
    assert any(problem.startswith(f"round {number}: {what}") for problem in done.problems)
    assert done.to_check().outcome == "failed"
    if bug is a_client_left_out:
        assert "update had been left out" in done.to_check().evidence


def test_a_bug_among_attackers_is_found(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        weights_kept(patch)
        folder = make(tmp_path / "run", attack=FLIP)
    assert any("round 1: sum before noise" in problem for problem in again(folder).problems)


def test_another_part_of_clients_clipped_is_named_beside_canaries(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", privacy__audit={"kind": "worst_case", "count": 10})
    path, name = folder / "metrics.jsonl", "privacy/fraction_clipped"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows[2][name] -= 0.3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (problem,) = again(folder).problems
    assert problem.startswith(f"round 3: part of clients clipped: {rows[2][name]} is recorded")


def test_moments_of_another_run_in_a_checkpoint_are_found(tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "momentum": 0.9}
    folder = make(tmp_path / "run", federated__central_optimizer=optimizer)
    path = max((folder / "checkpoints").glob("step-*.pt"))

    def forget_noise(state: dict[str, Any]) -> None:
        (moments,) = state["trainer"]["optimizer"]["state"].values()
        moments["momentum_buffer"].mul_(0.9)

    change_checkpoint(path, forget_noise)
    assert any("first moment is off" in problem for problem in again(folder).problems)


@pytest.mark.parametrize(
    ("optimizer", "keys"),
    [
        ({"name": "sgd", "momentum": 0.9}, ["lr", "momentum", "weight_decay"]),
        ({"name": "adagrad"}, ["lr", "eps", "step"]),
        ({"name": "yogi"}, ["initial_second_moment"]),
        ({"name": "adam", "epsilon_hat": True}, ["eps", "epsilon_hat", "step"]),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_other_numbers_of_an_optimizer_in_a_checkpoint_are_found(
    tmp_path: Path, optimizer: dict[str, Any], keys: list[str]
) -> None:
    folder = make(tmp_path / "run", federated__central_optimizer=optimizer)
    assert again(folder).problems == []
    path = max((folder / "checkpoints").glob("step-*.pt"))
    kept = path.read_bytes()

    def change(key: str, state: dict[str, Any]) -> None:
        saved = state["trainer"]["optimizer"]
        (saved["state"][0] if key == "step" else saved["param_groups"][0])[key] += 0.01

    for key in keys:
        change_checkpoint(path, partial(change, key))
        (problem,) = again(folder).problems
        assert f".{key} is off by 0.01, where rounding explains" in problem
        path.write_bytes(kept)


@pytest.mark.parametrize(
    "place", ["mechanism.clip_norm", "private.history.counts", "private.history.last"]
)
def test_another_bound_or_history_in_the_last_checkpoint_is_found(
    tmp_path: Path, place: str
) -> None:
    folder = make(tmp_path / "run", privacy__mechanism=ADAPTIVE)
    path = max((folder / "checkpoints").glob("step-*.pt"))

    def change(state: dict[str, Any]) -> None:
        *above, key = place.split(".")
        part = state["trainer"]
        for name in above:
            part = part[name]
        part[key] = part[key] + (0.01 if key == "clip_norm" else 1)

    change_checkpoint(path, change)
    (problem,) = again(folder).problems
    assert problem.startswith(f"round {ROUNDS}: the checkpoint's trainer.{place} is off by ")


def test_many_rounds_without_a_checkpoint_explain_no_more_than_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """What rounding explains grew with the rounds, and a client's share was lost in it."""
    changes = {"federated__num_rounds": 24, "checkpoint__every": 100}
    assert again(make(tmp_path / "sound", **changes)).rounds == list(range(1, 25))
    real = SharedTraining.train

    def train(self: SharedTraining, users: Any, index: int, *rest: Any) -> Any:
        aggregate, counted = real(self, users, index, *rest)
        aggregate.total[0] += 0.004 if index == 20 else 0.0
        return aggregate, counted

    monkeypatch.setattr(SharedTraining, "train", train)
    found = again(make(tmp_path / "run", **changes))
    assert found.problems[0].startswith("round 20: sum before noise: projection ")


def test_a_user_counted_twice_within_rounding_is_not_computed_again(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Rounding in bfloat16 explains a client, and such a round counted as computed again."""
    changes = {
        "precision": "bfloat16",
        "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.1},
        "checkpoint__every": 10,
    }
    assert again(make(tmp_path / "sound", **changes)).rounds[:3] == [1, 2, 3]
    last: list[torch.Tensor] = []
    add, record = training.UpdateAggregator.add, CentralRecord.round

    def added(self: Any, aggregate: Any, update: torch.Tensor, *rest: Any) -> Any:
        last[:] = [update.clone()]
        return add(self, aggregate, update, *rest)

    def recorded(self: Any, mean: torch.Tensor, *rest: Any) -> Any:
        rounds.append(len(rounds) + 1)
        if len(rounds) == 3:
            mean += last[0] * (0.1 / float(last[0].norm())) / 12.0
        return record(self, mean, *rest)

    rounds: list[int] = []
    monkeypatch.setattr(training.UpdateAggregator, "add", added)
    monkeypatch.setattr(CentralRecord, "round", recorded)
    found = again(make(tmp_path / "run", **changes))
    assert found.rounds == [1, 2]
    assert "a quarter of what one client may contribute" in found.reasons[0]
    assert not found.problems
