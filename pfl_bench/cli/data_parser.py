"""The parser of ``pfl-bench data``, whose help tells the options of a task."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from typing import TYPE_CHECKING, Any

from pfl_bench.cli.arguments import Commands, add, add_json, add_out, add_overrides, path_text

if TYPE_CHECKING:
    from pydantic import BaseModel

_ATTRIBUTE = re.compile(r"^(\w+): ", re.MULTILINE)
_WIDTH = 80


def add_data(commands: Commands) -> None:
    """Add the command to the parser of all."""
    data = commands.add_parser("data", help="prepare, download, generate and describe data")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="raw public files -> store", add_help=False)
    _add_task(prepare, "PREPARE")
    add_overrides(prepare, "the task's options")
    add(prepare, "--source DIR", required=True, type=path_text)
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
    add(stats, "file FILE.h5", type=path_text)
    add_overrides(stats, "the task's options")
    add(stats, "--json")
    add(stats, "--verify", "first read all arrays, and refuse other content than FILE.h5 announces")
    add(stats, "--plots DIR", "also draw them, as PNG files in DIR", type=path_text)
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
        from pfl_bench.types import PluginError

        kind_name, options_name = self.const
        kind: plugins.PluginKind = getattr(plugins, kind_name)
        names, examples = plugins.available(kind), parser.epilog
        lines = textwrap.wrap(f"tasks: {', '.join(names)}", 80, subsequent_indent="  ")
        if options_name == "Download":
            lines += ["Of a task whose files cannot be fetched, it says where they are published."]
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


def option_lines(options: type[BaseModel]) -> list[str]:
    """The options of a plug-in, a paragraph each; docstrings of the type and its bases explain."""
    schema = options.model_json_schema()
    meanings = _meanings(options)
    lines = []
    for name, property_ in schema.get("properties", {}).items():
        head = f"{name}={_allowed(property_, schema)}"
        if options.model_fields[name].is_required():
            head += " (required)"
        else:
            head += f" (default {json.dumps(property_.get('default'))})"
        text = f"{head}: {meanings.get(name, '')}".rstrip(": ")
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
    return lines or ["  none"]


def _meanings(options: type[BaseModel]) -> dict[str, str]:
    """Descriptions of attributes, read from docstrings; those of a derived class win."""
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        text = inspect.cleandoc(kind.__doc__ or "")
        _, _, rest = text.partition("Attributes:\n")
        section = textwrap.dedent(re.split(r"\n(?=\S)", rest)[0])
        parts = _ATTRIBUTE.split(section)[1:]
        found |= {
            name: " ".join(meaning.split())
            for name, meaning in zip(parts[::2], parts[1::2], strict=True)
        }
    return found


def _allowed(property_: dict[str, Any], schema: dict[str, Any]) -> str:
    """The values that an option takes, in the words of YAML."""
    if "$ref" in property_:
        name = str(property_["$ref"]).rpartition("/")[2]
        return _allowed(schema["$defs"][name], schema)
    if "enum" in property_ or "const" in property_:
        values = property_.get("enum") or [property_["const"]]
        return "|".join(str(value) for value in values)
    if "anyOf" in property_:
        return "|".join(dict.fromkeys(_allowed(one, schema) for one in property_["anyOf"]))
    if property_.get("type") == "array":
        return f"[{_allowed(property_.get('items', {}), schema)}, ...]"
    words = {"integer": "INT", "number": "NUMBER", "string": "TEXT", "boolean": "true|false"}
    kind = str(property_.get("type", "VALUE"))
    return words.get(kind, kind)
