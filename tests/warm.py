"""New processes of Python in which the libraries are imported already.

Importing PyTorch and dp-accounting takes five seconds of a processor, in each process that a test
starts. Here a server imports them once, and forks. Its children have none of this project's modules
and find those that they are told to. They are processes of their own in all else.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection, forkserver, reduction
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]

LIBRARIES = (
    "numpy scipy.stats torch torch._dynamo torch.utils.flop_counter dp_accounting opacus h5py yaml "
    "pydantic rich matplotlib.figure"
)


def _server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES.split())
    return context


def ensure_running() -> None:
    """Start the server, if there is none yet."""
    _server()
    forkserver.ensure_running()


class Context(multiprocessing.context.ForkServerContext):
    """Starts what ``get_context("spawn")`` would, with this process's environment, as it does."""

    def Process(self, *, target: Callable[..., None], args: Any = (), **rest: Any) -> Any:  # noqa: N802
        """A process that ``start`` forks from the server."""
        first = _Environment(dict(os.environ))
        return _server().Process(target=_call, args=(first, target, args), **rest)


class _Environment:
    """Set in the process that unpickles it, before what follows it is imported there."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, str]]]:
        return _set, (self._values,)


def _call(_: None, target: Callable[..., None], args: Any) -> None:
    target(*args)


def _set(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    # The server may have been told otherwise by a flag, which it has from the first process.
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))


def python(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run Python as ``subprocess.run`` does with the text of both streams captured.

    Args:
        arguments: "-c", a program and its arguments, or "-m", a module and its arguments.
        cwd: Where it runs; it finds modules there first, as Python does.
        env: Its environment; None for this process's. What libraries read when they are imported
            must be the same.
        check: Whether a code other than 0 raises ``subprocess.CalledProcessError``.
    """
    environment = dict(os.environ if env is None else env)
    folder = str(Path.cwd() if cwd is None else cwd)
    with tempfile.TemporaryDirectory() as place:
        streams = (f"{place}/out", f"{place}/err")
        process = start(arguments, folder, environment, streams)
        process.join()
        out, err = (Path(s).read_text(encoding="utf-8", errors="replace") for s in streams)
    code = process.exitcode
    assert code is not None
    done = subprocess.CompletedProcess([sys.executable, *arguments], code, out, err)
    if check:
        done.check_returncode()
    return done


def start(
    arguments: tuple[str, ...], folder: str, environment: dict[str, str], streams: tuple[str, str]
) -> Any:
    """Start what ``python`` waits for, with files for its two streams, which may be one."""
    process = _server().Process(target=_main, args=(arguments, folder, environment, streams))
    process.start()
    return process


# Stands for a warm process where a program is given a command: tells it its signals, ends as it
# does, and takes it along. SIGSTOP cannot be told; SIGTSTP is told as that.
_CLIENT = """
import json, os, signal, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect({door!r})
words = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(door, [len(words).to_bytes(8, "big")], [1, 2])
door.sendall(words)
child = int.from_bytes(door.recv(8), "big")
for name in ("TERM", "INT", "HUP", "USR1", "USR2", "CONT", "TSTP"):
    number = signal.Signals["SIG" + name]
    if signal.getsignal(number) is not signal.SIG_IGN:
        told = signal.SIGSTOP if name == "TSTP" else number
        signal.signal(number, lambda _, frame, told=told: os.kill(child, told))
os._exit(int.from_bytes(door.recv(8), "big"))
"""


@contextlib.contextmanager
def command() -> Iterator[str]:
    """A command that is ``python`` to programs of others, and starts warm processes."""
    # A socket's path may have a hundred letters.
    folder = tempfile.mkdtemp(prefix="warm-")
    path = Path(folder, "python")
    text = _CLIENT.format(door=f"{folder}/door")
    path.write_text(f"#!{sys.executable} -SE\n{text}", encoding="utf-8")
    path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder}/door")
        door.listen()
        threading.Thread(target=_serve, args=(door,), daemon=True).start()
        try:
            yield str(path)
        finally:
            # Wakes the thread.
            door.shutdown(socket.SHUT_RDWR)
            shutil.rmtree(folder)


def _serve(door: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = door.accept()
            threading.Thread(target=_attend, args=(client,), daemon=True).start()


def _attend(client: socket.socket) -> None:
    """Run what a client was called with, and kill it if the client ends before."""
    with client:
        length, streams, _, _ = socket.recv_fds(client, 8, 2)
        with client.makefile("rb") as words:
            arguments, folder, environment = json.loads(words.read(int.from_bytes(length, "big")))
        # stderr goes out by lines, and both streams when the program ends.
        arguments = tuple(word for word in arguments if word != "-u")
        passed = tuple(_Stream(stream) for stream in streams)
        process = _server().Process(target=_main, args=(arguments, folder, environment, passed))
        process.start()
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):
            client.sendall((process.pid or 0).to_bytes(8, "big"))
        connection.wait([process.sentinel, client])
        if process.exitcode is None:
            process.kill()
        process.join()
        code = process.exitcode or 0
        with contextlib.suppress(OSError):
            client.sendall((code if code >= 0 else 128 - code).to_bytes(8, "big"))


class _Stream:
    """An open file that a process is given when it starts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _descriptor, (reduction.DupFd(self._descriptor),)


def _descriptor(passed: Any) -> int:
    number: int = passed.detach()
    return number


def _main(
    arguments: tuple[str, ...],
    folder: str,
    environment: dict[str, str],
    streams: tuple[str | int, ...],
) -> None:
    """Become what ``python ARGUMENTS`` is in ``folder``; streams are paths, or open."""
    for number, stream in enumerate(streams, start=1):
        appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(stream, appended) if isinstance(stream, str) else stream
        os.dup2(file, number)
        os.close(file)
    _set(environment)
    os.chdir(folder)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    # This project is found as it is installed, behind the folder and PYTHONPATH.
    others = [p for p in sys.path if p not in ("", str(REPOSITORY)) and Path(p).is_absolute()]
    sys.path[:] = ["" if arguments[0] == "-c" else folder, *filter(None, paths), *others]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    kind, program, *rest = arguments
    sys.argv = [kind, *rest]
    try:
        if kind == "-c":
            # Its names are those of __main__, where spawned processes and pickles look for them.
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(program, "<string>", "exec"), vars(main))
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
