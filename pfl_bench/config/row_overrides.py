"""Overrides of several rows at once: those of a section are for the rows that have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pfl_bench.config.yaml_text import read_yaml

# Of the first four a row has one, what it trains by; of the last, one that claims privacy.
_SECTIONS = ("federated", "central", "local", "multitask", "privacy")


def fit_overrides(
    rows: Iterable[Path], overrides: Sequence[str]
) -> tuple[dict[Path, list[str]], list[str]]:
    """Tell which overrides each of several rows takes.

    ``federated.num_rounds=2`` is for federated rows: a central row beside them stays as it is, as
    does one without privacy under ``privacy.epsilon=2``. An override that is for none of the rows
    is given to all, where it is refused.

    Returns:
        The overrides of each row; and, for a person, which are not applied to which rows.
    """
    lacking = {row: {key for key in _SECTIONS if read_yaml(row).get(key) is None} for row in rows}
    fitting: dict[Path, list[str]] = {row: [] for row in lacking}
    left_out = []
    for text in overrides:
        section = text.partition(".")[0].strip()
        without = [row for row in lacking if section in lacking[row]]
        if len(without) == len(lacking):
            without = []
        for row in lacking:
            if row not in without:
                fitting[row].append(text)
        if without:
            names = ", ".join(str(row) for row in without)
            left_out.append(f"{text}: not applied to rows without a section {section}: {names}")
    return fitting, left_out
