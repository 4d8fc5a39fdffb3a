"""A side of a benchmark in a process of its own: ``python -m benchmarks.child KIND JOB.json``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.remote import claim_output, serve
from benchmarks.workload import Job, configuration


def main() -> None:
    """Build the side that the command line names, and serve it."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    output = claim_output()
    if kind == "flower":
        from benchmarks.flower_side import run

        run(path, output)
        return
    job = Job.read(path)
    torch.set_num_threads(job.threads)
    if kind == "pfl":
        from benchmarks.local_training import Material
        from benchmarks.pfl_side import pfl_side

        serve(pfl_side(Material(job)), output)
    else:
        from benchmarks.common import OurSide

        side = OurSide(configuration(job), path.parent)
        serve(side, output)
        side.close()


if __name__ == "__main__":
    main()
