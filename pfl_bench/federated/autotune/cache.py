"""Files in which measured times are kept between runs: JSON, one for each kind of work.

The folder is ``pfl-bench/engines`` below ``$XDG_CACHE_HOME``, or below ``~/.cache``. The variable
``PFL_BENCH_CACHE`` names another folder in the place of ``pfl-bench``, or is "off". A file that is
damaged or cannot be written is said, and never stops a run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pfl_bench.federated.autotune.choice import Candidate
from pfl_bench.files import parse_json, read_text, write_json

VARIABLE = "PFL_BENCH_CACHE"
_FORMAT = 1


def cache_folder() -> Path | None:
    """The folder of kept times; None if the user wants none, or has no home."""
    named = os.environ.get(VARIABLE, "")
    if named == "off":
        return None
    if named:
        return Path(named) / "engines"
    # By its specification a relative path counts as none.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "pfl-bench" / "engines"


class TimingCache:
    """Kept times of one kind of work: machine, versions, model, data and local training.

    Without a ``folder`` nothing is kept.
    """

    def __init__(
        self, folder: Path | None, work: Mapping[str, Any], notice: Callable[[str], None]
    ) -> None:
        self._work = dict(work)
        self._notice = notice
        text = json.dumps(self._work, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.path = None if folder is None else folder / f"{name}.json"

    def read(self) -> dict[Candidate, float] | None:
        """Seconds a client of each candidate; None where nothing usable is kept."""
        if self.path is None or not self.path.exists():
            return None
        try:
            return _checked(parse_json(read_text(self.path)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._notice(
                f"engine: the kept times in {self.path} cannot be used ({error}); they are "
                "measured again"
            )
            return None

    def write(self, seconds: Mapping[Candidate, float]) -> None:
        """Keep measured times."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(
                self.path,
                {
                    "format": _FORMAT,
                    "seconds_a_client": {c.description: t for c, t in seconds.items()},
                    "work": self._work,
                },
            )
        except OSError as error:
            self._notice(
                f"engine: measured times cannot be kept in {self.path} ({error.strerror}), so that "
                f"the next run measures again, and may pick another engine; {VARIABLE} names "
                "another folder"
            )


def _checked(content: Any) -> dict[Candidate, float]:
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']!r}, expected {_FORMAT}")
    seconds = {}
    for description, value in content["seconds_a_client"].items():
        candidate = Candidate.of(description)
        if candidate is None or not isinstance(value, float) or not 0 < value < math.inf:
            raise ValueError(f"{description!r}: {value!r} is no time of an engine")
        seconds[candidate] = value
    if not seconds:
        raise ValueError("no times")
    return seconds
