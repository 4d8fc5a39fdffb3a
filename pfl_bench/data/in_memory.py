"""Splits of examples that lie in memory: a small task's, or a user's of the Python interface."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, Examples, FederatedSplit, SplitBy

if TYPE_CHECKING:
    from torch import Tensor


Split = TypeVar("Split", bound="FederatedSplit")


def split_named(name: str, splits: Mapping[str, Split], task: str) -> Split:
    """Give one of a task's splits; DataError if there is none of that name."""
    if name not in splits:
        raise DataError(f"task {task} has no split {name!r}; choose from {', '.join(splits)}")
    return splits[name]


def user_range(split: FederatedSplit, user: int) -> tuple[int, int]:
    """First example of a user, and one past the last; IndexError if there is no such user."""
    if not 0 <= user < split.num_users:
        raise IndexError(
            f"user {user} of split {split.name!r}: there are users 0 to {split.num_users - 1}"
        )
    return int(split.offsets[user]), int(split.offsets[user + 1])


def check_examples(split: str, num_examples: int, indices: NDArray[np.int64]) -> None:
    """Refuse, by an IndexError, examples, shape (n,), of which one is not in the split."""
    outside = indices[(indices < 0) | (indices >= num_examples)]
    if len(outside):
        raise IndexError(
            f"example {outside[0]} of split {split!r}: there are examples 0 to {num_examples - 1}"
        )


class InMemorySplit:
    """One split in memory.

    Args:
        name: Name of the split.
        inputs: Shape (n, ...).
        targets: Shape (n, ...).
        offsets: Shape (U + 1,), int64: user u owns the examples ``offsets[u]:offsets[u + 1]``.
        client_ids: The users' U names.

    Raises:
        DataError: Offsets, names, inputs and targets contradict each other.

    Attributes:
        name: Name of the split.
        offsets: As given.
        num_users: Number of users, U.
        num_examples: Number of examples of all users, n.
    """

    def __init__(
        self,
        name: str,
        inputs: Tensor,
        targets: Tensor,
        offsets: NDArray[np.int64],
        client_ids: Sequence[str],
    ) -> None:
        begins, are_whole = offsets[:1].tolist() == [0], offsets.dtype.kind in "iu"
        are_sorted = are_whole and begins and bool((offsets[1:] >= offsets[:-1]).all())
        all_sizes = {len(inputs), len(targets), *offsets[-1:].tolist()}
        if not are_sorted or len(offsets) != len(client_ids) + 1 or len(all_sizes) > 1:
            raise DataError(
                f"split {name!r}: {len(offsets)} offsets of {offsets.dtype} from {offsets[:1]} to "
                f"{offsets[-1:]} for {len(client_ids)} client_ids, {len(inputs)} inputs and "
                f"{len(targets)} targets; offsets are whole numbers, one more than client_ids, "
                "that begin at 0, never fall, and end at the number of inputs and of targets"
            )
        self.name = name
        self.offsets = offsets
        self.num_users = len(offsets) - 1
        self.num_examples = int(offsets[-1])
        self._inputs = inputs
        self._targets = targets
        self._client_ids = client_ids

    def client_ids(self) -> list[str]:
        """The users' names, in the order of ``offsets``."""
        return list(self._client_ids)

    def content(self) -> list[NDArray[np.generic]]:
        """Inputs (little-endian float32), targets and offsets (int64), for a digest.

        Returns:
            Of shapes (N, ...), (N, ...) and (U + 1,): N examples of U users.
        """
        return [
            self._inputs.numpy().astype("<f4", copy=False),
            self._targets.numpy().astype("<i8", copy=False),
            self.offsets.astype("<i8", copy=False),
        ]

    def check_classes(self, num_classes: int, said_by: str, are_labels: bool = False) -> None:
        """Refuse, by a DataError that names the user, whole-number targets that are no class.

        ``said_by`` says what has ``num_classes``, such as "the model has 3 outputs"; with
        ``are_labels`` one number an example that is not of a type of labels is refused too.
        """
        targets = self._targets
        is_label = str(targets.dtype) in ("torch.int64", "torch.uint8")
        if are_labels and targets.ndim == 1 and not is_label:
            raise DataError(
                f"{self.name}, user {self._client_ids[0]!r}, targets: are of {targets.dtype}, but "
                f"{said_by}; targets are whole numbers from 0 to {num_classes - 1}, of torch.int64"
            )
        wrong = (targets < 0) | (targets >= num_classes)
        if targets.numpy().dtype.kind not in "iu" or not wrong.any():
            return
        raise DataError(
            f"{self.name}, user {self.first_user(wrong)!r}, targets: go from {int(targets.min())} "
            f"to {int(targets.max())}, but {said_by}; targets are whole numbers from 0 to "
            f"{num_classes - 1}"
        )

    def first_user(self, wrong: Tensor) -> str:
        """Identifier of the user of the first example of which ``wrong``, (n, ...), has a true."""
        place = int(wrong.nonzero()[0, 0])
        return self._client_ids[int(np.searchsorted(self.offsets[1:], place, side="right"))]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a user's examples; nothing is random here, so ``rng`` stays untouched.

        Raises:
            IndexError: There is no such user.
        """
        return self.read_range(*user_range(self, user))

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` as fresh tensors.

        Raises:
            IndexError: The range leaves the split.
        """
        self._check_range(start, stop)
        return Examples(self._inputs[start:stop].clone(), self._targets[start:stop].clone())

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples, in the order of ``indices``; ``rng`` stays untouched.

        Raises:
            IndexError: An index is outside the split.
        """
        check_examples(self.name, self.num_examples, indices)
        # Here, because preparing data needs no torch, which alone takes 0.3 GB.
        import torch

        chosen = torch.from_numpy(indices)
        return Examples(self._inputs[chosen], self._targets[chosen])

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_examples:
            raise IndexError(
                f"examples {start}:{stop} of split {self.name!r}: "
                f"must lie within 0:{self.num_examples}"
            )


_ALLOWED = "a pair (inputs, targets) of arrays or tensors, or a map-style Dataset of such pairs"


def read_splits(
    given: Mapping[str, Any], integer_targets: bool | None
) -> tuple[dict[str, InMemorySplit], SplitBy, str]:
    """Copy the examples of each split's users into tensors of their own.

    Targets are classes (int64) or, if not ``integer_targets``, numbers (float32); None for either,
    as they are given. The splits come with how they divide the data and the digest of the content.
    ``DataError`` names the split and the user that cannot be trained on.
    """
    splits: dict[str, InMemorySplit] = {}
    digest = hashlib.sha256()
    like: tuple[Any, ...] | None = None
    for name, users in given.items():
        if users is None and name != "train":
            continue
        if not isinstance(users, Mapping) or not users:
            what = "is empty" if isinstance(users, Mapping) else f"is a {type(users).__name__}"
            raise DataError(f"{name}: {what}; give a dict of at least one user, each {_ALLOWED}")
        ids = [str(user) for user in users]
        twice = next((user for user, count in Counter(ids).items() if count > 1), None)
        if twice is not None:
            raise DataError(f"{name}: two users are {twice!r} as text; give each another name")
        pairs = [
            _examples(f"{name}, user {user!r}", examples, integer_targets)
            for user, examples in users.items()
        ]
        for user, pair in zip(ids, pairs, strict=True):
            now = tuple((part.shape[1:], part.dtype) for part in pair)
            like = like or now
            if now != like:
                raise DataError(
                    f"{name}, user {user!r}: an example is {_words(now)}, and that of the first "
                    f"user of train {_words(like)}; all examples have the same shapes and types"
                )
        splits[name] = _joined(name, ids, pairs, digest)
    held_out = {user for name in splits if name != "train" for user in splits[name].client_ids()}
    known = held_out & set(splits["train"].client_ids())
    if known and known != held_out:
        raise DataError(
            f"val and test: user {min(held_out - known)!r} is not in train, and user "
            f"{min(known)!r} is; give either users who are all in train (their examples are "
            "split) or users of whom none is"
        )
    return splits, "example" if known else "user", f"sha256:{digest.hexdigest()}"


def _joined(
    name: str, ids: list[str], pairs: Sequence[tuple[Tensor, Tensor]], digest: Any
) -> InMemorySplit:
    """One split of all users' examples, taken into the digest."""
    import torch

    inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    offsets = np.cumsum([0, *(len(pair[0]) for pair in pairs)]).astype(np.int64)
    for part in (inputs, targets, torch.from_numpy(offsets)):
        digest.update(f"{name} {part.dtype} {list(part.shape)}\n".encode())
        digest.update(part.contiguous().numpy().tobytes())
    digest.update(repr(ids).encode())
    return InMemorySplit(name, inputs, targets, offsets, ids)


def _words(kinds: tuple[Any, ...]) -> str:
    return " with target ".join(f"{dtype} {list(shape)}" for shape, dtype in kinds)


def _examples(where: str, given: Any, integer_targets: bool | None) -> tuple[Tensor, Tensor]:
    """One user's examples: inputs float32 (int64 if whole numbers), and targets."""
    if not isinstance(given, tuple | list):
        given = _read_dataset(where, given)
    if len(given) != 2:
        raise DataError(f"{where}: has {len(given)} parts; give {_ALLOWED}")
    inputs, targets = (
        _tensor(f"{where}, {part}", value)
        for part, value in zip(("inputs", "targets"), given, strict=True)
    )
    if len(inputs) != len(targets) or not len(inputs):
        what = f"{len(inputs)} inputs and {len(targets)} targets"
        mend = "give a target for each input" if len(inputs) or len(targets) else "leave it out"
        raise DataError(f"{where}: has {what}; {mend}")
    if integer_targets is not None and targets.dtype.is_floating_point == integer_targets:
        wanted, array, tensor = (
            ("whole numbers, the class of each", "astype(int)", "long()")
            if integer_targets
            else ("floats from 0 to 1", "astype(float)", "float()")
        )
        raise DataError(
            f"{where}, targets: are {targets.dtype}; the loss takes {wanted}: convert an array by "
            f".{array}, a tensor by .{tensor}"
        )
    return inputs, targets


def _tensor(where: str, value: Any) -> Tensor:
    import torch

    _check_mask(where, value)
    try:
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else None
        if tensor is None:
            array = np.asarray(value)
            if array.dtype.kind not in "fiub":
                raise TypeError(f"{array.dtype} holds no numbers")
            array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
            # One of pandas may be read-only, of which torch warns.
            tensor = torch.from_numpy(np.require(array, requirements="W"))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: {type(value).__name__} is no array of numbers ({error}); give floats or "
            "whole numbers, all examples of one shape"
        ) from None
    if not tensor.ndim or tensor.is_complex() or tensor.layout != torch.strided:
        raise DataError(
            f"{where}: {tensor.dtype} of shape {list(tensor.shape)}; give a dense array of real "
            "numbers whose first axis counts the examples"
        )
    if tensor.dtype.is_floating_point and not tensor.isfinite().all():
        place = int((~tensor.isfinite()).flatten(1 if tensor.ndim > 1 else 0).nonzero()[0, 0])
        raise DataError(f"{where}: example {place} holds NaN or infinity; mend or leave it out")
    # float64 beyond float32's range would become infinite.
    cast = tensor.to(torch.float32 if tensor.dtype.is_floating_point else torch.int64, copy=True)
    if cast.dtype.is_floating_point and not cast.isfinite().all():
        raise DataError(f"{where}: holds numbers beyond float32; scale them")
    return cast


def _check_mask(where: str, value: Any) -> None:
    """Refuse a masked array, or a list of arrays of which one is: a tensor has no mask."""
    if any(np.ma.is_masked(one) for one in (value if isinstance(value, list | tuple) else [value])):
        raise DataError(
            f"{where}: numbers are masked, and would be trained on; fill them (filled), or leave "
            "their examples out"
        )


def _read_dataset(where: str, given: Any) -> tuple[Any, Any]:
    """Inputs and targets of a map-style Dataset, each read once."""
    import torch

    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")) or hasattr(given, "keys"):
        raise DataError(f"{where}: is a {type(given).__name__}; give {_ALLOWED}")
    inputs, targets = [], []
    for index in range(len(given)):
        item = given[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{where}: item {index} is no pair (input, target); give {_ALLOWED}")
        _check_mask(f"{where}, item {index}", item)
        inputs.append(np.asarray(item[0]))
        targets.append(np.asarray(item[1]))
    if inputs and not np.array_equal(inputs[0], np.asarray(given[0][0])):
        raise DataError(
            f"{where}: item 0 differs between two reads (a random transform?); give the examples "
            "without it: they are read once"
        )
    try:
        return (np.stack(inputs), np.stack(targets)) if inputs else (torch.empty(0),) * 2
    except ValueError as error:
        raise DataError(f"{where}: items of unlike shapes ({error}); make them alike") from None
