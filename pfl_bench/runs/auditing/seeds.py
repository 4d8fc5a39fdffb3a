"""The private seed once more, apart from the code that a run derives it by.

Guarantee: settings and code that decide a run's releases are in its seed, even where
``pfl_bench.federated.private_seed`` leaves them out: runs that differ in them share no noise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_bench import plugins
from pfl_bench.client import machine

# Settings that decide no release, or that the seed has by themselves, as slots with the engine.
_APART = {
    "": (
        *("name", "plugins", "device", "num_threads"),
        *("evaluation", "checkpoint", "logging", "expected"),
    ),
    "federated": ("engine", "engine_lanes", "data_workers", "workers"),
    "central": ("data_workers",),
    "task": ("data",),
    "model": ("weights",),
}


def value_of(seed: int, nonce: str | int | None, parts: Mapping[str, Any]) -> int:
    """The private seed of a run's seed, its nonce and all of its recorded parts."""
    return int(_digest([seed, dict(parts) if nonce is None else {"nonce": nonce}]), 16)


def configuration_digest(tree: Mapping[str, Any], has_traces: bool) -> str:
    """Digest of the settings of a configuration that decide what is released, "sha256:<hex>".

    With ``has_traces`` the devices' content has a digest of its own.
    """
    left_out = _APART | ({"systems": ("source",)} if has_traces else {})
    kept = {key: value for key, value in tree.items() if key not in left_out[""]}
    for section, keys in left_out.items():
        if section and (section in kept or section in ("federated", "central")):
            parts = kept.get(section) or {}
            kept[section] = {key: value for key, value in parts.items() if key not in keys}
    return f"sha256:{_digest(kept)}"


def covers_all_code() -> bool:
    """Whether the digest of the code, taken now, is that of the content of all files."""
    digest = hashlib.sha256()
    for package in ("pfl_bench", "privacy", "tasks"):
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in sorted(folder.rglob("*.py")):
                place = path.relative_to(folder)
                if path.is_file() and not any(part.startswith(".") for part in place.parts):
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                    line = f"{package}/{place.as_posix()} {content}\n"
                    digest.update(line.encode())
    for name, content in machine.plugin_digests().items():
        digest.update(f"{name} {content}\n".encode())
    # Past its cache: files may have changed since the process took it.
    taken = machine._digest_of_code.__wrapped__(tuple(plugins.__path__))
    return f"sha256:{digest.hexdigest()}" == taken


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
