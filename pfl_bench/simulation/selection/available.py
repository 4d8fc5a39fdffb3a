"""Uniform selection among the users who are available as the round begins."""

from __future__ import annotations

from pfl_bench.config.training import Strict
from pfl_bench.simulation.selection.uniform import Uniform
from pfl_bench.simulation.selectors import Users


class Options(Strict):
    """The selection among those available has no options."""


def build(options: Options, users: Users) -> Uniform:
    """Build the selection among those who are available."""
    return Uniform(only_available=True)
