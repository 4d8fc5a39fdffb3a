"""Reading pickles of plain data without running what is in them.

A pickle is a program: it may name any function of any module and call it. Here no names can be
looked up but those of three builtin types of plain values, so nothing is ever called that could do
more than make one of these. Everything else is refused with its name: classes, functions, numpy
arrays, codes of ``copyreg``, references to objects elsewhere. So is ``bytes`` as Python 3 writes it
in protocols 0 to 2, through a function of ``_codecs``.

Memory is not bounded: values take about ten times the bytes of the file, and a file that is made
to harm can ask for all there is. If the system refuses it, the error names the file.
"""

from __future__ import annotations

import builtins
import copyreg
import pickle
from pathlib import Path
from typing import Any, NoReturn

from pfl_bench.files import regular
from pfl_bench.types import DataError

# Containers that protocols before 4 write as a name and a call; the others have codes of their own.
_TYPES = ("set", "frozenset", "complex")
# What Python 2 calls the module, and Python 3 too in protocols 0 to 2.
_MODULES = ("builtins", "__builtin__")


class _Unpickler(pickle.Unpickler):
    """Admits plain values and builtin containers of them."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up a name that the pickle wants to use; refused unless it is admitted."""
        if module in _MODULES and name in _TYPES:
            return getattr(builtins, name)
        raise _RefusedError(f"{module}.{name}")

    def persistent_load(self, key: object) -> NoReturn:
        """Refuse a reference to an object that is not in the file."""
        raise _RefusedError(f"the persistent reference {key!r:.80}")


class _RefusedError(Exception):
    """The pickle wants something that is not plain data."""


def load_builtin_pickle(path: Path) -> Any:
    """Read a pickle of protocol 0 to 5 that holds plain data and nothing else.

    Raises:
        DataError: The file is missing, is no pickle, is damaged or has more behind its end, wants
            anything but plain data (which is named), or needs more memory than there is.
    """
    # Classes that this process has unpickled by number before would come without find_class.
    copyreg.clear_extension_cache()
    try:
        with regular(path).open("rb") as file:
            value = _Unpickler(file).load()
            rest = file.read(1)
    except _RefusedError as error:
        raise DataError(
            f"{path}: the pickle asks for {error}, and reading it could run code. Only None, "
            "booleans, numbers, str, bytes, dict, list, tuple, set and frozenset are read; if you "
            "trust the file, convert it to those once, such as by .tolist() of numpy arrays"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except MemoryError:
        raise DataError(
            f"{path}: the pickle needs more memory than there is; copy it again if it is damaged, "
            "or read it on a machine with more"
        ) from None
    except Exception as error:
        # A damaged program can fail in any way; none of them is ours.
        raise DataError(
            f"{path}: no pickle, or a damaged one ({type(error).__name__}: {error}); copy it again"
        ) from None
    if rest:
        raise DataError(f"{path}: there is more behind the end of the pickle; copy it again")
    return value
