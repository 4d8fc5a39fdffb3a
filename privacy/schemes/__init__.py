"""Sampling schemes, one module each, found by name: a new file is a new scheme.

Only the module that is asked for is imported.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, cast

from privacy.errors import PrivacyError

if TYPE_CHECKING:
    from privacy.sampling_scheme import SamplingScheme

# Messages name these first.
_USUAL = ("poisson", "cyclic_poisson", "fixed_size", "full", "selected")


def scheme_names() -> tuple[str, ...]:
    """Names of all schemes, without importing them."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted(found, key=lambda name: (name not in _USUAL, _place(name), name)))


def _place(name: str) -> int:
    return _USUAL.index(name) if name in _USUAL else 0


def scheme_type(name: str) -> type[SamplingScheme]:
    """The class of a scheme.

    Raises:
        PrivacyError: There is none of that name.
    """
    names = scheme_names()
    if name not in names:
        raise PrivacyError(f"the sampling scheme is {name!r}, but must be one of {names}")
    module = importlib.import_module(f"{__name__}.{name}")
    return cast("type[SamplingScheme]", module.Scheme)


def scheme_named(
    name: str, min_separation: int = 1, max_participations: int | None = None
) -> SamplingScheme:
    """A scheme by its name; its arguments are checked with a population.

    Raises:
        PrivacyError: There is none of that name.
    """
    return scheme_type(name)(min_separation, max_participations)
