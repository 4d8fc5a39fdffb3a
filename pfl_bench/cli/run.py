"""``pfl-bench run``: one row."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pfl_bench.cli.main import EXIT_DONE, EXIT_FAILED
from pfl_bench.cli.speech import print_table, say
from pfl_bench.config.bundled_rows import locate
from pfl_bench.config.loading import ResolvedConfig, load_config
from pfl_bench.config.row_files import kind_of
from pfl_bench.federated.workers.launched import is_launched, is_restarted
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
    path = locate(arguments.config, folder=False)
    kind = kind_of(path)
    if kind != "row":
        command = f"sweep {path}" if kind == "sweep" else f"table {path.parent}"
        raise ConfigError(f"{path} is a {kind}, not a row; run it by `pfl-bench {command}`")
    resolved = load_config(path, overrides)
    group = _join_group(resolved)
    if group is not None and group.rank > 0:
        from pfl_bench.federated.workers.worker_loop import follow

        follow(group)
        group.close()
        return 0
    name = resolved.config.name
    out = Path(arguments.out or Path("runs") / name / f"seed-{resolved.config.seed}")
    say(f"{name}: seed {resolved.config.seed}, in {out}; loading PyTorch, data and model")

    from pfl_bench.files import read_json
    from pfl_bench.profiling import Profile
    from pfl_bench.report.page import write_report
    from pfl_bench.report.results import results_table
    from pfl_bench.runs.rows import rows_from_summaries
    from pfl_bench.runs.runner import run

    if read_json(out / "summary.json") is not None:
        print(f"{out}: this run is finished; it is not run again", file=sys.stderr)
    profile = Profile() if arguments.profile else None
    summary = run(resolved, out, arguments.resume or is_restarted(), group, profile)
    page = write_report([out], out / "report.html")
    if summary["privacy"] is not None:
        from privacy.statement.statement import PrivacyStatement

        print(PrivacyStatement.from_json_dict(summary["privacy"]).to_text(), end="\n\n")
    # Distributions over clients are dozens of numbers: the page draws them, the summary has them.
    for metric, value in summary["metrics"].items():
        if not metric.partition("/")[2].startswith(("client_", "stratum_")):
            print(f"{metric:32} {value:.6g}")
    print(f"distributions over clients: {out / 'summary.json'}\n")
    rows = rows_from_summaries([summary])
    print_table(results_table(rows))
    print(f"report: {page}", file=sys.stderr)
    # torchrun takes every other exit code for a process that has crashed.
    has_failed = group is None and any(row.is_failure for row in rows)
    return EXIT_FAILED if has_failed else EXIT_DONE


def _join_group(resolved: ResolvedConfig) -> WorkerGroup | None:
    """Join the processes that torchrun has started, if it has.

    Raises:
        ConfigError: The configuration is not for several processes, or asks for others.
    """
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
