"""pytest plug-in: each test runs on the device without kernels; what it cost goes to a file.

Written to the file that ``CUDA_STUB_REPORT`` names, as JSON by test: outcome, message, and where it
passed its counts (see ``StubDevice``) and properties.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cuda_stub import device

_REPORT: dict[str, dict[str, Any]] = {}


@pytest.fixture(autouse=True)
def stub_device(request: pytest.FixtureRequest) -> Iterator[device.StubDevice]:
    """The device, for the length of a test."""
    with pytest.MonkeyPatch.context() as patch, device.StubDevice() as stub:
        patch.setattr(torch, "lstm", device.lstm)
        patch.setattr(torch.cuda, "CUDAGraph", device.StubGraph)
        # Fused attention has no kernel on a CPU.
        for fused in ("flash", "mem_efficient", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
        patch.setattr(device.StubGraph, "device", stub, raising=False)
        yield stub
    entry = _REPORT.setdefault(request.node.nodeid, {})
    entry["counts"] = dict(stub.counts)
    entry["waits_at"] = dict(stub.waits_at.most_common(12))
    entry["float16"] = dict(stub.float16)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test, the worst of its parts."""
    entry = _REPORT.setdefault(report.nodeid, {})
    if entry.get("outcome", "passed") == "passed":
        entry["outcome"] = report.outcome
        entry["message"] = str(report.longrepr or "")[-2000:]
    entry["properties"] = dict(report.user_properties)


def pytest_sessionfinish() -> None:
    """Write the report."""
    Path(os.environ["CUDA_STUB_REPORT"]).write_text(json.dumps(_REPORT, indent=1))
