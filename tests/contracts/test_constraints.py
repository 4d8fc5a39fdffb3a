"""constraints.txt fits every Python that the package allows: pip searches for hours where not."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

from packaging.specifiers import SpecifierSet

from tests.helpers import REPOSITORY


def test_versions_allow_the_oldest_python() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    asked, others = {}, []
    for name, version in pinned.items():
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue  # of an extra that the tests do without
        if found["Version"] == version.split(";")[0].strip():
            asked[name] = found.get("Requires-Python", "")
        else:
            others.append(name)
    assert len(asked) + len(others) > 100
    assert {name: text for name, text in asked.items() if "3.11.0" not in SpecifierSet(text)} == {}
