"""Uniform selection among the users who are available as the round begins."""

from __future__ import annotations

from pfl_bench.config.training import NoOptions
from pfl_bench.simulation.selection.uniform import Uniform
from pfl_bench.simulation.selectors import Users

Options = NoOptions


def build(options: Options, users: Users) -> Uniform:
    """Build the selection among those who are available."""
    return Uniform(only_available=True)
