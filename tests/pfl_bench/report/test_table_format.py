"""Rows over seeds and the three formats; goldens written by hand from the rows below."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from pfl_bench.report.results import format_epsilon, format_value, results_table
from pfl_bench.report.table import Cell, Column, Table, _text_column
from pfl_bench.runs.rows import RowResult, rows_from_summaries
from pfl_bench.types import ConfigError, RunFolderError


def summary(
    name: str = "fedavg",
    seed: int = 0,
    accuracy: float | str = 0.75,
    published: float | None = 0.7472,
    **changes: Any,
) -> dict[str, Any]:
    """A finished run's summary."""
    expected = []
    if published is not None:
        expected.append(
            {
                "metric": "test/accuracy",
                "published": published,
                "tolerance": 0.01,
                "source": "LEAF, table 2",
                "measured": accuracy,
                "difference": 0.0,
                "verdict": "undecided",
                "why": "",
            }
        )
    return {
        "format_version": 1,
        "name": name,
        "setting": "federated",
        "task": "femnist",
        "variant": "femnist-3550",
        "seed": seed,
        "rounds": 60,
        "status": "finished",
        "metrics": {"test/loss": 1.0, "test/accuracy": accuracy},
        "expected": expected,
        "privacy": None,
        **changes,
    }


def privacy(simulated: float | str, actual: float | str) -> dict[str, Any]:
    """The two claims of a statement."""
    return {
        "simulated": {"epsilon": simulated, "delta": 1e-6},
        "actual": {"epsilon": actual, "delta": 2e-6},
    }


ROWS = [
    RowResult(
        name="fedavg",
        setting="federated",
        variant="femnist-3550",
        metric="test/accuracy",
        published=0.7472,
        source="LEAF, table 2",
        measured=(0.75, 0.76),
        status="reproduced",
        epsilon_simulated=None,
        epsilon_actual=None,
        delta_simulated=None,
        note="tolerance 0.01",
    ),
    RowResult(
        name="a|b_100%",
        setting="private_federated",
        variant="v1, v2",
        metric="test/map",
        published=58.03,
        source=None,
        measured=(55.5,),
        status="differs",
        epsilon_simulated=2.0,
        epsilon_actual=4.324,
        delta_simulated=8.4026e-06,
        note="",
        delta_actual=8.4026e-06,
    ),
    RowResult(
        name="none",
        setting="central_dp",
        variant="v1",
        metric="test/loss",
        published=None,
        source=None,
        measured=(),
        status="nothing published",
        epsilon_simulated=math.inf,
        epsilon_actual=math.inf,
        delta_simulated=1e-6,
        note="",
        delta_actual=1e-6,
    ),
]

CSV = """\
row,setting,data,metric,published,published sd,published seeds,mean,sd,seeds,difference,verdict,\
margin,interval,more seeds,epsilon (simulated),delta (simulated),\
epsilon (actual),delta (actual),source,note
fedavg,federated,femnist-3550,test/accuracy,0.7472,,,0.755,0.007071067811865481,2,\
0.007800000000000029,reproduced,,,,,,,,"LEAF, table 2",tolerance 0.01
a|b_100%,private_federated,"v1, v2",test/map,58.03,,,55.5,,1,-2.530000000000001,differs,,,,2.0,\
8.4026e-06,4.324,8.4026e-06,,
none,central_dp,v1,test/loss,,,,,,0,,nothing published,,,,inf,1e-06,inf,1e-06,,
"""

LATEX = r"""% needs \usepackage{booktabs,adjustbox}
\begin{table}
\centering
\caption{Results.}
\label{tab:results}
\begin{adjustbox}{max width=\textwidth}
\begin{tabular}{llllrrrlrr}
\toprule
row & setting & data & metric & published & measured & difference & verdict
 & $\varepsilon$ (simulated) & $\varepsilon$ (actual) \\
\midrule
fedavg & federated & femnist-3550 & test/accuracy & 0.7472
 & 0.7550 $\pm$ 0.0071 (2 seeds) & $+$0.0078 & reproduced\textsuperscript{1} & -- & -- \\
a|b\_100\% & private\_federated & v1, v2 & test/map & 58.03 & 55.50 (1 seed) & $-$2.5300
 & differs & 2 (delta 8.5e-06) & 4.33 (delta 8.5e-06) \\
none & central\_dp & v1 & test/loss & -- & -- & -- & nothing published
 & inf (no guarantee) & inf (no guarantee) \\
\bottomrule
\end{tabular}
\end{adjustbox}
\par\smallskip\raggedright\footnotesize
\textsuperscript{1} source: LEAF, table 2; tolerance 0.01\par
\end{table}
""".replace("\n &", " &")


def test_markdown_is_aligned_and_notes_are_below() -> None:
    lines = results_table(ROWS).to_markdown().splitlines()
    assert len({len(line) for line in lines[:5]}) == 1
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines[:5]]
    assert cells[0][:5] == ["| row", "setting", "data", "metric", "published"]
    assert cells[2][5:8] == ["0.7550 ± 0.0071 (2 seeds)", "+0.0078", "reproduced [1]"]
    assert cells[3][0] == r"| a\|b_100%"
    assert cells[3][8:] == ["2 (delta 8.5e-06)", "4.33 (delta 8.5e-06) |"]
    assert cells[4][4:9] == ["-", "-", "-", "nothing published", "inf (no guarantee)"]
    assert lines[5:] == ["", "[1] source: LEAF, table 2; tolerance 0.01"]


def test_markdown_golden() -> None:
    assert results_table(rows_from_summaries([summary()])).to_markdown() == (
        "| row    | setting   | data         | metric        | published |        measured "
        "| difference | verdict       | epsilon (simulated) | epsilon (actual) |\n"
        "| ------ | --------- | ------------ | ------------- | --------: | --------------: "
        "| ---------: | ------------- | ------------------: | ---------------: |\n"
        "| fedavg | federated | femnist-3550 | test/accuracy |    0.7472 | 0.7500 (1 seed) "
        "|    +0.0028 | undecided [1] |                   - |                - |\n"
        "\n"
        "[1] source: LEAF, table 2; one seed, +0.0028, no published spread; margin 0.01\n"
    )


def test_numbers_of_this_toolkit_are_a_reference_to_people_and_stay_published_to_programs() -> None:
    (row,) = rows_from_summaries([summary()])
    own, mixed = (results_table([replace(row, measured_here=True), *rows]) for rows in ([], [row]))
    columns = "row,measured,reference"
    for name in ("reference", "published"):
        chosen = own.with_columns(f"row,measured,{name}", None)
        assert chosen.to_markdown().splitlines()[0].split("|")[3].strip() == "reference"
    assert "| published |" in mixed.to_markdown()
    assert "| published |" in mixed.with_columns(columns, None).to_markdown()
    assert own.to_csv().splitlines()[0] == mixed.to_csv().splitlines()[0]
    assert ",published," in own.to_csv().splitlines()[0]


def test_csv_golden_and_round_trip() -> None:
    text = results_table(ROWS).write("csv")
    assert text == CSV
    lines = list(csv.DictReader(io.StringIO(text)))
    assert float(lines[0]["sd"]) == ROWS[0].sd
    assert lines[1]["row"] == "a|b_100%"


def test_latex_golden() -> None:
    assert results_table(ROWS).to_latex() == LATEX


def test_a_terminal_is_as_wide_as_it_is() -> None:
    long = summary("a-row-with-quite-a-long-name-that-is-private-and-noisy", accuracy=0.76)
    long["expected"][0] |= {"verdict": "differs", "tolerance": 0.001}
    table = results_table(
        rows_from_summaries([summary(), {**long, "privacy": privacy(2.0, "inf")}])
    )
    for width in (60, 80, 120):
        text = table.to_terminal(width)
        assert max(map(len, text.splitlines())) <= width
    head, block, more, *notes = table.to_terminal(80).split("\n\n")
    # What all rows have alike is said once, above.
    assert head.splitlines() == [
        "setting: federated", "data: femnist-3550", "metric: test/accuracy", "published: 0.7472",
    ]  # fmt: skip
    first = block.splitlines()
    assert first[0].split()[:3] == ["row", "measured", "difference"]
    # So is what all numbers of a column have alike.
    assert "(1 seed)" in first[1]
    assert block.count("1 seed") == 1
    assert [line.split()[1:3] for line in first[3:] if "+" in line] == [
        ["0.7500", "+0.0028"],
        ["0.7600", "+0.0128"],
    ]
    # The rest stands below, beside the names again; an infinite epsilon says what it is.
    assert more.count("fedavg") == 1
    assert "no guarantee" in more
    assert "(simulated)" in more
    assert "[1] source: LEAF, table 2; one seed, +0.0028, no published spread" in "".join(notes)


def test_one_row_is_a_line_a_column() -> None:
    text = results_table(rows_from_summaries([summary()])).to_terminal(80)
    assert "verdict              undecided [1]\n" in text
    assert "published            0.7472\n" in text


@pytest.mark.parametrize(
    ("details", "heading", "below"),
    [
        (["1 seed", "1 seed"], "mean (1 seed)", []),
        (["1 seed", "2 seeds"], "mean", ["1 seed", "2 seeds"]),
        # A row without a number takes nothing from the others.
        (["1 seed", "1 seed", ""], "mean (1 seed)", []),
        (["1 seed", ""], "mean", ["1 seed"]),
    ],
)
def test_a_detail_is_in_the_heading_where_all_numbers_have_it(
    details: list[str], heading: str, below: list[str]
) -> None:
    cells = [Cell("5" if detail else "-", detail=detail) for detail in details]
    column = _text_column(Column("mean"), cells)
    assert column.heading == heading
    assert [line for _, *more in column.cells for line in more] == below


def test_a_chosen_row_has_the_first_note_of_what_is_left_out() -> None:
    cells = Cell("a", "", note=2), Cell("b", "b", note=1)
    table = Table.of(["row", "one", "other"], [("r", *cells)]).choose(["row"])
    assert [cell.note for (cell,) in table._cells("people")] == [2]


def test_a_value_that_is_not_there_is_none_in_a_record() -> None:
    table = Table.of(["row", "mean", "seeds"], [("r", "", Cell("2", 2)), ("", Cell("-"), "3")])
    assert table.to_records() == [
        {"row": "r", "mean": None, "seeds": 2},
        {"row": None, "mean": None, "seeds": "3"},
    ]


def test_a_page_sorts_by_the_number_and_not_by_its_text() -> None:
    page = Table.of(["row", "mean"], [("r", Cell("0.1235", 0.123456))]).to_html()
    assert re.findall('data-key="(.*?)"', page) == ["0.123456"]


def test_columns_are_chosen_in_their_order() -> None:
    table = results_table(ROWS)
    lines = table.choose(["verdict", "row"]).to_markdown().splitlines()
    assert lines[0].split() == ["|", "verdict", "|", "row", "|"]
    assert table.choose(["sd", "row"], "programs").to_csv().splitlines()[0] == "sd,row"
    # Each note has its mark, on the first column where the verdict is left out.
    marks = [re.findall(r" \[\d+\]", t.to_markdown()) for t in (table, table.choose(["row"]))]
    assert marks[0] == marks[1] != []
    for name, reader in (("sd", "people"), ("verdct", "programs")):
        with pytest.raises(ConfigError, match=f"'{name}' is no column of this table.*Columns: row"):
            table.choose([name], reader)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'verdict'"):
        table.choose(["verdct"])


def test_latex_says_once_what_does_not_vary() -> None:
    rows = rows_from_summaries([summary(), summary("other", accuracy=0.75)])
    text = replace(results_table(rows), title="leaf/table_2").to_latex()
    assert (
        r"\caption{leaf/table\_2. setting federated; data femnist-3550; metric test/accuracy; "
        r"published 0.7472; measured 0.7500 (1 seed); difference +0.0028; verdict undecided [1].}"
    ) in text
    assert r"\label{tab:leaf-table-2}" in text
    assert r"\begin{tabular}{l}" in text
    # Columns that were asked for stay.
    chosen = results_table(rows).choose(["row", "metric"]).to_latex()
    assert r"\begin{tabular}{ll}" in chosen


@pytest.mark.parametrize("fmt", ["md", "csv", "latex"])
def test_no_rows_is_a_table_too(fmt: Any) -> None:
    assert results_table([]).write(fmt).endswith("\n")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="fmt is 'html'; allowed are 'md', 'csv' and 'latex'"):
        results_table(ROWS).write("html")  # type: ignore[arg-type]


def test_seeds_are_grouped_in_their_order() -> None:
    rows = rows_from_summaries(
        [summary(seed=2, accuracy=0.76), summary("other"), summary(seed=0, accuracy=0.74)]
    )
    assert [(row.name, row.measured) for row in rows] == [
        ("fedavg", (0.74, 0.76)),
        ("other", (0.75,)),
    ]
    assert rows[0].mean == 0.75
    # By hand: both are 0.01 from the mean, so the sample variance is 2 * 0.01^2 / (2 - 1).
    assert rows[0].sd == pytest.approx(math.sqrt(2) * 0.01, rel=1e-12)
    assert rows[0].note == "seeds 0, 2"
    assert rows[1].sd is None


@pytest.mark.parametrize(
    ("accuracies", "status"),
    [
        # 0.7472 +- 0.01: the mean is inside, and its interval is not.
        ((0.72, 0.7744), "undecided"),
        ((0.76, 0.757), "undecided"),
        ((0.80, 0.801), "differs"),
        ((0.7471, 0.7473), "reproduced"),
        # No spread is known.
        ((0.7472, 0.7472), "undecided"),
        ((0.7472,), "undecided"),
        (("nan",), "differs"),
    ],
)
def test_the_status_is_of_the_mean_s_interval(accuracies: tuple[Any, ...], status: str) -> None:
    summaries = [summary(seed=seed, accuracy=value) for seed, value in enumerate(accuracies)]
    assert rows_from_summaries(summaries)[0].status == status


def test_not_comparable_stays_so() -> None:
    run = summary()
    run["expected"][0] |= {"verdict": "not comparable", "why": "other data"}
    row = rows_from_summaries([run, summary(seed=1)])[0]
    assert (row.status, row.note) == ("not comparable", "other data")
    run = summary()
    run["expected"][0] |= {"measured": None, "verdict": "not comparable", "why": "not measured"}
    run["metrics"] = {}
    row = rows_from_summaries([run])[0]
    assert (row.status, row.measured, row.difference) == ("not comparable", (), None)


def test_several_expected_values_give_several_lines() -> None:
    run = summary()
    run["expected"].append({**run["expected"][0], "metric": "test/loss", "published": 1.0})
    rows = rows_from_summaries([run])
    assert [(row.metric, row.difference) for row in rows] == [
        ("test/accuracy", pytest.approx(0.0028)),
        ("test/loss", 0.0),
    ]


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        ({"val/accuracy": 0.1, "test/loss": 1.0, "test/accuracy": 0.2}, "test/accuracy"),
        ({"val/accuracy": 0.1, "test/f1": 1.0, "test/map": 0.2}, "test/f1"),
        ({"val/f1": 0.1}, "val/f1"),
    ],
)
def test_without_expected_values_one_metric_speaks(metrics: dict[str, float], chosen: str) -> None:
    row = rows_from_summaries([summary(published=None, metrics=metrics)])[0]
    assert (row.metric, row.status, row.published) == (chosen, "nothing published", None)


def test_notes_say_what_is_unusual() -> None:
    row = rows_from_summaries(
        [
            summary(seed=0, variant="a", privacy=privacy(2.0, 4.3)),
            summary(seed=1, variant="b", privacy=privacy(1.5, "inf"), status="budget_exhausted"),
            summary(seed=1, variant="b", privacy=privacy(1.5, "inf"), metrics={}),
        ]
    )[0]
    assert row.variant == "a, b"
    assert row.note.split("; ") == [
        "the seeds saw different data: a, b",
        "3 runs of 2 seeds, several of seed 1",
        "stopped by the privacy budget after 60 rounds",
        "the seeds differ in their simulated epsilon, the largest is shown",
        "the seeds differ in their actual epsilon, the largest is shown",
    ]
    assert (row.epsilon_simulated, row.delta_simulated) == (2.0, 1e-6)
    assert (row.epsilon_actual, row.delta_actual) == (math.inf, 2e-6)


def test_seeds_of_one_variant_with_other_content_are_told_apart() -> None:
    contents = ["sha256:aaaaaaaaa", "sha256:aaaaaaaaa", None, "sha256:bbbbbbbbb"]
    runs = [
        {**summary(published=None, seed=seed), "data": {"checksum": content} if content else {}}
        for seed, content in enumerate(contents)
    ]
    wanted = "the seeds saw different data: sha256:aaaaaaaa, sha256:bbbbbbbb"
    assert [rows_from_summaries(runs[:end])[0].note for end in (3, 4)] == ["", wanted]


def test_one_round_before_the_budget_is_no_plural() -> None:
    stopped = {**summary(published=None, status="budget_exhausted"), "rounds": 1}
    row = rows_from_summaries([stopped])[0]
    assert row.note == "stopped by the privacy budget after 1 round"
    row = rows_from_summaries([{**stopped, "setting": "central_dp"}])[0]
    assert row.note == "stopped by the privacy budget after 1 epoch"


def test_a_value_that_one_seed_lacks_is_noted() -> None:
    runs = [summary(seed=0, published=None), summary(seed=1, published=None, metrics={})]
    row = rows_from_summaries(runs)[0]
    assert row.measured == (0.75,)
    assert row.note == "not measured by seed 1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, r"summary 0 \(None\): 'name' is None; expected a str"),
        ({"seed": "x"}, "'seed' is 'x'; expected a int"),
        ({"metrics": []}, "'metrics' is \\[\\]; expected a mapping"),
        ({"expected": [{"published": 1}]}, "an entry of 'expected' is .* names its 'metric'"),
    ],
)
def test_foreign_summaries_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RunFolderError, match=message):
        rows_from_summaries([summary(**changes)])


def test_numbers_are_written_for_reading() -> None:
    assert format_value(0.75) == "0.7500"
    assert format_value(58.0345) == "58.03"
    assert format_value(-0.5, signed=True) == "-0.5000"
    assert format_value(math.nan) == "nan"
    assert format_value(None) == "-"
    assert format_epsilon(0.9943, 1e-10) == "0.995 (delta 1e-10)"
    assert format_epsilon(12345.6, None) == "12400"
    assert format_epsilon(math.inf, 1e-5) == "inf (no guarantee)"
