"""The command line. Only the standard library is imported here, so that --help answers at once."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import errno
import gc
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType
from typing import Any, TypeVar

from pfl_bench.cli.arguments import check_is_there
from pfl_bench.cli.completion import OF_ROWS, complete
from pfl_bench.cli.examples import commands_of
from pfl_bench.cli.parsers import build_parser
from pfl_bench.cli.speech import announce, answer_alone, say, told

_T = TypeVar("_T")
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
# What PyTorch says of a tensor for which the machine lacks memory.
_TOO_LARGE = re.compile(r"DefaultCPUAllocator: .*?tried to allocate (\d+) bytes")
_SMALLER = "end other programs, or use fewer federated.workers or smaller batches"
_ANOTHER = "mend this or name another file or folder"
# Ends an error of the machine's, which strikes while a run is under way, or while there is none.
_GO_ON = ". Where a run was under way, the same command goes on (pfl-bench run: with --resume)"
_OF_RUNS = ("run", "table", "sweep", "attack")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: 0 done, 1 a check or a row failed, 2 the input is wrong, 130 interrupted."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-: a file of a run would get its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and (
        _is_narrow() or codecs.lookup(sys.stdout.encoding).name != "utf-8"
    ):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error does
    parser = build_parser()
    complete(parser)
    try:
        arguments = _parse(parser, argv)
    except SystemExit as ended:
        words = sys.argv[1:] if argv is None else argv
        dashed = next((text for text in words if text[:1] == "-" and os.path.exists(text)), None)
        if dashed is not None and ended.code == EXIT_INPUT:
            say(f"pfl-bench: there is a file or folder {dashed} here: to name it, write ./{dashed}")
        raise
    try:
        code = _command(parser, arguments)
        _flush()
        return code
    except KeyboardInterrupt:
        again = "with --resume goes on" if arguments.command == "run" else "begins or goes on"
        print(f"pfl-bench: interrupted; the same command {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe such as `| head` went away: nothing is left to say, but a run that
        # was under way is not done.
        sys.stdout = None
        return EXIT_FAILED if arguments.command in _OF_RUNS else EXIT_DONE
    except (Exception, SystemExit) as error:
        message = explain(error, arguments.command in _OF_RUNS)
        if message is None:
            raise
        # Some messages begin with the command that they are about.
        say(f"pfl-bench: {message.removeprefix('pfl-bench ')}")
        with contextlib.suppress(OSError):
            _flush()
        from pfl_bench.types import WorkerError

        return EXIT_FAILED if isinstance(error, WorkerError) else EXIT_INPUT


def _command(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.version:
        from pfl_bench import __version__

        print(__version__)
        return EXIT_DONE
    if arguments.command is None:
        parser.print_help()
        return EXIT_INPUT
    has_json = getattr(arguments, "json", False)
    with answer_alone() if has_json else contextlib.nullcontext(), told(arguments) as kept:
        _add_plugin_folders(arguments)
        announce(arguments)
        check_is_there(arguments)
        code = int(_imported(f"pfl_bench.cli.{arguments.module}").main(arguments))
    if code != EXIT_DONE:
        lines = kept.getvalue().splitlines(keepends=True)
        print(*lines[-_LAST_LINES:], sep="", end="", file=sys.stderr)
    return code


def _flush() -> None:
    """Write what was printed; if that fails, nobody writes it again as the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise


def _imported(name: str) -> Any:
    """A command's module. No garbage is looked for in what it imports: a tenth of the time."""
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _add_plugin_folders(arguments: argparse.Namespace) -> None:
    if not getattr(arguments, "plugins", None):
        return
    # Where there is a --mechanism, key=value are its options.
    if hasattr(arguments, "overrides") and not hasattr(arguments, "mechanism"):
        # They win over the file's, like any setting; the file's are added where both are wanted.
        arguments.overrides = [*arguments.overrides, f"plugins={json.dumps(arguments.plugins)}"]
        return
    from pathlib import Path

    from pfl_bench.plugins import add_folder

    for folder in arguments.plugins:
        add_folder(Path(folder))


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse, with key=value overrides allowed before and after the options."""
    for text in sys.argv[1:] if argv is None else argv:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            parser.error(_not_text(text))
    arguments, rest = parser.parse_known_args(argv)
    foreign = [text for text in rest if text.startswith("-") or "=" not in text]
    if foreign or (rest and not hasattr(arguments, "overrides")):
        named = " ".join(filter(None, (arguments.command, getattr(arguments, "action", None))))
        of_others = _owners_hint(parser, foreign)
        is_row = bool(foreign) and named in OF_ROWS
        hint = _setting_hint(foreign, of_others) if is_row else of_others
        parser.error(
            f"unrecognized arguments: {' '.join(foreign or rest)}{hint}; "
            f"`{f'pfl-bench {named}'.rstrip()} --help` lists what it takes"
        )
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def _owners_hint(parser: argparse.ArgumentParser, foreign: Sequence[str]) -> str:
    """Name the commands that have an option, where there are few; empty of none."""
    option = foreign[0].partition("=")[0] if foreign else ""
    owners = [
        f"`{parser.prog} {words}`"
        for words, command in commands_of(parser)
        if option.startswith("--") and option in command._option_string_actions
    ]
    return f"; {option} belongs to {' and '.join(owners)}" if 0 < len(owners) <= 2 else ""


def _setting_hint(foreign: Sequence[str], otherwise: str) -> str:
    """Hint at how a setting is written, for arguments such as ``--epsilon 2`` or ``epsilon 2``."""
    from pfl_bench.config.errors import settings_named

    option, _, value = foreign[0].partition("=")
    if option.startswith("-") and not option.startswith("--"):
        return ""
    key = option.removeprefix("--").replace("-", "_")
    named = [key] if "." in key else settings_named(key)
    if not named:
        is_flag = option.startswith("--") and not value and len(foreign) == 1
        hint = "; settings of a row are written key=value, such as privacy.epsilon=2"
        return otherwise or ("" if is_flag else hint)
    value = value or (foreign[1] if len(foreign) > 1 else "VALUE")
    return f"; settings of a row are written key=value: {named[0]}={value}"


def attempt(action: Callable[..., _T], *given: Any) -> _T | str:
    """The result of an action, or the message that ``explain`` has for its error."""
    try:
        return action(*given)
    except (Exception, SystemExit) as error:
        message = explain(error)
        if message is None:
            raise
        return message


def explain(error: BaseException, can_go_on: bool = True) -> str | None:
    """Message for an error of the user's or of their machine's; None for one of ours.

    ``can_go_on`` where a run may have been under way that the same command resumes.
    """
    from pfl_bench.types import UserInputError, WorkerError
    from privacy.errors import PrivacyError

    go_on = _GO_ON if can_go_on else ""
    if isinstance(error, (UserInputError, WorkerError, PrivacyError)):
        return str(error)
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return f"memory ran out ({error}); allow more (ulimit -v)"
    if isinstance(error, MemoryError):
        return f"memory ran out ({error or 'no more could be had'}); {_SMALLER}{go_on}"
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which may not be loaded
        return f"the GPU's memory ran out ({str(error).splitlines()[0]}); {_SMALLER}{go_on}"
    if isinstance(error, RuntimeError) and (found := _TOO_LARGE.search(str(error))):
        return (
            f"memory ran out (one tensor needs {int(found[1]) / 1e9:,.1f} GB); {_SMALLER} "
            f"(local_batch_size, batch_size, evaluation.batch_size) or a smaller model{go_on}"
        )
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # pathlib's
        return f"{error}: its links lead back to it; remove them, or name another file or folder"
    if isinstance(error, UnicodeEncodeError) and (_is_narrow() or "surrogates" in error.reason):
        return _not_text(error.object[:200])
    operation, is_nondeterministic, _ = str(error).partition(_NONDETERMINISTIC)
    if is_nondeterministic:
        return (
            f"device: {operation}{_NONDETERMINISTIC} on CUDA, and a private run must be one that "
            "can be repeated; replace the layer that needs it, or set device=cpu"
        )
    where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    if isinstance(error, OSError) and error.errno in _OTHER_ERRORS:
        return f"{where}{_OTHER_ERRORS[error.errno]}{go_on}"
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        mend = "free space or give another --out" if is_full else _ANOTHER
        return f"{where}{_MACHINE_ERRORS[error.errno]}; {mend}{go_on}"
    place = _plugin_place(error)
    if place is not None:
        return f"a plug-in failed: {place}; mend that file"
    if isinstance(error, OSError):
        return f"{where}{error.strerror or error}; {_ANOTHER}{go_on}"
    return None


def _is_narrow() -> bool:
    """Whether the locale has letters of its own only, and no others."""
    return sys.getfilesystemencoding() != "utf-8"


def _not_text(text: str) -> str:
    """Message for a name that cannot be written, or not in this locale."""
    if _is_narrow():
        return (
            f"{text!a}: this locale ({sys.getfilesystemencoding()}) lacks letters of that name; "
            "set the environment variable LC_ALL=C.UTF-8 or PYTHONUTF8=1, and try again"
        )
    return f"{text!a} is not UTF-8, as all that is written has to be: rename it, or a folder above"


def _plugin_place(error: BaseException) -> str | None:
    """One line: the user's file and line that an error comes from, and what it says.

    None where no plug-in of the user's took part.
    """
    import traceback

    from pfl_bench.plugins import user_files
    from pfl_bench.types import PluginError, ended_by_signal

    if ended_by_signal(error):
        return None
    try:
        own = {os.path.realpath(file) for files in user_files().values() for _, file in files}
    except PluginError:  # of another plug-in
        return None
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 1))
    elif isinstance(error, TypeError):
        # A call that does not fit has no line in the file of what was called, but its name.
        called = said.partition("()")[0]
        places += [(code.co_filename, code.co_firstlineno) for code in _codes_named(called, own)]
    file, line = next((p for p in reversed(places) if os.path.realpath(p[0]) in own), ("", 0))
    if not file:
        # What a class lacks has no line either, but the class that we call has.
        frame = frames[-1][0] if frames else None
        for owner in (getattr(error, "obj", None), frame and frame.f_locals.get("self")):
            module = sys.modules.get(type(owner).__module__)
            file = getattr(module, "__file__", None) or ""
            if os.path.realpath(file) in own:
                name = type(owner).__qualname__
                if frame and isinstance(error, NotImplementedError):
                    said = said or f"there is no {frame.f_code.co_name}()"
                return f"{file}, class {name}: {type(error).__name__}: {said}".partition("\n")[0]
        return None
    return f"{file}, line {line}: {type(error).__name__}: {said}".partition("\n")[0]


def _codes_named(name: str, files: Collection[str]) -> Iterator[CodeType]:
    """Functions and methods of a qualified name in loaded modules of some files."""
    for module in list(sys.modules.values()):
        if os.path.realpath(getattr(module, "__file__", None) or "") in files:
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if isinstance(code := getattr(found, "__code__", None), CodeType):
                yield code
