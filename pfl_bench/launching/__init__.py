"""Runs as jobs: processes of this machine, or jobs of a Slurm cluster, through submitit."""

from __future__ import annotations

from pfl_bench.launching.job import Failure, Run
from pfl_bench.launching.launchers import Launcher
from pfl_bench.launching.local import LocalLauncher
from pfl_bench.launching.queue import launch
from pfl_bench.launching.slurm import SlurmLauncher

__all__ = ["Failure", "Launcher", "LocalLauncher", "Run", "SlurmLauncher", "launch"]
