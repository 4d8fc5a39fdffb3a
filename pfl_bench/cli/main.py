"""The command line. Only the standard library is imported here, so that --help answers at once."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import sys
from collections.abc import Sequence

from pfl_bench.cli.arguments import add_columns, add_output, add_plugins, path_text
from pfl_bench.cli.completion import complete
from pfl_bench.cli.data_parser import add_data
from pfl_bench.cli.examples import add_examples
from pfl_bench.cli.own_parsers import add_attack, add_own_commands
from pfl_bench.cli.privacy_parser import add_privacy
from pfl_bench.cli.speech import announce, answer_alone, told

EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
# Errors of the user's machine, not of our code.
_MACHINE_ERRORS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EFBIG: "the file size limit is exceeded",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "the operation is not permitted",
    errno.EIO: "the disk reports an error (input/output error)",
    errno.ESTALE: "the network file system has lost this file (stale file handle)",
    errno.ENOTDIR: "part of this path is a file, not a folder",
    errno.EISDIR: "this is a folder, where a file is written or read",
    errno.EEXIST: "this is in the way",
}
# Errors that neither space nor another folder mends.
_OTHER_ERRORS = {
    errno.ENAMETOOLONG: "this name is too long for a file; give a shorter one: --out, or the row's "
    "name",
    errno.EMFILE: "too many files are open; allow more (ulimit -n 1024), or use fewer "
    "federated.workers",
    errno.ENFILE: "this machine has too many files open; end other programs, then go on",
    errno.ENOMEM: "memory ran out; end other programs, or use fewer federated.workers",
    errno.EAGAIN: "no more processes can be started; allow more (ulimit -u), or use fewer "
    "federated.workers",
}
# Of what --quiet kept back, where a command fails.
_LAST_LINES = 20
# What PyTorch says of an operation that it refuses in a private run; its name comes before.
_NONDETERMINISTIC = " does not have a deterministic implementation"
_SMALLER = (
    "end other programs, or use fewer federated.workers or smaller batches. Where a run was under "
    "way, --resume goes on"
)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="pfl-bench",
        description="Benchmarks for differentially private federated learning: one command a row "
        "of a published table, epsilons that can be audited.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_run(commands)
    _add_table(commands)
    _add_sweep(commands)
    _add_list(commands)
    add_own_commands(commands)
    add_data(commands)
    add_privacy(commands)
    _add_audit(commands)
    _add_launcher(add_attack(commands))
    _add_report(commands)
    _add_leaderboard(commands)
    add_examples(parser)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run one row")
    run.add_argument("config", metavar="CONFIG.yaml", help="file, or a bundled demo/<row>.yaml")
    run.add_argument("overrides", nargs="*", metavar="key=value", help="wins over the file")
    run.add_argument(
        "--out", metavar="DIR", type=path_text, help="run folder (default: runs/NAME/seed-N)"
    )
    run.add_argument("--resume", action="store_true", help="go on with an unfinished run")
    run.add_argument("--seed", type=int, metavar="N", help="same as seed=N")
    run.add_argument("--profile", action="store_true", help="write where the time goes")
    run.add_argument(
        "--dry-run", action="store_true", help="check up to the first round, and write nothing"
    )
    add_output(run)
    add_plugins(run)
    run.set_defaults(module="run")


def _add_table(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    table = commands.add_parser("table", help="run every row of a folder; done rows are skipped")
    table.add_argument(
        "folder", metavar="FOLDER", help="folder of rows or a view, or a bundled one"
    )
    table.add_argument(
        "overrides", nargs="*", metavar="key=value", help="for every row that has the section"
    )
    table.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds a row (default 1)")
    table.add_argument("--only", metavar="ROW", help="run this row alone")
    _add_format(table)
    table.add_argument(
        "--out", metavar="DIR", type=path_text, help="folder of the runs (default: runs/FOLDER)"
    )
    add_output(table)
    _add_launcher(table)
    add_plugins(table)
    table.set_defaults(module="table")


def _add_sweep(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sweep = commands.add_parser(
        "sweep", help="one row with every combination of some settings, best on val first"
    )
    sweep.add_argument("sweep", metavar="SWEEP.yaml", help="row, metric and grid of values")
    sweep.add_argument("overrides", nargs="*", metavar="key=value", help="applied to every run")
    sweep.add_argument("--only", type=int, metavar="N", help="run the Nth combination alone")
    _add_format(sweep)
    sweep.add_argument(
        "--out", metavar="DIR", type=path_text, help="folder of the runs (default: runs/SWEEP)"
    )
    _add_launcher(sweep)
    add_plugins(sweep)
    sweep.set_defaults(module="sweep")


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format",
        choices=("md", "csv", "latex"),
        help="default: md; a terminal gets a table of its width",
    )
    add_columns(command)


def _add_launcher(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        help="each run a job: a process here, or a job of a Slurm cluster (default: no jobs)",
    )
    command.add_argument(
        "--jobs", type=int, metavar="K", help="at most K jobs at once (local: as the cores allow)"
    )
    command.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the Slurm jobs, such as time=60 or partition=gpu; repeat for more",
    )
    command.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="submit to Slurm and end; the same command shows the table later",
    )


def _add_list(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    listing = commands.add_parser("list", help="tasks, rows, tables and methods, a line each")
    listing.add_argument(
        "what",
        nargs="?",
        choices=(
            *("tasks", "rows", "tables", "algorithms", "mechanisms", "metrics", "selectors"),
            *("aggregations", "compressions", "attacks", "engines"),
        ),
    )
    listing.add_argument("below", nargs="?", metavar="FOLDER", help="rows: of this folder alone")
    listing.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugins(listing)
    listing.set_defaults(module="list")
    copy = commands.add_parser("copy", help="write a bundled row to a file of your own")
    copy.add_argument("row", metavar="ROW", help="such as demo/federated.yaml")
    copy.add_argument("file", metavar="FILE.yaml", type=path_text)
    copy.add_argument("--force", action="store_true", help="replace FILE.yaml if it exists")
    copy.set_defaults(module="list")


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    audit = commands.add_parser("audit", help="derive every privacy claim of a run anew")
    audit.add_argument("run", metavar="RUN_DIR")
    audit.add_argument(
        "--tuned-runs",
        type=int,
        default=10,
        metavar="K",
        help="also bound epsilon of a search over K such runs (default 10)",
    )
    audit.add_argument("--data", metavar="FILE", help="the data, where they have moved")
    audit.add_argument(
        "--recompute",
        choices=("none", "first", "sample", "all"),
        default="sample",
        help="rounds that are computed again by a plain loop: the first, as many as "
        "--recompute-seconds allows (default), all, or none",
    )
    audit.add_argument(
        "--recompute-seconds",
        type=float,
        default=8.0,
        metavar="S",
        help="time that a sample of rounds may take (default 8)",
    )
    audit.add_argument(
        "--live", action="store_true", help="watch a run that runs, and stop it at a violation"
    )
    audit.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="--live: seconds between two looks"
    )
    audit.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugins(audit)
    audit.set_defaults(module="audit")


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="one self-contained page of run folders")
    report.add_argument("runs", nargs="+", metavar="RUN_DIR")
    report.add_argument("--out", default="report.html", metavar="FILE.html", type=path_text)
    report.add_argument(
        "--figures", metavar="DIR", type=path_text, help="also each figure for a paper: SVG and PDF"
    )
    report.add_argument("--force", action="store_true", help="replace FILE.html if it exists")
    report.set_defaults(module="report")


def _add_leaderboard(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    board = commands.add_parser("leaderboard", help="all rows of run folders by data, ranked")
    board.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="run folders, or folders of such"
    )
    board.add_argument(
        "--out",
        default="leaderboard.html",
        metavar="FILE.html",
        type=path_text,
        help="the page; FILE.json beside it has all its numbers",
    )
    board.add_argument(
        "--audit", action="store_true", help="audit private runs that have no audit yet"
    )
    board.add_argument("--json", action="store_true", help="one JSON object on stdout")
    board.add_argument("--force", action="store_true", help="replace the files if they exist")
    add_plugins(board)
    board.set_defaults(module="leaderboard")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments without the program's name; None for the process's own.

    Returns:
        0 done, 1 a check or a row failed, 2 the user's input is wrong, 130 interrupted.
    """
    parser = build_parser()
    complete(parser)
    arguments = _parse(parser, argv)
    if arguments.version:
        from pfl_bench import __version__

        print(__version__)
        return EXIT_DONE
    if arguments.command is None:
        parser.print_help()
        return EXIT_INPUT
    try:
        has_json = getattr(arguments, "json", False)
        with answer_alone() if has_json else contextlib.nullcontext(), told(arguments) as kept:
            _add_plugin_folders(arguments)
            announce(arguments)
            module = importlib.import_module(f"pfl_bench.cli.{arguments.module}")
            code = int(module.main(arguments))
        if code != EXIT_DONE:
            lines = kept.getvalue().splitlines(keepends=True)
            print(*lines[-_LAST_LINES:], sep="", end="", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        again = "with --resume goes on" if arguments.command == "run" else "begins or goes on"
        print(f"pfl-bench: interrupted; the same command {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe such as `| head` went away: nothing is wrong, nothing is left to say.
        sys.stdout = None
        return EXIT_DONE
    except (Exception, SystemExit) as error:
        message = explain(error)
        if message is None:
            raise
        print(f"pfl-bench: {message}", file=sys.stderr)
        from pfl_bench.types import WorkerError

        return EXIT_FAILED if isinstance(error, WorkerError) else EXIT_INPUT


def _add_plugin_folders(arguments: argparse.Namespace) -> None:
    """Find plug-ins in the folders of ``--plugins``."""
    if not getattr(arguments, "plugins", None):
        return
    if hasattr(arguments, "overrides"):
        # They win over the file's, like any setting; the file's are added where both are wanted.
        arguments.overrides = [*arguments.overrides, f"plugins={json.dumps(arguments.plugins)}"]
        return
    from pathlib import Path

    from pfl_bench.plugins import add_folder

    for folder in arguments.plugins:
        add_folder(Path(folder))


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse, with key=value overrides allowed before and after the options."""
    arguments, rest = parser.parse_known_args(argv)
    foreign = [text for text in rest if text.startswith("-") or "=" not in text]
    if foreign or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(foreign or rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def explain(error: BaseException) -> str | None:
    """Message for an error of the user's or of their machine's; None for one of ours."""
    from pfl_bench.types import UserInputError, WorkerError
    from privacy.errors import PrivacyError

    if isinstance(error, (UserInputError, WorkerError, PrivacyError)):
        return str(error)
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return f"memory ran out ({error}); allow more (ulimit -v)"
    if isinstance(error, MemoryError):
        return f"memory ran out ({error or 'no more could be had'}); {_SMALLER}"
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which may not be loaded
        return f"the GPU's memory ran out ({str(error).splitlines()[0]}); {_SMALLER}"
    operation, is_nondeterministic, _ = str(error).partition(_NONDETERMINISTIC)
    if is_nondeterministic:
        return (
            f"device: {operation}{_NONDETERMINISTIC} on CUDA, and a private run must be one that "
            "can be repeated; replace the layer that needs it, or set device=cpu"
        )
    where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    if isinstance(error, OSError) and error.errno in _OTHER_ERRORS:
        return f"{where}{_OTHER_ERRORS[error.errno]}. Where a run was under way, --resume goes on"
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        return (
            f"{where}{_MACHINE_ERRORS[error.errno]}; free space or give another --out, then go on "
            "with --resume where a run was under way"
        )
    from pfl_bench.cli.plugin_errors import error_place

    place = error_place(error)
    if place is not None:
        return f"a plug-in failed: {place}; mend that file"
    if isinstance(error, OSError):
        return (
            f"{where}{error.strerror or error}; mend this or name another file or folder, then go "
            "on with --resume where a run was under way"
        )
    return None
