"""``pfl-bench`` as a rank of torchrun on the device without kernels; gloo stands for NCCL."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist

from pfl_bench.cli.main import main
from tests.cuda_stub.device import StubDevice

_new_group = dist.new_group


def _by_gloo(*, backend: str, **rest: Any) -> Any:
    return _new_group(backend=backend.replace("nccl", "gloo"), **rest)


dist.new_group = _by_gloo
with StubDevice():
    code = main()
sys.exit(code)
