"""Runs as jobs of a launcher, and the queue that takes all of them to their end."""

from __future__ import annotations

from pfl_bench.runs.jobs.job import Failure, Launcher, LaunchRequest, Run
from pfl_bench.runs.jobs.queue import launch

__all__ = ["Failure", "LaunchRequest", "Launcher", "Run", "launch"]
