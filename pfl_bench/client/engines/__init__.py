"""Engines of local training, one file each; found by name (``pfl_bench.plugins``)."""
