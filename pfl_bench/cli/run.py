"""``pfl-bench run``: one row."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pfl_bench.cli.main import EXIT_DONE, EXIT_FAILED
from pfl_bench.cli.speech import answer_json, print_table, print_text, say, write
from pfl_bench.config.loading import ResolvedConfig, load_config
from pfl_bench.config.row_files import locate_row
from pfl_bench.federated.workers.launched import is_launched, is_restarted
from pfl_bench.metrics import is_spread
from pfl_bench.types import ConfigError, WorkerGroup


def main(arguments: argparse.Namespace) -> int:
    """Run one row and print its numbers."""
    overrides = list(arguments.overrides)
    if arguments.seed is not None:
        given = [text for text in overrides if text.partition("=")[0].strip() == "seed"]
        if given and given[-1].partition("=")[2].strip() != str(arguments.seed):
            raise ConfigError(
                f"--seed {arguments.seed} and {given[-1]} contradict each other; leave one out"
            )
        overrides.append(f"seed={arguments.seed}")
    resolved = load_config(locate_row(arguments.config), overrides)
    config = resolved.config
    out = Path(arguments.out or Path("runs") / config.name / f"seed-{config.seed}")
    if arguments.dry_run and arguments.json:
        raise ConfigError("--json: a dry run has no numbers; `pfl-bench show ROW --json` has them")
    if arguments.dry_run:
        return _dry_run(resolved, out, arguments.resume)
    group = _join_group(resolved)
    if group is not None and group.rank > 0:
        from pfl_bench.federated.workers.worker_loop import follow

        follow(group)
        group.close()
        return 0
    say(f"{config.name}: seed {config.seed}, in {out}; loading PyTorch, data and model")

    from pfl_bench.files import read_json
    from pfl_bench.profiling import Profile
    from pfl_bench.report.page import write_report
    from pfl_bench.report.results import results_table
    from pfl_bench.runs.rows import rows_from_summaries
    from pfl_bench.runs.runner import run

    is_finished = read_json(out / "summary.json") is not None
    profile = Profile() if arguments.profile else None
    summary = run(resolved, out, arguments.resume or is_restarted(), group, profile)
    if is_finished:
        say(f"{out}: this run is finished; it is not run again")
    page = write_report([out], out / "report.html")
    choice = read_json(out / "selection.json")
    priced = summary["privacy"] if choice is None else {**summary["privacy"], "selection": choice}
    rows = rows_from_summaries([{**summary, "privacy": priced}])
    if arguments.json:
        answer_json({"folder": str(out), **summary})
    else:
        _print_numbers(summary, out)
        print_table(results_table(rows))
    say(f"report: {page}")
    # torchrun takes every other exit code for a process that has crashed.
    has_failed = group is None and any(row.is_failure for row in rows)
    return EXIT_FAILED if has_failed else EXIT_DONE


def _print_numbers(summary: dict[str, Any], out: Path) -> None:
    if summary["privacy"] is not None:
        from privacy.statement.statement import PrivacyStatement

        print_text(PrivacyStatement.from_json_dict(summary["privacy"]).to_text() + "\n")
    # Distributions over clients are dozens of numbers: the page draws them, the summary has them.
    for metric, value in summary["metrics"].items():
        if not is_spread(metric):
            print_text(f"{metric:32} {float(value):.6g}")
    has_spread = any(map(is_spread, summary["metrics"]))
    print_text(f"distributions over clients: {out / 'summary.json'}\n" if has_spread else "")


def _dry_run(resolved: ResolvedConfig, out: Path, resume: bool) -> int:
    """Check all that comes before the first round, and say what would run; nothing is written."""
    from pfl_bench.cli.show import cost_lines, data_lines, epsilon_lines, notice_lines
    from pfl_bench.runs.preview import look_at_folder, preview

    if is_launched():
        raise ConfigError("--dry-run looks at one process alone; call it without torchrun")
    state = look_at_folder(resolved, out, resume)
    shown = preview(resolved, out)
    config, statement = resolved.config, shown.statement
    head = f"{config.name} ({config.setting}, seed {config.seed}) would run in {out}: {state}"
    lines = [head, *data_lines(shown), *cost_lines(shown.cost)]
    if statement is not None and statement.unit != "none":
        lines += epsilon_lines(statement.simulated, statement.actual)
    lines += notice_lines((*shown.notices, *(f"not the row: {d}" for d in resolved.not_the_row)))
    write("\n".join(lines))
    write(f"  memory: {shown.peak_bytes / 1e6:,.0f} MB with all of it built, before training")
    write("checked up to the first round; nothing was written")
    return EXIT_DONE


def _join_group(resolved: ResolvedConfig) -> WorkerGroup | None:
    """Join the processes that torchrun has started, if it has and the configuration allows it."""
    if not is_launched():
        return None
    if resolved.config.federated is None:
        raise ConfigError(
            f"{resolved.source}: torchrun shares out the clients of federated training, and this "
            f"row is of the setting '{resolved.config.setting}'; run it without torchrun"
        )
    if resolved.config.federated.workers not in (1, "auto"):
        raise ConfigError(
            "federated.workers: torchrun has started the processes of this run; leave it out"
        )
    from pfl_bench.federated.workers.torchrun import TorchrunGroup

    return TorchrunGroup(resolved.config.device)
