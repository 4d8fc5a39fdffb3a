"""What is set of the machine for a process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from pfl_bench.client.machine import keep_freed_memory
if sys.argv[1:]:
    keep_freed_memory()
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_blocks_are_kept_for_the_next() -> None:
    """Two thirds of an audit of DP-SGD went to pages that the system cleared for each example."""
    lost, kept = (
        int(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments], check=True, capture_output=True
            ).stdout
        )
        for arguments in ([], ["kept"])
    )
    if lost < 100_000:
        pytest.skip("pages of this system are large: few are cleared")
    # A heap that meets a mapping goes on elsewhere, with a few blocks more.
    assert kept < lost / 2
