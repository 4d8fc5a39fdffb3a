"""Statistics of the clients that a partition makes of a store: how many images of which class."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from pfl_bench.data import Store
from pfl_bench.types import Progress
from tasks.common.images.task import clients_of, read_store
from tasks.common.options import StrictOptions
from tasks.common.partition.options import PartitionOptions, Writers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARTIFICIAL = "artificial clients: they stand for no person"


class Options(StrictOptions):
    """Options of the statistics.

    Attributes:
        partition: As of the task; null for the whole split.
        clients: How many clients are listed, the first ones.
    """

    partition: PartitionOptions | None = None
    clients: int = Field(default=20, ge=1, le=10_000)


def statistics(store: Store, options: Options, progress: Progress) -> dict[str, Any]:
    """Count the images of each client of train by class, JSON-serialisable.

    Returns:
        - "notice": what must be said wherever the counts are shown; None for real clients;
        - "clients": how many there are;
        - "mean", "sd" (population), "min", "max": of their numbers of images;
        - "classes": names of the classes;
        - "counts": by client, the first of them, the images of each class.
    """
    images = read_store(store)["train"]
    found = clients_of("train", images, options.partition)
    progress("counting (clients)", len(found.client_ids), len(found.client_ids))
    sizes = np.diff(found.offsets)
    shown = list(pairwise(found.offsets))[: options.clients]
    classes = list(store.names("targets"))
    counts = [
        np.bincount(images.targets[found.order[start:stop]], minlength=len(classes)).tolist()
        for start, stop in shown
    ]
    is_real = isinstance(options.partition, Writers) and images.writers is not None
    return {
        "notice": None if is_real else ARTIFICIAL,
        "clients": len(sizes),
        "mean": float(sizes.mean()),
        "sd": float(sizes.std()),
        "min": int(sizes.min()),
        "max": int(sizes.max()),
        "classes": classes,
        "counts": dict(zip(found.client_ids, counts, strict=False)),
    }


def format_statistics(statistics: Mapping[str, Any]) -> str:
    """Lay out what ``statistics`` gives as plain text, without a trailing newline."""
    names, counts = statistics["classes"], statistics["counts"]
    width = max(7, *(len(name) + 2 for name in names))
    first = max(map(len, counts)) + 2
    lines = [statistics["notice"].upper()] if statistics["notice"] else []
    one = "client" if statistics["clients"] == 1 else "clients"
    lines.append(
        f"train: {statistics['clients']:,} {one} of {statistics['min']:,} to "
        f"{statistics['max']:,} images, mean {statistics['mean']:.2f}, sd {statistics['sd']:.2f} "
        "(population); images by class:"
    )
    lines.append(f"{'':{first}}" + "".join(f"{name:>{width}}" for name in names) + f"{'all':>9}")
    for client, row in counts.items():
        numbers = "".join(f"{count:>{width},}" for count in row)
        lines.append(f"{client:{first}}{numbers}{sum(row):>9,}")
    if statistics["clients"] == 1:
        lines.append("for a row's clients add its task.partition: 'partition={kind: ...}'")
    left = statistics["clients"] - len(counts)
    if left:
        lines.append(f"and {left:,} clients more (clients=N lists N)")
    return "\n".join(lines)


def figures(statistics: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw what ``statistics`` gives: "images_by_class", bars of the listed clients."""
    from matplotlib.figure import Figure

    counts = np.array(list(statistics["counts"].values()))
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.add_subplot()
    below = np.zeros(len(counts))
    for place, name in enumerate(statistics["classes"]):
        axes.bar(np.arange(len(counts)), counts[:, place], bottom=below, label=name)
        below += counts[:, place]
    axes.set_title("Images of each client by class")
    axes.set_xlabel("client")
    axes.set_ylabel("images")
    axes.legend(fontsize="small")
    return {"images_by_class": figure}
