"""Finds the packages, so that a new task or plug-in folder needs no edit; the rest is pyproject."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["pfl_bench*", "privacy*", "tasks*"]),
        "pfl_bench.bundled_configs",
    ],
    package_dir={"pfl_bench.bundled_configs": "configs"},
)
