"""The HTML report, on made-up run folders of every kind."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.config.row_differences import settings_digest
from pfl_bench.report.page import write_report
from pfl_bench.report.run_folder import named_runs, read_run
from pfl_bench.types import RunFolderError

PRIVACY: dict[str, Any] = {
    "unit": "user",
    "adjacency": "add-or-remove-one",
    "mechanism": "adaptive_gaussian",
    "accountant": "rdp",
    "rounds": 60,
    "clip": {"clip_norm": 0.5, "quantile": 0.3, "clip_learning_rate": 0.2},
    "noise_multiplier": 1.106,
    "update_noise_multiplier": 1.1061,
    "count_noise_stddev": 7.5,
    "num_parameters": 7850,
    "simulated": {
        "population_size": 300,
        "cohort_size": 150,
        "sampling": "poisson",
        "sampling_probability": 0.5,
        "noise_multiplier": 1.106,
        "delta": 0.00188,
        "epsilon": 4.0,
    },
    "actual": {
        "population_size": 300,
        "cohort_size": 60,
        "sampling": "poisson",
        "sampling_probability": 0.2,
        "noise_multiplier": 0.4424,
        "delta": 0.00188,
        "epsilon": 9.87,
    },
    "budget_epsilon": 4.0,
    "not_covered": ["Validation metrics were computed on the clear model.", "Tuning of rates."],
    "notes": ["The population is that of the data."],
}


def write_run(
    folder: Path,
    name: str,
    setting: str,
    seed: int = 0,
    *,
    level: float = 0.8,
    rounds: int = 60,
    finished: bool = True,
    expected: bool = True,
    every: int = 5,
) -> Path:
    """Write a run folder as a trainer would."""
    folder.mkdir(parents=True)
    rng = random.Random(f"{name}{seed}")
    private = setting in {"private_federated", "central_dp"}
    central = setting.startswith("central")
    statement = dict(PRIVACY) if private else None
    if statement and setting == "central_dp":
        statement |= {"unit": "example", "actual": statement["simulated"]}
    wanted = {"metric": "test/accuracy", "tolerance": 0.1, "source": "LEAF, table 2, <FedAvg>"}
    config = {
        "version": 1,
        "name": name,
        "seed": seed,
        "task": {"name": "digits", "num_users": 300},
        "central" if central else "federated": {
            "num_epochs" if central else "num_rounds": 60,
        },
        "privacy": {"mechanism": {"name": "adaptive_gaussian"}} if private else None,
        "expected": [{**wanted, "value": 0.8}] if expected else [],
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = []
    accuracy = level
    for index in range(1, rounds + 1):
        progress = 1 - math.exp(-index / 12)
        row: dict[str, Any] = {
            "round": index,
            "train/loss": 2.3 - 1.9 * level * progress + rng.gauss(0, 0.03),
            "train/cohort_size": 60,
            "train/num_nonfinite": int(index == 7),
            "time/round_seconds": 0.2,
        }
        if index == 3 and seed == 1:
            row["train/loss"] = "nan"
        if private:
            row["privacy/clip_norm"] = 0.5 * math.exp(-index / 40)
        if index % every == 0:
            accuracy = level * progress + rng.gauss(0, 0.01)
            row |= {
                "val/accuracy": accuracy,
                "val/loss": 2.3 - 2 * accuracy,
                "val/client_accuracy_p10": accuracy - 0.2,
                "val/client_accuracy_p50": accuracy + 0.01,
                "val/client_accuracy_p90": min(1.0, accuracy + 0.12),
                "val/num_examples": 1000,
            }
            if private:
                row["privacy/epsilon_simulated"] = 4.0 * math.sqrt(index / 60)
                actual = 4.0 if central else 9.87
                row["privacy/epsilon_actual"] = actual * math.sqrt(index / 60)
        lines.append(json.dumps(row))
    text = "\n".join(lines) + "\n"
    (folder / "metrics.jsonl").write_text(text if finished else text + '{"round": 61, "tra')
    environment = {
        "python": "3.12.1",
        "packages": {"torch": "2.6.0"},
        "git": {"commit": "0" * 40},
        "data": {"source": "s", "variant": "qmnist-digits", "checksum": "sha256:ab"},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    if statement:
        (folder / "privacy.json").write_text(json.dumps(statement))
    if finished:
        measured = round(accuracy, 4)
        entry = {
            **wanted,
            "published": 0.8,
            "measured": measured,
            "difference": measured - 0.8,
            "verdict": "reproduced" if abs(measured - 0.8) <= 0.01 else "differs",
            "why": "",
        }
        summary = {
            "format_version": 1,
            "name": name,
            "setting": setting,
            "task": "digits",
            "variant": "qmnist-digits",
            "seed": seed,
            "settings_sha256": settings_digest(config),
            "rounds": rounds,
            "status": "finished",
            "metrics": {"test/loss": 0.9, "test/accuracy": measured},
            "expected": [entry] if expected else [],
            "privacy": statement,
            "data": {"source": "MNIST & friends", "checksum": "sha256:ab", "extra": {"users": 300}},
            "seconds": 12.34,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_all(root: Path) -> list[Path]:
    """Write three seeds of each private and plain row, central rows and an unfinished one."""
    folders = [
        write_run(root / name / f"seed-{seed}", name, setting, seed, level=level)
        for name, setting, level in (
            ("demo-federated", "federated", 0.81),
            ("demo-private-federated", "private_federated", 0.7),
        )
        for seed in range(3)
    ]
    folders += [
        write_run(root / "c", "demo-central", "central", level=0.93, expected=False, every=1),
        write_run(root / "d", "demo-central-dp", "central_dp", level=0.85, rounds=40, every=1),
        write_run(root / "u", "demo-prox", "federated", level=0.75, rounds=23, finished=False),
    ]
    return folders


class Page(HTMLParser):
    """Collects what a browser would see and fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br", "line"}:
            self.open.append(tag)
        for key, value in attrs:
            if key in {"src", "href", "srcset", "data", "action", "poster"}:
                self.references.append(value or "")
            if key == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in {"meta", "br", "line"}:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "svg", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("runs")
    out = root / "deep" / "report.html"
    assert write_report(write_all(root), out) == out
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    return out.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_asks_nobody_for_anything(page_text: str) -> None:
    page = Page(page_text)
    assert page.open == []
    assert all(reference.startswith("#") for reference in page.references)
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert "<script src" not in page_text
    # The browser is told so, too; the library's first line names where it is from.
    assert "default-src 'none'" in page_text
    assert not re.search(r"https?://(?!github.com/leeoniya/uPlot )|@import|url\((?!#)", page_text)
    assert set(re.findall(r"url\(#([^)]+)\)", page_text)) <= set(page.ids)


def test_rows_stand_beside_what_is_published(page_text: str) -> None:
    text = Page(page_text).text
    # What all rows have alike is said once.
    assert "All rows: data qmnist-digits; metric test/accuracy." in text
    assert "demo-federated federated 0.8000" in text
    assert "(3 seeds)" not in text
    assert "3 seeds" in text
    assert "private federated" in text
    assert "nothing published" in text
    assert "LEAF, table 2, <FedAvg>" in text
    assert "&lt;FedAvg&gt;" in page_text
    assert "MNIST &amp; friends" in page_text
    assert "5 rows, 9 runs, 1 unfinished" in text
    assert "23 of 60 rounds so far" in text


def test_every_curve_is_there(page_text: str) -> None:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page_text)
    assert captions == [
        "val/accuracy",
        "train/loss",
        "clip norm",
        "epsilon (simulated)",
        "epsilon (actual)",
        "val/accuracy",
        "train/loss",
        "clip norm",
        "epsilon (simulated, and actual: they are equal)",
        "demo-federated: val/accuracy over clients",
        "demo-private-federated: val/accuracy over clients",
        "demo-central: val/accuracy over clients",
        "demo-central-dp: val/accuracy over clients",
        "demo-prox: val/accuracy over clients",
    ]
    assert page_text.count("<svg role=") == len(captions)


def test_epsilon_is_never_bare(page_text: str) -> None:
    text = Page(page_text).text
    assert "epsilon (simulated) 4 at delta 0.00188" in text
    assert "epsilon (actual) 9.87 at delta 0.00188" in text
    prose = text[: text.index("Configuration and environment")]
    labelled = r"epsilon \((simulated|actual)(, and .*? equal)?\)"
    plural = r"Not covered by these epsilons|the epsilons are"
    assert "epsilon" not in re.sub(f"{labelled}|{plural}", "", prose)


def test_the_statement_is_in_words(page_text: str) -> None:
    text = Page(page_text).text
    assert "Protected is one user: all the examples that this user holds" in text
    assert "Protected is one example of the pooled training data" in text
    assert "300 users, 150 expected a round; each joins a round on its own" in text
    assert "with probability 0.2; noise multiplier 0.4424" in text
    assert "Validation metrics were computed on the clear model." in text
    assert text.count("Privacy: demo-private-federated") == 1
    assert "Trained parameters 7,850" in text
    assert "one has all the data of one user more than the other" in text


def test_equal_folders_give_equal_pages(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", "row", "private_federated")
    first = write_report([folder], tmp_path / "a.html").read_bytes()
    assert write_report([folder], tmp_path / "b.html").read_bytes() == first


def test_an_unfinished_private_run_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", "row", "private_federated", rounds=12, finished=False)
    text = Page(write_report([folder], tmp_path / "a.html").read_text()).text
    assert "unfinished" in text
    assert "12 of 60 rounds" in text
    assert "This is the statement of the whole run as planned." in text


def test_a_run_that_has_only_begun_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: row\nfederated: {num_rounds: 3}\n")
    text = Page(write_report([tmp_path], tmp_path / "a.html").read_text()).text
    assert "Nothing was logged yet." in text
    assert "0 of 3 rounds so far" in text


def test_no_noise_is_no_guarantee(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", "row", "private_federated", rounds=5, finished=False)
    statement = json.loads((folder / "privacy.json").read_text())
    statement["simulated"]["epsilon"] = statement["actual"]["epsilon"] = "inf"
    statement["simulated"]["delta"] = statement["actual"]["delta"] = None
    (folder / "privacy.json").write_text(json.dumps(statement))
    text = Page(write_report([folder], tmp_path / "a.html").read_text()).text
    assert "That is no guarantee." in text


def test_runs_below_a_folder_are_reported(tmp_path: Path) -> None:
    inner = [write_run(tmp_path / "runs" / str(k), f"row-{k}", "federated") for k in range(3)]
    assert named_runs([tmp_path / "runs", inner[1]]) == inner
    assert named_runs([inner[2], tmp_path / "runs"]) == [inner[2], *inner[:2]]
    # The shadow runs of an attack are no rows; who names their folder gets them.
    shadows = inner[0] / "attack" / "shadows"
    shadow = write_run(shadows / "shadow-0000", "row-0", "federated")
    assert named_runs([tmp_path / "runs"]) == inner
    assert named_runs([shadows]) == [shadow]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="empty holds no run folder"):
        named_runs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"config.yaml": None}, r"not a run folder \(it has no config.yaml"),
        ({"config.yaml": "a: [1"}, "config.yaml is not YAML"),
        ({"config.yaml": "- 1\n"}, "config.yaml holds list, expected a mapping"),
        ({"config.yaml": "version: 7\n"}, "config.yaml: version: 7 is not 1, .*restore"),
        ({"summary.json": '{"format_version": 1,'}, r"summary.json is not JSON .*line 1"),
        ({"summary.json": "[]"}, "holds list, expected one JSON object: restore"),
        ({"summary.json": '{"format_version": 9}'}, "has format_version 9, expected 1"),
        ({"summary.json": '{"format_version": 1}'}, "'name' is None; expected a str"),
        ({"metrics.jsonl": '{"round": 1}\n{"rou\n{"round": 3}\n'}, "line 2 is not JSON"),
        ({"metrics.jsonl": '{"loss": 1}\n'}, "line 1 is .*object with an integer .*: restore"),
        ({"metrics.jsonl": b"\xff\xfe"}, "metrics.jsonl cannot be read"),
        ({"privacy.json": "{"}, "privacy.json is not JSON"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: dict[str, Any], message: str) -> None:
    folder = write_run(tmp_path / "r", "row", "private_federated", rounds=5)
    for name, content in damage.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RunFolderError, match=message) as caught:
        write_report([folder], tmp_path / "a.html")
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "a.html").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"nowhere: not a run folder \(it does not exist"):
        write_report([tmp_path / "nowhere"], tmp_path / "a.html")
    with pytest.raises(RunFolderError, match="no run folder to report on"):
        write_report([], tmp_path / "a.html")
    folder = write_run(tmp_path / "r", "row", "federated", rounds=5)
    with pytest.raises(RunFolderError, match="is a folder; name the HTML file"):
        write_report([folder], tmp_path)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", "row", "federated", rounds=4, finished=False)
    run = read_run(folder)
    assert run.last_round == 4
    assert run.summary.status == "unfinished"


def test_non_finite_numbers_are_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", "row", "federated", seed=1, rounds=4))
    assert math.isnan(run.series("train/loss")[1][2])


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, pfl_bench.report; "
        "print([m for m in ('torch', 'matplotlib', 'jinja2', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
