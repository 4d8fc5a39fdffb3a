"""``pfl-bench privacy``: what is asked, what is printed, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.cli.main import main
from privacy.amplification import Participation
from privacy.calibration import epsilon_of_rounds
from privacy.plan.budget import Budget
from privacy.plan.example_level import ExampleLevelRequest, make_example_level_plan
from tests.helpers import REPOSITORY

Capture = pytest.CaptureFixture[str]
FLAIR = ["--population", "41131", "--cohort", "5000", "--rounds", "5000"]
RUN = ["--population", "41131", "--cohort", "200", "--rounds", "5000", "--noise-cohort", "5000"]
# Few and noisy, so that every accountant is quick.
SMALL = ["--population", "1000", "--cohort", "100", "--noise-multiplier", "4"]


def answer_of(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["privacy", *arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    assert isinstance(answer, dict)
    return answer


def refusal_of(capsys: Capture, *arguments: str) -> str:
    assert main(["privacy", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pfl-bench: ")
    return printed.err


def test_one_epsilon_has_the_keys_that_it_always_had(capsys: Capture) -> None:
    keys = ["unit", "adjacency", "sampling", "population_size", "cohort_size"]
    keys += ["sampling_probability", "rounds", "delta", "accountant", "noise_multiplier", "epsilon"]
    answer = answer_of(capsys, "epsilon", "--noise-multiplier", "18.668", *FLAIR)
    assert list(answer) == keys
    answer = answer_of(capsys, "calibrate", "--epsilon", "2", *FLAIR)
    assert list(answer) == [*keys, "target_epsilon"]


@pytest.mark.parametrize(
    ("sampling", "adjacency"),
    [("poisson", "add-or-remove-one"), ("fixed_size", "replace-one")],
)
@pytest.mark.parametrize("noise_cohort", [[], ["--noise-cohort", "1000"]])
def test_text_and_json_say_the_same(
    sampling: str, adjacency: str, noise_cohort: list[str], capsys: Capture
) -> None:
    """An epsilon without its adjacency can be compared with no other."""
    arguments = ["epsilon", *SMALL, "--rounds", "2", "--sampling", sampling, *noise_cohort]
    answer = answer_of(capsys, *arguments)
    assert (answer["unit"], answer["adjacency"]) == ("user", adjacency)
    assert main(["privacy", *arguments]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:4] != "note"]
    labels = {"simulated": "epsilon (simulated)", "actual": "epsilon (actual)"}
    keys = [labels.get(key, key) for key in answer if key != "notes"]
    assert [line[:22].strip() for line in lines] == keys


def test_two_epsilons_are_labelled(capsys: Capture) -> None:
    answer = answer_of(capsys, "calibrate", "--epsilon", "2", *RUN)
    assert "epsilon" not in answer
    simulated, actual = answer["simulated"], answer["actual"]
    # Golden: FLAIR's setting, the project's facts (dp-accounting 0.6.0).
    assert answer["noise_multiplier"] == pytest.approx(18.668, rel=1e-3)
    assert simulated["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert actual["epsilon"] == pytest.approx(4.324, rel=1e-3)
    assert (simulated["cohort_size"], actual["cohort_size"]) == (5000, 200)
    assert actual["noise_multiplier"] == pytest.approx(simulated["noise_multiplier"] / 25)
    assert main(["privacy", "epsilon", "--noise-multiplier", "18.668", *RUN]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{'unit':22} user", f"{'adjacency':22} add-or-remove-one"]
    labels = [line.partition(")")[0] + ")" for line in lines if line.startswith("epsilon")]
    assert labels == ["epsilon (simulated)", "epsilon (actual)"]


def test_users_of_the_run_may_be_fewer_than_the_population(capsys: Capture) -> None:
    arguments = ["epsilon", "--noise-multiplier", "1.5", *FLAIR[:1], "1000000", *FLAIR[2:]]
    answer = answer_of(capsys, *arguments, "--users", "20000")
    assert answer["simulated"]["population_size"] == 1_000_000
    assert answer["actual"]["population_size"] == 20_000
    assert answer["actual"]["delta"] == pytest.approx(20_000**-1.1)
    assert answer["actual"]["epsilon"] > answer["simulated"]["epsilon"]


@pytest.mark.parametrize("epsilon", ["0.37", "1.234567", "3"])
def test_what_is_printed_is_never_weaker_than_what_was_computed(
    epsilon: str, capsys: Capture
) -> None:
    arguments = ["calibrate", "--epsilon", epsilon, *FLAIR]
    exact = answer_of(capsys, *arguments)
    assert main(["privacy", *arguments]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    for key in ("epsilon", "noise_multiplier", "delta"):
        assert float(printed[key]) >= exact[key]
        assert float(printed[key]) == pytest.approx(exact[key], rel=2e-5)
    # The printed noise, typed again, keeps the printed epsilon.
    noise, delta = float(printed["noise_multiplier"]), exact["delta"]
    again = epsilon_of_rounds(
        Participation.named("poisson", 41_131, 5000), noise, 5000, delta, "rdp"
    )
    assert again <= float(printed["epsilon"]) <= float(epsilon)


@pytest.mark.parametrize(
    ("left_out", "value"),
    [
        ("--rounds", 5000),
        ("--cohort", 5000),
        ("--population", 41_131),
        ("--noise-multiplier", 18.668),
    ],
)
def test_solve(left_out: str, value: float, capsys: Capture) -> None:
    given = {
        "--epsilon": "2",
        "--noise-multiplier": "18.668",
        **dict(zip(FLAIR[::2], FLAIR[1::2], strict=True)),
    }
    del given[left_out]
    arguments = ["solve", *(text for pair in given.items() for text in pair)]
    answer = answer_of(capsys, *arguments)
    name = answer["solved_for"]
    assert answer[name] == pytest.approx(value, rel=1e-3)
    assert answer["epsilon"] <= 2.0 < answer["beyond"]["epsilon"]
    assert list(answer["beyond"]) == [name, "epsilon"]
    assert answer["rule"].startswith("the ")
    if left_out == "--rounds":
        assert isinstance(answer["rounds"], int)
        assert main(["privacy", *arguments]) == 0
        assert f"rounds {answer['rounds'] + 1} has epsilon 2.0002" in capsys.readouterr().out


def test_solve_for_a_simulated_deployment(capsys: Capture) -> None:
    arguments = ["--epsilon", "2", "--noise-multiplier", "18.668", "--population", "41131"]
    cohorts = ["--cohort", "200", "--noise-cohort", "5000"]
    answer = answer_of(capsys, "solve", *arguments, *cohorts)
    assert answer["rounds"] == pytest.approx(5000, rel=1e-3)
    assert answer["simulated"]["epsilon"] <= 2.0 < answer["actual"]["epsilon"]
    message = refusal_of(capsys, "solve", *arguments, *cohorts[2:], "--rounds", "5000")
    assert "give --cohort" in message


def test_rounds_that_keep_users_apart(capsys: Capture) -> None:
    arguments = ["epsilon", *SMALL, "--rounds", "50", "--delta", "1e-4"]
    apart = answer_of(capsys, *arguments, "--sampling", "cyclic_poisson", "--separation", "5")
    assert (apart["separation"], apart["sampling_probability"]) == (5, 0.5)
    # A user is in 10 rounds at most, with probability 1/2 each.
    same = epsilon_of_rounds(Participation.named("poisson", 1000, 500), 4.0, 10, 1e-4, "rdp")
    assert apart["epsilon"] == same


def test_users_who_are_selected(capsys: Capture) -> None:
    rest = ["--rounds", "50", "--delta", "1e-4", "--sampling", "selected", "--separation", "5"]
    answer = answer_of(capsys, "epsilon", *SMALL, *rest, "--max-participations", "4")
    assert answer["epsilon"] == epsilon_of_rounds(
        Participation.named("full", 1000, 1000), 4.0, 4, 1e-4, "rdp"
    )
    assert (answer["max_participations"], answer["sampling_probability"]) == (4, 1.0)
    free = answer_of(capsys, "epsilon", *SMALL, *rest, "--explain")
    assert free["epsilon"] == epsilon_of_rounds(
        Participation.named("full", 1000, 1000), 4.0, 10, 1e-4, "rdp"
    )
    assert any("Who took part when" in told for told in free["explanation"]["What is not covered"])
    budget = ["calibrate", "--epsilon", "2", *SMALL[:4], *rest, "--max-participations", "4"]
    banded = ["--mechanism", "banded_matrix_factorization", "bands=5"]
    calibrated = answer_of(capsys, *budget, *banded)
    assert 1.999 < calibrated["epsilon"] <= 2.0
    # Bands within the separation cost what fresh noise does.
    fresh = answer_of(capsys, *budget)
    assert calibrated["noise_multiplier"] == pytest.approx(fresh["noise_multiplier"], rel=2e-4)
    solve = ["solve", "--epsilon", "2", "--noise-multiplier", "4", *SMALL[:2], *rest]
    assert "no chance is accounted" in refusal_of(capsys, *solve)
    message = refusal_of(capsys, "epsilon", *SMALL, "--rounds", "50", "--max-participations", "4")
    assert "4 under poisson sampling" in message


def test_shuffled_batches_are_of_examples(capsys: Capture) -> None:
    """Only central training draws them, which protects no user."""
    arguments = [*SMALL, "--rounds", "20", "--sampling", "shuffled", "--delta", "1e-4"]
    answer = answer_of(capsys, "epsilon", *arguments, "--explain")
    assert answer["unit"] == "example"
    told = str(answer["explanation"])
    assert "Unit: one example." in told
    assert "for 1,000 examples, 100 of them a step, 20 steps" in told
    assert "with all the data that this user holds" not in told
    table = ["table", *arguments]
    assert main(["privacy", *table]) == 0
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert "Unit example" in said
    assert "100 of 1000 examples a step" in said
    assert main(["privacy", *table, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "example"
    assert answer_of(capsys, "tuning", *arguments, "--mean", "4")["unit"] == "example"


def test_explain_has_every_heading(capsys: Capture) -> None:
    arguments = ["epsilon", "--noise-multiplier", "18.668", *RUN, "--explain"]
    told = answer_of(capsys, *arguments)["explanation"]
    assert list(told) == ["What is promised", "What it rests on", "What is not covered"]
    assert main(["privacy", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "epsilon (simulated)" in printed
    assert "Epsilon (actual) is 4.325" in printed


def test_explain_a_run(tmp_path: Path, capsys: Capture) -> None:
    statement = make_example_level_plan(
        ExampleLevelRequest(1797, 64, 100, 1.0, Budget(None, 1.5, 1e-5, "rdp"), 650)
    ).statement(100)
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(statement.to_json_dict()), encoding="utf-8")
    assert main(["privacy", "explain", str(tmp_path)]) == 0
    assert "Unit: one example." in capsys.readouterr().out
    answer = answer_of(capsys, "explain", str(tmp_path))
    assert "What else to know of this run" in answer["explanation"]
    for content in ("{}", "[]", "{", '{"unit": 3}'):
        path.write_text(content, encoding="utf-8")
        assert str(path) in refusal_of(capsys, "explain", str(tmp_path))
    damaged = statement.to_json_dict() | {"simulated": 3, "clip": None}
    path.write_text(json.dumps(damaged), encoding="utf-8")
    assert f"{path}: 'clip' is None" in refusal_of(capsys, "explain", str(tmp_path))
    path.unlink()
    assert "does not exist" in refusal_of(capsys, "explain", str(tmp_path))


def test_table_in_every_format(capsys: Capture) -> None:
    arguments = ["privacy", "table", *SMALL, "--rounds", "20", "5", "--delta", "1e-4"]
    printed = {}
    for fmt in ("md", "csv", "latex", "json"):
        assert main([*arguments, "--format", fmt]) == 0
        captured = capsys.readouterr()
        printed[fmt] = captured.out
        assert captured.err == ""
    rows = list(csv.DictReader(io.StringIO(printed["csv"])))
    assert [row["rounds"] for row in rows] == ["5", "20"]
    document = json.loads(printed["json"])
    for row, line in zip(document["rows"], rows, strict=True):
        for name in ("rdp", "pld", "prv"):
            exact = epsilon_of_rounds(
                Participation.named("poisson", 1000, 100), 4.0, row["rounds"], 1e-4, name
            )
            assert row["epsilon"][name] == float(line[f"epsilon {name}"]) == exact
    assert r"\toprule" in printed["latex"]
    cells = [line.split("|")[1:-1] for line in printed["md"].splitlines()[2:4]]
    for row, line in zip(document["rows"], cells, strict=True):
        for exact, cell in zip(row["epsilon"].values(), line[2:], strict=True):
            assert exact <= float(cell) < exact * 1.001


def test_a_table_at_a_terminal_says_that_it_works(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["privacy", "table", *SMALL, "--rounds", "5", "--accountant", "rdp"]) == 0
    assert capsys.readouterr().err == "pfl-bench privacy table: accounting by rdp\n"


@pytest.mark.parametrize("action", ["epsilon", "calibrate", "table"])
def test_a_delta_that_promises_nothing_is_noted(action: str, capsys: Capture) -> None:
    given = [*SMALL[:4], "--epsilon", "2"] if action == "calibrate" else SMALL
    command = ["privacy", action, *given, "--rounds", "5", "--delta"]
    for delta, has_note in (("0.5", True), ("1e-5", False)):
        assert main([*command, delta]) == 0
        note = f"The delta {delta} is not below one over the population (0.001): publishing one"
        assert (note in capsys.readouterr().out) is has_note


def test_table_of_chosen_columns(capsys: Capture) -> None:
    arguments = [*SMALL, "--rounds", "20", "5", "--delta", "1e-4", "--accountant", "rdp"]
    assert main(["privacy", "table", *arguments, "--columns", "epsilon rdp, rounds"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == ["epsilon rdp", "rounds"]
    programs = ["--format", "csv", "--columns", "rounds,delta"]
    assert main(["privacy", "table", *arguments, *programs]) == 0
    assert capsys.readouterr().out.splitlines() == ["rounds,delta", "5,0.0001", "20,0.0001"]


def test_table_names_both_settings_and_who_cannot_account_them(capsys: Capture) -> None:
    shape = ["--population", "1000", "--cohort", "100", "--noise-cohort", "200", "--rounds", "5"]
    arguments = ["privacy", "table", *shape, "--noise-multiplier", "8", "--sampling", "fixed_size"]
    assert main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert row["epsilon_actual"]["prv"] is None
    assert 0 < row["epsilon_simulated"]["rdp"] < row["epsilon_actual"]["rdp"]
    assert 0 < row["epsilon_actual"]["pld"] < row["epsilon_actual"]["rdp"]
    assert document["actual"]["cohort_size"] == 100
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "epsilon (actual) rdp" in printed
    assert "prv, where there is a dash: the accountant prv does not know fixed-size" in printed
    assert "use the accountant rdp" in refusal_of(capsys, *arguments[1:], "--accountant", "prv")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table", *SMALL, "--rounds", "0"], "--rounds 0: must be whole numbers"),
        (["table", *SMALL, "--rounds", "5", "--columns", "rdp"], "'rdp' is no column"),
        (["table", *SMALL, "--rounds", "5", "--columns", "delta"], "'delta' is no column"),
        (
            ["table", *SMALL, "--rounds", "5", "--columns", "rounds", "--format", "json"],
            "--columns is for tables",
        ),
        (["table", *SMALL, "--rounds", "5", "--noise-cohort", "0"], "--noise-cohort is 0"),
        (["epsilon", *SMALL, "--rounds", "5", "--users", "-4"], "--users is -4"),
        (["epsilon", *SMALL, "--rounds", "5", "--users", "50"], "more than population_size 50"),
        (["epsilon", *SMALL, "--rounds", "5", "--separation", "2"], "sample by cyclic_poisson"),
        (["table", *SMALL, "--rounds", "5", "--cohort", "64", "128"], "128: is a further value"),
        (["epsilon", *SMALL, "--rounds", "5", "9", "--mechanism", "laplace"], "9: is a further"),
        (["epsilon", *SMALL, "--rounds", "5", "bands=3"], "no --mechanism that it could be"),
        (["epsilon", *SMALL, "--rounds", "5", "--mechanism", "laplce"], "did you mean 'laplace'"),
        (["epsilon", *SMALL, "--rounds", "5", "--mechanism", "none"], "neither clips nor noises"),
        (
            ["epsilon", *SMALL, "--rounds", "5", "--mechanism", "banded_matrix_factorization"],
            "bands: required, but missing; options follow --mechanism as key=value",
        ),
        (["solve", *SMALL], "2 of the five numbers are left out (epsilon, rounds)"),
        (["solve", *SMALL, "--rounds", "5", "--epsilon", "2"], "0 of the five numbers"),
    ],
)
def test_bad_input_is_exit_2(arguments: list[str], words: str, capsys: Capture) -> None:
    assert words in refusal_of(capsys, *arguments)


@pytest.mark.parametrize(
    ("options", "accountant"),
    [
        (["--mechanism", "adaptive_gaussian"], "rdp"),
        (["--mechanism", "laplace", "clip_norm=3"], "pld"),
        (["--mechanism", "banded_matrix_factorization", "bands=4"], "rdp"),
        (["--mechanism", "banded_matrix_factorization", "bands=9"], "rdp"),
        (["--mechanism", "tree_aggregation", "restart_every=8"], "rdp"),
        (["--mechanism", "local_gaussian"], "rdp"),
        (["--mechanism", "privunit"], "pld"),
    ],
)
def test_other_mechanisms_are_calibrated(
    options: list[str], accountant: str, capsys: Capture
) -> None:
    shape = ["--population", "1000", "--cohort", "100", "--rounds", "16", "--delta", "1e-4"]
    shape += ["--sampling", "cyclic_poisson", "--separation", "4", "--accountant", accountant]
    found = answer_of(capsys, "calibrate", "--epsilon", "3", *shape, *options)
    assert found["mechanism"] == options[1]
    noise = found["noise_multiplier"]
    assert found["epsilon"] <= 3.0
    less = ["epsilon", "--noise-multiplier", repr(noise * (1 - 1e-4)), *shape, *options]
    assert answer_of(capsys, *less)["epsilon"] > 3.0
    # Users whose rounds nothing amplifies pay more than those of the Gaussian mechanism.
    plain = answer_of(capsys, "calibrate", "--epsilon", "3", *shape[:-2])["noise_multiplier"]
    if options[1] in ("adaptive_gaussian",) or options[-1] == "bands=4":
        assert noise == plain
    elif options[1] in ("tree_aggregation", "local_gaussian") or options[-1] == "bands=9":
        assert noise > plain


def test_local_noise_cannot_be_simulated(capsys: Capture) -> None:
    arguments = ["epsilon", *SMALL, "--rounds", "5", "--mechanism", "local_gaussian"]
    assert "clients add their noise" in refusal_of(capsys, *arguments, "--noise-cohort", "200")


def test_rdp_needs_neither_torch_nor_matplotlib() -> None:
    commands = [
        ["calibrate", "--epsilon", "2", "--noise-cohort", "400", "--rounds", "5", "--explain"],
        ["solve", "--epsilon", "2", "--noise-multiplier", "4"],
        ["table", "--noise-multiplier", "4", "--rounds", "5", "--accountant", "rdp", "pld"],
    ]
    code = (
        "import sys; from pfl_bench.cli.main import main;"
        "shape = ['--population', '1000', '--cohort', '100'];"
        f"codes = [main(['privacy', *command, *shape]) for command in {commands!r}];"
        "heavy = ('torch', 'opacus', 'matplotlib', 'pydantic', 'h5py');"
        "print(codes, [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0] []"


@pytest.mark.parametrize(
    "setting", [["--mechanism", "laplace"], ["--sampling", "truncated_poisson"]]
)
def test_the_only_accountant_that_knows_the_rounds_is_taken(
    setting: list[str], capsys: Capture
) -> None:
    asked = ["privacy", "epsilon", *SMALL, "--rounds", "2", *setting, "--json"]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["accountant"] == "pld"
    # One that is named is not replaced.
    assert main([*asked, "--accountant", "rdp"]) == 2


def test_a_mechanism_of_ones_own_is_accounted(capsys: Capture, tmp_path: Path) -> None:
    assert main(["new", "mechanism", "steady", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    asked = ["epsilon", *SMALL, "--rounds", "5"]
    own = ["--mechanism", "steady", "--plugins", str(tmp_path / f"{tmp_path.name}_plugins")]
    assert answer_of(capsys, *asked, *own)["epsilon"] == answer_of(capsys, *asked)["epsilon"]
    option = answer_of(capsys, *asked, *own, "clip_norm=2.0")
    assert option["mechanism"] == "steady"
    assert "clip_nrm" in refusal_of(capsys, *asked, *own, "clip_nrm=2.0")
