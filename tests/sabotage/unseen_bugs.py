"""Bugs that the record of one run cannot show: where the audit ends."""

from __future__ import annotations

from tests.sabotage.planting import Bug

UNSEEN: tuple[Bug, ...] = ()
