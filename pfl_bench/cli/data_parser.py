"""The parser of ``pfl-bench data``."""

from __future__ import annotations

import argparse
import textwrap

from pfl_bench.cli.arguments import Commands, add, add_json, add_out, add_overrides


def add_data(commands: Commands) -> None:
    """Add the command to the parser of all."""
    data = commands.add_parser("data", help="prepare, download, generate and describe data")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="raw public files -> store", add_help=False)
    _add_task(prepare, "PREPARE")
    add_overrides(prepare, "the task's options")
    add(prepare, "--source DIR", required=True)
    add_out(prepare, None, "FILE.h5", required=True)
    add(prepare, "--force", "replace FILE.h5 if it exists")
    download = actions.add_parser("download", help="fetch the published files", add_help=False)
    _add_task(download, "PREPARE", "Download")
    add_overrides(download, "of the task hub: dataset=OWNER/NAME")
    add_out(download, "target folder (default: data/TASK)")
    shown = "publisher's files (default), or the copy on the Hugging Face Hub"
    origins = ("publisher", "hub")
    add(download, "--from", shown, dest="origin", choices=origins, default="publisher")
    generate = actions.add_parser(
        "generate", help="made-up data in a task's published format", add_help=False
    )
    _add_task(generate, "GENERATE")
    add_overrides(generate, "the task's options")
    add_out(generate, "folder to make", required=True)
    stats = actions.add_parser("stats", help="users, examples, skew of a store")
    add(stats, "file FILE.h5")
    add_overrides(stats, "the task's options")
    add(stats, "--json")
    add(stats, "--plots DIR", "also draw them, as PNG files in DIR")
    traces = actions.add_parser("traces", help="devices of clients -> one file that opens fast")
    add(traces, "source", choices=("generated", "fedscale", "csv", "file"))
    add_overrides(traces, "the source's options")
    add_out(traces, "file to write (default: only describe)", "FILE.npz")
    add(traces, "--leave-out-bad", "leave bad clients of FedScale's files out")
    add_json(traces)
    listing = actions.add_parser("list", help="FedScale's 20 data sets: size, source, licence")
    add_json(listing)


def _add_task(command: argparse.ArgumentParser, kind: str, options: str = "Options") -> None:
    """Give a command TASK, and a help that names the tasks, and after TASK that task's options."""
    shown = "show this; after TASK, its options too"
    none = argparse.SUPPRESS
    command.add_argument(
        "-h", "--help", action=_TaskHelp, dest=none, nargs=0, const=(kind, options), help=shown
    )
    add(command, "task TASK")


class _TaskHelp(argparse.Action):
    """Prints the help of a command of tasks, and ends; its constant names kind and options."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        # Only now: they are found by looking into packages.
        from pfl_bench import plugins
        from pfl_bench.cli.option_text import option_lines
        from pfl_bench.types import PluginError

        kind_name, options_name = self.const
        kind: plugins.PluginKind = getattr(plugins, kind_name)
        names, examples = plugins.available(kind), parser.epilog
        lines = textwrap.wrap(f"tasks: {', '.join(names)}", 80, subsequent_indent="  ")
        task = getattr(namespace, "task", None)
        if task is not None:
            try:
                options = getattr(plugins.load(kind, task), options_name, None)
            except PluginError as error:
                parser.error(str(error))
            listed = ["none"] if options is None else option_lines(options)
            lines += ["", f"options of {task}:", *listed]
        parser.epilog = "\n".join([*lines, "", examples or ""])
        parser.print_help()
        parser.exit()
