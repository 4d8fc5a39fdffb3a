"""Federated algorithms, one file each; found by name (``pfl_bench.plugins``)."""
