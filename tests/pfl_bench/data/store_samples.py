"""Small stores that tests write, damage and read."""

import numpy as np

from pfl_bench.data import FieldSpec, StoreWriter

FIELDS = {
    "inputs": FieldSpec("uint8", (4,)),
    "targets": FieldSpec("uint8"),
    "tags": FieldSpec("int32", ragged=True),
}


def writer(path, split_by="user", **changes):
    """A writer of a small store, three classes; ``changes`` replace its arguments."""
    arguments = {
        "task": "toy",
        "variant": "v",
        "source": "s",
        "split_by": split_by,
        "num_classes": 3,
        "input_shape": (4,),
        "fields": FIELDS,
    }
    return StoreWriter(path, **{**arguments, **changes})


def data(count=2, value=1, **changes):
    """What one append brings; ``changes`` replace fields."""
    arrays = {
        "inputs": np.full((count, 4), value, np.uint8),
        "targets": np.arange(count) % 3,
        "tags": [[value] * index for index in range(count)],
    }
    return {**arrays, **changes}


def fill(path, *pieces, split_by="user"):
    """Write a store of (split, client, arrays) pieces."""
    with writer(path, split_by) as store:
        for split, client_id, arrays in pieces:
            store.append(split, client_id, **arrays)


def fill_users(path):
    """Write a sound store: users u00..u20 in train, u21..u29 in test, three examples each."""
    splits = ["train"] * 21 + ["test"] * 9
    fill(path, *[(split, f"u{user:02d}", data(3, user)) for user, split in enumerate(splits)])
