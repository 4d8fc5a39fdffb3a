"""Recognising in which of its public forms a folder holds a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from pfl_bench.types import DataError

_NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Form:
    """One public form of a data set.

    A form is how public files hold a data set; a variant is what a store made of them is called.

    Attributes:
        name: By which a user may ask for it, with the option ``form``.
        looked_for: What it looks like on disk, for messages.
        is_there: Whether a folder shows signs of this form; it may still be incomplete.
    """

    name: str
    looked_for: str
    is_there: Callable[[Path], bool]


AnyForm = TypeVar("AnyForm", bound=Form)


def choose_form(
    source: Path, data_set: str, forms: Iterable[AnyForm], options: BaseModel
) -> AnyForm:
    """Recognise the form of a folder; refused if it holds none, or several without a wish.

    ``data_set`` names it in messages; an option ``form``, if there is one, is the form that is
    asked for, None for the only one that is there.
    """
    wanted = getattr(options, "form", None)
    if not source.is_dir():
        what = "is a file" if source.exists() else "does not exist"
        raise DataError(f"{source} {what}; --source takes the folder that holds the public files")
    candidates = [form for form in forms if wanted in (None, form.name)]
    there = [form for form in candidates if form.is_there(source)]
    if len(there) == 1:
        return there[0]
    if there:
        choice = "say which by form=NAME, or " if hasattr(options, "form") else ""
        raise DataError(
            f"{source} holds several forms: {', '.join(form.name for form in there)}; {choice}"
            "give a folder with one"
        )
    names = sorted(path.name for path in source.iterdir())
    found = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    lines = "".join(f"\n  - {form.name}: {form.looked_for}" for form in candidates)
    raise DataError(
        f"{source} holds no public form of {data_set}. Looked for:{lines}\nFound: {found}{more}."
    )
