"""A disk that fills up at any point: an error that says so, nothing left, old files untouched."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_bench.data.spool import Spool
from pfl_bench.types import DataError
from tests.helpers import REPOSITORY
from tests.pfl_bench.data.store_samples import FIELDS, data, writer

# Every attempt is a process of its own, since what is tested once killed it; they are forked,
# since importing costs more than all attempts.
SCRIPT = """
import ctypes, gc, os, resource, signal, sys, warnings
from pathlib import Path
import numpy as np
from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.types import DataError
from tests.forking import fork

folder, kind, *amounts = sys.argv[1:]
path = Path(folder) / "toy.h5"
fields = {"inputs": FieldSpec("uint8", (28, 28)), "targets": FieldSpec("uint8"),
          "tags": FieldSpec("int32", ragged=True)}

def attempt():
    phase = "open"
    try:
        with StoreWriter(path, task="t", variant="v", source="s", split_by="user", num_classes=62,
                         input_shape=(28, 28), fields=fields) as writer:
            phase = "append"
            for split, client in (("train", "b"), ("train", "a"), ("test", "c")):
                writer.append(split, client, inputs=np.full((26, 28, 28), 7, np.uint8),
                              targets=np.zeros(26, np.uint8), tags=[[1, 2, 3]] * 26)
            writer.set_names("words", [f"word {number}" for number in range(500)])
            phase = "finalise"
    except DataError as error:
        print(phase, error)
    else:
        print("done")

gc.freeze()  # what importing made need not be collected in each process
for index, amount in enumerate(map(int, amounts)):
    path.write_text("precious")
    if kind == "ballast":
        with open(Path(folder) / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, amount)
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other packages' idle threads
        child = fork()
    if child == 0:
        if kind == "limit":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (amount, amount))
        attempt()
        gc.collect()
        sys.stdout.flush()
        if index % 4 == 0:
            ctypes.CDLL(None).exit(0)  # has HDF5 close what is open; slow, for other libraries do
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"{kind} {amount}: status {status}"
    assert set(os.listdir(folder)) <= {"toy.h5", "ballast"}, os.listdir(folder)
    if path.read_bytes() != b"precious":
        with Store(path) as store:
            store.verify()
            print("size", path.stat().st_size)
"""


def outcomes(folder: Path, kind: str, amounts: Iterator[int]) -> list[str]:
    """What came of writing a store of three users under each limit, a line each."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(folder), kind]
    done = subprocess.run(
        [*command, *map(str, amounts)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def check(lines: list[str], reason: str) -> None:
    """The phases come in order as the limit grows, all of them, and every refusal says why."""
    lines = [line for line in lines if not line.startswith("size")]
    phases = [line.split()[0] for line in lines]
    expected = [phase for phase in ("open", "append", "finalise", "done") if phase in phases]
    assert {"finalise", "done"} <= set(phases)
    assert list(dict.fromkeys(phases)) == expected
    for line in lines:
        assert line == "done" or (reason in line and "Free space" in line)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on file sizes")
def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    unlimited = outcomes(tmp_path, "limit", iter([1 << 30]))
    size = int(unlimited[1].split()[1])
    limits = {*range(1000, size, 1700), *range(size - 3000, size + 300, 150), size - 1, size}
    lines = outcomes(tmp_path, "limit", iter(sorted(limits)))
    check(lines, "File too large")
    assert lines.count("done") == sum(limit >= size for limit in limits)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs POSIX files")
def test_a_full_disk(tmp_path: Path) -> None:
    page, pages = os.sysconf("SC_PAGE_SIZE"), 60
    with small_disk(tmp_path, pages * page):
        check(
            outcomes(tmp_path, "ballast", iter(range((pages - 1) * page, 0, -page))), "[Errno 28]"
        )


def test_temporary_files_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "train.targets.raw").mkdir()  # in the way of the second file
    with pytest.raises(OSError, match=r"train\.targets\.raw"):
        Spool(tmp_path, "train", FIELDS)  # a file left open would be a warning, so an error


def test_its_own_temporary_folder_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    (tmp_path / ".toy.h5.partial-elsewhere").mkdir()
    monkeypatch.setattr(Spool, "append", full)
    with (
        pytest.raises(DataError, match=r"Killed runs left \['\.toy\.h5\.partial-elsewhere'\]"),
        writer(Path("toy.h5")) as store,
    ):
        store.append("train", "a", **data())
