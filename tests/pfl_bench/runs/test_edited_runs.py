"""The audit of finished run folders that were edited afterwards, by one who knows all but a hash.

Whoever edits can write each file anew so that all of them agree. What nobody can write is another
configuration from which the recorded cohorts and noise follow.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.federated import private_seed
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.runner import run
from pfl_bench.types import RunFolderError
from privacy.audit.check import Check
from privacy.audit.evidence import RECORDED
from privacy.ledger import canonical_line
from tests.helpers import change_checkpoint, change_tree, make_config

Edit = Callable[[Path], None]
Change = Callable[[dict[str, Any]], None]
ROUNDS, CUT = 10, 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    changes: dict[str, Any] = {
        "privacy__nonce": None,
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 2.0,
        "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
        "federated__num_rounds": ROUNDS,
    }
    run(make_config("private_federated", **changes), folder)
    return folder


def audited(folder: Path) -> tuple[str, dict[str, Check]]:
    done = audit_run(folder, 1)
    return done.verdict, {check.name: check for check in done.checks}


def json_edit(name: str, change: Change) -> Edit:
    def edit(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return edit


def config_edit(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        tree = yaml.safe_load((folder / "config.yaml").read_text())
        change_tree(tree, changes)
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))

    return edit


def statement_edit(**changes: Any) -> Edit:
    """Of the statement, and of the summary's copy of it."""

    def edit(folder: Path) -> None:
        json_edit("privacy.json", lambda d: change_tree(d, changes))(folder)
        json_edit("summary.json", lambda d: change_tree(d["privacy"], changes))(folder)

    return edit


def ledger_edit(change: Callable[[list[dict[str, Any]]], None]) -> Edit:
    """Of the lines; the chain, and what names it in summary and checkpoints, is made anew."""

    def edit(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        change(lines)
        digests, text = ["0" * 64], b""
        for line in lines:
            line.pop("previous")
            written = canonical_line(line, digests[-1])
            digests.append(hashlib.sha256(written.rstrip(b"\n")).hexdigest())
            text += written
        path.write_bytes(text)

        json_edit("summary.json", lambda d: d.update(ledger_digest=digests[-1]))(folder)
        for place in (folder / "checkpoints").glob("step-*.pt"):
            step = int(place.stem.partition("-")[2])
            if step < len(digests):
                named = {"ledger": digests[step]}
                change_checkpoint(place, partial(_in_private, named))

    return edit


def _in_private(named: dict[str, Any], state: dict[str, Any]) -> None:
    trainer = state["trainer"]
    trainer.get("private", trainer).update(named)  # DP-SGD keeps its digest beside the rest


def constants_edit(**changes: Any) -> Edit:
    return ledger_edit(lambda lines: [change_tree(line, changes) for line in lines] and None)


def together(*edits: Edit) -> Edit:
    def edit(folder: Path) -> None:
        for one in edits:
            one(folder)

    return edit


def new_parts(folder: Path) -> None:
    """Record the digest of the configuration as it is now."""
    resolved = load_config(folder / "config.yaml")
    digest = private_seed.configuration_digest(resolved, has_traces=False)
    edit = json_edit(
        "environment.json", lambda d: d["private_seed"]["parts"].update(configuration=digest)
    )
    edit(folder)


def new_seed(folder: Path) -> None:
    """And the seed that follows, in the checkpoints too."""
    new_parts(folder)
    resolved = load_config(folder / "config.yaml")
    recorded = json.loads((folder / "environment.json").read_text())["private_seed"]
    assert resolved.config.privacy is not None
    nonce = resolved.config.privacy.nonce
    value = private_seed.value_of(resolved.config.seed, nonce, recorded["parts"])
    edit = json_edit(
        "environment.json", lambda d: d["private_seed"].update(value=f"{value:064x}", nonce=nonce)
    )
    edit(folder)
    for path in (folder / "checkpoints").glob("step-*.pt"):
        change_checkpoint(path, lambda s: s["trainer"]["private"].update(seed=value))


def cut(folder: Path) -> None:
    """Drop the last rounds everywhere, and state the smaller epsilon."""
    metrics = (folder / "metrics.jsonl").read_text().splitlines()[:-CUT]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in metrics))
    config_edit(federated__num_rounds=ROUNDS - CUT)(folder)
    shutil.rmtree(folder / "checkpoints")
    ledger_edit(lambda lines: lines.__delitem__(slice(-CUT, None)))(folder)
    json_edit("summary.json", lambda d: d.update(rounds=ROUNDS - CUT))(folder)
    restated(folder)


def restated(folder: Path) -> None:
    """Write the statement that the edited configuration would have, wherever it stands."""
    resolved = load_config(folder / "config.yaml")
    run(resolved, folder.parent / "honest")
    honest = json.loads((folder.parent / "honest" / "privacy.json").read_text())
    json_edit("privacy.json", lambda d: d.update(honest))(folder)
    json_edit("summary.json", lambda d: d.update(privacy=honest))(folder)
    path = folder.parent / "honest" / "ledger.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    sides = {label: line[label] for label in ("simulated", "actual")}
    constants_edit(**sides)(folder)
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("privacy/epsilon_simulated", None)
        row.pop("privacy/epsilon_actual", None)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


HYPOTHETICAL = together(
    config_edit(privacy__population_size=1_000_000, privacy__hypothetical_population=True),
    restated,
)
EMPTIED = statement_edit(not_covered=[], notes=[])
EPOCHS = config_edit(federated__local_epochs=5)


def other_data(folder: Path) -> None:
    json_edit("environment.json", lambda d: d["data"].update(checksum="sha256:0"))(folder)
    json_edit(
        "environment.json", lambda d: d["private_seed"]["parts"].update(data="sha256:0")
    )(folder)  # fmt: skip


def part_edit(name: str, value: Any) -> Edit:
    return json_edit("environment.json", lambda d: d["private_seed"]["parts"].update({name: value}))


def metrics_edit(change: Change) -> Edit:
    """Of the first line that has epsilons."""

    def edit(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        rows = [json.loads(text) for text in path.read_text().splitlines()]
        change(next(row for row in rows if "privacy/epsilon_actual" in row))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return edit


def halved(row: dict[str, Any]) -> None:
    assert row["round"] < ROUNDS
    row["privacy/epsilon_actual"] /= 2.0


def unknown(row: dict[str, Any]) -> None:
    row["privacy/epsilon_actual"] = "nan"


def state_edit(change: Change) -> Edit:
    def edit(folder: Path) -> None:
        for path in (folder / "checkpoints").glob("step-*.pt"):
            change_checkpoint(path, change)

    return edit


def kept_in_checkpoint(change: Change) -> Edit:
    return state_edit(lambda state: change(state["trainer"]))


def put_as(name: str, row: dict[str, Any]) -> None:
    row[name] = 1.0


def put_in(place: str, document: dict[str, Any]) -> None:
    """Put what no run writes at a place of a document."""
    part: Any = document
    *above, name = place.split(".")
    for key in above:
        part = part[key]
    part[name] = "1" if above == ["packages"] else 1.0


def put_in_each(place: str, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        put_in(place, line)


EDITS: dict[str, tuple[Edit, set[str]]] = {
    "an epsilon on the way": (metrics_edit(halved), {"metrics"}),
    "an epsilon that is no number": (metrics_edit(unknown), {"metrics"}),
    **{
        f"in the metrics: {name}": (metrics_edit(partial(put_as, name)), {"folder"})
        for name in ("train/sum_0", "systems/mean_norm", "val/update_norm", "time/raw_norm")
    },
    "total costs": (metrics_edit(partial(put_as, "systems/total_bytes_up")), {"outcome"}),
    "another format": (
        json_edit("summary.json", lambda d: d.update(format_version=1.5)),
        {"outcome"},
    ),
    "another nonce": (
        json_edit("environment.json", lambda d: d["private_seed"].update(nonce="x")),
        {"private_seed"},
    ),
    "a norm for the loss at the start": (
        state_edit(lambda state: state["divergence"].update(start=7.5)),
        {"outcome"},
    ),
    "a sum in the checkpoint": (
        kept_in_checkpoint(lambda trainer: trainer.update(debug=trainer["central"].clone())),
        {"folder"},
    ),
    "a sum for momentum": (
        kept_in_checkpoint(
            lambda trainer: trainer["optimizer"]["state"].update(
                {0: {"momentum_buffer": trainer["central"].clone()}}
            )
        ),
        {"folder"},
    ),
    **{
        f"in the summary: {place}": (
            json_edit("summary.json", partial(put_in, place)),
            {"folder"},
        )
        for place in ("clients", "data.clients", "metrics.users/norm_7")
    },
    "clients beside a published number": (
        json_edit("summary.json", lambda d: d.update(expected=[{"metric": "m", "clients": [1]}])),
        {"folder"},
    ),
    **{
        f"in the environment: {place}": (
            json_edit("environment.json", partial(put_in, place)),
            {"folder"},
        )
        for place in ("counts", "hardware.counts", "packages.counts", "data.counts")
    },
    **{
        f"in each line: {place}": (
            ledger_edit(partial(put_in_each, place)),
            {"folder"},
        )
        for place in (
            "users",
            "simulated.users",
            "probe.users",
            "noise.users",
            "central.users",
            "mechanism_description.users",
        )
    },
    "a hypothetical population": (HYPOTHETICAL, {"private_seed"}),
    "and its digest": (together(HYPOTHETICAL, new_parts), {"private_seed"}),
    "and its seed": (together(HYPOTHETICAL, new_seed), {"cohort_replay", "noise_replay"}),
    "the last rounds cut": (cut, {"private_seed"}),
    "the last rounds cut, and the seed": (
        together(cut, new_seed),
        {"cohort_replay", "noise_replay"},
    ),
    "the last rounds cut, but for the configuration": (
        together(cut, config_edit(federated__num_rounds=ROUNDS)),
        {"statement"},
    ),
    "local epochs": (EPOCHS, {"private_seed"}),
    "local epochs and the digest": (together(EPOCHS, new_parts), {"private_seed"}),
    "local epochs and the seed": (
        together(EPOCHS, new_seed),
        {"cohort_replay", "noise_replay"},
    ),
    "caveats emptied": (EMPTIED, {"statement"}),
    "one caveat reworded": (
        statement_edit(notes=["The users of these data are real."]),
        {"statement"},
    ),
    "words of the mechanism": (
        statement_edit(mechanism_description__words="clips nothing"),
        {"statement"},
    ),
    "a budget afterwards": (statement_edit(budget_epsilon=1.0), {"statement"}),
    "a budget afterwards, configured": (
        together(config_edit(privacy__epsilon=1.0), statement_edit(budget_epsilon=1.0)),
        {"private_seed"},
    ),
    "another clip is stated": (statement_edit(clip__clip_norm=0.1), {"statement"}),
    "another delta": (together(config_edit(privacy__delta=0.012), restated), {"private_seed"}),
    "another seed": (config_edit(seed=4), {"private_seed"}),
    "a nonce": (together(config_edit(privacy__nonce="mine"), new_seed), {"noise_replay"}),
    "another accountant": (
        together(
            config_edit(privacy__accountant="pld"),
            restated,
            constants_edit(accountant="pld"),
        ),
        {"private_seed"},
    ),
    "another partition": (config_edit(task__partition_seed=1), {"private_seed", "configuration"}),
    "other data in the record": (other_data, {"private_seed"}),
    "another initial model": (part_edit("initial_model", "sha256:0"), {"private_seed"}),
    "other code": (part_edit("code", "sha256:0"), {"private_seed"}),
    "another engine": (
        json_edit("environment.json", lambda d: d["engine"].update(name="vectorized")),
        {"private_seed"},
    ),
    "a final run that is said to be planned": (statement_edit(status="planned"), {"rounds"}),
    "the model is chosen, and nobody told": (
        config_edit(evaluation__select_best="val/accuracy"),
        {"statement"},
    ),
}
UNKNOWN: dict[str, tuple[Edit, set[str]]] = {
    "no parts of the seed": (
        json_edit("environment.json", lambda d: d["private_seed"].pop("parts")),
        {"private_seed"},
    ),
    "no seed": (json_edit("environment.json", lambda d: d.pop("private_seed")), {"private_seed"}),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_folder_fails(what: str, finished: Path, tmp_path: Path) -> None:
    edit, names = EDITS[what]
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    edit(folder)
    verdict, checks = audited(folder)
    failed = {name for name, check in checks.items() if check.outcome == "failed"}
    assert verdict == "failed"
    assert names <= failed, {name: checks[name].evidence for name in failed}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_folder_without_what_shows_its_seed_is_incomplete(
    what: str, finished: Path, tmp_path: Path
) -> None:
    edit, names = UNKNOWN[what]
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    edit(folder)
    verdict, checks = audited(folder)
    assert verdict == "incomplete"
    assert names == {name for name, check in checks.items() if check.outcome == "incomplete"}


SOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive": ("private_federated", {"privacy__nonce": None}),
    "pinned, and a model that is chosen": (
        "private_federated",
        {"evaluation__select_best": "val/accuracy"},
    ),
    "a budget that ends the run": (
        "private_federated",
        {
            "privacy__nonce": None,
            "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
            "privacy__epsilon": 4.0,
            "privacy__noise_multiplier": 2.0,
            "federated__num_rounds": 30,
        },
    ),
    "one that diverges, of which the training users are evaluated too": (
        "private_federated",
        {
            "federated__central_learning_rate": 1e5,
            "evaluation__splits": ["train", "val"],
            "evaluation__select_best": "val/loss",
            "evaluation__budgets": [
                {"metric": "val/accuracy", "value": 0.01},
                {"metric": "train/accuracy", "value": 2.0},
            ],
        },
    ),
    "canaries": ("private_federated", {"privacy__audit": {"kind": "one_shot", "count": 10}}),
    "examples": ("central_dp", {"privacy__nonce": None, "central__num_epochs": 2}),
    "examples, a budget that ends the run": (
        "central_dp",
        {"privacy__nonce": None, "privacy__noise_multiplier": 1.0, "privacy__epsilon": 1.6},
    ),
}


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (what,) = [what for what in SOUND if "diverges" in what]
    folder = tmp_path_factory.mktemp("diverged") / "run"
    run(make_config(SOUND[what][0], **SOUND[what][1]), folder)
    return folder


@pytest.mark.parametrize("what", SOUND)
def test_a_sound_run_passes(what: str, tmp_path: Path) -> None:
    setting, changes = SOUND[what]
    summary = run(make_config(setting, **changes), tmp_path / "run")
    assert (summary["status"] == "budget_exhausted") == ("budget" in what)
    assert (summary["diverged"] is not None) == ("diverges" in what)
    assert (summary["canaries"] is not None) == ("canaries" in what)
    verdict, checks = audited(tmp_path / "run")
    wrong = {c.name: c.evidence for c in checks.values() if c.outcome in ("failed", "incomplete")}
    assert (verdict, wrong) == ("passed", {})
    assert checks["private_seed"].outcome == checks["statement"].outcome == "passed"


@pytest.mark.parametrize(
    ("key", "value"), [("diverged", None), ("selected", 6), ("selection", None), ("budgets", [])]
)
def test_what_the_lines_of_metrics_show_is_not_hidden(
    diverged: Path, key: str, value: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(diverged, tmp_path / "copy"))
    json_edit("summary.json", lambda summary: summary.update({key: value}))(folder)
    _, checks = audited(folder)
    assert checks["outcome"].outcome == "failed"
    assert f"{key} is not what metrics.jsonl comes to" in checks["outcome"].evidence


def test_metrics_of_older_checkpoints_are_those_of_their_models(tmp_path: Path) -> None:
    often = {"checkpoint__every": 2, "checkpoint__keep": 4, "evaluation__every": 1}
    run(make_config("private_federated", privacy__nonce=None, **often), tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]

    def check() -> Check:
        checks = audit_run(tmp_path / "run", 1, recompute="first").checks
        return next(check for check in checks if check.name == "outcome")

    assert check().outcome == "passed"
    for number in (2, 4):
        other = rows[number - 1] | {"val/loss": rows[number - 1]["val/loss"] + 1.0}
        changed = [*rows[: number - 1], other, *rows[number:]]
        path.write_text("".join(json.dumps(row) + "\n" for row in changed))
        assert f"round {number}: val/loss is " in check().evidence


def test_an_edited_run_of_examples_fails(tmp_path: Path) -> None:
    run(make_config("central_dp", central__num_epochs=2, privacy__nonce=None), tmp_path / "run")
    config_edit(central__learning_rate=0.2)(tmp_path / "run")
    statement_edit(not_covered=[])(tmp_path / "run")
    verdict, checks = audited(tmp_path / "run")
    assert verdict == "failed"
    assert checks["private_seed"].outcome == checks["statement"].outcome == "failed"


@pytest.fixture(scope="module")
def of_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of_examples") / "run"
    run(make_config("central_dp", central__num_epochs=2), folder)
    return folder


def stripped(*names: str) -> Edit:
    def strip(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            for name in names:
                del line[name]

    return ledger_edit(strip)


STRIPPED: dict[str, set[str]] = {
    "noise": {"constants", "noise_replay", "noise_scale"},
    "probe": {"constants", "clip_probe"},
    "clip_norm": {"constants", "clip_bound", "clip_probe", "clip_path", "noise_multiplier"},
    "plugins": {"constants", "plugins"},
    # No check names what it no longer compares.
    "data": {"constants"},
    "total_weight": {"constants"},
}


@pytest.mark.parametrize("name", STRIPPED)
def test_a_ledger_that_does_not_record_what_runs_do_is_incomplete(
    name: str, finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    stripped(name)(folder)
    verdict, checks = audited(folder)
    assert verdict == "incomplete"
    lacking = {key for key, check in checks.items() if check.outcome == "incomplete"}
    assert lacking == STRIPPED[name]
    assert "does not record" in checks["constants"].evidence


def without_numbers(part: str, key: str, rounds: slice) -> Edit:
    def empty(lines: list[dict[str, Any]]) -> None:
        for line in lines[rounds]:
            value = line[part][key]
            line[part][key] = [None] * len(value) if isinstance(value, list) else None

    return ledger_edit(empty)


@pytest.mark.parametrize("rounds", [slice(None), slice(2, 3), slice(-1, None)], ids=str)
@pytest.mark.parametrize(
    ("place", "check"),
    [
        ("release.coordinates", "central_step"),
        ("release.projections", "central_step"),
        ("noise.dot_sum", "releases"),
        ("noise.rounding", "releases"),
    ],
)
def test_rounds_without_the_numbers_that_are_compared_are_incomplete(
    place: str, check: str, rounds: slice, finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    without_numbers(*place.split("."), rounds)(folder)
    verdict, checks = audited(folder)
    assert verdict == "incomplete"
    assert {key for key, one in checks.items() if one.outcome == "incomplete"} == {check}


@pytest.mark.parametrize("kind", ["user", "example"])
def test_runs_record_what_a_ledger_is_held_to(kind: str, finished: Path, of_examples: Path) -> None:
    path = (finished if kind == "user" else of_examples) / "ledger.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    digests = {name for name in line if name.endswith("_sha256")}
    assert {*line} - digests - {"round", "previous", "central", "release"} == RECORDED[kind]


def test_a_claim_that_is_there_twice_is_no_claim(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    text = (folder / "privacy.json").read_text()
    (folder / "privacy.json").write_text(text.replace('"epsilon":', '"epsilon": 0.01, "epsilon":'))
    with pytest.raises(RunFolderError, match="the key 'epsilon' is there twice"):
        audited(folder)


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl"])
def test_a_part_of_a_line_at_the_end_of_a_finished_run_fails(
    name: str, finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    with (folder / name).open("a") as file:
        file.write("user 7: 0.25 0.5")
    verdict, checks = audited(folder)
    assert verdict == checks["folder"].outcome == "failed"
    assert f"{name} ends with a part of a line" in checks["folder"].evidence


def without_metric(name: str) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        rows = [json.loads(text) for text in path.read_text().splitlines()]
        for row in rows:
            del row[name]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return edit


OTHER_CODE = part_edit("code", "sha256:0")
# An edit, how it is audited, the verdict, and a check with its outcome and reason.
REASONS: dict[str, tuple[Edit, dict[str, Any], str, str, str, str]] = {
    "a metric in no line": (
        without_metric("privacy/clip_norm"), {}, "incomplete",
        "metrics", "incomplete", "the metrics do not have privacy/clip_norm",
    ),
    "no model in the summary": (
        json_edit("summary.json", lambda d: d.pop("model_sha256")), {}, "incomplete",
        "central_chain", "incomplete", "the summary does not name the model",
    ),
    "a cohort beyond the population": (
        constants_edit(actual__cohort_size=1000.0), {}, "failed",
        "cohort_replay", "incomplete", "no cohort of 1000 can be drawn of 60 users",
    ),
    "other words by other code": (
        together(OTHER_CODE, EMPTIED), {}, "failed",
        "statement", "incomplete", "not_covered, notes would be stated otherwise, by other code",
    ),
    "a refused configuration under other code": (
        together(OTHER_CODE, config_edit(privacy__delta=0.5)), {}, "failed",
        "statement", "incomplete", "the configuration cannot be run: ",
    ),
    "other data in the ledger": (
        constants_edit(data="sha256:0"), {"recompute": "first"}, "failed",
        "recomputation", "skipped", "the data are not those of the ledger",
    ),
    "no time for the metrics": (
        lambda folder: None, {"recompute": "sample", "seconds": 1e-6}, "passed",
        "outcome", "passed", "see --recompute-seconds",
    ),
    "no model for the metrics": (
        lambda folder: shutil.rmtree(folder / "checkpoints"), {"recompute": "first"}, "incomplete",
        "outcome", "passed", "no checkpoint has the model that was evaluated",
    ),
    "another model for the metrics": (
        json_edit("summary.json", lambda d: d.update(model_sha256="0" * 64)),
        {"recompute": "first"}, "failed",
        "outcome", "passed", "the newest checkpoint has another model: see central_chain",
    ),
    "a constant of another kind": (
        constants_edit(uploads="update"), {}, "failed",
        "chain", "failed", "round 1: 'uploads' is 'update', but must be a list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REASONS)
def test_what_is_not_looked_at_is_said(what: str, finished: Path, tmp_path: Path) -> None:
    edit, how, verdict, name, outcome, reason = REASONS[what]
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    edit(folder)
    done = audit_run(folder, 1, **how)
    (check,) = [check for check in done.checks if check.name == name]
    assert (done.verdict, check.outcome) == (verdict, outcome), check.evidence
    assert reason in check.evidence


def test_noise_that_hides_nothing_is_audited_without_the_memory_of_a_cluster(
    tmp_path: Path,
) -> None:
    changes: dict[str, Any] = {
        "federated__num_rounds": 2,
        "privacy__epsilon": None,
        "privacy__noise_multiplier": 3e-6,
        "privacy__noise_cohort_size": None,
        "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    }
    run(make_config("private_federated", **changes), tmp_path / "run")
    _, checks = audited(tmp_path / "run")
    for name, reason in (
        ("referee_actual", "is beyond the referee's numbers: noise of "),
        ("noise_replay", "in no round can the noise be seen beside the rounding of the sum"),
    ):
        assert checks[name].outcome == "skipped"
        assert reason in checks[name].evidence


STEPS = {"cohort_replay", "noise_replay", "recomputation"}


def without_seed(state: dict[str, Any]) -> None:
    del state["trainer"]["seed"]


# Each edit, and the checks that fail, are incomplete and skipped; nothing of the rest changes.
EDITS_OF_EXAMPLES: dict[str, tuple[Edit, dict[str, set[str]]]] = {
    "no steps in the ledger": (stripped("observed"), {"incomplete": {"constants", *STEPS}}),
    "another digest of the model in the record": (
        json_edit("environment.json", lambda d: d["model"].update(initial_digest="sha256:0")),
        {},
    ),
    "another model under the seed": (
        part_edit("initial_model", "sha256:0"),
        {"failed": {"private_seed"}, "incomplete": STEPS},
    ),
    "no seed": (
        together(
            json_edit("environment.json", lambda d: d.pop("private_seed")),
            state_edit(without_seed),
        ),
        {"incomplete": {"private_seed", *STEPS}},
    ),
    "noise of a device that is not here": (
        json_edit(
            "environment.json",
            lambda d: d["private_seed"]["parts"]["arithmetic"].update(device="cuda"),
        ),
        {"incomplete": {"noise_replay"}},
    ),
    "no noise multiplier": (
        statement_edit(noise_multiplier="inf"),
        {"failed": {"configuration", "statement"}, "skipped": STEPS},
    ),
}


def test_examples_that_are_read_otherwise_are_not_compared(
    finished: Path, of_examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenedRun, "other_reading", "decoded elsewhere")
    for folder in (finished, of_examples):
        checks = audit_run(folder, 1, recompute="first").checks
        skipped = {check.name for check in checks if "decoded elsewhere" in check.evidence}
        assert skipped == {"recomputation", "outcome"}
        assert not [check for check in checks if check.outcome == "failed"]


@pytest.mark.parametrize("what", EDITS_OF_EXAMPLES)
def test_steps_that_are_not_computed_again_are_not_passed(
    what: str, of_examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    edit, wanted = EDITS_OF_EXAMPLES[what]
    folder = Path(shutil.copytree(of_examples, tmp_path / "copy"))
    before = audited(folder)[1]
    edit(folder)
    _, checks = audited(folder)
    found: dict[str, set[str]] = {}
    for name, check in checks.items():
        if check.outcome != before[name].outcome:
            found.setdefault(check.outcome, set()).add(name)
    assert found == wanted, {
        name: checks[name].evidence for names in found.values() for name in names
    }


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("sum", [], "round 1: 'observed' must have lists of one length, an element a step"),
        ("batch_sizes", [-1] * 100, "'observed.batch_sizes' is [-1, "),
        ("batch_digests", ["0"] * 100, "'observed.batch_digests' is '0', but must be a SHA-256"),
    ],
)
def test_steps_of_another_form_break_the_chain(
    key: str, value: list[Any], reason: str, of_examples: Path, tmp_path: Path
) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        observed = lines[0]["observed"]
        observed[key] = value[: len(observed[key])]

    folder = Path(shutil.copytree(of_examples, tmp_path / "copy"))
    ledger_edit(change)(folder)
    verdict, checks = audited(folder)
    assert verdict == checks["chain"].outcome == "failed"
    assert reason in checks["chain"].evidence


@pytest.mark.parametrize(("key", "value"), [("rounds", "6"), ("rounds", -1), ("clip", [])])
def test_a_statement_of_another_form_is_refused(
    key: str, value: Any, finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    statement_edit(**{key: value})(folder)
    with pytest.raises(RunFolderError, match=f"privacy.json: '{key}' is .*; expected .*: restore"):
        audit_run(folder, 1)


def test_steps_that_are_moved_to_another_epoch_fail(tmp_path: Path) -> None:
    def move(lines: list[dict[str, Any]]) -> None:
        """An epoch without any would leave nothing to compute again."""
        first, second = (line["observed"] for line in lines[:2])
        lines[1]["observed"] = {key: first[key] + second[key] for key in first}
        lines[0]["observed"] = {key: [] for key in first}

    run(make_config("central_dp", central__num_epochs=2, privacy__nonce=None), tmp_path / "run")
    assert audited(tmp_path / "run")[0] == "passed"
    ledger_edit(move)(tmp_path / "run")
    verdict, checks = audited(tmp_path / "run")
    assert verdict == "failed"
    assert checks["rounds"].evidence.startswith("lines observe other numbers of steps than")


def test_a_run_that_was_resumed_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, advance = (
        make_config("private_federated", privacy__nonce=None),
        FederatedTrainer.advance,
    )

    def stop(self: FederatedTrainer, index: int) -> dict[str, float]:
        if index == 4:
            raise KeyboardInterrupt
        return advance(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(FederatedTrainer, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run")
    checks = audited(tmp_path / "run")[1]
    assert checks["statement"].outcome == checks["private_seed"].outcome == "passed"
    run(config, tmp_path / "run", resume=True)
    assert audited(tmp_path / "run")[0] == "passed"


def test_data_that_are_not_where_the_configuration_says_leave_it_incomplete(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfl_bench.runs.auditing import opened
    from pfl_bench.types import DataError

    def gone(*_: object) -> None:
        raise DataError("digits.h5: no such file")

    monkeypatch.setattr(opened, "build_task", gone)
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    EMPTIED(folder)
    verdict, checks = audited(folder)
    assert verdict == "incomplete"
    assert checks["statement"].outcome == checks["private_seed"].outcome == "incomplete"


# A file, where in it, and what stands there instead: of another kind than what is written.
ODD: list[tuple[str, str, Any]] = [
    ("environment.json", "hardware", True),
    ("environment.json", "hardware.machine", [1]),
    ("environment.json", "python", {}),
    ("environment.json", "private_seed", "x"),
    ("environment.json", "private_seed.parts", None),
    ("summary.json", "systems", -1),
    ("summary.json", "departure", [1]),
    ("summary.json", "settings_sha256", []),
    ("summary.json", "data.num_users", {"a": None}),
    ("summary.json", "metrics.test/accuracy", None),
    ("summary.json", "metric_directions.headlines", None),
    ("summary.json", "privacy.simulated", "x"),
    ("privacy.json", "unit", "x"),
    ("privacy.json", "actual", -1),
    ("privacy.json", "rounds", "10"),
    ("metrics.jsonl", "train/loss", [1]),
    ("ledger.jsonl", "central.coordinates", 1.5),
    ("config.yaml", "federated", 1),
]


@pytest.mark.parametrize(("name", "place", "value"), ODD, ids=[f"{a}-{b}" for a, b, _ in ODD])
def test_a_value_of_another_kind_ends_no_command_in_a_traceback(
    name: str,
    place: str,
    value: Any,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "runs" / "edited"
    shutil.copytree(finished, folder)
    shutil.copytree(finished, folder.with_name("sound"))
    (folder.with_name("sound") / "metrics.jsonl").unlink()  # no pictures of it are drawn
    first, *lines = (folder / name).read_text().split("\n" if name.endswith(".jsonl") else "\0")
    document = yaml.safe_load(first)
    section, _, key = place.rpartition(".")
    (document[section] if section else document)[key] = value
    edited = "\n".join([json.dumps(document), *lines])
    (folder / name).write_text(edited)
    board, page = str(tmp_path / "board.html"), str(tmp_path / "page.html")
    is_left_out = name != "ledger.jsonl"
    both = [str(folder), str(folder.with_name("sound"))]
    assert main(["leaderboard", *both, "--out", board]) == int(is_left_out)
    assert main(["report", *both, "--out", page]) == int(is_left_out)
    said = capsys.readouterr().err
    assert ("left out" in said) == (str(folder / name) in said) == is_left_out
    (folder / "summary.json").unlink()
    again = main(["run", str(folder / "config.yaml"), "--out", str(folder), "--resume"])
    assert again == 2 or name in ("ledger.jsonl", "privacy.json", "summary.json")
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    (folder / name).write_text(edited)
    capsys.readouterr()
    assert main(["audit", str(folder), "--recompute", "first"]) in (1, 2)
    assert (name in capsys.readouterr().err) == is_left_out


def test_a_line_that_was_replaced_after_a_resumption_is_found(
    finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    (folder / "summary.json").unlink()
    max((folder / "checkpoints").iterdir()).unlink()
    run(load_config(folder / "config.yaml"), folder, resume=True)
    assert audited(folder)[0] == "passed"
    other = json_edit(
        "environment.json", lambda d: d["resumptions"][0]["ledger"].update(sha256="0" * 64)
    )
    other(folder)
    _, checks = audited(folder)
    assert checks["folder"].outcome == "failed"
    assert "was replaced" in checks["folder"].evidence
