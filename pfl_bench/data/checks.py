"""Checks on data on its way into a store: each names the file, the split and the client."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data.layout import TARGETS, FieldSpec, offsets_name
from pfl_bench.data.spool import Spool
from pfl_bench.types import DataError


def check_client_id(client_id: str, where: str) -> None:
    """Refuse an identifier that is no text, empty, has a NUL or is not valid Unicode."""
    if not isinstance(client_id, str) or not client_id or "\0" in client_id:
        raise DataError(
            f"{where}: the client identifier must be a non-empty string without NUL characters."
        )
    _check_unicode(client_id, f"{where}: the client identifier")


def check_names(values: Sequence[str], where: str) -> list[str]:
    """Refuse, by a DataError, names that are no text, empty, no valid Unicode or come twice."""
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if not isinstance(value, str) or not value:
            raise DataError(f"{where}: name {place} is {value!r}; it must be a non-empty string.")
        earlier = places.setdefault(value, place)
        if earlier != place:
            raise DataError(
                f"{where}: {value!r} is name {earlier} and name {place}; a name stands for one "
                "number: leave out the repetition, and number anew what uses it."
            )
        _check_unicode(value, f"{where}: name {place}, {value!r},")
    return list(places)


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} is not valid Unicode ({error.reason}); decode the source with its true "
            "encoding."
        ) from error


def columns_of(
    arrays: Mapping[str, Any], fields: Mapping[str, FieldSpec], num_classes: int | None, where: str
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Check what one ``append`` brings, and turn it into the columns of a spool.

    It brings an array of shape (n, *shape) a field, or n 1-d arrays if ragged. The columns are
    C-contiguous, in the dtype of the file, and come with n. ``num_classes`` is that of an integer
    field "targets"; None leaves it unchecked. ``DataError`` as ``StoreWriter.append`` says.
    """
    if arrays.keys() != fields.keys():
        missing, unknown = sorted(fields.keys() - arrays.keys()), sorted(arrays.keys() - fields)
        raise DataError(
            f"{where}: missing fields {missing}, unknown fields {unknown}; give exactly "
            f"{list(fields)}."
        )
    columns: dict[str, NDArray[Any]] = {}
    lengths: dict[str, int] = {}
    for name, spec in fields.items():
        here = f"{where}, field {name!r}"
        if spec.ragged:
            rows, sizes = _ragged_rows(arrays[name], spec, here)
            columns[offsets_name(name)] = sizes
            lengths[name] = len(sizes)
        else:
            rows = np.asarray(arrays[name])
            if rows.shape[:1] == (0,):
                lengths[name] = 0
                continue
            rows = _exact(rows, spec, here)
            if rows.ndim != len(spec.shape) + 1 or rows.shape[1:] != spec.shape:
                raise DataError(
                    f"{here}: shape {rows.shape} is not (n, *shape) with shape {spec.shape}; "
                    "reshape the examples, or check the source for damaged ones."
                )
            lengths[name] = len(rows)
        columns[name] = rows
        if num_classes and name == TARGETS and spec.numpy_dtype.kind in "iu":
            _check_targets(rows, num_classes, here)
    if len(set(lengths.values())) != 1:
        raise DataError(
            f"{where}: the fields differ in their number of examples: {lengths}. Every field "
            "needs one value an example."
        )
    count = next(iter(lengths.values()))
    if count < 1:
        raise DataError(
            f"{where}: zero examples. Every client needs at least one; leave the client out."
        )
    return count, columns


def _ragged_rows(values: Any, spec: FieldSpec, here: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise DataError(
            f"{here}: a ragged field takes a list of one 1-d array an example, not "
            f"{type(values).__name__}."
        )
    items = []
    for index, value in enumerate(values):
        item = np.asarray(value)
        if item.ndim != 1:
            raise DataError(f"{here}: example {index} has shape {item.shape}; it must be 1-d.")
        # An empty Python list has no dtype of its own; NumPy calls it float64.
        items.append(_exact(item, spec, here) if item.size else np.empty(0, spec.numpy_dtype))
    flat = np.concatenate(items) if items else np.empty(0, spec.numpy_dtype)
    return flat, np.array([len(item) for item in items], dtype="<i8")


def _exact(values: NDArray[Any], spec: FieldSpec, here: str) -> NDArray[Any]:
    """Values in the dtype of the field, C-contiguous; refused if one would change."""
    dtype = spec.numpy_dtype
    # NumPy calls int64 to float64 safe, though it rounds beyond 2^53.
    rounds = values.dtype.kind in "iu" and dtype.kind == "f"
    if values.dtype == dtype or (np.can_cast(values.dtype, dtype, "safe") and not rounds):
        return np.ascontiguousarray(values, dtype=dtype)
    numbers = "iuf" if dtype.kind == "f" else "iu"
    if values.dtype.kind not in numbers or dtype.kind == "b":
        raise DataError(
            f"{here}: dtype {values.dtype} does not fit the field's {spec.dtype}; convert it "
            "first, knowing what rounding or mapping is right."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
        back = cast.astype(values.dtype)
    same = (back == values) | ((back != back) & (values != values))
    # Between signed and unsigned the way back undoes the wrapping round: signs must agree.
    same &= (cast < 0) == (values < 0)
    if not same.all():
        example = values[~same].reshape(-1)[0]
        raise DataError(
            f"{here}: value {example} of dtype {values.dtype} cannot be held exactly by the "
            f"field's {spec.dtype}; declare a wider field, or round it first if that is meant."
        )
    return np.ascontiguousarray(cast)


def _check_targets(rows: NDArray[Any], num_classes: int, here: str) -> None:
    if rows.size and (rows.min() < 0 or rows.max() >= num_classes):
        wrong = rows[(rows < 0) | (rows >= num_classes)].reshape(-1)[0]
        raise DataError(
            f"{here}: label {wrong} is outside 0..{num_classes - 1} (num_classes is "
            f"{num_classes}). Check that the source is the variant that was asked for."
        )


def check_train_differs_from_test(
    train: Spool, test: Spool, fields: Mapping[str, FieldSpec], path: Path
) -> None:
    """Refuse data whose test examples are the training examples once more.

    Splits by example share clients rightly. But if every client of both has exactly the same
    examples in both, in whatever order, then the source was not split. The comparison stops at
    the first client that differs, so that it costs next to nothing on sound data.
    """
    common = sorted(train.clients.keys() & test.clients.keys())
    if not common:
        return
    train_counts, test_counts = train.examples_per_client(), test.examples_per_client()
    if any(train_counts[train.clients[one]] != test_counts[test.clients[one]] for one in common):
        return
    train_segments, test_segments = train.segments_by_number(), test.segments_by_number()
    for client_id in common:
        ours = _example_digests(train, train_segments(train.clients[client_id]), fields)
        theirs = _example_digests(test, test_segments(test.clients[client_id]), fields)
        if ours != theirs:
            return
    raise DataError(
        f"{path}: split 'test' repeats split 'train': all {len(common)} clients that are in both, "
        f"such as {common[0]!r}, have exactly the same examples in both. Test results would be "
        "training results. Get the whole source, or split it anew."
    )


def _example_digests(
    spool: Spool, segments: NDArray[np.int64], fields: Mapping[str, FieldSpec]
) -> list[bytes]:
    """A digest of each example over all fields, sorted."""
    digests: list[Any] = []
    for name, spec in fields.items():
        data = b"".join(block.tobytes() for block in spool.gather(name, segments))
        if spec.ragged:
            sizes = b"".join(
                block.tobytes() for block in spool.gather(offsets_name(name), segments)
            )
            ends = np.cumsum(np.frombuffer(sizes, dtype="<i8")) * spec.row_bytes
        else:
            ends = np.arange(spec.row_bytes, len(data) + 1, spec.row_bytes)
        digests = digests or [hashlib.blake2b(digest_size=16) for _ in ends]
        start = 0
        for digest, end in zip(digests, ends.tolist(), strict=True):
            digest.update((end - start).to_bytes(8, "little"))
            digest.update(data[start:end])
            start = end
    return sorted(digest.digest() for digest in digests)
