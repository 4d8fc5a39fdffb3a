"""Preparing FLAIR: interrupted, killed, on a full disk, in bounded memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.flair.prepare import Options, prepare
from tests import warm
from tests.helpers import REPOSITORY
from tests.pfl_bench.data.test_store_full_disk import small_disk
from tests.tasks.flair_files import (
    SIDE,
    WRITERS,
    Picture,
    contents,
    encoded,
    expected,
    make_pictures,
    prepared,
    refused,
    write_folder,
    write_metadata,
    write_parquet,
    write_tarballs,
)

PICTURES = make_pictures()

KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.flair.prepare import Options, prepare

source, out, stage, at, side = sys.argv[1:]

def kill(what, done, total):
    if what.startswith(stage) and done >= int(at):
        os.kill(os.getpid(), signal.SIGKILL)

prepare(Path(source), Path(out), Options(image_size=int(side)), kill)
"""


def forget_content(path: Path) -> None:
    """Fill a file with zeros behind its back: size and time stay, whoever reads it fails."""
    state = path.stat()
    path.write_bytes(bytes(state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("stage", ["reading tarballs", "writing"])
def test_a_killed_process_is_gone_on_with(tmp_path: Path, stage: str) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    folder = tmp_path / "o"
    folder.mkdir()
    out = folder / "out.h5"
    at = (source / "small_images-00.tar.gz").stat().st_size + 1 if stage != "writing" else 5
    command = ("-c", KILLED, str(source), str(out), stage, str(at), str(SIDE))
    done = warm.python(*command, cwd=REPOSITORY)
    assert done.returncode == -9, done.stderr
    assert not out.exists()
    assert ".out.h5.spool" in names(folder)
    # Killed in the second tarball, or later: what is in the spool is not read again.
    for number in range(3 if stage == "writing" else 1):
        forget_content(source / f"small_images-{number:02d}.tar.gz")
    prepared(source, out)
    assert contents(out) == expected(PICTURES)
    assert names(folder) == ["out.h5"]


@pytest.mark.parametrize("form", WRITERS)
def test_an_interrupt_at_any_stage_leaves_the_old_store_and_can_be_gone_on_with(
    form: str, tmp_path: Path
) -> None:
    source = WRITERS[form](tmp_path / "raw", PICTURES)
    folder = tmp_path / "o"
    folder.mkdir()
    out = folder / "out.h5"
    out.write_text("precious")
    stages: list[str] = []
    for _ in range(10):

        def interrupt(what: str, done: int, total: int | None) -> None:
            if what not in stages:
                stages.append(what)
                raise KeyboardInterrupt

        try:
            prepare(source, out, Options(image_size=SIDE), interrupt)
        except KeyboardInterrupt:
            assert out.read_text() == "precious"
            assert not list(folder.glob("*partial*"))
        else:
            break
    assert stages[-1] == "writing the store (images)"
    assert contents(out).keys() == expected(PICTURES).keys()
    assert names(folder) == ["out.h5"]


def test_an_input_that_has_changed_is_read_again(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    broken = source / "small_images-02.tar.gz"
    whole = broken.read_bytes()
    broken.write_bytes(b"x")
    (tmp_path / "o").mkdir()
    out = tmp_path / "o" / "out.h5"
    with pytest.raises(DataError):
        prepared(source, out)
    # Other content under the same name: the spool's must not be taken.
    write_tarballs(source, PICTURES[::-1])
    prepared(source, out)
    assert contents(out) == expected(PICTURES)
    broken.write_bytes(b"x")
    with pytest.raises(DataError):
        prepared(source, out)
    broken.write_bytes(whole)
    refused(source, tmp_path / "o2", "12 images cannot be used", image_size=SIDE + 1)


def test_other_options_do_not_take_what_was_checked_otherwise(tmp_path: Path) -> None:
    cut = [PICTURES[0].__class__(**{**vars(PICTURES[0]), "data": PICTURES[0].data[:-30]})]
    source = write_tarballs(tmp_path / "raw", [*cut, *PICTURES[1:]])
    (tmp_path / "o").mkdir()
    out = tmp_path / "o" / "out.h5"
    with pytest.raises(DataError, match="wrong_size"):
        prepared(source, out, image_size=SIDE + 1, check_images="headers")
    with pytest.raises(DataError, match="1 unreadable"):
        prepared(source, out)
    prepared(source, out, check_images="headers")
    assert names(tmp_path / "o") == ["out.h5"]


@pytest.mark.parametrize("damage", ["index", "blob cut", "blob changed"])
def test_damaged_temporary_data_do_not_get_into_a_store(tmp_path: Path, damage: str) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    broken = source / "small_images-02.tar.gz"
    whole = broken.read_bytes()
    broken.write_bytes(b"x")
    folder = tmp_path / "o"
    refused(source, folder, "small_images-02")
    broken.write_bytes(whole)
    spool = folder / ".out.h5.spool"
    for path in spool.glob("*.index" if damage == "index" else "*.blob"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + (b"" if damage != "blob changed" else b"x"))
    if damage == "blob changed":
        refused(source, folder, "temporary data are damaged", str(spool))
    else:
        prepared(source, folder / "out.h5")
        assert contents(folder / "out.h5") == expected(PICTURES)


def test_two_processes_on_one_output_are_refused(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    (tmp_path / ".out.h5.spool").mkdir()
    with FileLock(tmp_path / ".out.h5.spool" / "lock"):
        with pytest.raises(DataError, match="another process is preparing"):
            prepared(source, tmp_path / "out.h5")
        prepared(source, tmp_path / "other.h5")
    prepared(source, tmp_path / "out.h5")
    assert names(tmp_path) == ["other.h5", "out.h5", "raw"]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    out = tmp_path / "o" / "out.h5"
    for form, write in (("tarballs", write_tarballs), ("parquet", write_parquet)):
        source = write(tmp_path / form, PICTURES)
        prepared(source, out)
        size = out.stat().st_size
        outcomes = []
        for limit in (1, 500, 2_000, 6_000, size // 2, size - 1, size):
            out.write_text("precious")
            with file_size_limit(limit):
                try:
                    prepared(source, out)
                except DataError as error:
                    message = str(error)
                else:
                    message = ""
            outcomes.append(message)
            if message:
                assert "ree space" in message
                assert "Traceback" not in message
                assert not list(out.parent.glob("*partial*"))
                assert out.read_text() == "precious"
        assert "temporary data" in outcomes[0]
        assert "cannot write the store" in outcomes[-2]
        assert "kept in" in outcomes[-2]
        assert outcomes[-1] == ""
        assert contents(out) == expected(PICTURES)
        assert names(tmp_path / "o") == ["out.h5"]


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    folder = tmp_path / "o"
    folder.mkdir()
    page = os.sysconf("SC_PAGE_SIZE")
    for pages, words in ((2, "cannot write temporary data"), (12, "cannot write the store")):
        with small_disk(folder, pages * page):
            message = refused(source, folder, words, "No space left on device")
            assert "kept in" in message


def test_the_unpacked_folder_needs_no_room_for_images_beside_the_store(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "raw", PICTURES)

    def look(what: str, done: int, total: int | None) -> None:
        assert list((tmp_path / "o" / ".out.h5.spool").glob("*.blob")) == []

    (tmp_path / "o").mkdir()
    prepare(source, tmp_path / "o" / "out.h5", Options(image_size=SIDE), look)


MEMORY = """
import sys
from pathlib import Path
from tasks.flair.prepare import Options, prepare
prepare(Path(sys.argv[1]), Path(sys.argv[2]), Options(image_size=256, check_images="headers"),
        lambda *step: None)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_grows_with_entries_by_far_less_than_their_images(tmp_path: Path) -> None:
    image = encoded(side=256)
    peaks = []
    for count in (400, 4_000):
        users = [f"{number // 8:06d}@N00" for number in range(count)]
        pictures = [
            Picture(str(10**10 + n), users[n], "train", ("bag", "dog"), image) for n in range(count)
        ]
        source = write_tarballs(tmp_path / str(count), pictures, count=2)
        write_metadata(source, pictures)
        command = [sys.executable, "-c", MEMORY, str(source), str(tmp_path / "out.h5")]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) << 10)
        with Store(tmp_path / "out.h5") as store:
            assert store.split("train").num_examples == count
    images = 3_600 * len(image)
    assert images > 12 << 20
    assert peaks[1] - peaks[0] < images / 2, (peaks, images)
