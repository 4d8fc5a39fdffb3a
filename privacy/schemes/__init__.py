"""Sampling schemes, one module each, found by name: a new file is a new scheme."""
