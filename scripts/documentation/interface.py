"""The API reference: what ``pfl_bench`` offers, and what plug-ins are made of."""

from __future__ import annotations

import pfl_bench

# What a plug-in of each kind builds or is given.
PLUGIN_TYPES = {
    "Algorithm": (
        "pfl_bench.types.Algorithm",
        "pfl_bench.types.UpdateTransform",
        "pfl_bench.types.ClientUpload",
        "pfl_bench.types.LocalTraining",
        "pfl_bench.types.LocalResult",
    ),
    "Mechanism": (
        "privacy.mechanism.Mechanism",
        "privacy.mechanism.NoiseScale",
        "privacy.mechanism.Release",
        "privacy.mechanism.ReplaysNoise",
        "privacy.description.Description",
        "privacy.amplification.Participation",
    ),
    "Task": (
        "pfl_bench.types.Task",
        "pfl_bench.types.FederatedSplit",
        "pfl_bench.types.Examples",
        "pfl_bench.types.DataFacts",
    ),
    "Metric": ("pfl_bench.types.Metric",),
    "Selector": ("pfl_bench.simulation.selectors.Selector",),
    "Aggregation": ("pfl_bench.federated.aggregation.Aggregation",),
    "Tracker": ("pfl_bench.runs.tracker.Tracker", "pfl_bench.runs.tracker.Tracked"),
    "State and errors": (
        "pfl_bench.types.Stateful",
        "pfl_bench.types.UserInputError",
        "privacy.errors.PrivacyError",
    ),
}


def interface_reference() -> str:
    """Directives for mkdocstrings: all names of ``pfl_bench``, then the types of plug-ins."""
    lines = ["## Names of `pfl_bench`\n"]
    lines += [f"::: pfl_bench.{name}\n" for name in pfl_bench.__all__]
    for title, names in PLUGIN_TYPES.items():
        lines.append(f"## For plug-ins: {title}\n")
        lines += [f"::: {name}\n" for name in names]
    return "\n".join(lines)
