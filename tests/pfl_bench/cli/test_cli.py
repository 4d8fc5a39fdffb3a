"""The command line as a user meets it: what is printed where, and the exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_bench.cli.main import main
from pfl_bench.cli.run_many import fit_overrides
from pfl_bench.cli.speech import print_text
from pfl_bench.files import read_metrics
from tests import warm
from tests.helpers import REPOSITORY

Capture = pytest.CaptureFixture[str]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def test_help_and_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(w in text for w in ("run", "table", "sweep", "data", "privacy", "report"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == "0.1.0"
    assert main([]) == 2


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pfl_bench.cli.parsers import build_parser; build_parser();"
        "print([m for m in ('torch', 'numpy', 'h5py', 'pydantic', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_run_prints_statement_metrics_and_table(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "run"
    arguments = [str(config_file("private_federated")), "--out", str(out), "federated.num_rounds=4"]
    assert main(["run", *arguments, "--seed", "8"]) == 0
    printed = capsys.readouterr()
    for words in ("epsilon (simulated)", "epsilon (actual)", "test/accuracy", "not covered"):
        assert words in printed.out
    assert (out / "report.html").stat().st_size > 10_000
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["seed"], summary["rounds"]) == (8, 4)
    assert main(["run", *arguments, "--seed", "8"]) == 0
    assert "not run again" in capsys.readouterr().err


def test_a_run_that_evaluates_nothing_names_no_distributions(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    row = config_file("federated")
    for splits, is_named in (("[]", False), ("[test]", True)):
        settings = ["federated.num_rounds=1", f"evaluation.final_splits={splits}"]
        assert main(["run", str(row), "--out", str(tmp_path / splits), *settings]) == 0
        assert ("distributions over clients" in capsys.readouterr().out) == is_named


def test_a_terminal_gets_the_statement_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    text = "Privacy statement\n  note: " + "word " * 30 + "end\n"
    print_text(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_text(text)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Privacy statement"
    assert all(len(line) <= 60 for line in lines)
    assert [line[:6] for line in lines] == ["  note", "    wo", "    wo"]
    assert " ".join(" ".join(lines).split()) == " ".join(text.split()[2:])


def test_quiet_verbose_and_json_say_as_much_as_they_promise(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    row, out = str(config_file("federated")), str(tmp_path / "run")
    assert main(["run", row, "--out", out, "federated.num_rounds=6", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "test/accuracy" in printed.out
    assert main(["run", row, "--out", out, "federated.num_rounds=6", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found.pop("folder") == out
    assert found == json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert "this run is finished" in printed.err
    assert main(["run", row, "--out", out, "federated.num_rounds=7"]) == 2
    refused = capsys.readouterr().err
    assert "holds a run of another configuration" in refused
    assert "this run is finished" not in refused
    verbose = ["federated.num_rounds=6", "evaluation.every=3", "--verbose"]
    assert main(["run", row, "--out", str(tmp_path / "said"), *verbose]) == 0
    said = capsys.readouterr().err
    assert all(f" {number}/6" in said for number in range(1, 7))
    with pytest.raises(SystemExit):
        main(["run", row, "--quiet", "--verbose"])
    capsys.readouterr()
    assert main(["run", row, "--out", out, "--dry-run", "--json"]) == 2
    assert "pfl-bench show ROW --json" in capsys.readouterr().err


def test_a_quiet_table_says_why_it_failed_and_its_json_has_the_lines_of_its_csv(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    rows, out = config_file("federated").parent, tmp_path / "runs"
    short = ["federated.num_rounds=1", "--out", str(out), "--quiet", "--json"]
    assert main(["table", str(rows), *short]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    (line,) = [one for one in json.loads(printed.out)["rows"] if one["metric"] == "test/accuracy"]
    assert main(["table", str(rows), *short[:-2], "--format", "csv"]) == 0
    (read,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert {key: "" if value is None else str(value) for key, value in line.items()} == read
    missing = ["table", "femnist/leaf5", "task.data=nowhere.h5", "--out", str(tmp_path / "none")]
    code = main([*missing, "--quiet", "--json"])
    printed = capsys.readouterr()
    assert (code, json.loads(printed.out)) == (2, {"rows": []})
    assert "nowhere.h5" in printed.err
    assert "loading" not in printed.err


def test_overrides_stand_before_or_after_options(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = str(config_file("federated"))
    assert main(["run", path, "seed=5", "--out", str(tmp_path / "a"), "checkpoint.every=3"]) == 0
    text = (tmp_path / "a" / "config.yaml").read_text()
    assert "# override: seed=5" in text
    assert "# override: checkpoint.every=3" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "no/such.yaml"], "no such row file"),
        (["run", "no"], "`pfl-bench list rows` shows all that are bundled"),
        (["table", "."], ".: holds no row (*.yaml); make one: pfl-bench copy demo/federated.yaml"),
        (["run", "demo"], "demo is a folder, no row; `pfl-bench table demo` runs it\n"),
        (["table", "demo/central.yaml"], "is a file, no folder; `pfl-bench run"),
        (["run", "demo/centrl.yaml"], "did you mean 'demo/central.yaml'"),
        (["run", "demo/central.yaml", "seed=x"], "seed"),
        (["run", "demo/federated.yaml", "federated.algorithm={}"], "the name of an algorithm: "),
        (["table", "no/such"], "no such folder of rows"),
        (["table", "demo", "--seeds", "0"], "--seeds"),
        (["table", "demo", "--only", "privat"], "did you mean 'private_federated'"),
        (["data", "prepare", "digits", "--source", ".", "--out", "x.h5"], "femnist"),
        (["data", "prepare", "femnist", "--source", "/no/such", "--out", "x.h5"], "/no/such"),
        (["data", "generate", "femnist", "--out", "x"], "flair"),
        (["data", "generate", "flair", "--out", "x", "sed=3"], "did you mean 'seed'"),
        (["data", "generate", "flair", "--out", "x", "num_users=3"], "num_users"),
        (["data", "generate", "flair", "--out", "x", "num_images=20"], "num_users = 600"),
        (["data", "stats", "/no/such.h5"], "/no/such.h5"),
        (["new", "algorithm", "my alg"], "pfl-bench: new algorithm my alg: the name is"),
        (["report", "/no/such"], "/no/such"),
    ],
)
def test_wrong_input_is_exit_2_with_a_message(
    arguments: list[str],
    words: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert error.count("pfl-bench: ") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_lies_beside_a_wrong_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "rows/private.yaml", "runs/one/config.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("version: 1\n")
    Path("runs/one/environment.json").write_text("{}")
    for arguments, words in [
        (["run", "mine.yml"], "mine.yml: no such row file; did you mean 'mine.yaml'"),
        (["run", "rows/privat.yaml"], "did you mean 'rows/private.yaml'"),
        (["table", "row"], "did you mean 'rows'"),
        (["run", "rows"], "`pfl-bench table rows` runs it, and `pfl-bench report rows` shows"),
        (["run", "runs/one"], "is a run's folder, no row; `pfl-bench report runs/one` shows it"),
        (["table", "runs/one"], "runs/one: holds no row (*.yaml); make one: pfl-bench copy"),
    ]:
        assert main(arguments) == 2
        assert words in capsys.readouterr().err, arguments


def test_one_seed_of_a_table_is_no_number_of_seeds(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["table", "demo", "--seed", "2"])
    assert "settings of a row are written key=value: seed=2;" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "show", "sweep"])
def test_a_row_that_is_a_pipe_or_device_is_refused_and_not_waited_for(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml"):
        assert main([command, str(tmp_path / name)]) == 2
        assert f"{name} cannot be read: it is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["run", "demo/centrl.yaml"], ["table", "dem"], ["table", "niid_bench", "--only", "mnist-fed"]],
)
def test_a_wrong_name_is_answered_with_five_near_ones_and_how_to_list_all(
    arguments: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("'") // 2 <= 5
    assert len(error) < 600
    asked = re.findall("`pfl-bench (.*?)`", error)
    assert [main(shlex.split(command)) for command in asked] == [0]


def test_an_unknown_option_is_exit_2() -> None:
    for arguments in (["run", "demo/central.yaml", "--sed", "3"], ["report", "a", "--x", "a=b"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2


def test_data_that_rows_lack_are_told_once_with_the_rows(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["table", "femnist/digits"]) == 2
    error = capsys.readouterr().err
    assert error.count("data prepare femnist") == 1
    (failed,) = [line for line in error.splitlines() if line.startswith("failed: ")]
    rows = ("central", "federated", "private_federated")
    assert all(f"femnist/digits/{row}/seed-0" in failed for row in rows)


def test_overrides_of_a_table_are_for_the_rows_that_have_the_section(
    config_file: Callable[..., Path], capsys: Capture, tmp_path: Path
) -> None:
    rows = config_file("federated", name="a").parent
    config_file("central", name="b")
    out = tmp_path / "runs"
    assert main(["table", str(rows), "federated.num_rounds=2", "--out", str(out)]) == 0
    summaries = {
        json.loads(path.read_text())["setting"]: path.parent for path in out.rglob("summary.json")
    }
    error = capsys.readouterr().err
    assert "federated.num_rounds=2: not applied to rows without a section federated: " in error
    assert "# override" not in (summaries["central"] / "config.yaml").read_text()
    assert (
        "# override: federated.num_rounds=2" in (summaries["federated"] / "config.yaml").read_text()
    )
    demo = sorted((REPOSITORY / "configs" / "demo").glob("[!_]*.yaml"))
    fitting, (left_out,) = fit_overrides(demo, ["privacy.epsilon=2"])
    assert [row.stem for row in demo if fitting[row]] == ["central_dp", "private_federated"]
    assert "privacy.epsilon=2: not applied to rows without a section privacy: " in left_out
    # One that fits no row is refused where it stands.
    assert main(["table", str(rows), "local.num_epochs=2", "--out", str(out)]) == 2
    assert "with override local.num_epochs=2" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["calibrate", "epsilon"])
def test_groups_in_turn_without_a_separation_are_refused(action: str, capsys: Capture) -> None:
    given = ["--epsilon", "2"] if action == "calibrate" else ["--noise-multiplier", "1"]
    shape = ["--population", "1000", "--cohort", "50", "--rounds", "10"]
    cyclic = ["privacy", action, *given, *shape, "--sampling", "cyclic_poisson"]
    assert main(cyclic) == 2
    assert "give --separation B with B of 2 or more" in capsys.readouterr().err
    assert main([*cyclic, "--separation", "2"]) == 0


@pytest.mark.parametrize("action", ["calibrate", "epsilon"])
def test_privacy_json_is_one_object_and_nothing_else(action: str, capsys: Capture) -> None:
    given = ["--epsilon", "2"] if action == "calibrate" else ["--noise-multiplier", "18.668"]
    shape = ["--population", "41131", "--cohort", "5000", "--rounds", "5000", "--json"]
    assert main(["privacy", action, *given, *shape]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert printed.err == ""
    # Golden: dp-accounting's RDP for FLAIR's setting, delta N^-1.1.
    assert answer["noise_multiplier"] == pytest.approx(18.668, rel=5e-3)
    assert answer["epsilon"] == pytest.approx(2.0, rel=5e-3)
    assert answer["delta"] == pytest.approx(8.4026e-6, rel=1e-4)


def test_privacy_refuses_what_makes_no_sense(capsys: Capture) -> None:
    shape = ["--population", "100", "--cohort", "200", "--rounds", "5"]
    assert main(["privacy", "calibrate", "--epsilon", "2", *shape]) == 2
    assert "cohort" in capsys.readouterr().err


def test_table_runs_skips_and_formats(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    expected = [
        {
            "metric": "test/accuracy",
            "value": 0.5,
            "sd": 0,
            "seeds": 2,
            "tolerance": 0.5,
            "source": "any number",
        }
    ]
    config_file("central", name="row-a", expected=expected)
    config_file("private_federated", name="row-b")
    rows = tmp_path / "rows"
    rows.mkdir()
    for path in tmp_path.glob("*.yaml"):
        path.rename(rows / path.name)
    out = tmp_path / "runs"
    arguments = ["table", str(rows), "--out", str(out), "--seeds", "2"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert "reproduced" in first
    assert "±" in first
    assert "epsilon (actual)" in first
    assert (out / "central" / "seed-4" / "summary.json").exists()
    assert (out / "report.html").exists()
    assert main([*arguments, "--format", "csv"]) == 0
    again = capsys.readouterr()
    assert "seed-3 and 3 other runs: finished before; not run again" in again.err
    assert again.out.count("\n") == 3
    assert main([*arguments, "--format", "latex", "--only", "central"]) == 0
    latex = capsys.readouterr().out
    assert r"\toprule" in latex
    assert r"\label{tab:" in latex
    assert main([*arguments, "--columns", "verdict,row"]) == 0
    assert capsys.readouterr().out.split()[:5] == ["|", "verdict", "|", "row", "|"]


def test_a_column_that_is_none_is_refused_before_anything_runs(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    config_file("central", name="row-a")
    out = tmp_path / "runs"
    assert main(["table", str(tmp_path), "--out", str(out), "--columns", "row,verdct"]) == 2
    message = capsys.readouterr().err
    assert "'verdct' is no column of this table; did you mean 'verdict'? Columns: row," in message
    assert not out.exists()


def test_a_verdict_that_differs_and_a_row_that_fails_are_exit_1(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    expected = [
        {
            "metric": "test/accuracy",
            "value": 0.01,
            "sd": 0,
            "seeds": 2,
            "tolerance": 0.001,
            "source": "nowhere",
        }
    ]
    config_file("central", name="row-a", expected=expected)
    assert main(["table", str(tmp_path), "--out", str(tmp_path / "runs")]) == 1
    assert "differs" in capsys.readouterr().out
    config_file("private_federated", name="row-b", privacy__population_size=999)
    assert main(["table", str(tmp_path), "--out", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr()
    assert "hypothetical_population" in printed.err
    assert "row-a" in printed.out


def test_a_typo_in_the_last_row_stops_the_table_before_the_first(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    config_file("central")
    (tmp_path / "zz.yaml").write_text("version: 1\nnme: x\n", encoding="utf-8")
    assert main(["table", str(tmp_path), "--out", str(tmp_path / "runs")]) == 2
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_folder_is_exit_2(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    row = config_file("central")
    for arguments in (["run", str(row)], ["table", str(row.parent)]):
        out = str(tmp_path / "file" / "x")
        assert main([*arguments, "--out", out]) == 2
        assert capsys.readouterr().err.count(f"pfl-bench: {out}") == 1


# A file may not grow beyond 100 kB: the checkpoint of the MLP does not fit.
FULL_DISK = """
import resource, signal, sys
from pfl_bench.cli.main import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main())
"""


def test_a_full_disk_is_exit_2_and_can_be_resumed(
    config_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = config_file("private_federated", model={"name": "mlp", "hidden": 600})
    out = tmp_path / "run"
    arguments = ["run", str(path), "--out", str(out)]
    done = warm.python("-c", FULL_DISK, *arguments, env=environment())
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "file size limit" in done.stderr
    assert not [p for p in out.rglob("*") if "partial" in p.name or p.suffix == ".pt"]
    assert main([*arguments, "--resume"]) == 0


def test_a_second_process_on_one_folder_is_refused(
    config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    path = config_file("federated", federated__num_rounds=100_000)
    out = tmp_path / "run"
    arguments = ("-m", "pfl_bench", "run", str(path), "--out", str(out))
    first = warm.start(arguments, str(tmp_path), environment(), (os.devnull, os.devnull))
    try:
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert main(["run", str(path), "--out", str(out), "--resume"]) == 2
        assert "another process" in capsys.readouterr().err
        done = len(read_metrics(out / "metrics.jsonl"))
        while len(read_metrics(out / "metrics.jsonl")) < done + 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert first.is_alive()
        rounds = [row["round"] for row in read_metrics(out / "metrics.jsonl")]
        assert len(rounds) >= done + 2, "the first goes on"
        assert rounds == list(range(1, len(rounds) + 1))
    finally:
        first.kill()
        first.join()


def test_a_file_is_not_replaced_unasked(
    config_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert main(["run", str(config_file("federated")), "--out", str(run)]) == 0
    thesis = tmp_path / "report.html"
    thesis.write_text("precious")
    store = tmp_path / "f.h5"
    store.write_text("precious")
    prepare = ["data", "prepare", "femnist", "--source", str(tmp_path), "--out", str(store)]
    for command in (["report", str(run)], ["report", str(run), "--out", str(thesis)], prepare):
        capsys.readouterr()
        assert main(command) == 2
        assert "--force" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    for command in (["report", str(run)], prepare[:-2]):
        assert main([*command, "--out", str(tmp_path / "pipe"), "--force"]) == 2
        assert f"--out {tmp_path / 'pipe'}: is a device or pipe" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
    # It gets as far as the source, which holds nothing.
    assert main([*prepare, "--force"]) == 2
    assert "exists" not in capsys.readouterr().err
    assert (thesis.read_text(), store.read_text()) == ("precious", "precious")
    assert main(["report", str(run), "--force"]) == 0
    assert "precious" not in thesis.read_text()
    # A run's own page is made of the run alone.
    assert main(["report", str(run), "--out", str(run / "report.html")]) == 0
    shutil.copytree(run, tmp_path / "other")
    assert main(["report", str(run), "other", "--out", str(run / "report.html")]) == 2


def test_a_store_is_prepared_by_one_command_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    command = ["data", "prepare", "femnist", "--source", str(tmp_path)]
    command += ["--out", str(tmp_path / "f.h5")]
    codes: list[int] = []

    def prepare(source: Path, out: Path, *others: object) -> dict[str, int]:
        if out.name != "other.h5":
            codes.extend(main([*command, "--out", str(path), "--force"]) for path in (out, other))
        out.write_text("store")
        return {"writers": len(codes)}

    other = tmp_path / "other.h5"
    monkeypatch.setattr("tasks.femnist.prepare.prepare", prepare)
    assert main(command) == 0
    assert codes == [2, 0]
    refused = f"--out {tmp_path / 'f.h5'}: another pfl-bench data prepare is writing this store; "
    assert refused in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.h5", "other.h5"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--seed", "1", "seed=2"], "--seed 1 and seed=2 contradict"),
        (["num_threads=100000"], "num_threads"),
        (["federated.sampling=cyclic_poisson"], "separation to 2 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    given: list[str], words: str, config_file: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "run"
    assert main(["run", str(config_file("federated")), "--out", str(out), *given]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["run", "demo/central.yaml"],
        ["table", "demo"],
        ["sweep", "x.yaml"],
        ["report", "x"],
        ["data", "prepare", "femnist", "--source", "."],
        ["data", "generate", "flair"],
        ["data", "download", "femnist"],
        ["data", "traces", "generated"],
    ],
)
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_out_is_refused(command: list[str], empty: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--out", empty])
    assert stopped.value.code == 2
    assert "argument --out: is empty" in capsys.readouterr().err


def test_one_seed_given_twice_is_one(config_file: Callable[..., Path], tmp_path: Path) -> None:
    row = str(config_file("federated"))
    assert main(["run", row, "seed=4", "--seed", "4", "--out", str(tmp_path / "run")]) == 0
