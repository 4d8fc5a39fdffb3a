"""A stranger's ``.npz`` runs nothing, takes no more memory than it has, and ends in a message."""

from __future__ import annotations

import io
import os
import pickle
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_bench.cli.main import main
from pfl_bench.runs import shadows
from pfl_bench.simulation.device_sources.generated import generate_devices
from pfl_bench.simulation.devices.trace_file import write_trace_file

_DIGEST = "sha256:0"
_HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1500000000,)}"


class Trap:
    """Its pickle makes a file where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


def array(header: str) -> bytes:
    """A member of an archive with this header, and hardly any data."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(64)


def saved(value: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, value)
    return content.getvalue()


def claims_more(whole: bytes) -> bytes:
    """The directory says that the first member is as large as a bomb's."""
    at = whole.index(b"PK\x01\x02") + 20
    return whole[:at] + (0xFFFFFFF0).to_bytes(4, "little") * 2 + whole[at + 8 :]


@pytest.fixture
def good(tmp_path: Path) -> dict[str, bytes]:
    write_trace_file(tmp_path / "good.npz", generate_devices(5, np.random.default_rng(1), "a"))
    with zipfile.ZipFile(tmp_path / "good.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    values = {"model": _DIGEST, "losses": np.ones(4), "logits": np.ones(4)}
    return members | {f"{name}.npy": saved(value) for name, value in values.items()}


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content.getvalue()


def start_of(bad: Any) -> str:
    """A name of a file: the text of megabytes would take seconds."""
    return str((bad[0], bad[1][:40]) if isinstance(bad, tuple) else bad[:40])[:40]


@pytest.mark.parametrize(
    "bad",
    [
        saved(np.array([Trap()], dtype=object)),
        pickle.dumps(Trap()),
        b"no array",
        b"",
        array(_HUGE),
        array(_HUGE.replace("<f8", "|V0")),
        array("{'descr': ("),
        array("{'descr': ('<f8',), 'fortran_order': False, 'shape': (4,)}"),
        saved(np.ones(4, np.int16)),
        saved(np.array("text")),
        saved(np.ones((2, 2), np.float32)),
        (zipfile.ZIP_DEFLATED, saved(np.zeros(1 << 23))),
        (zipfile.ZIP_LZMA, saved(np.zeros(4))),
        "claim",
        "cut",
        "pickle",
        "pipe",
    ],
    ids=start_of,
)
def test_a_bad_array_is_refused(
    good: dict[str, bytes],
    bad: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, path = packed(good), tmp_path / shadows.USERS_FILE
    path.write_bytes(whole)
    assert shadows._kept(tmp_path, _DIGEST) is not None
    assert main(["data", "traces", "file", f"path={path}"]) == 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method, data = bad if isinstance(bad, tuple) else (zipfile.ZIP_STORED, bad)
    files = {"cut": whole[: len(whole) // 2], "pickle": pickle.dumps(Trap())}
    files["claim"] = claims_more(whole)
    if bad == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif isinstance(bad, str):
        path.write_bytes(files[bad])
    else:
        harmed = ("losses.npy", "latency_ms.npy")
        path.write_bytes(packed(good | dict.fromkeys(harmed, data), method))
    capsys.readouterr()
    assert shadows._kept(tmp_path, _DIGEST) is None
    assert main(["data", "traces", "file", f"path={path}"]) == 2
    assert "users.npz" in capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("period", [0, 2**31, 10**15, 10**400])
def test_a_period_of_no_end_is_refused(
    good: dict[str, bytes], period: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "devices.npz"
    about = str(np.load(io.BytesIO(good["about.npy"])))
    changed = about.replace('"period_s": 518400', f'"period_s": {period}')
    assert changed != about
    path.write_bytes(packed(good | {"about.npy": saved(changed)}))
    assert main(["data", "traces", "file", f"path={path}"]) == 2
    assert "devices.npz" in capsys.readouterr().err


def test_a_capacity_that_is_no_number_is_refused(
    good: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "devices.npz"
    values = np.full(5, np.nan, np.float32)
    path.write_bytes(packed(good | {"latency_ms.npy": saved(values)}))
    assert main(["data", "traces", "file", f"path={path}"]) == 2
    assert "not a finite number above 0" in capsys.readouterr().err
