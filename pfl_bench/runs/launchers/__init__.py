"""Runs as jobs: processes of this machine, or jobs of a Slurm cluster, through submitit."""

from __future__ import annotations

from pfl_bench.runs.launchers.job import Failure, Launcher, Run
from pfl_bench.runs.launchers.local import LocalLauncher
from pfl_bench.runs.launchers.queue import launch
from pfl_bench.runs.launchers.slurm import SlurmLauncher

__all__ = ["Failure", "Launcher", "LocalLauncher", "Run", "SlurmLauncher", "launch"]
