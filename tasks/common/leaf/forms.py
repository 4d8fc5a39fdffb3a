"""Recognising in which of its public forms a folder holds a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pfl_bench.types import DataError

_NAMES_SHOWN = 10


def choose_form(
    source: Path,
    data_set: str,
    looked_for: Mapping[str, str],
    is_there: Callable[[str], bool],
    wanted: str | None,
) -> str:
    """Recognise the form of a folder, by which a user may ask for one with the option ``form``.

    A form is how public files hold a data set; a variant is what a store made of them is called.

    Args:
        source: The folder.
        data_set: Its name, for messages.
        looked_for: What each form looks like on disk, by the form's name.
        is_there: Whether the folder shows signs of a form; not called if there is no folder.
        wanted: The form that is asked for; None to take the only one that is there.

    Raises:
        DataError: There is no such folder, it holds none of the forms, or more than one and none
            is asked for.
    """
    if not source.is_dir():
        what = "is a file" if source.exists() else "does not exist"
        raise DataError(f"{source} {what}; --source takes the folder that holds the public files")
    candidates = [form for form in looked_for if wanted in (None, form)]
    there = [form for form in candidates if is_there(form)]
    if len(there) == 1:
        return there[0]
    if there:
        raise DataError(
            f"{source} holds several forms: {', '.join(there)}; say which by form=NAME, or "
            "give a folder with one"
        )
    names = sorted(path.name for path in source.iterdir())
    found = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    lines = "".join(f"\n  - {form}: {looked_for[form]}" for form in candidates)
    raise DataError(
        f"{source} holds no public form of {data_set}. Looked for:{lines}\nFound: {found}{more}."
    )
