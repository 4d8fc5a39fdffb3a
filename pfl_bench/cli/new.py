"""``pfl-bench new``: a plug-in of one's own to start from, which works and is tested as it is."""

from __future__ import annotations

import argparse
import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pfl_bench import plugins
from pfl_bench.cli.speech import say, write
from pfl_bench.files import whole_folder, write_atomically
from pfl_bench.types import ConfigError

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_NAME = re.compile(r"^[a-z][a-z0-9_]*$")
_DIGITS = "{name: digits, num_users: 60}"
# Written once a project; a second plug-in leaves them as they are.
_SHARED = ("pyproject.toml", "README.md")


@dataclass(frozen=True)
class _Kind:
    """The files that are written for a kind of plug-in; in all texts "NAME" stands for its name.

    Attributes:
        files: Templates of its modules, by their paths in the package.
        task: The section ``task`` of its row.
        also: The name of a task that comes with it; empty for none.
    """

    plugin: plugins.PluginKind
    files: dict[str, str]
    task: str = _DIGITS
    also: str = ""


KINDS = {
    "task": _Kind(
        plugins.TASK,
        {
            "tasks/NAME/__init__.py": "package.py",
            "tasks/NAME/task.py": "task.py",
            "tasks/NAME/models.py": "task_models.py",
        },
        "{name: NAME, num_users: 60}",
    ),
    "algorithm": _Kind(plugins.ALGORITHM, {"algorithms/NAME.py": "algorithm.py"}),
    "mechanism": _Kind(plugins.MECHANISM, {"mechanisms/NAME.py": "mechanism.py"}),
    "metric": _Kind(
        plugins.METRIC,
        {
            "metrics/NAME.py": "metric.py",
            "tasks/NAME_digits/__init__.py": "package.py",
            "tasks/NAME_digits/task.py": "metric_task.py",
            "tasks/NAME_digits/models.py": "metric_models.py",
        },
        "{name: NAME_digits, num_users: 60}",
        "NAME_digits",
    ),
    "selector": _Kind(plugins.SELECTION, {"selectors/NAME.py": "selector.py"}),
    "attack": _Kind(plugins.ATTACK, {"attacks/NAME.py": "attack.py"}),
    "aggregation": _Kind(plugins.AGGREGATION, {"aggregations/NAME.py": "aggregation.py"}),
    "compression": _Kind(plugins.COMPRESSION, {"compressions/NAME.py": "compression.py"}),
    "tracker": _Kind(plugins.TRACKER, {"trackers/NAME.py": "tracker.py"}),
}


def main(arguments: argparse.Namespace) -> int:
    """Write the files, none of which may be there."""
    kind, name = arguments.kind, arguments.name
    _check_name(kind, name)
    home = Path(arguments.out or name)
    package = _package_of(home)
    texts = _render(kind, name, package)
    kept = [path for path in _SHARED if (home / path).exists()]
    # An empty marker of a package is the same whoever wrote it.
    own = [path for path in texts if path not in _SHARED and not path.endswith("__init__.py")]
    there = [str(home / path) for path in own if (home / path).exists() and texts[path]]
    if there:
        raise ConfigError(
            f"{', '.join(there)}: exists, and is not overwritten; give another NAME, or another "
            "folder with --out"
        )
    with whole_folder(home):
        for path, text in texts.items():
            if not (home / path).exists():
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(home / path, text)
                say(str(home / path))
    if "pyproject.toml" in kept:
        write(f"{home / 'pyproject.toml'} is kept. For an installed package, add there:")
        write(_entry_points(kind, name, package))
    write(f"pfl-bench check-plugin {home}")
    write(f"pfl-bench run {home / 'rows' / f'{name}.yaml'}")
    return 0


def _check_name(kind: str, name: str) -> None:
    """Check that a name can be a module's, and is nobody's yet."""
    if not _NAME.match(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"pfl-bench new {kind} {name}: the name is that of a Python module: small letters, "
            "digits and _, a letter first, such as my_method"
        )
    taken = plugins.available(KINDS[kind].plugin)
    if name in taken:
        raise ConfigError(
            f"pfl-bench new {kind} {name}: there is {KINDS[kind].plugin.one} of this name "
            f"already; choose another than {', '.join(taken)}"
        )


def _package_of(home: Path) -> str:
    """The package of a folder: one that an earlier call has made, or one by the folder's name."""
    if home.exists() and not home.is_dir():
        raise ConfigError(f"--out {home}: is a file; give a folder, which may be new")
    found = sorted(path.parent.name for path in home.glob("*_plugins/__init__.py"))
    if len(found) > 1:
        raise ConfigError(
            f"--out {home}: has several packages of plug-ins ({', '.join(found)}); give another"
        )
    words = re.sub(r"[^a-z0-9]+", "_", home.resolve().name.lower()).strip("_")
    stem = words if words[:1].isalpha() else f"my_{words}".rstrip("_")
    return found[0] if found else f"{stem.removesuffix('_plugins')}_plugins"


def _render(kind: str, name: str, package: str) -> dict[str, str]:
    made = KINDS[kind]
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True
    )
    values = {
        "kind": kind,
        "name": name,
        "words": name.replace("_", " ").capitalize(),
        "title": "".join(word.capitalize() for word in name.split("_")),
        "package": package,
        "task": made.task.replace("NAME", name),
        "entry_points": _entry_points(kind, name, package),
    }

    def text(template: str) -> str:
        return environment.get_template(f"{template}.jinja").render(values)

    texts = {path: text(path) for path in _SHARED}
    texts[f"{package}/__init__.py"] = text("package.py")
    for path, template in made.files.items():
        texts[f"{package}/{path.replace('NAME', name)}"] = text(template)
        group = path.partition("/")[0]
        texts[f"{package}/{group}/__init__.py"] = text("package.py")
    texts[f"rows/{name}.yaml"] = text("row.yaml")
    texts[f"tests/test_{name}.py"] = text("test.py")
    return texts


def _entry_points(kind: str, name: str, package: str) -> str:
    """Tables of pyproject.toml by which an installed package's plug-ins are found."""
    made = KINDS[kind]
    entries = [(made.plugin.group, name)]
    if made.also:
        entries.append((plugins.TASK.group, made.also.replace("NAME", name)))
    return "\n\n".join(
        f'[project.entry-points."pfl_bench.{group}"]\n{each} = "{package}.{group}.{each}"'
        for group, each in entries
    )
