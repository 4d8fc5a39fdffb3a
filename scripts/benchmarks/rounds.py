"""Times rounds of a task's models, tells what was found, and writes it down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.common import Machine, write_json
from benchmarks.options import read_options
from benchmarks.page import details, markdown
from benchmarks.sides import measure, missing_peers, tell
from benchmarks.workload import Workload


def run(
    description: str, loads: Mapping[str, Workload], make_store: Callable[[Path], None]
) -> None:
    """Read the command line, time the sides with and without privacy, report.

    Args:
        description: For the command's help.
        loads: What the sides train, by the model's name.
        make_store: Writes the data.
    """
    options = read_options(description, tuple(loads))
    absent = missing_peers(options.peers)
    options = options.without(absent)
    for line in absent.values():
        tell(line)
    machine = Machine()
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        store = Path(folder) / "generated.h5"
        make_store(store)
        for name in options.only:
            load = loads[name]
            if options.cohort_size is not None:
                load = replace(load, cohort_size=options.cohort_size)
            for private in options.kinds:
                place = Path(folder) / f"{name}-{private}"
                results.append(measure(store, load, private, options, place))
                tell("\n".join(details(results[-1:])))
    task = next(iter(loads.values())).task
    report = {"subject": task, "machine": machine.describe(), "results": results}
    if options.json is not None:
        write_json(options.json, report)
    print(markdown([report]))
