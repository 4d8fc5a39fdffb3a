"""Progress of long work, told while it goes on."""

from __future__ import annotations

from collections.abc import Callable

# What is being done, how much is done, and of how much; None where that is not known.
Progress = Callable[[str, int, int | None], None]
