"""Schemes by their names, in settings as configurations have them."""

from __future__ import annotations

from typing import Any

from privacy.sampling_scheme import scheme_named


def with_scheme(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings whose ``scheme``, ``separation`` and ``max_participations`` became one scheme."""
    rest = dict(settings)
    name = rest.pop("scheme")
    separation, cap = rest.pop("separation", 1), rest.pop("max_participations", None)
    return {**rest, "scheme": scheme_named(name, separation, cap)}
