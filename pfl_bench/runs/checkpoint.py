"""Checkpoints: everything that a resumed run needs, whole or absent, and no pickle."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pfl_bench.files import write_atomically
from pfl_bench.types import RunFolderError, UserInputError

VERSION = 3
_DEEPEST = 50
_NAME = re.compile(r"^step-(\d{8})\.pt$")


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Save tensors, numbers, texts, lists and mappings; remove the oldest files beyond ``keep``.

    ``step`` is the rounds (central training: epochs) that are done. The folder is made when
    missing. OSError if it is not writable or the disk is full; older checkpoints stay.
    """
    folder.mkdir(exist_ok=True)
    content = {"version": VERSION, "step": step, **state}
    content["sha256"] = _digest(content)
    path = folder / f"step-{step:08d}.pt"
    # Straight into the file: a copy in memory would be as large as all vectors of the run.
    write_atomically(path, partial(_write, content))
    for old in _existing(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def _write(content: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(content, file)
    except RuntimeError as error:
        # PyTorch's writer goes on for a little after a write that failed, and stumbles over it.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_latest(folder: Path) -> dict[str, Any] | None:
    """Load the newest checkpoint as ``load`` does, or None when there is none."""
    path = newest(folder)
    return None if path is None else load(path)


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint; RunFolderError if it is damaged, was altered or is of another version."""
    if not path.is_file():  # a pipe would be waited for
        raise RunFolderError(
            f"{path}: no regular file; delete it to resume from the checkpoint before it"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("compressed, and nothing says how large it becomes")
        state = torch.load(path, map_location="cpu", weights_only=True)
        _check_size(state, path.stat().st_size)
    except Exception as error:
        # torch raises a dozen kinds for a file that is cut, foreign or holds a pickle.
        raise RunFolderError(
            f"{path}: damaged or not a checkpoint ({type(error).__name__}); delete this file to "
            "resume from the one before it"
        ) from None
    if not isinstance(state, dict) or repr(state.get("version")) != str(VERSION):
        raise RunFolderError(
            f"{path}: not a checkpoint of version {VERSION}; resume with the pfl-bench that wrote "
            "it, or start in a new folder with --out"
        )
    if repr(state.pop("sha256", None)) != repr(_digest(state)):
        raise RunFolderError(
            f"{path}: its content is not what was saved: the file is damaged or was altered; "
            "delete this file to resume from the one before it"
        )
    if path.name != f"step-{state.get('step')!s:0>8}.pt":
        raise RunFolderError(
            f"{path}: holds step {state.get('step')!r}; give the file its own name again, or "
            "delete it to resume from the one before it"
        )
    return state


def _check_size(state: Any, size: int) -> None:
    """Refuse, by a ValueError, what stands for far more than the ``size`` bytes of its file.

    A tensor may repeat one element by its strides, and a list one member by references.
    """
    pending, left = [(state, 0)], 8 * size
    while pending:
        value, depth = pending.pop()
        left -= 1
        if isinstance(value, Tensor):
            left -= value.numel() * value.element_size()
            if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
                raise ValueError("a tensor of a foreign kind")
        elif isinstance(value, Mapping):
            pending += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, (list, tuple)):
            pending += [(part, depth + 1) for part in value]
        if left < 0 or depth > _DEEPEST:
            raise ValueError("its values are larger or deeper than their file")


@contextmanager
def restoring(
    path: Path | None, state: Mapping[str, Any], fresh: Mapping[str, Any]
) -> Iterator[None]:
    """Check a state's form, and let the block restore it.

    It is of the file ``path``. ``fresh`` is what the run would save before its first step, when
    mappings may still be empty and values None. RunFolderError if the state does not fit, its
    central parameters are not finite, or the block fails: trainers, optimizers and plug-ins raise
    what they like at foreign states.
    """
    try:
        known = {key: state[key] for key in state if key in fresh}
        problem = next(differences(known, dict(fresh)), None)
        central = None if problem else state["trainer"].get("central")
        if isinstance(central, Tensor) and not bool(torch.isfinite(central).all()):
            problem = (
                "its central parameters are not finite: the run diverged, which a lower learning "
                "rate mends, or the file is damaged"
            )
        if problem is None:
            yield
    except UserInputError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        raise RunFolderError(
            f"{path}: a checkpoint that this configuration cannot go on from "
            f"({problem}); delete this file to resume from the one before it, or start in a new "
            "folder with --out"
        )


def differences(saved: Any, form: Any, name: str = "", is_closed: bool = False) -> Iterator[str]:
    """Ways in which a saved state differs from a form, which has values of its kinds and shapes.

    None in a form stands for anything. What a state lacks is a difference, what it has beside the
    form is none. Where the form ``is_closed``, it is the other way round; null may stand anywhere.
    """
    if form is None or (is_closed and saved is None):
        return
    if isinstance(form, Tensor):
        if not isinstance(saved, Tensor) or (saved.shape, saved.dtype) != (form.shape, form.dtype):
            yield f"{name} is no tensor of shape {tuple(form.shape)} and type {form.dtype}"
        elif is_closed and saved.untyped_storage().nbytes() > saved.nbytes:
            yield f"{name} is a part of a larger tensor"
        return
    if type(saved) is not type(form) and {type(saved), type(form)} - {int, float}:
        yield f"{name} is {type(saved).__name__}, not {type(form).__name__}"
        return
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(form, Mapping) and (form or is_closed):
        # More keys may come with the rounds, as the costs of simulated devices do.
        if not is_closed and not saved.keys() >= form.keys():
            yield f"{name or 'it'} has the keys {[*saved]}, not {[*form]}"
            return
        named = {key: f"{name}.{key}".lstrip(".") for key in saved}
        pairs = [(named[key], saved[key], form[key]) for key in form if key in saved]
        if is_closed:
            yield from (f"{named[key]}: no run saves it" for key in saved if key not in form)
    elif isinstance(form, (list, tuple)):
        if is_closed and len(saved) > len(form):
            yield f"{name} has {len(saved)} elements, not {len(form)}"
        elif is_closed or len(saved) == len(form):
            both = enumerate(zip(saved, form, strict=not is_closed))
            pairs = [(f"{name}[{n}]", *pair) for n, pair in both]
    for where, old, new in pairs:
        yield from differences(old, new, where, is_closed)


def _digest(state: Any) -> str:
    """SHA-256 of a state: its keys, types and values in their order."""
    digest = hashlib.sha256()
    _feed(state, digest)
    return digest.hexdigest()


def _feed(value: Any, digest: Any) -> None:
    # Names and lengths go first, so that no two states give the same bytes.
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)}\n".encode())
        if value.numel():
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)}\n".encode())
        for key, item in value.items():
            _feed(key, digest)
            _feed(item, digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__} {len(value)}\n".encode())
        for item in value:
            _feed(item, digest)
    else:
        text = repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)}\n".encode() + text)


def newest(folder: Path) -> Path | None:
    """The newest checkpoint's file; None when there is none."""
    return next(reversed(_existing(folder)), None)


def steps_saved(folder: Path) -> dict[int, Path]:
    """The checkpoints' files by the step that they are of, ascending."""
    return {int(path.stem.removeprefix("step-")): path for path in _existing(folder)}


def _existing(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.match(path.name))
