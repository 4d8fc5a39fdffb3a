"""Reads the file that tells a side in another process what is measured."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.flair_material import FlairJob, FlairMaterial
from benchmarks.local_training import Material
from benchmarks.workload import Job

AnyMaterial = Material | FlairMaterial


def read_material(path: Path) -> AnyMaterial:
    """Build what a job's file describes."""
    values = json.loads(path.read_text(encoding="utf-8"))
    if "tree" in values:
        return FlairMaterial(FlairJob(**values))
    return Material(Job.read(path))
